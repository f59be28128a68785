"""The networks of PLIF: their counts, their layers one by one, and what every network must do."""

import pytest
import torch
import torch.nn.functional as F
from tests.models.peers import peer_checks as checks
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.peers.plif_net import clip_dropout
from ripe_mambaspike.models.registry import meta_model, model_config

NAME = "plif-net"
SMALL = {"channels": 6, "depth": 3, "hidden_size": 20, "in_size": (32, 32), "time_steps": 5, "num_classes": 3}
PRINTED_IN_TABLE_1 = 0.87  # millions, for N-MNIST: not of this network


def small(**overrides):
    """With such Linears that neurons without a norm before them fire, too."""
    model = create_model(NAME, seed=0, **{**SMALL, **overrides})
    with torch.no_grad():
        model.hidden.weight.mul_(12)
        model.head.linear.weight.mul_(16)
    return model


def counted(layers, cells, hidden, classes):
    """Convolutions and norms of 128 channels, two Linears, and the time constant of every layer."""
    convolutions = 9 * 128 * (2 + 128 * (layers - 1)) + 2 * 128 * layers
    return convolutions + 128 * cells * hidden + hidden * 10 * classes + layers + 2


@pytest.mark.parametrize(
    ("name", "measured", "shape"),
    [
        ("plif-net", 1_698_311, (5, 4 * 4, 512, 11)),
        ("plif-net-cifar10dvs", 4_691_206, (4, 8 * 8, 512, 10)),
        ("plif-net-nmnist", 17_132_292, (2, 8 * 8, 2048, 10)),
    ],
)
def test_the_counts(name, measured, shape):
    checks.assert_count(meta_model(model_config(name)), measured)
    assert counted(*shape) == measured
    assert measured / 1e6 != pytest.approx(PRINTED_IN_TABLE_1, rel=0.01)


class TestInCommon(checks.CommonTests):
    name, fields, steps = NAME, SMALL, 5
    small = staticmethod(small)

    def test_gradients_reach_every_parameter_without_dropout(self):
        checks.check_gradients(small(dropout=0.0))


def test_any_number_of_steps():
    checks.check_any_steps(small())


def test_against_its_description():
    """With a time constant of its own in every layer."""
    model = checks.livelier(small()).eval().double()
    neurons = [*(layer.neuron for layer in model.layers), model.hidden_neuron, model.head.neuron]
    with torch.no_grad():
        for index, neuron in enumerate(neurons):
            neuron.w.fill_(0.3 * index - 0.5)
    taus = [1 / torch.sigmoid(neuron.w).item() for neuron in neurons]
    x = events = checks.loud_clips(model, dtype=torch.float64)
    for layer, tau in zip(model.layers, taus, strict=False):
        drive = [
            checks.norm_by_hand(layer.conv.norm, F.conv2d(x[:, t], layer.conv.conv.weight, padding=1))
            for t in range(x.shape[1])
        ]
        x = checks.leaky_by_hand(torch.stack(drive, 1), tau)
        x = x.unflatten(4, (-1, 2)).unflatten(3, (-1, 2)).amax((4, 6))
    x = checks.leaky_by_hand(x.flatten(2) @ model.hidden.weight.T, taus[-2])
    votes = checks.leaky_by_hand(x @ model.head.linear.weight.T, taus[-1])
    logits = torch.stack([votes[..., 10 * c : 10 * c + 10].mean(-1) for c in range(3)], -1)
    with torch.no_grad():
        out = model(events)
    assert out.any()
    torch.testing.assert_close(out, logits, rtol=1e-9, atol=1e-9)


def test_the_mask_of_a_clip_is_the_same_at_every_step():
    torch.manual_seed(0)
    out = clip_dropout(torch.ones(3, 4, 500), 0.25, training=True)
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert out.mean().item() == pytest.approx(1, abs=0.05)
    assert not torch.equal(out[0], out[1])
    x = torch.randn(2, 3, 4)
    assert torch.equal(clip_dropout(x, 0.25, training=False), x)


def test_invalid_fields():
    with raises(ConfigError, "depth"):
        small(depth=6)
    with raises(ConfigError, "dropout"):
        small(dropout=1.0)
