"""Patch moments on a CPU against patches written out in float64."""

import pytest
import torch

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.patch_moments import patch_moments, patch_moments_reference

SIZES = [(1, 1), (1, 5), (2, 1), (2, 2), (3, 2), (3, 3), (5, 4), (9, 17)]


@pytest.fixture(autouse=True)
def _native():
    with kernels("native"):
        yield


def relative(given, expected):
    """Largest difference over largest magnitude."""
    return ((given.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def values(*shape, seed=0):
    """Not centred, so that the mean matters."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("channels", [1, 2, 3, 17])
def test_moments_and_gradient_are_the_references(evaluate, stride, size, channels):
    inputs = {"x": values(2, 3, *size, channels)}
    expected = evaluate(lambda x: patch_moments_reference(x, stride), inputs)
    outputs, gradients = evaluate(lambda x: patch_moments(x, stride), inputs, torch.float32)
    assert [output.dtype for output in outputs] == [torch.float32] * 2
    for output, wanted in zip(outputs, expected[0], strict=True):
        assert output.shape == wanted.shape
        assert relative(output, wanted) < 3e-6
    assert relative(gradients["x"], expected[1]["x"]) < 3e-6


@pytest.mark.parametrize("stride", [1, 2])
def test_many_images_are_summed_without_losing_digits(monkeypatch, stride):
    x = values(40, 1, 33, 33, 2) + 3
    expected = patch_moments_reference(x, stride)
    for output, wanted in zip(patch_moments(x.float(), stride), expected, strict=True):
        assert relative(output, wanted) < 5e-6
    monkeypatch.setattr("ripe_mambaspike.ops.patch_moments.cpu.PIXELS_TOGETHER", 33 * 33 * 3)  # 40 = 13 × 3 + 1
    for output, wanted in zip(patch_moments(x.float(), stride), expected, strict=True):
        assert relative(output, wanted) < 1e-6


@pytest.mark.parametrize("stride", [1, 2])
def test_bfloat16_rounds_only_the_gradient(stride):
    x = values(2, 2, 7, 6, 5).bfloat16()
    precise, rounded = x.float().requires_grad_(), x.clone().requires_grad_()
    expected, outputs = patch_moments_reference(precise, stride), patch_moments(rounded, stride)
    cotangents = [torch.randn_like(one) for one in expected]
    (wanted,) = torch.autograd.grad(expected, precise, cotangents)
    (gradient,) = torch.autograd.grad(outputs, rounded, cotangents)
    for output, other in zip(outputs, expected, strict=True):
        assert relative(output, other) < 3e-6
    assert gradient.dtype == torch.bfloat16
    assert relative(gradient, wanted) < 4e-3


@pytest.mark.parametrize("stride", [1, 2])
def test_reproducible(reproducible, stride):
    reproducible(lambda x: patch_moments(x, stride), {"x": values(2, 2, 5, 6, 3)})


@pytest.mark.parametrize("stride", [1, 2])
def test_silence_has_no_moments_and_the_constant_gradient_of_the_mean(stride):
    x = torch.zeros(1, 2, 4, 4, 3, requires_grad=True)
    mean, second = patch_moments(x, stride)
    assert not mean.any()
    assert not second.any()
    mean.sum().backward()
    counts = patch_moments_reference(torch.ones_like(x).requires_grad_(), stride)[0].sum()
    assert x.grad.sum().item() == pytest.approx(counts.item())
