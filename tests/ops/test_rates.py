"""Cumulative rates with their changes, and the baseline's windowed rate."""

import pytest
import torch

from ripe_mambaspike.ops import cumulative_rates
from ripe_mambaspike.ops.pooled_rates.reference import RateState, windowed_rate

SHAPE = (2, 5, 3, 5, 7)


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
    return cumulative_rates(spikes, None if total is None else RateState(total, seen))


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
def test_pieces_with_carried_state_equal_one_call(agree_in_float32, over_time, sizes, seen):
    def in_pieces(spikes, total=None):
        state = None if total is None else RateState(total, seen)
        return over_time(cumulative_rates, [spikes], sizes, state)

    agree_in_float32(in_pieces, lambda **given: fast_rates(**given, seen=seen), inputs(seen))


def test_the_state_counts_steps_and_spikes():
    spikes = spikes_of()
    _, state = cumulative_rates(spikes)
    _, state = cumulative_rates(spikes, state)
    assert state.steps == 10
    assert torch.equal(state.total, 2 * spikes.sum(1))


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
    assert state.total.item() == 600


@pytest.mark.parametrize("window", [1, 2, 5, 9])
def test_the_windowed_rate_equals_the_slow_reference(agree, window):
    agree(lambda spikes: windowed_rate(spikes, window), lambda spikes: slow_window(spikes, window), inputs(0))


@pytest.mark.parametrize("window", [2, 9])
def test_the_windowed_rate_in_bfloat16_and_with_poisoned_memory(close_in_bfloat16, reproducible, window):
    close_in_bfloat16(lambda spikes: windowed_rate(spikes, window), inputs(0), 1e-2)
    reproducible(lambda spikes: windowed_rate(spikes, window), inputs(0))
