"""Fusion and the dual kernel: the same outputs, to 1e-12 in float64 and to rounding in float32, for every variant."""

import copy
from functools import lru_cache

import pytest
import torch
from tests.deploy.networks import VARIANTS
from tests.raising import raises

from ripe_mambaspike import create_model, dual_kernel, fuse
from ripe_mambaspike.deploy.fuse.convert import dual_kernel_with_report, fuse_with_report
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.pretrained import load_weights
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.bridge import RateProjection
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.norm import BatchNorm, TimeBatchNorm
from ripe_mambaspike.nn.repconv import Branch, DualKernelConv, FusedConv, RepConv

RIPE = ["dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "dailydvs200", "dailydvs200-lite"]
CONVERT = {"deployed": fuse, "dual-kernel": dual_kernel}
LITERAL = ForwardMode(literal=True)
FORMS = pytest.mark.parametrize("form", CONVERT)


@pytest.fixture(scope="module")
def fused_pair(registered):
    """Name and dtype → a registered network and its deployed form, kept for the tests of both forms."""
    return lru_cache(1)(lambda name, dtype: ((model := registered(name).to(dtype)), fuse(model, quiet=True)))


@FORMS
@pytest.mark.parametrize("name", RIPE)
def test_every_config_is_exact(fused_pair, apart, name, form):
    model, fused = fused_pair(name, torch.float64)
    converted = fused if form == "deployed" else dual_kernel(fused, quiet=True)
    assert converted.config == model.config.replace(form=form)
    assert converted.dtype == torch.float64
    error, flips, rate = apart(model, converted, torch.float64)
    assert rate > 0.01, "a silent layer proves nothing"
    assert error <= 1e-12
    assert flips == 0


@FORMS
@pytest.mark.parametrize("name", RIPE)
def test_every_config_to_float32_rounding(fused_pair, apart, name, form):
    """Seed 0 was chosen: none of its potentials lies so near its threshold that rounding decides.

    Others do: the next test takes a seed that flips, and benchmarks/spike_flips.py counts how often it happens.
    """
    model, fused = fused_pair(name, torch.float32)
    converted = fused if form == "deployed" else dual_kernel(fused, quiet=True)
    assert converted.dtype == torch.float32
    error, flips, rate = apart(model, converted, torch.float32)
    assert rate > 0.01
    assert flips == 0
    assert error <= 1e-6


def first_half(stage, operand):
    """Spikes and potential of a stage's first neuron, every branch and norm run as written."""
    out, _ = stage.first_conv(operand, LITERAL)
    return stage.first_neuron(stage.first_norm(out, LITERAL), LITERAL)[0]


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_float32_flip_lies_within_rounding_of_its_threshold(registered, seed):
    """Seed 1 has two, in stage 2: of equal operands, only a spike that rounding decides may differ."""
    model = registered("nmnist", seed).eval()
    fused, exact = fuse(model, quiet=True), copy.deepcopy(model).double()
    operand = model.entry(synthetic_clip(10, 34, 34, samples=2, seed=3), LITERAL)
    for ours, theirs, wide in zip(model.stages, fused.stages, exact.stages, strict=True):
        spikes, potential = first_half(ours, operand)
        flipped = spikes != first_half(theirs, operand)[0]
        first = flipped & (flipped.cumsum(1) == 1)  # what follows a flip has another state
        margin = (first_half(wide, operand.double())[1] - wide.first_neuron.threshold[:, None, None]).abs()
        assert flipped.sum() <= 1e-4 * spikes.sum()
        assert (margin[first] <= 2e-6 * potential.abs().max()).all()
        operand = ours(operand, LITERAL).spikes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("fields", [{}, {"repconv": False}, {"tdm": False}, {"bridge": "stage3"}], ids=str)
def test_the_training_form_evaluates_with_the_bits_of_the_deployed_form(loud, dtype, fields):
    model = loud(**fields).to(dtype).eval()
    fused = fuse(model, quiet=True)
    x = synthetic_clip(5, 21, 18, samples=2).to(dtype)
    with torch.no_grad():
        ours, theirs = model.run(x), fused.run(x)
    assert torch.equal(ours.logits, theirs.logits)
    assert torch.equal(ours.attention, theirs.attention)
    assert torch.equal(ours.rates, theirs.rates)


@FORMS
def test_the_original_is_unchanged(loud, form):
    model = loud().train()
    before = copy.deepcopy(model.state_dict())
    grads = [p.requires_grad for p in model.parameters()]
    converted = CONVERT[form](model, quiet=True)
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.training
    assert not converted.training
    assert [p.requires_grad for p in model.parameters()] == grads
    assert model.config.form == "training"


def test_the_converted_network_shares_no_memory(loud):
    model = loud().double()
    converted = fuse(model, quiet=True)
    dual = dual_kernel(converted, quiet=True)
    places = [{t.data_ptr() for t in network.state_dict().values()} for network in (model, converted, dual)]
    assert not places[0] & places[1]
    assert not places[1] & places[2]


@FORMS
def test_nothing_of_the_training_form_is_left(loud, form):
    converted = CONVERT[form](loud(num_tokens=4), quiet=True)
    gone = (BatchNorm, TimeBatchNorm, Branch, RepConv, RateProjection)
    assert not [name for name, part in converted.named_modules() if isinstance(part, gone)]
    assert not list(converted.buffers())
    assert not converted.tokens.activity.requires_grad
    convs = [conv for stage in converted.stages for conv in (stage.first_conv, stage.second_conv)]
    kinds = [FusedConv] * 6 if form == "deployed" else [FusedConv] + [DualKernelConv] * 5
    assert [type(conv) for conv in convs] == kinds


def test_two_kernels_by_hand(loud):
    model = loud().double()
    deployed = fuse(model, quiet=True)
    dual = dual_kernel(model, quiet=True)
    for a, b in zip(deployed.stages, dual.stages, strict=True):
        scale = a.second_conv.coefficient[:, None, None]
        torch.testing.assert_close(b.second_conv.weight_now, a.second_conv.weight * (1 + scale), rtol=1e-14, atol=0)
        torch.testing.assert_close(b.second_conv.weight_before, a.second_conv.weight * scale, rtol=1e-14, atol=0)
    again = dual_kernel(deployed, quiet=True)
    for (name, first), second in zip(dual.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(first, second), name


def test_the_deployed_form_can_be_built_and_loaded(loud, apart):
    fused = fuse(loud(), quiet=True)
    direct = create_model("nmnist", **{k: getattr(fused.config, k) for k in fused.config.field_names()})
    load_weights(direct, fused.state_dict(), "memory")
    assert apart(fused, direct, torch.float32)[:2] == (0, 0)


def test_a_bfloat16_network(loud, apart):
    model = loud().bfloat16()
    fused = fuse(model, quiet=True)
    assert {t.dtype for t in fused.state_dict().values()} == {torch.bfloat16}
    with torch.no_grad():
        assert fused(torch.ones(1, 5, 2, 18, 18, dtype=torch.bfloat16)).isfinite().all()


def test_the_reported_agreement(loud):
    _, fusion = fuse_with_report(loud(), quiet=True)
    _, dual = dual_kernel_with_report(loud(), quiet=True)
    for report in (fusion, dual):
        assert 0 < report.error <= 1e-12
        assert report.flips == 0
        assert report.spikes > 1000


@FORMS
def test_the_error_goes_to_standard_error(loud, capsys, form):
    CONVERT[form](loud())
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) == (1 if form == "deployed" else 2)
    assert "training → deployed" in lines[0]
    assert f"→ {form}" in lines[-1]
    assert "error" in lines[-1]
    assert "0 of" in lines[-1]
    CONVERT[form](loud(), quiet=True)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_the_wrong_form_is_refused(loud):
    deployed = fuse(loud(), quiet=True)
    dual = dual_kernel(deployed, quiet=True)
    for convert, model in ((fuse, deployed), (fuse, dual), (dual_kernel, dual)):
        with raises(ConfigError, "form", mentions=f"got {model.config.form} of 'nmnist'"):
            convert(model)


@FORMS
def test_other_networks_cannot_be_fused(form):
    model = create_model("mamba-spike-nmnist")
    with raises(ConfigError, "model", mentions="'mamba-spike-nmnist'"):
        CONVERT[form](model)
    with raises(ConfigError, "model", mentions="Linear"):
        CONVERT[form](torch.nn.Linear(2, 2))


def test_without_tdm_there_is_no_dual_kernel_form(loud):
    fuse(loud(tdm=False), quiet=True)
    with raises(ConfigError, "form", mentions="tdm"):
        dual_kernel(loud(tdm=False), quiet=True)


MORE_VARIANTS = [{"num_tokens": 16}, {"neurons": "silif"}, {"stage_channels": (8, 8, 8)}]


@pytest.mark.parametrize("fields", [*VARIANTS, *MORE_VARIANTS], ids=str)
def test_every_variant_is_exact(loud, apart, fields):
    model = loud(**fields).double()
    fused = fuse(model, quiet=True)
    error, flips, rate = apart(model, fused, torch.float64)
    assert rate > 0.01
    assert error <= 1e-12
    assert flips == 0
    if model.config.tdm:
        error, flips, _ = apart(model, dual_kernel(fused, quiet=True), torch.float64)
        assert error <= 1e-12
        assert flips == 0


@pytest.mark.parametrize("seed", range(3))
def test_float32_on_other_seeds_and_sizes(loud, apart, seed):
    model = loud(seed=seed)
    for side in (18, 21):
        error, flips, _ = apart(model, fuse(model, quiet=True), torch.float32, side)
        assert error <= 1e-6
        assert flips == 0
