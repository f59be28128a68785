"""TSM against its description."""

import pytest
import torch
import torch.nn.functional as F
from tests.models.peers.peer_checks import calibrated, check_network
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.peers.tsm import temporal_shift
from ripe_mambaspike.models.registry import meta_model, model_config

PRINTED = 24.3e6  # Table 1's
FIRST_KERNELS = 64 * 7 * 7  # of one input channel
RESNET50 = 25_557_032  # of torchvision's, at 3 channels and 1000 classes


@pytest.fixture
def small():
    fields = {"channels": (4, 4, 8, 8), "depths": (1, 2, 1, 1), "num_classes": 5, "in_size": 40}
    return create_model("tsm", seed=0, **fields)


def test_it_has_the_size_of_resnet50():
    assert meta_model(model_config("tsm", num_classes=1000)).parameter_count() == RESNET50 - FIRST_KERNELS


def test_the_printed_count_is_that_of_400_classes():
    """With the 200 classes of DailyDVS-200 the network is 1.6 % smaller than printed."""
    printed = meta_model(model_config("tsm", num_classes=400)).parameter_count() + FIRST_KERNELS
    assert printed == 24_327_632
    assert round(printed / 1e6, 1) == PRINTED / 1e6
    assert meta_model(model_config("tsm")).parameter_count() == 23_914_696


def test_the_checks_of_every_network(small, events, tmp_path):
    x = events(40, steps=3, samples=4)
    check_network(small, x, steps=1, spiking_layers=0, folder=tmp_path)


def slow_shift(x):
    out = x.clone()
    each = x.shape[2] // 8
    for t in range(x.shape[1]):
        for channel in range(each):
            later, earlier = t + 1, t - 1
            out[:, t, channel] = x[:, later, channel] if later < x.shape[1] else 0
            out[:, t, each + channel] = x[:, earlier, each + channel] if earlier >= 0 else 0
    return out


@pytest.mark.parametrize(("steps", "channels"), [(1, 8), (4, 8), (5, 19), (3, 7)])
def test_an_eighth_of_the_channels_is_shifted_each_way(steps, channels):
    x = torch.randn(2, steps, channels, 3, 4)
    assert torch.equal(temporal_shift(x), slow_shift(x))


def slow_conv_norm(layer, x):
    conv, norm = layer.conv, layer.norm
    x = F.conv2d(x.flatten(0, 1), conv.weight, None, conv.stride, conv.kernel_size[0] // 2).unflatten(0, x.shape[:2])
    shape = (1, 1, -1, 1, 1)
    x = (x - norm.running_mean.view(shape)) / (norm.running_var.view(shape) + 1e-5).sqrt()
    return x * norm.weight.view(shape) + norm.bias.view(shape)


@torch.no_grad()
def test_blocks_shift_the_residual_branch_and_frames_are_averaged(small, events):
    x = events(40, 57, steps=4, dtype=torch.float64)
    calibrated(small.double(), x)
    y = slow_conv_norm(small.stem, x).clamp(min=0)
    y = F.max_pool2d(y.flatten(0, 1), 3, 2, 1).unflatten(0, (2, 4))
    for block, projected in zip(small.blocks, (1, 1, 0, 1, 1), strict=True):
        shortcut = slow_conv_norm(block.shortcut, y) if projected else y
        y = slow_conv_norm(block.reduce, slow_shift(y)).clamp(min=0)
        y = slow_conv_norm(block.conv, y).clamp(min=0)
        y = (slow_conv_norm(block.expand, y) + shortcut).clamp(min=0)
    assert y.shape[3:] == (2, 2)
    logits = [frame.mean((2, 3)) @ small.head.weight.T + small.head.bias for frame in y.unbind(1)]
    torch.testing.assert_close(small(x)[:, 0], sum(logits) / 4)


@torch.no_grad()
def test_order_matters(small, events):
    x = events(40, steps=4)
    calibrated(small, x)
    assert (small(x.flip(1)) - small(x)).abs().max() > 1e-4
    assert small(events(40, steps=9)).isfinite().all()


@pytest.mark.parametrize("field", ["channels", "depths"])
def test_sizes_are_checked(field):
    with raises(ConfigError, field=field):
        create_model("tsm", **{field: (1, 2, 3)})
