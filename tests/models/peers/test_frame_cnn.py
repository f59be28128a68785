"""The frame CNN against its description."""

import pytest
import torch
import torch.nn.functional as F
from tests.models.peers.peer_checks import calibrated, check_network
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import meta_model, model_config

RESNET18 = 11_689_512  # of torchvision's, at 3 channels and 1000 classes
FIRST_KERNELS = 64 * 7 * 7  # of one input channel


@pytest.fixture
def small():
    return create_model("frame-cnn", seed=0, channels=(4, 6, 8, 10), num_classes=5, in_size=34)


def test_it_has_the_size_of_resnet18():
    assert meta_model(model_config("frame-cnn", num_classes=1000)).parameter_count() == RESNET18 - FIRST_KERNELS
    assert meta_model(model_config("frame-cnn")).parameter_count() == 11_179_019


def test_the_checks_of_every_network(small, events, tmp_path):
    x = events(34, steps=3, samples=4)
    check_network(small, x, steps=1, spiking_layers=0, folder=tmp_path)


def slow_conv_norm(layer, x):
    conv, norm = layer.conv, layer.norm
    x = F.conv2d(x, conv.weight, None, conv.stride, conv.kernel_size[0] // 2)
    shape = (1, -1, 1, 1)
    x = (x - norm.running_mean.view(shape)) / (norm.running_var.view(shape) + 1e-5).sqrt()
    return x * norm.weight.view(shape) + norm.bias.view(shape)


@torch.no_grad()
@pytest.mark.parametrize("size", [(32, 32), (34, 57)])
def test_the_mean_frame_goes_through_residual_blocks(small, events, size):
    x = events(*size, dtype=torch.float64)
    calibrated(small.double(), x)
    frame = sum(x.unbind(1)) / x.shape[1]
    y = F.max_pool2d(slow_conv_norm(small.stem, frame).clamp(min=0), 3, 2, 1)
    for block, shrinks in zip(small.blocks, (0, 0, 1, 0, 1, 0, 1, 0), strict=True):
        shortcut = slow_conv_norm(block.shortcut, y) if shrinks else y
        y = slow_conv_norm(block.first, y).clamp(min=0)
        y = (slow_conv_norm(block.second, y) + shortcut).clamp(min=0)
    last = [-(-side // 32) for side in size]
    assert list(y.shape[2:]) == last
    pooled = y.sum((2, 3)) / (last[0] * last[1])
    torch.testing.assert_close(small(x)[:, 0], pooled @ small.head.weight.T + small.head.bias)


@torch.no_grad()
def test_it_has_no_sense_of_time(small, events):
    x = events(34, steps=4)
    calibrated(small, x)
    torch.testing.assert_close(small(x.flip(1)), small(x))


def test_widths_are_checked():
    with raises(ConfigError, field="channels"):
        create_model("frame-cnn", channels=(4, 6, 8))
