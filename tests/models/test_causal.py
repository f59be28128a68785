"""The causal network: each step sees only earlier ones, and a stream in pieces of any length equals one call."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.raising import raises

from ripe_mambaspike import create_model, from_pretrained
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.norm import SharedAffine, SharedNorm
from ripe_mambaspike.ops.backend import kernels

RELAXED = ForwardMode(relaxed=True, sharpness=3.0)
SMALL = {"stage_channels": (4, 6, 8), "embed_dims": (4, 6, 8), "time_steps": 3, "num_classes": 5, "drop_path_rate": 0.0}
VARIANTS = [
    {},
    {"form": "deployed"},
    {"form": "dual-kernel"},
    {"mixer": "none"},
    {"bridge": "stage3"},
    {"neurons": "lif"},
    {"attention": "gate"},
    {"head_hidden_size": 6, "pool_ratios": (2, 1, 3)},
    {"time_steps": 1},
]


@torch.no_grad()
def network(**fields):
    """A causal one in evaluation whose layers all fire, float64."""
    model = create_model("nmnist", seed=0, causal=True, **{**SMALL, **fields}).double()
    randomize(model, 0)
    for name, parameter in model.named_parameters():
        if name.endswith(("_norm.weight", "_norm.scale")):
            parameter.mul_(4)
        elif name.endswith(("_norm.bias", "_norm.shift")):
            parameter.add_(torch.linspace(0, 1, parameter.shape[1]))
    return model.eval()


def clip(steps=7, samples=2, height=19, width=15):
    return synthetic_clip(steps, height, width, samples).double()


def in_pieces(model, x, sizes):
    state, runs = {}, []
    for piece in x.split(sizes, 1):
        runs.append(model.run(piece, state=state))
        state = runs[-1].state
    return runs, state


# Streaming


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_every_step_on_its_own_equals_one_call(fields):
    """More than twice the steps of a training clip; the whole is the network's own pass."""
    model, x = network(**fields), clip()
    with torch.no_grad():
        whole = model.run(x)
    runs, state = in_pieces(model, x, [1] * 7)
    logits = torch.cat([run.logits for run in runs], 1)
    torch.testing.assert_close(logits, whole.logits, rtol=1e-12, atol=1e-12)
    attention = torch.cat([run.attention for run in runs], 1)
    torch.testing.assert_close(attention, whole.attention, rtol=1e-12, atol=1e-12)
    rates = torch.stack([run.rates for run in runs]).mean(0)
    torch.testing.assert_close(rates, whole.rates, rtol=1e-6, atol=1e-7)
    assert whole.rates.min() > 0
    assert all(len(value) == 2 for value in state.values())
    assert torch.equal(model.predict(x), logits.float().mean(1).argmax(-1))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    side=st.integers(8, 20),
    seed=st.integers(0, 2**31),
    form=st.sampled_from(["training", "deployed"]),
)
def test_chunking_changes_nothing(sizes, side, seed, form):
    model = network(form=form)
    x = synthetic_clip(sum(sizes), side, 9, 1, seed).double()
    whole = model.run(x, state={})
    runs, state = in_pieces(model, x, sizes)
    logits = torch.cat([run.logits for run in runs], 1)
    torch.testing.assert_close(logits, whole.logits, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, whole.state, rtol=1e-12, atol=1e-12)


def test_chunking_in_float32():
    model, x = network().float(), clip(12).float()
    runs, _ = in_pieces(model, x, [1, 5, 2, 4])
    with torch.no_grad():
        for choice in ("off", "auto"):
            with kernels(choice):
                torch.testing.assert_close(torch.cat([r.logits for r in runs], 1), model(x), rtol=1e-4, atol=1e-5)


def test_later_steps_do_not_change_earlier_logits():
    """Whatever follows a step, its logits stay the same to the bit."""
    model = network()
    x = clip(8)
    other = x.clone()
    other[:, 5:] = x[:, 5:].flip(-1) + 1
    with torch.no_grad():
        first, second = (model.run(one).logits for one in (x, other))
    assert torch.equal(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:])


