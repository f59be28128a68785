"""C3D against its description."""

import pytest
import torch
import torch.nn.functional as F
from tests.models.peers.peer_checks import check_network
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.registry import meta_model, model_config

PRINTED = 147.2e6  # Table 1's
HEAD = 4096 * 200 + 200


@pytest.fixture
def small():
    fields = {"channels": (4, 5, 6, 7, 8), "hidden_size": 12, "num_classes": 5, "in_size": (40, 48), "time_steps": 6}
    return create_model("c3d", seed=0, **fields).eval()


def test_the_printed_count_is_met():
    count = meta_model(model_config("c3d")).parameter_count()
    assert count == 148_019_464
    assert abs(count - PRINTED) < 0.01 * PRINTED
    assert round((count - HEAD) / 1e6, 1) == 147.2


def test_the_original_reads_8192_features():
    """At 112×112 and 16 frames, where a pool rounds 3.5 cells up to 4."""
    original = meta_model(model_config("c3d", in_size=112, time_steps=16))
    assert original.first_hidden.in_features == 8192


def test_the_checks_of_every_network(small, events, tmp_path):
    x = events(40, 48, steps=6)
    check_network(small, x, steps=1, spiking_layers=0, folder=tmp_path)


def slow_pool(x, halve_time):
    """Non-overlapping cells of 2×2×2 or 1×2×2; the last one may be smaller."""
    steps, size = (2 if halve_time else 1), [-(-side // 2) for side in x.shape[3:]]
    out = x.new_empty(*x.shape[:2], -(-x.shape[2] // steps), *size)
    for t in range(out.shape[2]):
        for row in range(size[0]):
            for column in range(size[1]):
                cell = x[:, :, steps * t : steps * t + steps, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
                out[:, :, t, row, column] = cell.amax((2, 3, 4))
    return out


@torch.no_grad()
def test_groups_of_convolutions_end_in_pools(small, events):
    x = events(40, 48, steps=6, dtype=torch.float64)
    small.double()
    convs = [layer for layer in small.convs if isinstance(layer, torch.nn.Conv3d)]
    y = x.transpose(1, 2)
    for index, conv in enumerate(convs):
        y = F.conv3d(y, conv.weight, conv.bias, padding=1).clamp(min=0)
        if index in (0, 1, 3, 5, 7):
            y = slow_pool(y, halve_time=index > 0)
    assert y.shape == (2, 8, 1, 2, 2)
    hidden = (y.reshape(2, -1) @ small.first_hidden.weight.T + small.first_hidden.bias).clamp(min=0)
    hidden = (hidden @ small.second_hidden.weight.T + small.second_hidden.bias).clamp(min=0)
    torch.testing.assert_close(small(x)[:, 0], hidden @ small.head.weight.T + small.head.bias)


@torch.no_grad()
def test_order_matters_and_short_clips_end_without_events(small, events):
    x = events(40, 48, steps=6)
    assert (small(x.flip(1)) - small(x)).abs().max() > 1e-2
    empty = x.clone()
    empty[:, 4:] = 0
    assert torch.equal(small(x[:, :4]), small(empty))


@torch.no_grad()
@pytest.mark.parametrize(("time_steps", "cells"), [(1, 1), (16, 1), (17, 2), (40, 3)])
def test_any_number_of_steps_can_be_configured(events, time_steps, cells):
    fields = {"channels": (2, 2, 2, 2, 3), "hidden_size": 4, "in_size": (32, 32)}
    model = create_model("c3d", time_steps=time_steps, **fields).eval()
    assert model.first_hidden.in_features == 3 * cells
    assert model(events(32, steps=time_steps)).isfinite().all()


def test_dropout_is_for_training_alone(small, events):
    x = events(40, 48, steps=6)
    assert torch.equal(small(x), small(x))
    small.train()
    assert not torch.equal(small(x), small(x))


@pytest.mark.parametrize("shape", [(2, 6, 2, 48, 40), (2, 7, 2, 40, 48)])
def test_other_inputs_are_refused(small, shape):
    with raises(InputError, field="x"):
        small(torch.zeros(shape))


@pytest.mark.parametrize(("field", "value"), [("channels", (4, 6)), ("hidden_size", 0)])
def test_sizes_are_checked(field, value):
    with raises(ConfigError, field=field):
        create_model("c3d", **{field: value})
