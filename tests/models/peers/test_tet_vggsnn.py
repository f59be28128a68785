"""TET's VGGSNN: its count, its layers one by one, and what every network must do."""

import pytest
import torch
import torch.nn.functional as F
from tests.models.peers import peer_checks as checks
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.registry import meta_model, model_config

NAME = "tet-vggsnn"
SMALL = {"channels": (4, 4, 6, 6, 8, 8, 8, 8), "in_size": (32, 32), "time_steps": 4, "num_classes": 3}
PRINTED_IN_TABLE_1 = 3.66  # millions: not of this network


def small(**overrides):
    return create_model(NAME, seed=0, **{**SMALL, **overrides})


def test_the_count():
    """Convolutions of 9.22 M, and 512·3·3·10 weights of the classifier."""
    model = meta_model(model_config(NAME))
    checks.assert_count(model, 9_271_498)
    assert model.parameter_count() / 1e6 != pytest.approx(PRINTED_IN_TABLE_1, rel=0.01)


class TestInCommon(checks.CommonTests):
    name, fields, steps = NAME, SMALL, 4


def test_any_number_of_steps():
    checks.check_any_steps(small())


def test_against_its_description():
    model = checks.livelier(small()).eval().double()
    x = events = checks.loud_clips(model, dtype=torch.float64)
    for index, layer in enumerate(model.layers):
        conv = layer.conv.conv
        drive = [
            checks.norm_by_hand(layer.conv.norm, F.conv2d(x[:, t], conv.weight, conv.bias, padding=1))
            for t in range(x.shape[1])
        ]
        x = checks.leaky_by_hand(torch.stack(drive, 1), decay_input=False)
        if index % 2:
            x = (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4
    logits = x.flatten(2) @ model.head.weight.T + model.head.bias
    with torch.no_grad():
        torch.testing.assert_close(model(events), logits, rtol=1e-9, atol=1e-9)


def test_the_gradient_of_its_neuron():
    """max(0, 1 − |u − 1|), and through the reset: u_2 = u_1 (1 − s_1) / 2 + x_2."""
    x = torch.tensor([[[0.8], [0.9]]], requires_grad=True)
    spikes, _ = small().layers[0].neuron(x)
    spikes.sum().backward()
    first, second = 0.8, 1 - abs(0.9 + 0.5 * 0.8 - 1)  # slopes at u = 0.8 and 1.3
    assert spikes.flatten().tolist() == [0, 1]
    through = 0.5 * (1 - 0.8 * first)  # du_2/dx_1, since s_1 = 0
    assert x.grad.flatten().tolist() == pytest.approx([first + second * through, second])


def test_one_size():
    model = small()
    with raises(InputError, "x"):
        model(torch.zeros(1, 4, 2, 48, 48))
    with raises(ConfigError, "in_size"):
        small(in_size=(8, 48))
