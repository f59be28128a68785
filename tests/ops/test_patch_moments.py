"""The Triton kernels of `patch_moments`, run by Triton's interpreter, at sizes where their tiles do not fit."""

import pytest
import torch
from tests.ops import operator_cases as case
from tests.ops.operator_cases import Run, assert_same_bits, check, evaluate, relative

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.patch_moments import PatchMomentsInputs, cpu

pytest.importorskip("triton", reason="Triton is not installed")
IN_TRITON = Run("triton")


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    "size", [(1, 1, 5), (1, 2, 18), (2, 1, 1), (2, 2, 20), (7, 1, 6), (2, 5, 16), (4, 3, 19)], ids=str
)
def test_any_height_width_and_number_of_channels(stride, size):
    check("patch_moments", case.patch_moments_inputs(stride, 2, 1, *size), IN_TRITON)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(3, 4, 33), (2, 2, 65)], ids=str)
def test_more_channels_than_a_block_has(stride, size):
    check("patch_moments", case.patch_moments_inputs(stride, 1, 2, *size), IN_TRITON)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(1, 150, 3), (11, 9, 17)], ids=str)
def test_sums_in_many_steps(monkeypatch, stride, size):
    """Positions in several tiles along each axis, and partial sums in several steps."""
    monkeypatch.setattr("ripe_mambaspike.ops.patch_moments.triton_sums.TILE", 128)
    i = case.patch_moments_inputs(stride, 3, 1, *size)
    expected, _ = evaluate("patch_moments", i)
    given, _ = evaluate("patch_moments", i, IN_TRITON)
    assert relative(given["mean"], expected["mean"]) < 1e-7
    assert relative(given["second"], expected["second"]) < 1e-6


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [4, 17])
def test_the_second_moment_is_symmetric_whatever_memory_held(stride, channels, poisoned_empty):
    outputs, _ = evaluate("patch_moments", case.patch_moments_inputs(stride, 2, 1, 5, 3, channels), IN_TRITON)
    torch.testing.assert_close(outputs["second"], outputs["second"].T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_in_any_memory_order(stride):
    from ripe_mambaspike.ops.patch_moments import triton

    generator = torch.Generator().manual_seed(0)
    i = PatchMomentsInputs(torch.randn(2, 1, 3, 4, 5, generator=generator), stride)
    every_other = torch.randn(90, 90, generator=generator)[:, ::2][::2]
    for mean, second in ((every_other[:, 3], every_other), (torch.ones(()).expand(45), every_other.T)):
        (given,) = triton.patch_moments_backward(i, (mean, second))
        (expected,) = triton.patch_moments_backward(i, (mean.contiguous(), second.contiguous()))
        assert_same_bits([{"x": given}], [{"x": expected}])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(4, 5, 18), (3, 3, 6), (2, 4, 16)], ids=str)
def test_half_precision_is_rounded_once_or_twice(stride, size):
    """float16 in place of bfloat16, whose products the interpreter does not compute."""
    generator = torch.Generator().manual_seed(0)
    x, entries = torch.randn(2, 2, *size, generator=generator).half(), 9 * size[-1]
    grads = torch.randn(entries, generator=generator), torch.randn(entries, entries, generator=generator)
    with kernels("triton"):
        moments = torch.ops.ripe.patch_moments(x, stride)
        grad = torch.ops.ripe.patch_moments_backward(x, stride, *grads)
    assert [one.dtype for one in (*moments, grad)] == [torch.float32, torch.float32, torch.float16]
    exact = PatchMomentsInputs(x.float(), stride)
    for one, expected in zip(moments, cpu.patch_moments(exact), strict=True):
        assert relative(one, expected) < 1e-6
    assert relative(grad, cpu.patch_moments_backward(exact, grads)[0]) < 1e-3
