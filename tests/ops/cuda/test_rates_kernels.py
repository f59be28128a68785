"""Pooled rates by Triton kernels, in the interpreter where there is no GPU, against the reference in float64."""

import pytest
import torch

from ripe_mambaspike.ops.pooled_rates import pooled_rates, pooled_rates_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = {  # steps, scales (height, width, channels), grid
    "17-9-5": (3, [(17, 17, 3), (9, 9, 2), (5, 5, 4)], (5, 5)),
    "16-8-4": (2, [(16, 16, 2), (8, 8, 3), (4, 4, 5)], (4, 4)),
    "oblong": (2, [(7, 5, 3), (3, 2, 70)], (3, 2)),
    "one step": (1, [(6, 5, 2)], (4, 3)),
    "wide cells": (1, [(13, 13, 2)], (2, 2)),
    "finer grid than image": (2, [(2, 3, 3)], (5, 4)),
    "one cell": (3, [(3, 3, 1)], (1, 1)),
    "channels by fours": (3, [(16, 16, 8), (9, 7, 12), (4, 4, 68)], (4, 4)),
    "as many pixels as a byte counts": (1, [(30, 30, 4)], (2, 2)),
    "more pixels than a byte counts": (1, [(34, 34, 4)], (2, 2)),
}


def relative(given, expected):
    """Largest difference over largest magnitude."""
    return ((given.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def scales_of(case, draw):
    steps, sizes, grid = CASES[case]
    generator = torch.Generator().manual_seed(0)
    return {f"scale{i}": draw(torch.rand(2, steps, *size, generator=generator)) for i, size in enumerate(sizes)}, grid


def rates(grid):
    """Relaxed spikes: numbers, which carry their own gradient in the place of a carrier."""
    return lambda **scales: pooled_rates(
        [one.detach().to(DEVICE) for one in scales.values()], [one.to(DEVICE) for one in scales.values()], grid
    ).cpu()


@pytest.mark.parametrize("case", CASES)
def test_rates_and_gradients_are_the_references(evaluate, case):
    inputs, grid = scales_of(case, lambda values: values.double())
    expected = evaluate(lambda **scales: pooled_rates_reference(list(scales.values()), grid), inputs)
    outputs, gradients = evaluate(rates(grid), inputs, torch.float32)
    assert outputs[0].shape == expected[0][0].shape
    assert relative(outputs[0], expected[0][0]) < 2e-6
    for name, wanted in expected[1].items():
        assert relative(gradients[name], wanted) < 2e-6, name


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0], ids=["silent", "sparse", "saturated"])
@pytest.mark.parametrize(
    "case",
    [
        "17-9-5",
        "oblong",
        "channels by fours",
        "as many pixels as a byte counts",
        "more pixels than a byte counts",
    ],
)
def test_spikes_as_bytes(case, density):
    inputs, grid = scales_of(case, lambda values: (values < density).byte().to(DEVICE))
    spikes = list(inputs.values())
    carriers = [torch.empty((), device=DEVICE).expand(one.shape) for one in spikes]
    out = pooled_rates(spikes, carriers, grid).cpu()
    expected = pooled_rates_reference([one.double().cpu() for one in spikes], grid)
    assert out.dtype == torch.float32
    assert (out - expected).abs().max() < 2e-6
    if density == 0:
        assert not out.any()


def test_bytes_that_start_anywhere():
    """Four bytes are read as one number only from an address where a number may lie."""
    steps, channels = 2, 4
    memory = (torch.rand(1 + steps * 4 * 4 * channels, generator=torch.Generator().manual_seed(0)) < 0.5).byte()
    spikes = memory.to(DEVICE)[1:].view(1, steps, 4, 4, channels)
    out = pooled_rates([spikes], [torch.empty((), device=DEVICE).expand(spikes.shape)], (2, 2)).cpu()
    assert (out - pooled_rates_reference([spikes.double().cpu()], (2, 2))).abs().max() < 2e-6


def test_the_gradient_reaches_the_carriers_of_bytes():
    inputs, grid = scales_of("17-9-5", lambda values: (values < 0.3).byte().to(DEVICE))
    spikes = list(inputs.values())
    carriers = [torch.empty((), device=DEVICE).expand(one.shape).requires_grad_() for one in spikes]
    numbers = [one.double().requires_grad_() for one in spikes]
    out, expected = pooled_rates(spikes, carriers, grid), pooled_rates_reference(numbers, grid)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    given = torch.autograd.grad(out, carriers, cotangent)
    for one, wanted in zip(given, torch.autograd.grad(expected, numbers, cotangent.double()), strict=True):
        assert relative(one, wanted) < 2e-6


def test_reproducible(reproducible):
    inputs, grid = scales_of("oblong", lambda values: values.double())
    reproducible(rates(grid), inputs)
