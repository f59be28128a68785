"""Cumulative and leaky rates with their changes, and the baseline's windowed rate."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.pooled_rates import RateState, pooled_rates
from ripe_mambaspike.ops.pooled_rates.reference import cumulative_rates, leaky_rates, windowed_rate

SHAPE = (2, 5, 3, 5, 7)
KEEPS = [0.0, 0.8, 0.9375]


def spikes_of(shape=SHAPE):
    return (torch.rand(shape) < 0.3).double()


def inputs(seen):
    """Spikes, and what was counted over `seen` steps before them."""
    before = {"total": torch.randint(0, seen + 1, (2, 3, 5, 7)).double()} if seen else {}
    return {"spikes": spikes_of()} | before


def slow_rates(spikes, total=None, seen=0):
    total = torch.zeros_like(spikes[:, 0]) if total is None else total
    before = total / seen if seen else torch.zeros_like(total)
    rates, changes = [], []
    for t in range(spikes.shape[1]):
        total = total + spikes[:, t]
        seen += 1
        rate = total / seen
        rates.append(rate)
        changes.append(rate - before)
        before = rate
    return torch.cat((torch.stack(rates, 1), torch.stack(changes, 1)), 2), total


def fast_rates(spikes, total=None, seen=0):
    return cumulative_rates(spikes, total, first_step=seen)


def slow_window(spikes, window):
    steps = []
    for t in range(spikes.shape[1]):
        recent = [spikes[:, s] for s in range(t + 1) if s > t - window]
        steps.append(sum(recent) / len(recent))
    return torch.stack(steps, 1)


@pytest.mark.parametrize("seen", [0, 1, 6])
def test_equals_the_slow_reference(agree, seen):
    agree(lambda **given: fast_rates(**given, seen=seen), lambda **given: slow_rates(**given, seen=seen), inputs(seen))


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3), (4, 1)])
@pytest.mark.parametrize("seen", [0, 6])
def test_pieces_with_carried_state_equal_one_call(agree_in_float32, sizes, seen):
    def in_pieces(spikes, total=None):
        parts, first = [], seen
        for piece in spikes.split(sizes, 1):
            out, total = cumulative_rates(piece, total, first_step=first)
            parts.append(out)
            first += piece.shape[1]
        return torch.cat(parts, 1), total

    agree_in_float32(in_pieces, lambda **given: fast_rates(**given, seen=seen), inputs(seen))


def test_samples_that_have_seen_different_numbers_of_steps():
    spikes, seen = spikes_of(), [0, 6]
    count = torch.stack([torch.zeros(3, 5, 7), torch.randint(0, 7, (3, 5, 7)).float()]).double()
    together, final = cumulative_rates(spikes, count, first_step=torch.tensor(seen))
    for sample, first in enumerate(seen):
        row = slice(sample, sample + 1)
        alone, last = cumulative_rates(spikes[row], count[row], first_step=first)
        assert torch.equal(together[row], alone)
        assert torch.equal(final[row], last)


def test_rates_come_first_and_changes_add_up_to_them():
    spikes = spikes_of()
    rate, change = cumulative_rates(spikes)[0].split(3, 2)
    torch.testing.assert_close(rate[:, -1], spikes.mean(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(change.cumsum(1), rate, rtol=1e-12, atol=1e-12)


def test_same_bits_whatever_the_memory_held(reproducible):
    reproducible(lambda **given: fast_rates(**given, seen=6), inputs(6))


def test_bfloat16_keeps_its_state_in_float32(close_in_bfloat16):
    close_in_bfloat16(lambda spikes: cumulative_rates(spikes), inputs(0), 1e-2, states=1)


def test_bfloat16_counts_past_the_256_it_could_hold_itself():
    out, state = cumulative_rates(torch.ones(1, 600, 1, dtype=torch.bfloat16))
    assert torch.equal(out[..., :1].float(), torch.ones(1, 600, 1))
    assert state.item() == 600


@pytest.mark.parametrize("window", [1, 2, 5, 9])
def test_the_windowed_rate_equals_the_slow_reference(agree, window):
    agree(lambda spikes: windowed_rate(spikes, window), lambda spikes: slow_window(spikes, window), inputs(0))


@pytest.mark.parametrize("window", [2, 9])
def test_the_windowed_rate_in_bfloat16_and_with_poisoned_memory(close_in_bfloat16, reproducible, window):
    close_in_bfloat16(lambda spikes: windowed_rate(spikes, window), inputs(0), 1e-2)
    reproducible(lambda spikes: windowed_rate(spikes, window), inputs(0))


def slow_leaky(spikes, keep):
    """Weighted means written out, each from the spikes themselves."""
    rates = [torch.zeros_like(spikes[:, 0])]
    for t in range(spikes.shape[1]):
        weights = [keep ** (t - k) for k in range(t + 1)]
        rates.append(sum(w * spikes[:, k] for k, w in enumerate(weights)) / sum(weights))
    changes = [after - before for before, after in pairwise(rates)]
    return torch.cat((torch.stack(rates[1:], 1), torch.stack(changes, 1)), 2)


@pytest.mark.parametrize("keep", KEEPS)
def test_leaky_rates_equal_the_slow_reference(agree, keep):
    agree(lambda spikes: leaky_rates(spikes, keep)[0], lambda spikes: slow_leaky(spikes, keep), inputs(0))


def test_keeping_everything_is_the_cumulative_rate(agree):
    agree(lambda spikes: leaky_rates(spikes, 1.0)[0], lambda spikes: cumulative_rates(spikes)[0], inputs(0))


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_pieces_of_leaky_rates_equal_one_call_to_the_bit(sizes, dtype):
    spikes = inputs(0)["spikes"].to(dtype)
    whole, last = leaky_rates(spikes, 0.8)
    state, outs = None, []
    for piece in spikes.split(sizes, 1):
        out, state = leaky_rates(piece, 0.8, state)
        outs.append(out)
    assert torch.equal(torch.cat(outs, 1), whole)
    assert whole.dtype == dtype
    assert torch.equal(state.count, last.count)
    assert torch.equal(state.weight, last.weight)
    assert state.count.dtype == torch.promote_types(dtype, torch.float32)


def test_a_constant_rate_is_found_at_once_and_a_silence_forgets():
    ones = torch.ones(1, 6, 1, 1, 1)
    rates, state = leaky_rates(ones, 0.75)
    assert torch.equal(rates[0, :, 0, 0, 0], torch.ones(6))
    assert torch.equal(rates[0, :, 1, 0, 0], torch.tensor([1.0, 0, 0, 0, 0, 0]))
    decayed, _ = leaky_rates(torch.zeros(1, 40, 1, 1, 1), 0.75, state)
    assert 0 < float(decayed[0, -1, 0]) < 1e-4
    assert (decayed[0, :, 1] < 0).all()
    settled = leaky_rates(torch.zeros(1, 200, 1, 1, 1), 0.75, state)[1]
    assert settled.weight.item() == pytest.approx(4.0)


def test_a_state_is_given_its_own_meaning():
    spikes = torch.zeros(1, 1, 1, 1, 1)
    out, state = leaky_rates(
        spikes, 0.5, RateState(torch.full((1, 1, 1, 1), 3.0), torch.full((1,), 4.0, dtype=torch.float64))
    )
    assert out.flatten().tolist() == [0.5, 0.5 - 0.75]  # (0.5 · 3 + 0) / (0.5 · 4 + 1)
    assert state.weight.item() == 3.0


CHOICES = ["plain", *([] if unavailable_reason() else ["native"])]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("relaxed", [False, True], ids=["bytes", "numbers"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=["f32", "bf16"])
def test_pooled_leaky_rates_and_gradients(choice, relaxed, dtype, tolerance):
    sizes, grid, keep = [(17, 12, 3), (9, 7, 5)], (5, 4), 0.8
    draws = [torch.rand(2, 4, *size) for size in sizes]
    spikes = [draw.to(dtype) if relaxed else (draw < 0.3).to(torch.uint8) for draw in draws]
    proxies = [torch.zeros((), dtype=dtype).expand(one.shape).requires_grad_() for one in spikes]
    with kernels(choice):
        out, _ = pooled_rates(spikes, proxies, grid, keep=keep)
        cotangent = torch.randn(out.shape).to(dtype)
        gradients = torch.autograd.grad(out, proxies, cotangent)
    wide = [one.double().requires_grad_() for one in spikes]
    parts = []
    for one in wide:
        pooled = F.adaptive_avg_pool2d(one.permute(0, 1, 4, 2, 3).flatten(0, 1), grid).unflatten(0, one.shape[:2])
        parts.append(slow_leaky(pooled, keep))
    wanted = torch.cat(parts, 2).permute(0, 1, 3, 4, 2)
    assert out.dtype == dtype
    expected_gradients = torch.autograd.grad(wanted, wide, cotangent.double())
    pairs = [(out.detach(), wanted.detach()), *zip(gradients, expected_gradients, strict=True)]
    for given, expected in pairs:
        assert given.shape == expected.shape
        assert float((given.double() - expected).abs().max()) < tolerance * float(expected.abs().max())
