"""MS-ResNet-18: its count, its blocks one by one, and what every network must do."""

import pytest
import torch
import torch.nn.functional as F
from tests.models.peers import peer_checks as checks
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import meta_model, model_config

NAME = "ms-resnet"
SMALL = {"channels": (4, 6, 6, 8), "depths": (2, 1, 1, 2), "in_size": (32, 32), "time_steps": 4, "num_classes": 3}
PRINTED = 11.20  # millions, in Table 1


def small(**overrides):
    return create_model(NAME, seed=0, **{**SMALL, **overrides})


def test_the_count():
    checks.assert_count(meta_model(model_config(NAME)), 11_183_243, PRINTED)


class TestInCommon(checks.CommonTests):
    name, fields, steps = NAME, SMALL, 1


@pytest.mark.parametrize("size", [(32, 32), (48, 34), (64, 64)])
def test_any_size_and_number_of_steps(size):
    model = checks.livelier(small()).eval()
    with torch.no_grad():
        assert model(torch.rand(1, 6, 2, *size)).shape == (1, 1, 3)


def test_a_block_starts_as_its_shortcut():
    model = small().eval()
    x = torch.randn(2, 4, 4, 8, 8)
    assert torch.equal(model.blocks[1](x), x)
    first = model.blocks[0]
    assert torch.equal(first(x), first.shortcut(x))


def test_against_its_description():
    model = checks.livelier(small()).eval().double()

    def neuron(x):
        return checks.leaky_by_hand(x, tau=4 / 3, threshold=0.5, decay_input=False)

    def conv(layer, x, stride, padding):
        images = F.conv2d(x.flatten(0, 1), layer.conv.weight, stride=stride, padding=padding)
        return checks.norm_by_hand(layer.norm, images).unflatten(0, x.shape[:2])

    events = checks.loud_clips(model, dtype=torch.float64)
    x = conv(model.stem, events, 2, 3)
    halving = {0, 2, 3, 4}  # the first blocks of the four stages
    for index, block in enumerate(model.blocks):
        stride = 2 if index in halving else 1
        inner = conv(block.second_conv, neuron(conv(block.first_conv, neuron(x), stride, 1)), 1, 1)
        x = inner + (conv(block.shortcut, x, 2, 0) if index in halving else x)
    rates = sum(neuron(x)[:, t].mean((2, 3)) for t in range(4)) / 4
    logits = rates @ model.head.weight.T + model.head.bias
    with torch.no_grad():
        torch.testing.assert_close(model(events)[:, 0], logits, rtol=1e-9, atol=1e-9)


def test_invalid_fields():
    with raises(ConfigError, "depths"):
        small(depths=(2, 2))
    with raises(ConfigError, "channels"):
        small(channels=(4, 4, 4, 0))
