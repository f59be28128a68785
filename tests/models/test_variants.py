"""Every field that may be overridden and every ablation: forward and backward, with a gradient for every parameter."""

import re

import pytest
import torch

from ripe_mambaspike.nn.forward_mode import ForwardMode

VARIANTS = {
    "default": {},
    "steps": {"time_steps": 3},
    "classes": {"num_classes": 23},
    "stage_channels": {"stage_channels": (4, 8, 8)},
    "embed_dims": {"embed_dims": (4, 8, 12)},
    "equal widths": {"embed_dims": (8, 8, 8)},
    "pool_ratios": {"pool_ratios": (2, 1, 3)},
    "lif": {"neurons": "lif"},
    "silif": {"neurons": "silif"},
    "csilif": {"neurons": "csilif"},
    "mixed neurons": {"neurons": ("lif", "csilif", "silif")},
    "transformer": {"mixer": "transformer"},
    "gru": {"mixer": "gru"},
    "conv1d": {"mixer": "conv1d"},
    "no mixer": {"mixer": "none"},
    "flat": {"mixer": "flat"},
    "matched flat": {"mixer": "flat-matched"},
    "csilif_reset": {"csilif_reset": 0.2, "neurons": "csilif"},
    "detach_reset": {"detach_reset": True},
    "relu": {"attention_feature_map": "relu"},
    "softplus": {"attention_feature_map": "softplus"},
    "exp": {"attention_feature_map": "exp", "attention_epsilon": 0.1},
    "bridge_dim": {"bridge_dim": 13},
    "mamba": {"d_state": 6, "d_conv": 3, "expand": 3},
    "low-rank": {"attention": "low-rank"},
    "grouped": {"attention": "grouped"},
    "sigmoid": {"attention": "sigmoid"},
    "gate": {"attention": "gate"},
    "A1": {"attention": "none"},
    "A2": {"repconv": False},
    "A3": {"tdm": False},
    "A4": {"bridge": "stage3"},
    "A1-A4": {"attention": "none", "repconv": False, "tdm": False, "bridge": "stage3"},
    "tokens": {"num_tokens": 4},
    "wide head": {"head_hidden_size": 20},
    "drop path": {"drop_path_rate": 0.5},
    "deployed": {"form": "deployed"},
    "dual-kernel": {"form": "dual-kernel"},
}
UNREACHED = {"A1": {"bridge.attention.weight"}, "A1-A4": {"bridge.attention.weight"}}  # A = 0
# The norm behind a convolution takes every constant away, so a branch's shift moves nothing. Kernels give it exactly
# zero; the reference path leaves what rounding leaves.
CANCELLED = re.compile(r"stages\.\d\.(first|second)_conv\.branches\.\d\.norm\.bias")


def gradients(model, x):
    """Of every learned parameter in a relaxed pass, where no layer is silent; {name: gradient or None}."""
    logits = model.run(x, ForwardMode(relaxed=True)).logits
    assert logits.shape == (x.shape[0], x.shape[1], model.config.num_classes)
    assert logits.isfinite().all()
    (logits * torch.randn_like(logits)).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "dual-kernel"])
def test_every_parameter_has_a_gradient(small, events, variant):
    model = small(**VARIANTS[variant])
    for name, gradient in gradients(model, events(steps=model.config.time_steps, samples=3)).items():
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        if CANCELLED.fullmatch(name):
            assert gradient.abs().max() < 1e-4, name
        elif variant != "drop path":
            assert (gradient.abs().max() > 0) == (name not in UNREACHED.get(variant, ())), name


def test_gradients_through_two_kernels(small, events):
    """The kernels hold the filter already, so its coefficient is only kept to be read off."""
    model = small(form="dual-kernel")
    found = gradients(model, events())
    kept = {name for name in found if name.endswith("coefficient")} - {"stages.0.first_conv.coefficient"}
    assert {name for name, gradient in found.items() if gradient is None} == kept
    assert all(gradient.isfinite().all() for name, gradient in found.items() if name not in kept)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_hard_pass(small, louder, events, variant):
    model = louder(small(**VARIANTS[variant])).eval()
    x = events(steps=model.config.time_steps)
    with torch.no_grad():
        out = model.run(x)
    assert out.logits.isfinite().all()
    assert ((out.rates >= 0) & (out.rates <= 1)).all()
    for spikes in model.run(x, observe=("spikes",)).observed.values():
        assert set(spikes.unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("variant", ["default", "A4", "tokens", "no mixer", "wide head"])
def test_the_parts_are_joined_in_order(small, louder, events, variant):
    """Entry → three stages → bridge → tokens → hierarchy → mean over the tokens of a step → head."""
    model = louder(small(**VARIANTS[variant])).double().eval()
    x = events(dtype=torch.float64)
    with torch.no_grad():
        current, stages = model.entry(x), []
        for stage in model.stages:
            stages.append(stage(current))
            current = stages[-1].spikes
        read = stages[2:] if variant == "A4" else stages
        features, _ = model.bridge.features([stage.spikes for stage in read], (3, 3))
        kept = model.tokens.select(model.tokens(current)[0]) if variant == "tokens" else None
        tokens = model.hierarchy(model.bridge(features, stages[2].attention, kept))
        expected = model.head(torch.stack([step.mean(1) for step in tokens.unbind(1)], 1))
        out = model.run(x)
    torch.testing.assert_close(out.logits, expected, rtol=1e-12, atol=1e-12)
    rates = [s.mean() for stage in stages for s in (stage.inner_spikes, stage.spikes)]
    torch.testing.assert_close(out.rates, torch.stack(rates).float())
    assert torch.equal(out.attention, stages[2].attention)


@pytest.mark.parametrize(("field", "kind"), [("attention", "none"), ("tdm", False), ("repconv", False)])
def test_an_ablation_changes_the_network(small, louder, events, field, kind):
    with torch.no_grad():
        whole, without = (louder(small(**f)).eval()(events()) for f in ({}, {field: kind}))
    assert not torch.allclose(whole, without)


def test_tokens_are_shared_between_two_passes(small, louder, events):
    model = louder(small(num_tokens=4)).double().eval()
    x = events(dtype=torch.float64)
    with torch.no_grad():
        hard = model.run(x)
        relaxed = ForwardMode(relaxed=True)
        shared = model.run(x, relaxed, hard.token_indices)
        own = model.run(x, relaxed)
        front = model.front_end(x, relaxed)
    assert hard.token_indices.shape == (2, 4)
    assert torch.equal(shared.token_indices, hard.token_indices)
    assert not torch.equal(own.token_indices, hard.token_indices)
    expected = model.classify(front.features, front.attention, hard.token_indices)
    assert torch.equal(shared.logits, expected)
    assert not torch.equal(own.logits, expected)
