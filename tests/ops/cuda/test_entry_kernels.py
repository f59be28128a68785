"""Events to the first neuron, and LayerNorm of short rows, in Triton's interpreter against float64."""

import pytest
import torch

from ripe_mambaspike.ops.enter_fire import enter_fire, enter_fire_reference
from ripe_mambaspike.ops.norm_fire import Neuron
from ripe_mambaspike.ops.row_norm import row_norm, row_norm_reference


def draw(*shape, low=0.0, high=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low


def entry_case(steps, channels, height, width, resonating, filtered, samples=2):
    x = torch.poisson(draw(samples, steps, 2, height, width, high=1.5))
    neuron = Neuron(
        draw(channels, low=0.3, high=0.9),
        draw(channels, low=0.1, high=0.4, seed=1) if resonating else None,
        draw(channels, low=0.3, high=0.9, seed=2),
        draw(channels, low=0.2, high=0.8, seed=3),
    )
    return {
        "x": x,
        "entry": (draw(steps, 2, low=0.5, high=1.5), draw(steps, 2, low=-0.5, high=0.5)),
        "filtered": draw(2, low=-0.8, high=0.8) if filtered else None,
        "kernel": draw(channels, 2, 3, 3, low=-0.6, high=0.6),
        "affine": (draw(steps, channels, low=0.5, high=1.5), draw(steps, channels, low=-0.2, high=0.5)),
        "neuron": neuron,
        "coefficient": draw(channels, low=-0.8, high=0.8) if filtered else None,
    }


def in_float32(value):
    if isinstance(value, torch.Tensor):
        return value.float()
    if isinstance(value, Neuron):
        return Neuron(*map(in_float32, value))
    return tuple(map(in_float32, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("relaxed", [False, True], ids=["hard", "relaxed"])
@pytest.mark.parametrize(
    ("steps", "channels", "height", "width", "resonating", "filtered"),
    [(4, 32, 17, 12, True, True), (1, 16, 8, 8, False, True), (3, 20, 9, 15, False, False), (2, 96, 8, 9, True, True)],
)
def test_events_to_the_first_neuron(steps, channels, height, width, resonating, filtered, relaxed):
    case = entry_case(steps, channels, height, width, resonating, filtered)
    expected = enter_fire_reference(**case, relaxed=relaxed, sharpness=3.0)
    rounded = {name: in_float32(value) for name, value in case.items()}
    given = enter_fire(**rounded, relaxed=relaxed, sharpness=3.0)
    assert given[0].dtype == (torch.float32 if relaxed else torch.uint8)
    assert 0.02 < float(expected[0].mean()) < 0.98
    for got, wanted in zip(given, expected, strict=True):
        assert got.shape == (2, steps, -(-height // 2), -(-width // 2), channels)
        assert float((got.double() - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())
    again = enter_fire(**rounded, relaxed=relaxed, sharpness=3.0)
    assert all(torch.equal(a, b) for a, b in zip(given, again, strict=True))


def test_counts_may_come_as_bytes():
    case = {name: in_float32(value) for name, value in entry_case(2, 16, 8, 8, False, True).items()}
    whole = enter_fire(**case)
    bytes_ = enter_fire(**{**case, "x": case["x"].to(torch.uint8)})
    assert all(torch.equal(a, b) for a, b in zip(whole, bytes_, strict=True))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 7), (130, 32), (2, 33, 96), (5, 128)])
def test_row_norm(shape):
    x, grad = draw(*shape, low=-2, high=3), draw(*shape, low=-1, seed=5)
    weight, bias = draw(shape[-1], low=0.5, high=1.5), draw(shape[-1], seed=2)
    inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
    expected = row_norm_reference(*inputs, torch.float64)
    wanted = torch.autograd.grad(expected, inputs, grad)
    rounded = [t.float().requires_grad_() for t in (x, weight, bias)]
    given = row_norm(*rounded, torch.float32)
    got = torch.autograd.grad(given, rounded, grad.float())
    for a, b in zip((given, *got), (expected, *wanted), strict=True):
        assert float((a.double() - b).detach().abs().max()) <= 1e-5 * max(1.0, float(b.detach().abs().max()))
