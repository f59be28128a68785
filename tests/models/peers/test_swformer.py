"""SWformer against its description, neuron by neuron and product by product."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.models.peers.peer_checks import calibrated, check_network
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.peers.swformer import haar_matrix, signed_fire
from ripe_mambaspike.models.registry import meta_model, model_config

PRINTED = 2.05e6  # its paper's, and Table 1's


@pytest.fixture
def small():
    return create_model("swformer", seed=0, embed_dim=16, groups=4, mlp_ratio=2, depth=2, num_classes=5, in_size=64)


def test_the_printed_count_is_met():
    count = meta_model(model_config("swformer")).parameter_count()
    assert count == 2_056_266
    assert abs(count - PRINTED) < 0.01 * PRINTED


def test_the_checks_of_every_network(small, events, tmp_path):
    x = events(64, steps=3)
    check_network(small, x, steps=3, spiking_layers=4 + 2 * (1 + 1 + 3 + 2), folder=tmp_path)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 14])
def test_haar_matrices_are_orthonormal_at_any_size(size):
    matrix = haar_matrix(size, torch.empty((), dtype=torch.float64))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(matrix[0], torch.full((size,), size**-0.5, dtype=torch.float64))


def textbook_haar(size):
    """Row 2^j + k: 2^(j/2) / √n on the first half of the k-th of 2^j intervals, its negative on the second half."""
    matrix = torch.full((size, size), size**-0.5, dtype=torch.float64)
    for row in range(1, size):
        level = int(math.log2(row))
        interval = size // 2**level
        start = (row - 2**level) * interval
        matrix[row] = 0
        matrix[row, start : start + interval // 2] = (2**level / size) ** 0.5
        matrix[row, start + interval // 2 : start + interval] = -((2**level / size) ** 0.5)
    return matrix


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_haar_matrices_are_those_of_the_textbook_at_powers_of_two(size):
    torch.testing.assert_close(haar_matrix(size, torch.empty((), dtype=torch.float64)), textbook_haar(size))


def slow_signed(x):
    out, membrane = torch.empty_like(x), torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        membrane = membrane + x[:, t]
        out[:, t] = torch.where(membrane >= 1, 1.0, torch.where(membrane <= -0.501, -1.0, 0.0))
        membrane = torch.where(out[:, t] != 0, 0.0, membrane)
    return out


def slow_leaky(x):
    out, membrane = torch.empty_like(x), torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        membrane = membrane + (x[:, t] - membrane) / 2
        out[:, t] = (membrane >= 1).to(x.dtype)
        membrane = membrane * (1 - out[:, t])
    return out


def slow_norm(norm, x):
    shape = (1, 1, -1, 1, 1)
    x = (x - norm.running_mean.view(shape)) / (norm.running_var.view(shape) + 1e-5).sqrt()
    return x * norm.weight.view(shape) + norm.bias.view(shape)


def slow_group_conv(layer, x, groups):
    each = x.shape[2] // groups
    parts = [
        F.conv2d(part.flatten(0, 1), layer.conv.weight, layer.conv.bias, padding=layer.conv.kernel_size[0] // 2)
        for part in x.split(each, 2)
    ]
    return slow_norm(layer.norm, torch.cat(parts, 1).unflatten(0, x.shape[:2]))


def slow_mixer(block, x, groups, vertical, horizontal):
    spikes = slow_leaky(x)
    wavelets = block.wavelets
    rows = slow_signed(torch.einsum("btchw,vw->btchv", spikes, horizontal))
    frequencies = slow_leaky(slow_norm(wavelets.norm, torch.einsum("uh,btchv->btcuv", vertical, rows)))
    each = x.shape[2] // groups
    kernels = wavelets.mix.conv.weight.reshape(groups, each, each)
    parts = zip(frequencies.split(each, 2), kernels, strict=True)
    mixed = torch.cat([torch.einsum("btcuv,dc->btduv", part, kernel) for part, kernel in parts], 2)
    rows = torch.einsum("btcuv,vw->btcuw", slow_signed(slow_norm(wavelets.mix.norm, mixed)), horizontal)
    back = slow_norm(wavelets.back_norm, torch.einsum("uh,btcuw->btchw", vertical, slow_signed(rows)))
    return back + slow_group_conv(block.local, spikes, groups) + slow_group_conv(block.pointwise, spikes, groups)


@torch.no_grad()
def test_the_mixer_is_three_branches_of_the_same_spikes(small, events):
    calibrated(small.double(), events(64, 128, steps=4, dtype=torch.float64))
    x = 2 * torch.randn(2, 5, 16, 4, 8, dtype=torch.float64)
    vertical, horizontal = textbook_haar(4), textbook_haar(8)
    block = small.blocks[0]
    after_mixer = x + slow_mixer(block, x, 4, vertical, horizontal)
    expected = after_mixer + block.mlp(after_mixer)
    torch.testing.assert_close(block(x, vertical, horizontal), expected)


def test_signed_spikes():
    x = torch.tensor([0.6, 0.6, -0.3, -0.3, 0.9, -1.5, 1.0])[None]
    assert signed_fire(x)[0].tolist() == [0, 1, 0, -1, 0, -1, 1]


@torch.no_grad()
def test_order_matters_and_later_steps_do_not(small, events):
    x = events(64, steps=4)
    logits = calibrated(small, x)(x)
    assert (small(x.flip(1)).mean(1) - logits.mean(1)).abs().max() > 1e-3
    torch.testing.assert_close(small(x[:, :2]), logits[:, :2])


@torch.no_grad()
@pytest.mark.parametrize("size", [(32, 32), (34, 48), (80, 224)])
def test_any_size_works(small, events, size):
    x = events(*size, steps=2)
    assert calibrated(small, x)(x).isfinite().all()


@pytest.mark.parametrize("value", [12, 24])
def test_widths_that_do_not_divide_are_refused(value):
    with raises(ConfigError, field="embed_dim"):
        create_model("swformer", embed_dim=value)
