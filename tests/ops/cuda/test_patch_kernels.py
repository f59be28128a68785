"""Patch moments by Triton kernels, in the interpreter where there is no GPU, against patches written out in float64."""

import pytest
import torch

from ripe_mambaspike.ops.patch_moments import patch_moments, patch_moments_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = [(1, 1), (1, 4), (2, 1), (2, 2), (3, 3), (5, 4)]


def relative(given, expected):
    """Largest difference over largest magnitude."""
    return ((given.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def values(*shape):
    """Not centred, so that the mean matters."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.3


def moments(stride):
    return lambda x: tuple(one.cpu() for one in patch_moments(x.to(DEVICE), stride))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("stride", "channels"), [(1, 3), (1, 17), (1, 32), (2, 2), (2, 17)])
def test_moments_and_gradient_are_the_references(evaluate, stride, channels, size):
    inputs = {"x": values(2, 2, *size, channels)}
    expected = evaluate(lambda x: patch_moments_reference(x, stride), inputs)
    outputs, gradients = evaluate(moments(stride), inputs, torch.float32)
    assert [output.dtype for output in outputs] == [torch.float32] * 2
    for output, wanted in zip(outputs, expected[0], strict=True):
        assert output.shape == wanted.shape
        assert relative(output, wanted) < 3e-6
    assert relative(gradients["x"], expected[1]["x"]) < 3e-6


@pytest.mark.parametrize(("stride", "channels"), [(1, 16), (1, 70), (2, 9)])
def test_several_splits_and_blocks(monkeypatch, evaluate, stride, channels):
    """Longer sums than one program takes, more channels than one tile holds, and a temporary in parts."""
    monkeypatch.setattr("ripe_mambaspike.ops.patch_moments.triton_kernels.PROGRAMS", 4)
    monkeypatch.setattr("ripe_mambaspike.ops.patch_moments.triton.LARGEST_TEMPORARY", 9 * channels * 12 * 4 * 2)
    monkeypatch.setattr("ripe_mambaspike.ops.patch_moments.triton.MOST_NUMBERS", 2 * channels * 6 * 7)
    inputs = {"x": values(3, 1, 6, 7, channels)}
    expected = evaluate(lambda x: patch_moments_reference(x, stride), inputs)
    outputs, gradients = evaluate(moments(stride), inputs, torch.float32)
    for output, wanted in zip(outputs, expected[0], strict=True):
        assert relative(output, wanted) < 3e-6
    assert relative(gradients["x"], expected[1]["x"]) < 3e-6


@pytest.mark.parametrize(("stride", "channels"), [(1, 16), (1, 2), (2, 3)])
def test_reproducible(reproducible, stride, channels):
    reproducible(moments(stride), {"x": values(1, 2, 5, 4, channels)})


@pytest.mark.parametrize("channels", [3, 16])
def test_the_second_moment_is_symmetric_and_holds_the_variance(channels):
    x = values(2, 1, 4, 5, channels).float()
    mean, second = moments(1)(x)
    torch.testing.assert_close(second, second.T, rtol=0, atol=1e-6)
    kernel = torch.randn(9 * channels, generator=torch.Generator().manual_seed(1))
    weight = kernel.view(1, 3, 3, channels).permute(0, 3, 1, 2)
    out = torch.nn.functional.conv2d(x.flatten(0, 1).permute(0, 3, 1, 2), weight, padding=1)
    variance = kernel @ second @ kernel - (kernel @ mean) ** 2
    torch.testing.assert_close(variance, out.var(correction=0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("pixels", [1, 31, 1000, 2_097_152, 30_000_000])
@pytest.mark.parametrize("programs", [1, 4, 117])
def test_splits_cover_all_pixels_and_none_is_empty(pixels, programs):
    from ripe_mambaspike.ops.patch_moments.triton_kernels import LARGEST_PARTS, _split

    part, step = 13 * 32 * 32, 64
    splits, steps = _split(pixels, programs, part, step)
    assert splits * steps * step >= pixels > (splits - 1) * steps * step
    assert 4 * splits * part <= LARGEST_PARTS
