"""Patch moments on a GPU, at the sizes of training, against patches written out."""

import pytest
import torch
from comparing import relative

from ripe_mambaspike.ops.patch_moments import patch_moments, patch_moments_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

CASES = [  # stride, [B, T, H, W, C]
    (1, (2, 3, 64, 64, 32)),
    (1, (4, 10, 17, 17, 32)),
    (1, (4, 10, 9, 9, 64)),
    (1, (8, 10, 5, 5, 128)),
    (1, (1, 2, 28, 28, 96)),
    (1, (1, 2, 14, 13, 384)),
    (1, (3, 1, 1, 1, 32)),
    (1, (3, 1, 1, 7, 16)),
    (1, (3, 1, 2, 3, 48)),
    (1, (2, 2, 6, 5, 3)),
    (2, (2, 4, 128, 128, 2)),
    (2, (4, 10, 34, 34, 2)),
    (2, (2, 3, 64, 64, 32)),
    (2, (4, 10, 17, 17, 32)),
    (2, (4, 10, 9, 9, 64)),
    (2, (1, 2, 28, 28, 192)),
    (2, (3, 1, 1, 1, 32)),
    (2, (3, 1, 2, 3, 16)),
]


def values(shape, dtype=torch.float32):
    generator = torch.Generator("cuda").manual_seed(0)
    return (torch.randn(shape, generator=generator, device="cuda") + 0.3).to(dtype)


def evaluate(fn, x, stride):
    """Both moments and the gradient of x under a fixed cotangent."""
    x = x.detach().clone().requires_grad_()
    outputs = fn(x, stride)
    generator = torch.Generator("cuda").manual_seed(1)
    cotangents = [torch.randn(one.shape, generator=generator, device="cuda").to(one.dtype) for one in outputs]
    return [*(one.detach() for one in outputs), *torch.autograd.grad(outputs, x, cotangents)]


@pytest.mark.parametrize(("stride", "shape"), CASES, ids=str)
def test_float32(stride, shape):
    x = values(shape)
    expected = evaluate(patch_moments_reference, x.double(), stride)
    given = evaluate(patch_moments, x, stride)
    for name, one, wanted in zip(("mean", "second", "gradient"), given, expected, strict=True):
        assert one.dtype == torch.float32
        assert relative(one, wanted) < 1e-5, name


@pytest.mark.parametrize(("stride", "shape"), CASES, ids=str)
def test_bfloat16(stride, shape):
    x = values(shape, torch.bfloat16)
    expected = evaluate(patch_moments_reference, x.double(), stride)
    given = evaluate(patch_moments, x, stride)
    assert [one.dtype for one in given] == [torch.float32, torch.float32, torch.bfloat16]
    for name, one, wanted, limit in zip(
        ("mean", "second", "gradient"), given, expected, (1e-5, 1e-4, 1e-2), strict=True
    ):
        assert relative(one, wanted) < limit, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("stride", "shape"), [(1, (4, 10, 17, 17, 32)), (1, (2, 5, 5, 5, 128)), (2, (2, 4, 34, 34, 2))]
)
def test_twice_the_same_bits(stride, shape, dtype):
    x = values(shape, dtype)
    first, second = (evaluate(patch_moments, x, stride) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("stride", [1, 2])
def test_captured_in_a_graph(stride):
    x = values((2, 3, 9, 9, 32), torch.bfloat16)
    grads = torch.randn(288, device="cuda"), torch.randn(288, 288, device="cuda")

    def both():
        return [*torch.ops.ripe.patch_moments(x, stride), torch.ops.ripe.patch_moments_backward(x, *grads, stride)]

    both()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    x.copy_(values(x.shape, torch.bfloat16) * 2)
    graph.replay()
    for one, wanted in zip(captured, both(), strict=True):
        assert torch.equal(one, wanted)


@pytest.mark.parametrize("stride", [1, 2])
def test_more_numbers_than_32_bits_count(stride):
    """Only the last of the images is not silent: the moments are its own, spread over all."""
    last = values((1, 1, 64, 64, 32), torch.bfloat16)
    count = 2**31 // last.numel() + 2
    x = torch.zeros(count, *last.shape[1:], dtype=torch.bfloat16, device="cuda")
    x[-1] = last[0]
    for given, wanted in zip(patch_moments(x, stride), patch_moments(last, stride), strict=True):
        assert relative(given * count, wanted) < 1e-4
    grads = torch.randn(288, device="cuda"), torch.randn(288, 288, device="cuda")
    backward = torch.ops.ripe.patch_moments_backward
    assert relative(backward(x, *grads, stride)[-1:] * count, backward(last, *grads, stride)) < 1e-2