def test_earlier_steps_change_later_logits():
    model, x = network(), clip(2)
    other = x.clone()
    other[:, 0] = 0
    with torch.no_grad():
        assert not torch.allclose(model(x)[:, 1], model(other)[:, 1])


def test_the_state_has_one_size():
    """In memory too: no step keeps the piece it came in alive, and no gradient holds on to the past."""
    model = network(form="deployed")
    sizes = set()
    for pieces in ([1], [1, 1, 1], [40], [7, 1]):
        _, state = in_pieces(model, clip(sum(pieces)), pieces)
        found = list({id(value): value for value in state.values()}.values())
        assert not any(tensor.requires_grad for tensor in found)
        sizes.add((sum(t.numel() for t in found), sum(t.untyped_storage().nbytes() for t in found)))
    assert len(sizes) == 1
    numbers, stored = sizes.pop()
    assert stored == 8 * numbers


def test_a_state_can_be_used_twice():
    model, x = network(), clip(4)
    state = model.run(x[:, :2], state={}).state
    first, second = (model.run(x[:, 2:], state=state).logits for _ in range(2))
    assert torch.equal(first, second)


def test_a_long_stream_stays_finite():
    """A hundred training clips long, and a silent camera at the end."""
    model = network(form="deployed").float()
    x = synthetic_clip(300, 9, 9).float()
    _, state = in_pieces(model, x, [50] * 6)
    loud = [state[f"bridge.rates.{scale}.count"] / state[f"bridge.rates.{scale}.weight"] for scale in range(3)]
    quiet = model.run(torch.zeros(1, 100, 2, 9, 9), state=state)
    assert quiet.logits.isfinite().all()
    assert all(float(rate.min()) >= 0 and float(rate.max()) <= 1 for rate in loud)
    weights = [float(quiet.state[f"bridge.rates.{scale}.weight"]) for scale in range(3)]
    assert weights == pytest.approx([3.0] * 3)  # as many steps as a training clip has


# What it is made of


def test_norms_have_one_step_and_scans_one_direction():
    model = network()
    norms = [model.entry, *(n for s in model.stages for n in (s.first_norm, s.second_norm))]
    assert {type(norm) for norm in norms} == {SharedNorm}
    assert {norm.weight.shape[0] for norm in norms} == {1}
    assert type(network(form="deployed").entry) is SharedAffine
    assert not any("backward" in name or "merge" in name for name in model.state_dict() if "hierarchy" in name)
    assert model.config.rate_decay == pytest.approx(2 / 3)


def test_parameters_follow_from_the_bidirectional_networks():
    """Norms of one step instead of 16, and of each block the half and no merge."""
    counts = {}
    for causal in (False, True):
        for form in ("training", "deployed"):
            with torch.device("meta"):
                counts[causal, form] = create_model("dvsgesture", causal=causal, form=form).parameter_count()
    norms = 15 * 2 * (2 + 2 * (32 + 64 + 128))
    widths = (32, 64, 128)
    merges = sum(2 * w * w + w for w in widths)
    scans = sum((21_984 + 73_664 + 266_112, -merges, -sum(2 * w for w in widths))) // 2
    assert counts[False, "training"] - counts[True, "training"] == norms + merges + scans
    assert counts[False, "deployed"] - counts[True, "deployed"] == norms + merges + scans
    assert counts[True, "training"] == 1_305_814
    assert counts[True, "deployed"] == 659_350


def test_no_parameter_depends_on_the_steps():
    with torch.device("meta"):
        counts = {create_model("dvsgesture", causal=True, time_steps=steps).parameter_count() for steps in (1, 16, 400)}
    assert counts == {1_305_814}


