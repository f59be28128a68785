"""Which positions the study keeps: by spikes and by how early they came."""

import math

import pytest
import torch

from ripe_mambaspike.nn.tokens import TokenSelection, keep_tokens


def trains(*events, steps=4, shape=(2, 3), channels=2):
    """Spikes [1, T, C, H, W] from (step, channel, position) triples."""
    spikes = torch.zeros(1, steps, channels, shape[0] * shape[1])
    for step, channel, position in events:
        spikes[0, step, channel, position] = 1
    return spikes.unflatten(-1, shape)


def slow_scores(spikes, activity=1.0, earliness=1.0):
    """score = a·(total spikes) + b·exp(−first spike time), a position at a time."""
    _, steps, _, height, width = spikes.shape
    scores = []
    for sample in spikes.flatten(3):
        row = []
        for n in range(height * width):
            column = sample[:, :, n].sum(1)
            fired = [t for t in range(steps) if column[t] > 0]
            row.append(activity * column.sum().item() + (earliness * math.exp(-fired[0]) if fired else 0.0))
        scores.append(row)
    return torch.tensor(scores)


def chosen(spikes, keep):
    scores, _ = (selection := TokenSelection(keep))(spikes)
    return None if scores is None else selection.select(scores)


def test_all_tokens_by_default():
    assert chosen(trains((0, 0, 1)), None) is None
    tokens = torch.randn(2, 3, 4, 5)
    assert keep_tokens(tokens, None) is tokens


def test_more_spikes_win():
    spikes = trains((3, 0, 5), (3, 1, 5), (0, 0, 2))
    assert chosen(spikes, 1).tolist() == [[5]]


def test_the_earlier_of_equal_counts_wins():
    spikes = trains((1, 0, 0), (0, 0, 4), (3, 1, 5))
    assert chosen(spikes, 1).tolist() == [[4]]
    assert chosen(spikes, 2).tolist() == [[0, 4]]


def test_positions_that_never_fired_come_last():
    spikes = trains((3, 0, 5), (3, 1, 2))
    assert chosen(spikes, 2).tolist() == [[2, 5]]


def test_ties_and_silence_still_give_k_distinct_positions_in_raster_order():
    for spikes in (trains(), trains((1, 0, 0), (1, 0, 3), (1, 1, 5))):
        for keep in range(1, 7):
            (kept,) = chosen(spikes, keep).tolist()
            assert kept == sorted(set(kept))
            assert len(kept) == keep
            scores = slow_scores(spikes)[0]
            left = [n for n in range(6) if n not in kept]
            assert not left or scores[kept].min() >= scores[left].max()


def test_of_equals_the_first_are_kept():
    assert chosen(trains(), 3).tolist() == [[0, 1, 2]]
    assert chosen(trains((1, 0, 0), (1, 0, 3), (1, 1, 5)), 2).tolist() == [[0, 3]]


@pytest.mark.parametrize("keep", [1, 5, 12])
def test_the_scores_are_the_specifications(keep):
    spikes = (torch.rand(8, 5, 3, 4, 3) < 0.12).float()
    selection = TokenSelection(keep)
    with torch.no_grad():
        selection.activity.fill_(0.3)
        selection.earliness.fill_(1.7)
    kept = selection.select(selection(spikes)[0])
    assert kept.shape == (8, keep)
    scores = slow_scores(spikes, 0.3, 1.7)
    best = scores.sort(1, descending=True).values[:, :keep]
    torch.testing.assert_close(scores.gather(1, kept).sort(1, descending=True).values, best)


def test_two_frozen_scalars_are_counted():
    parameters = dict(TokenSelection(3).named_parameters())
    assert [p.numel() for p in parameters.values()] == [1, 1]
    assert [p.item() for p in parameters.values()] == [1, 1]
    assert not any(p.requires_grad for p in parameters.values())


def test_the_same_positions_at_every_step():
    tokens = torch.arange(2 * 3 * 4.0).reshape(1, 2, 3, 4).repeat(2, 1, 1, 1)
    kept = keep_tokens(tokens, torch.tensor([[0, 2], [1, 2]]))
    assert torch.equal(kept[0], tokens[0][:, [0, 2]])
    assert torch.equal(kept[1], tokens[1][:, [1, 2]])


def test_half_precision_counts_are_exact():
    spikes = torch.ones(1, 16, 40, 1, 2)
    spikes[0, 15, 39, 0, 0] = 0
    assert chosen(spikes.bfloat16(), 1).tolist() == [[1]]
