"""Leaky rates and their changes, and the same pooled by the fused operator."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.pooled_rates.leaky import pooled_leaky_rates
from ripe_mambaspike.ops.pooled_rates.reference import LeakyState, cumulative_rates, leaky_rates

SHAPE = (2, 5, 3, 5, 7)
KEEPS = [0.0, 0.8, 0.9375]


def inputs():
    return {"spikes": (torch.rand(SHAPE) < 0.3).double()}


def slow_rates(spikes, keep):
    """Weighted means written out, each from the spikes themselves."""
    rates = [torch.zeros_like(spikes[:, 0])]
    for t in range(spikes.shape[1]):
        weights = [keep ** (t - k) for k in range(t + 1)]
        rates.append(sum(w * spikes[:, k] for k, w in enumerate(weights)) / sum(weights))
    changes = [after - before for before, after in pairwise(rates)]
    return torch.cat((torch.stack(rates[1:], 1), torch.stack(changes, 1)), 2)


@pytest.mark.parametrize("keep", KEEPS)
def test_equals_the_slow_reference(agree, keep):
    agree(lambda spikes: leaky_rates(spikes, keep)[0], lambda spikes: slow_rates(spikes, keep), inputs())


def test_keeping_everything_is_the_cumulative_rate(agree):
    agree(lambda spikes: leaky_rates(spikes, 1.0)[0], lambda spikes: cumulative_rates(spikes)[0], inputs())


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_pieces_equal_one_call_to_the_bit(sizes, dtype):
    spikes = inputs()["spikes"].to(dtype)
    whole, last = leaky_rates(spikes, 0.8)
    state, outs = None, []
    for piece in spikes.split(sizes, 1):
        out, state = leaky_rates(piece, 0.8, state)
        outs.append(out)
    assert torch.equal(torch.cat(outs, 1), whole)
    assert whole.dtype == dtype
    assert torch.equal(state.total, last.total)
    assert state.weight == last.weight
    assert state.total.dtype == torch.promote_types(dtype, torch.float32)


def test_a_constant_rate_is_found_at_once_and_a_silence_forgets():
    ones = torch.ones(1, 6, 1, 1, 1)
    rates, state = leaky_rates(ones, 0.75)
    assert torch.equal(rates[0, :, 0, 0, 0], torch.ones(6))
    assert torch.equal(rates[0, :, 1, 0, 0], torch.tensor([1.0, 0, 0, 0, 0, 0]))
    faded, _ = leaky_rates(torch.zeros(1, 40, 1, 1, 1), 0.75, state)
    assert 0 < float(faded[0, -1, 0]) < 1e-4
    assert (faded[0, :, 1] < 0).all()
    settled = leaky_rates(torch.zeros(1, 200, 1, 1, 1), 0.75, state)[1]
    assert settled.weight == pytest.approx(4.0)


def test_a_state_is_given_its_own_meaning():
    spikes = torch.zeros(1, 1, 1, 1, 1)
    out, state = leaky_rates(spikes, 0.5, LeakyState(torch.full((1, 1, 1, 1), 3.0), 4.0))
    assert out.flatten().tolist() == [0.5, 0.5 - 0.75]  # (0.5 · 3 + 0) / (0.5 · 4 + 1)
    assert state.weight == 3.0


CHOICES = ["plain", *([] if unavailable_reason() else ["native"])]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("relaxed", [False, True], ids=["bytes", "numbers"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=["f32", "bf16"])
def test_pooled_rates_and_gradients(choice, relaxed, dtype, tolerance):
    sizes, grid, keep = [(17, 12, 3), (9, 7, 5)], (5, 4), 0.8
    draws = [torch.rand(2, 4, *size) for size in sizes]
    spikes = [draw.to(dtype) if relaxed else (draw < 0.3).to(torch.uint8) for draw in draws]
    carriers = [torch.zeros((), dtype=dtype).expand(one.shape).requires_grad_() for one in spikes]
    with kernels(choice):
        out = pooled_leaky_rates(spikes, carriers, grid, keep)
        cotangent = torch.randn(out.shape).to(dtype)
        gradients = torch.autograd.grad(out, carriers, cotangent)
    wide = [one.double().requires_grad_() for one in spikes]
    parts = []
    for one in wide:
        pooled = F.adaptive_avg_pool2d(one.permute(0, 1, 4, 2, 3).flatten(0, 1), grid).unflatten(0, one.shape[:2])
        parts.append(slow_rates(pooled, keep))
    wanted = torch.cat(parts, 2).permute(0, 1, 3, 4, 2)
    assert out.dtype == dtype
    expected_gradients = torch.autograd.grad(wanted, wide, cotangent.double())
    pairs = [(out.detach(), wanted.detach()), *zip(gradients, expected_gradients, strict=True)]
    for given, expected in pairs:
        assert given.shape == expected.shape
        assert float((given.double() - expected).abs().max()) < tolerance * float(expected.abs().max())
