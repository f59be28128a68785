"""Operators over more elements than 32 bits count."""

import pytest
import torch
from tests.gpu.cuda_cases import DEVICE, backward_of
from tests.ops import operator_cases as cases_of
from tests.ops.operator_cases import cast, relative

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.operator import OPERATORS

pytestmark = pytest.mark.usefixtures("exact_float32")


@torch.no_grad()
def test_more_elements_than_32_bits_count():
    if torch.cuda.mem_get_info()[0] < 48 * 2**30:
        pytest.skip("wants 48 GiB")
    few = cast(cases_of.norm_fire_inputs((1, 16, 1024, 1024), relaxed=True, keep=False), torch.bfloat16, DEVICE)
    few = few._replace(firing=few.firing._replace(relaxed=False))
    many = few._replace(x=few.x.expand(130, -1, -1, -1).contiguous())
    assert many.x.numel() > 2**31
    with kernels("triton"):
        alone, together = (OPERATORS["norm_fire"](one) for one in (few, many))
        for index in (0, 3):
            assert torch.equal(together[index][-1], alone[index][0])
        del together
        # the gradient of the operand alone
        arguments = [OPERATORS["norm_fire"].flatten(one) for one in (few, many)]
        grads = [backward_of("norm_fire")(*one, *[None] * 3, one[0], *[None] * 3)[0] for one in arguments]
        assert torch.equal(grads[1][-1], grads[0][0])
        del grads
        moments = [torch.ops.ripe.step_moments(one.x) for one in (many, few)]
        for one, wanted in zip(*moments, strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_leaky_neurons_of_more_elements_than_32_bits_count():
    """Steps first in memory, so that all samples are one group."""
    if torch.cuda.mem_get_info()[0] < 48 * 2**30:
        pytest.skip("wants 48 GiB")
    few = cast(cases_of.leaky_fire_inputs((1, 17, 1024), resumed=False), torch.bfloat16, DEVICE)
    many = few._replace(x=few.x.repeat(1, 1, 130_000))
    assert many.x.numel() > 2**31
    with kernels("triton"):
        for step in (lambda i: OPERATORS["leaky_fire"](i), lambda i: backward_of("leaky_fire")(*i, i.x, None)[:1]):
            for together, alone in zip(step(many), step(few), strict=True):
                assert torch.equal(together[..., -1024:], alone)


@pytest.mark.parametrize("stride", [1, 2])
@torch.no_grad()
def test_more_images_than_32_bits_count(stride):
    """Only the last of the images is not silent: the moments are its own, spread over all."""
    last = (torch.randn(1, 1, 64, 64, 32, device=DEVICE) + 0.3).bfloat16()
    images = 2**31 // last.numel() + 2
    x = torch.zeros(images, *last.shape[1:], dtype=torch.bfloat16, device=DEVICE)
    x[-1] = last[0]
    grads = torch.randn(288, device=DEVICE), torch.randn(288, 288, device=DEVICE)
    with kernels("triton"):
        given, wanted = (torch.ops.ripe.patch_moments(one, stride) for one in (x, last))
        given_grad, wanted_grad = (backward_of("patch_moments")(one, stride, *grads)[-1:] for one in (x, last))
    for one, other in zip(given, wanted, strict=True):
        assert relative((one * images).cpu(), other.cpu()) < 1e-4
    assert relative((given_grad * images).cpu(), wanted_grad.cpu()) < 1e-2
