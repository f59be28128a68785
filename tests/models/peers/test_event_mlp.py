"""The event-count MLP against its description."""

import pytest
import torch
import torch.nn.functional as F
from tests.models.peers.peer_checks import check_network
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import meta_model, model_config


@pytest.fixture
def small():
    return create_model("event-mlp", seed=0, grid_size=4, hidden_size=12, num_classes=5, in_size=34)


def test_the_parameters_are_counted():
    norm, hidden, head = 2 * 512, 512 * 256 + 256, 256 * 11 + 11
    assert meta_model(model_config("event-mlp")).parameter_count() == norm + hidden + head == 135_179


def test_the_checks_of_every_network(small, events, tmp_path):
    x = events(34, steps=3)
    check_network(small, x, steps=1, spiking_layers=0, folder=tmp_path)


@torch.no_grad()
def test_events_are_counted_in_cells(small):
    """Cell by cell: the mean count of its pixels, by log1p, layer norm and the hidden layer."""
    small.double()
    x = torch.poisson(torch.full((2, 3, 2, 32, 48), 0.7, dtype=torch.float64))
    cells = torch.zeros(2, 2, 4, 4, dtype=torch.float64)
    for row in range(4):
        for column in range(4):
            pixels = x[:, :, :, 8 * row : 8 * row + 8, 12 * column : 12 * column + 12]
            cells[:, :, row, column] = pixels.sum((1, 3, 4)) / (8 * 12)
    tokens = torch.log(1 + cells.reshape(2, 32))
    tokens = (tokens - tokens.mean(1, keepdim=True)) / (tokens.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    hidden = F.gelu(tokens @ small.hidden.weight.T + small.hidden.bias)
    torch.testing.assert_close(small(x)[:, 0], hidden @ small.head.weight.T + small.head.bias)


@torch.no_grad()
def test_it_has_no_sense_of_time(small, events):
    x = events(34, steps=4)
    torch.testing.assert_close(small(x.flip(1)), small(x))
    torch.testing.assert_close(small(x.sum(1, keepdim=True)), small(x))


@pytest.mark.parametrize("field", ["grid_size", "hidden_size"])
def test_sizes_are_checked(field):
    with raises(ConfigError, field=field):
        create_model("event-mlp", **{field: 0})
