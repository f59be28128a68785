"""The CNN with a GRU over the steps against its description and PyTorch's own GRU."""

import pytest
import torch
from tests.models.peers.peer_checks import calibrated, check_network
from tests.raising import raises
from torch import nn

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import meta_model, model_config


@pytest.fixture
def small():
    return create_model("cnn-gru", seed=0, channels=(4, 6, 8), hidden_size=9, num_classes=5, in_size=34)


def test_the_parameters_are_counted():
    convs = 9 * (2 * 32 + 32 * 64 + 64 * 128) + 2 * (32 + 64 + 128)
    recurrent = 3 * 256 * (128 + 256 + 2)
    assert meta_model(model_config("cnn-gru")).parameter_count() == convs + recurrent + 257 * 11 == 392_459


def test_the_checks_of_every_network(small, events, tmp_path):
    x = events(34, steps=3, samples=4)
    check_network(small, x, steps=3, spiking_layers=0, folder=tmp_path)


def test_the_unit_is_pytorchs(small, poisoned_empty):
    unit = small.gru.double()
    theirs = nn.GRU(8, 9, batch_first=True).double()
    names = ("weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0")
    ours = (unit.input_proj.weight, unit.input_proj.bias, unit.recurrent_proj.weight, unit.recurrent_proj.bias)
    with torch.no_grad():
        for name, parameter in zip(names, ours, strict=True):
            getattr(theirs, name).copy_(parameter)
    x, start = torch.randn(3, 7, 8, dtype=torch.float64), torch.randn(3, 9, dtype=torch.float64)
    expected, last = theirs(x, start[None])
    given, state = unit(x, start)
    torch.testing.assert_close(given, expected)
    torch.testing.assert_close(state, last[0])
    weight = torch.randn_like(given)
    (expected * weight).sum().backward()
    (given * weight).sum().backward()
    for name, parameter in zip(names, ours, strict=True):
        torch.testing.assert_close(parameter.grad, getattr(theirs, name).grad)


@torch.no_grad()
def test_pieces_with_state_are_one_call(small):
    x = torch.randn(2, 6, 8)
    whole, last = small.gru(x)
    first, state = small.gru(x[:, :2])
    second, state = small.gru(x[:, 2:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), whole)
    torch.testing.assert_close(state, last)


@torch.no_grad()
def test_order_matters_and_later_steps_do_not(small, events):
    x = events(34, steps=4)
    logits = calibrated(small, x)(x)
    assert (small(x.flip(1)).mean(1) - logits.mean(1)).abs().max() > 1e-3
    torch.testing.assert_close(small(x[:, :2]), logits[:, :2])


@pytest.mark.parametrize(("field", "value"), [("channels", (4, 6)), ("hidden_size", 0)])
def test_sizes_are_checked(field, value):
    with raises(ConfigError, field=field):
        create_model("cnn-gru", **{field: value})
