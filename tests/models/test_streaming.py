"""The front end fed in pieces with its state carried equals one call."""

import pytest
import torch

from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode

OBSERVED = ("spikes", "membrane", "attention")


def in_pieces(model, x, sizes, mode):
    state, outs, seen = None, [], 0
    for piece in x.split(sizes, 1):
        outs.append(model.front_end(piece, mode, state, seen, OBSERVED))
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
            features, _, observed, state = in_pieces(model, x, sizes, mode)
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
