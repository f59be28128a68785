"""A wrong conversion raises."""

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model, dual_kernel, fuse
from ripe_mambaspike.deploy.fuse import convert as fusing
from ripe_mambaspike.errors import VerificationError
from ripe_mambaspike.models.form_agreement import compare_forms, probe, verify
from ripe_mambaspike.nn import repconv
from ripe_mambaspike.nn.norm import BatchNorm, TimeBatchNorm

SILENT = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 5}


def corrupt_kernel(monkeypatch, owner, name, factor=1 + 1e-9):
    true = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args: true(*args) * factor)


@pytest.mark.parametrize("owner", [repconv.Branch, repconv.Identity, repconv.AveragePool])
def test_a_wrong_branch(loud, monkeypatch, owner):
    model = loud()
    corrupt_kernel(monkeypatch, owner, "kernel")
    with raises(VerificationError, "deployed", mentions=("'nmnist'", "training form", "1e-12")):
        fuse(model, quiet=True)


@pytest.mark.parametrize("owner", [BatchNorm, TimeBatchNorm])
def test_a_wrong_norm(loud, monkeypatch, owner):
    true = owner.scale_and_shift

    def wrong(norm):
        scale, shift = true(norm)
        return scale, shift + 1e-9

    monkeypatch.setattr(owner, "scale_and_shift", wrong)
    with pytest.raises(VerificationError):
        fuse(loud(), quiet=True)


def corrupt_tensor(monkeypatch, pattern, change):
    """Change one tensor of the conversion, by the end of its name."""
    true = fusing._in_float64

    def wrong(converted, model):
        tensors = true(converted, model)
        for name in tensors:
            if name.endswith(pattern):
                tensors[name] = change(tensors[name].clone())
        return tensors

    monkeypatch.setattr(fusing, "_in_float64", wrong)


@pytest.mark.parametrize(
    "pattern",
    [
        "entry.scale",
        "stages.0.first_conv.weight",
        "stages.1.second_conv.bias",
        "stages.2.first_conv.coefficient",
        "stages.2.second_norm.shift",
        "stages.2.attention.value.0",
        "stages.1.second_neuron.threshold",
        "bridge.mixture.scales.0.scale",
        "bridge.mixture.scales.2.shift",
        "bridge.mixture.mix",
        "bridge.norm.weight",
        "bridge.attention.weight",
        "hierarchy.blocks.1.backward_mamba.A_log",
        "head.bias",
    ],
)
def test_a_wrong_tensor_anywhere(loud, monkeypatch, pattern):
    model = loud()
    size = 0.1 if pattern.endswith("threshold") else 1e-4  # a threshold is seen once a spike flips
    corrupt_tensor(monkeypatch, pattern, lambda t: t + size * torch.arange(t.numel()).reshape(t.shape))
    with pytest.raises(VerificationError):
        fuse(model, quiet=True)


@pytest.mark.parametrize("pattern", ["weight_now", "weight_before"])
def test_a_wrong_kernel_of_two(loud, monkeypatch, pattern):
    fused = fuse(loud(), quiet=True)
    corrupt_tensor(monkeypatch, f"stages.2.second_conv.{pattern}", lambda t: t * (1 + 1e-9))
    with raises(VerificationError, "dual-kernel"):
        dual_kernel(fused, quiet=True)


@pytest.mark.parametrize("pattern", ["stages.2.second_conv.weight", "stages.1.first_norm.scale", "scales.1.weight"])
def test_a_wrong_layer_behind_silent_neurons(monkeypatch, pattern):
    model = create_model("nmnist", seed=0, **SILENT)
    with torch.no_grad():
        for stage in model.stages:
            stage.first_norm.bias.fill_(-20)
    x = probe(model)
    fired = model.double().eval().front_end(x, observe=("spikes",)).observed
    assert not any(fired[f"stages.{level}.first_neuron.spikes"].any() for level in range(3))
    corrupt_tensor(monkeypatch, pattern, lambda t: t * (1 + 1e-8))
    with pytest.raises(VerificationError):
        fuse(model, quiet=True)


@pytest.mark.parametrize("name", ["head.weight", "stages.0.first_conv.coefficient", "bridge.mixture.mix"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite(loud, name, value):
    model = loud()
    with torch.no_grad():
        dict(model.named_parameters())[name].view(-1)[0] = value
    with pytest.raises(VerificationError):
        fuse(model, quiet=True)


def test_a_negative_variance(loud):
    model = loud()
    model.stages[2].second_conv.branches[0].norm.running_var[0] = -3
    with pytest.raises(VerificationError):
        fuse(model, quiet=True)


def test_comparing_a_network_with_itself_and_with_another(loud):
    model, other = loud(), loud(seed=1)
    x = probe(model, 21, samples=2)
    same = compare_forms(model, model, x)
    assert (same.error, same.flips) == (0, 0)
    assert same.spikes > 100
    apart = compare_forms(model, other, x)
    assert apart.error > 0.01
    assert apart.flips > 0
    with raises(VerificationError, mentions="spikes differ"):
        verify(model, other)


def test_the_comparison_counts_flips(loud):
    """Raising one channel's threshold of the last neuron takes its spikes away, and no other spike."""
    model, other = loud(), loud()
    x = probe(model)
    fired = model.double().eval().front_end(x, observe=("spikes",)).observed["stages.2.second_neuron.spikes"]
    lost, channel = fired.sum((0, 1, 3, 4)).max(0)
    assert lost > 0
    with torch.no_grad():
        other.stages[2].second_neuron.threshold[channel] = 1e6
    assert compare_forms(model, other, x).flips == lost


def test_the_probe_is_wide_enough_for_the_tokens(loud):
    assert probe(loud(num_tokens=16)).shape == (1, 5, 2, 32, 32)
    assert probe(loud()).shape == (1, 5, 2, 18, 18)
    assert probe(loud()).dtype == torch.float64


def test_a_layer_whose_branches_cancel_is_no_error():
    """Zero kernels, and norms whose shifts add up to rounding error alone: no error."""
    model = create_model("nmnist", seed=0, stage_channels=(8, 8, 8), embed_dims=(8, 8, 8))
    with torch.no_grad():
        for branch in model.stages[1].second_conv.branches:
            for conv in branch.convs:
                conv.weight.zero_()
            branch.norm.running_mean.normal_()
            branch.norm.weight.fill_(1 if branch.convs else 0)
            branch.norm.bias.copy_(branch.norm.running_mean / (1 + 1e-5) ** 0.5 if branch.convs else torch.zeros(8))
    fuse(model, quiet=True)
