"""The front end fed in pieces with its state carried equals one call."""

import pytest
import torch

from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode


def in_pieces(model, x, sizes, mode):
    state, outs = None, []
    for piece in x.split(sizes, 1):
        out = model.front_end(piece, mode, state)
        state = out.state
        outs.append(out)
    features = torch.cat([out.features for out in outs], 1)
    stages = [[torch.cat([out.stages[level][part] for out in outs], 1) for part in range(3)] for level in range(3)]
    return features, stages, state


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
            whole = model.front_end(x, mode)
            features, stages, state = in_pieces(model, x, sizes, mode)
        torch.testing.assert_close(features, whole.features, rtol=1e-11, atol=1e-11)
        for ours, expected in zip(stages, whole.stages, strict=True):
            for part, wanted in zip(ours, expected[:3], strict=True):
                torch.testing.assert_close(part, wanted, rtol=1e-11, atol=1e-11)
        assert state.step == 5


def test_logits_from_pieces(small, louder, events):
    model = louder(small()).eval()
    x = events()
    with torch.no_grad():
        features, stages, _ = in_pieces(model, x, (3, 2), HARD)
        logits = model.classify(features, stages[-1][2])
        torch.testing.assert_close(logits, model(x), rtol=1e-4, atol=1e-5)


def test_a_state_can_be_used_twice(small, louder, events):
    model = louder(small()).eval()
    x = events()
    with torch.no_grad():
        state = model.front_end(x[:, :2]).state
        first, second = (model.front_end(x[:, 2:], initial_state=state).features for _ in range(2))
    assert torch.equal(first, second)
