"""The front end fed in pieces with its state carried equals one call."""

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.observe import by_layer
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.ops.backend import kernels

OBSERVED = ("spikes", "membrane", "attention")


def in_pieces(model, x, sizes, mode, observe=()):
    state, outs, seen = None, [], 0
    for piece in x.split(sizes, 1):
        outs.append(model.front_end(piece, mode, state, seen, observe))
        state, seen = outs[-1].state, seen + piece.shape[1]
    features, attention = (torch.cat([getattr(out, name) for out in outs], 1) for name in ("features", "attention"))
    observed = {name: torch.cat([out.observed[name] for out in outs], 1) for name in outs[0].observed}
    return features, attention, observed, state


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3), (4, 1)])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"form": "deployed"},
        {"form": "dual-kernel"},
        {"neurons": "lif"},
        {"neurons": "csilif"},
        {"attention": "none"},
        {"attention": "gate"},
        {"attention": "grouped"},
        {"tdm": False},
        {"bridge": "stage3"},
    ],
    ids=str,
)
def test_pieces_equal_one_call(small, louder, events, fields, sizes):
    model = louder(small(**fields)).double().eval()
    x = events(19, 15, dtype=torch.float64)
    for mode in (HARD, ForwardMode(relaxed=True)):
        with torch.no_grad():
            whole = model.front_end(x, mode, observe=OBSERVED)
            features, _, observed, state = in_pieces(model, x, sizes, mode, OBSERVED)
        torch.testing.assert_close(features, whole.features, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(observed, whole.observed, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(state, whole.state, rtol=1e-11, atol=1e-11)


def test_logits_from_pieces(small, louder, events):
    model = louder(small()).eval()
    x = events()
    with torch.no_grad():
        features, attention, _, _ = in_pieces(model, x, (3, 2), HARD)
        logits = model.classify(features, attention)
        torch.testing.assert_close(logits, model(x), rtol=1e-4, atol=1e-5)


def test_a_state_can_be_used_twice(small, louder, events):
    model = louder(small()).eval()
    x = events()
    with torch.no_grad():
        state = model.front_end(x[:, :2]).state
        first, second = (model.front_end(x[:, 2:], state=state, first_step=2).features for _ in range(2))
    assert torch.equal(first, second)


FUSED = [
    {},
    {"form": "deployed", "stage_channels": (16, 32, 48)},  # whole vectors: other kernels
    {"neurons": "lif", "tdm": False},
    {"attention": "gate", "num_tokens": 4},
    {"attention": "none", "bridge": "stage3"},
    {"causal": True},
]


@pytest.mark.parametrize("fields", FUSED, ids=str)
@torch.no_grad()
def test_the_kernels_give_the_bits_of_the_clip(small, louder, events, fields):
    """One step after another, rows at different steps, and the tail on its own."""
    model, x = louder(small(**fields)).eval(), events(19, 15, samples=3)
    whole = model.front_end(x)
    features, attention, _, state = in_pieces(model, x, (1, 1, 2, 1), HARD)
    assert torch.equal(features, whole.features)
    assert torch.equal(attention, whole.attention)
    assert all(torch.equal(state[name], whole.state[name]) for name in whole.state)
    zeros = {name: torch.zeros_like(value[:1]) for name, value in whole.state.items()}
    states = [model.front_end(x[row : row + 1, :row]).state if row else zeros for row in range(3)]
    together = {name: torch.cat([one[name] for one in states]) for name in zeros}
    front = model.front_end(torch.stack([x[row, row : row + 2] for row in range(3)]), HARD, together, torch.arange(3))
    assert torch.equal(front.features, torch.stack([whole.features[row, row : row + 2] for row in range(3)]))
    assert torch.equal(model.classify(whole.features, whole.attention, model.select(whole.token_scores)), model(x))
    if model.config.causal:
        first = model.run(x[:, :2], state={})
        second = model.run(x[:, 2:], state=first.state)
        assert torch.equal(torch.cat((first.logits, second.logits), 1), model(x))


@torch.no_grad()
def test_both_paths_have_the_same_states_and_observations(small, louder, events):
    model, x = louder(small()).eval(), events()
    names = ("spikes", "spike_counts", "attention")
    fused = model.front_end(x, observe=names)
    with kernels("off"):
        reference = model.front_end(x, observe=(*names, "membrane", "inputs"))
    assert fused.state.keys() == reference.state.keys()
    assert fused.observed.keys() < reference.observed.keys()
    for name in fused.state:
        torch.testing.assert_close(fused.state[name].float(), reference.state[name].float(), rtol=1e-4, atol=1e-4)
    for name, value in fused.observed.items():
        torch.testing.assert_close(value, reference.observed[name], rtol=1e-4, atol=1e-4)
    counts = by_layer(fused.observed, "spike_counts")
    for layer, spikes in by_layer(fused.observed, "spikes").items():
        assert torch.equal(counts[layer], spikes.sum((1, 2, 3, 4)).long())
        assert counts[layer].min() > 0
    with raises(ConfigError, "observe"):
        model.run(x, observe=("spike",))