@pytest.mark.parametrize("form", ["training", "deployed", "dual-kernel"])
def test_saved_and_loaded(tmp_path, form):
    model, x = network(form=form), clip()
    loaded = from_pretrained(model.save_pretrained(tmp_path))
    assert loaded.config == model.config
    assert torch.equal(loaded.run(x, state={}).logits, model.run(x, state={}).logits)


def test_a_config_without_the_field_is_not_causal():
    """Networks saved before there were causal ones."""
    fields = RipeConfig().to_dict()
    assert fields.pop("causal") is False
    assert RipeConfig.from_dict(fields, "an older config.json") == RipeConfig()


@pytest.mark.parametrize(
    "fields", [{}, {"attention": "gate"}, {"repconv": False}, {"mixer": "none"}, {"bridge": "stage3"}], ids=str
)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("mode", [HARD, RELAXED], ids=["hard", "relaxed"])
def test_the_fused_path_is_the_network(fields, training, mode):
    """Outputs, gradients and running statistics in float64, on more steps than a training clip has."""
    x = clip(5)
    results = []
    for choice in ("off", "plain"):
        model = network(**fields).train(training)
        with kernels(choice):
            out = model.run(x, mode)
            (out.logits.sin().sum() + out.rates.sum() + out.attention.square().mean()).backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((out, gradients, dict(model.named_buffers())))
    (expected, wanted, statistics), (found, got, followed) = results
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.attention, expected.attention, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.rates, expected.rates, rtol=0, atol=1e-6)
    assert wanted.keys() == got.keys()
    for name, reference in wanted.items():
        scale = max(1e-3, float(reference.abs().max()))
        assert float((got[name] - reference).abs().max()) <= 1e-9 * scale, name
    for name, reference in statistics.items():
        torch.testing.assert_close(followed[name], reference, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("form", ["training", "deployed"])
@torch.no_grad()
def test_the_fused_path_without_gradients(form):
    model, x = network(form=form), clip(5)
    with kernels("off"):
        expected = model(x)
    with kernels("plain"):
        torch.testing.assert_close(model(x), expected, rtol=1e-11, atol=1e-11)


def test_the_kernels_train_a_causal_network():
    """Float32 beside float64, a relaxed pass: nothing flips."""
    x = clip(4)
    results = []
    for dtype, choice in ((torch.float64, "off"), (torch.float32, "auto")):
        model = network().to(dtype).train()
        with kernels(choice):
            out = model.run(x.to(dtype), RELAXED)
            out.logits.square().mean().backward()
        results.append((out.logits, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (expected, wanted), (found, got) = results
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    for name, reference in wanted.items():
        scale = max(1e-3, float(reference.abs().max()))
        assert float((got[name] - reference).abs().max()) <= 2e-3 * scale, name


@pytest.mark.parametrize("mixer", ["transformer", "gru", "conv1d", "flat"])
def test_bidirectional_mixers_are_refused(mixer):
    with raises(ConfigError, "mixer", mentions=("causal", mixer, "mamba or none")):
        create_model("nmnist", causal=True, mixer=mixer)


def test_other_refusals():
    with raises(ConfigError, "num_tokens", mentions=("causal", 4)):
        create_model("nmnist", causal=True, num_tokens=4)
    with raises(ConfigError, "causal", mentions=("'yes'", "true or false")):
        create_model("nmnist", causal="yes")
    whole, model = create_model("nmnist", **SMALL), network()
    with raises(ConfigError, "causal", mentions=("'nmnist'",)):
        whole.run(clip(1).float(), state={})
    with raises(InputError, "x", mentions=("at most 3", "got 4")):
        whole(clip(4).float())
    with raises(InputError, "x", mentions=("float32", "float64")):
        model.run(clip().float(), state={})
    state = model.run(clip(2), state={}).state
    with raises(InputError, "state", mentions=((1, 4, 10, 8), (2, 4, 10, 8))):
        model.run(clip(2, samples=1), state=state)
