"""Synaptic operations counted one event at a time, and what follows from them."""

import pytest
import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.account.energy import energy_report, fan_out, measure_activity
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.synthetic import synthetic_clip

SIZES = pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 4), (6, 7), (9, 9)])
CHANNELS = (3, 4, 5)
TINY = {"stage_channels": CHANNELS, "embed_dims": (4, 4, 4), "time_steps": 3}


def outputs_reading(position, size, stride):
    """All (output, tap) pairs of a padded 3×3 kernel that read one position."""
    pairs = []
    for i in range((size[0] - 1) // stride + 1):
        for j in range((size[1] - 1) // stride + 1):
            pairs += [
                (i, j, di, dj)
                for di in (-1, 0, 1)
                for dj in (-1, 0, 1)
                if (i * stride + di, j * stride + dj) == position
            ]
    return pairs


@SIZES
@pytest.mark.parametrize("stride", [1, 2])
def test_fan_out(size, stride):
    fan = fan_out(*size, stride)
    expected = [[len(outputs_reading((i, j), size, stride)) for j in range(size[1])] for i in range(size[0])]
    assert fan.tolist() == expected


@SIZES
@pytest.mark.parametrize("stride", [1, 2])
def test_fan_out_is_the_gradient_of_a_convolution_of_ones(size, stride):
    x = torch.zeros(1, 1, *size, requires_grad=True)
    torch.nn.functional.conv2d(x, torch.ones(1, 1, 3, 3), stride=stride, padding=1).sum().backward()
    assert torch.equal(fan_out(*size, stride).float(), x.grad[0, 0])


@pytest.fixture
def network():
    """A tiny one in which all layers fire."""
    model = create_model("nmnist", seed=0, **TINY).eval()
    with torch.no_grad():
        for stage in model.stages:
            for norm in (stage.first_norm, stage.second_norm):
                norm.weight.fill_(6)
                norm.bias.fill_(0.5)
    return model


def count_events(spikes, channels, stride):
    """One addition for every spike and weight that reads it: at its own step and, by the second kernel, at the next."""
    _, steps, _, height, width = spikes.shape
    additions = 0
    for _, step, _, i, j in spikes.nonzero().tolist():
        reached = channels * len(outputs_reading((i, j), (height, width), stride))
        additions += reached * (2 if step + 1 < steps else 1)
    return additions


def operands(model, x):
    """The input of each of the six convolutions, with its stride."""
    spikes = list(model.front_end(x, observe=("spikes",)).observed.values())
    return list(zip([x, *spikes[:-1]], (2, 1) * 3, strict=True))


def test_accumulates_event_by_event(network):
    x = synthetic_clip(3, 11, 9, samples=2)
    layers = measure_activity(network, x)
    given = operands(network, x)
    outs = [c for c in CHANNELS for _ in range(2)]
    assert [layer.binary for layer in layers] == [False] + [True] * 5
    assert layers[0].accumulates is None
    for layer, (operand, stride), channels in zip(layers, given, outs, strict=True):
        assert layer.rate == pytest.approx(operand.mean().item())
        assert layer.rate > 0.01
        if layer.binary:
            assert layer.accumulates == pytest.approx(count_events(operand, channels, stride) / 2)
    assert [layer.layer for layer in layers] == [f"stage{s}.{w}_conv" for s in (1, 2, 3) for w in ("first", "second")]


def test_multiply_adds_leave_out_the_border(network):
    x = synthetic_clip(3, 11, 9)
    sizes = [(11, 9), (6, 5), (6, 5), (3, 3), (3, 3), (2, 2)]
    widths = [(2, 3), (3, 3), (3, 4), (4, 4), (4, 5), (5, 5)]
    for layer, size, (before, after), stride in zip(
        measure_activity(network, x), sizes, widths, (2, 1) * 3, strict=True
    ):
        pairs = sum(len(outputs_reading((i, j), size, stride)) for i in range(size[0]) for j in range(size[1]))
        assert layer.macs == pairs * before * after * 3


def test_the_report_follows_from_the_layers(network):
    x = synthetic_clip(3, 11, 9)
    report, layers = energy_report(network, x, "a test"), measure_activity(network, x)
    flops = count_flops(network.config.replace(in_size=(11, 9)))
    rest = (flops.total - flops.by_part["backbone"]) / 2 * 4.6e-6
    dense = sum(layer.macs for layer in layers) * 4.6e-6
    additions = sum(layer.accumulates for layer in layers[1:])
    event = layers[0].macs * 4.6e-6 + additions * 0.9e-6
    assert report["synaptic_operations"] == additions
    assert report["backbone_dense_microjoules"] == pytest.approx(dense)
    assert report["backbone_event_microjoules"] == pytest.approx(event)
    assert report["network_dense_microjoules"] == pytest.approx(dense + rest)
    assert report["network_event_microjoules"] == pytest.approx(event + rest)
    eligible = sum(layer.macs for layer in layers[1:])
    assert report["eligible_share_of_backbone"] == pytest.approx(eligible / sum(layer.macs for layer in layers))
    assert report["eligible_share_of_network"] == pytest.approx(eligible * 4.6e-6 / (dense + rest))
    assert report["assumptions"]["measured_on"] == "a test"
    assert (report["assumptions"]["mac_picojoules"], report["assumptions"]["ac_picojoules"]) == (4.6, 0.9)


def test_without_spikes_only_the_first_layer_costs(network):
    with torch.no_grad():
        for stage in network.stages:
            for norm in (stage.first_norm, stage.second_norm):
                norm.bias.fill_(-50)
    report = energy_report(network, torch.zeros(1, 3, 2, 11, 9), "nothing")
    assert report["synaptic_operations"] == 0
    assert report["backbone_event_microjoules"] == pytest.approx(report["layers"][0]["macs"] * 4.6e-6)


def test_a_single_step_reads_every_spike_once(network):
    x = synthetic_clip(1, 11, 9)
    for layer, (operand, stride) in list(zip(measure_activity(network, x), operands(network, x), strict=True))[1:]:
        fan = fan_out(*operand.shape[-2:], stride)
        channels = CHANNELS[int(layer.layer[5]) - 1]
        assert layer.accumulates == (operand[0, 0].sum(0) * fan).sum().item() * channels


def test_without_the_filter_every_spike_is_read_once():
    plain = create_model("nmnist", seed=0, **{**TINY, "tdm": False}).eval()
    x = synthetic_clip(3, 11, 9)
    for stage in plain.stages:
        torch.nn.init.constant_(stage.first_norm.weight, 6)
        torch.nn.init.constant_(stage.second_norm.weight, 6)
    for layer, (operand, stride) in list(zip(measure_activity(plain, x), operands(plain, x), strict=True))[1:]:
        fan = fan_out(*operand.shape[-2:], stride)
        channels = CHANNELS[int(layer.layer[5]) - 1]
        assert layer.accumulates == pytest.approx((operand[0].sum((0, 1)) * fan).sum().item() * channels)


def test_the_baselines_encoder():
    small = {"channels": (4, 5, 6), "embed_dim": 16, "depth": 2, "time_steps": 4, "in_size": (13, 18)}
    model = create_model("mamba-spike", seed=0, **small).eval()
    with torch.no_grad():
        for layer in model.encoder:
            layer.conv.weight.mul_(5)
    x = synthetic_clip(4, 13, 18)
    layers = measure_activity(model, x)
    assert [layer.binary for layer in layers] == [False, True, True, True, True, True]
    operand = x
    for conv, recurrent, part in zip(layers[::2], layers[1::2], model.encoder, strict=True):
        spikes = part(operand).detach()
        channels = spikes.shape[2]
        assert spikes.mean() > 0.01
        if conv.binary:
            expected = sum(
                channels * len(outputs_reading((i, j), operand.shape[-2:], 1))
                for *_, i, j in operand.nonzero().tolist()
            )
            assert conv.accumulates == expected
        assert recurrent.accumulates == spikes[:, :-1].sum().item() * channels
        operand = spikes
    report = energy_report(model, x, "a test")
    flops = count_flops(model.config)
    rest = (flops.total - flops.by_part["encoder"]) / 2 * 4.6e-6
    dense = sum(layer.macs for layer in layers) * 4.6e-6
    assert report["network_dense_microjoules"] == pytest.approx(dense + rest)
    assert report["synaptic_operations"] == sum(layer.accumulates for layer in layers[1:])
