"""A causal network fused, by additions, captured and with int8 weights; NIR is refused."""

import copy

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model, dual_kernel, from_pretrained, fuse
from ripe_mambaspike.account.energy import measure_activity
from ripe_mambaspike.deploy.export.nir_graph import check_model
from ripe_mambaspike.deploy.fuse.accumulate import Accumulator, differing_spikes
from ripe_mambaspike.deploy.fuse.convert import fuse_with_report
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.deploy.quantize.convert import apply_stored, to_int8
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.inference.capture import capture
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.pretrained import save_pretrained
from ripe_mambaspike.models.synthetic import synthetic_clip

SMALL = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 18, "causal": True}


@pytest.fixture(scope="module")
def trained():
    model = create_model("nmnist", seed=0, **SMALL)
    randomize(model, 0)
    return model.eval()


@pytest.fixture(scope="module")
def deployed(trained):
    return fuse(trained, quiet=True)


def clips(samples=2, steps=9):
    return synthetic_clip(steps, 18, 18, samples)


def test_fusing_is_exact(trained):
    fused, agreement = fuse_with_report(trained, quiet=True)
    assert agreement.error <= 1e-12
    assert agreement.flips == 0
    assert agreement.spikes > 1000
    x = clips()
    with torch.no_grad():
        assert torch.equal(fused(x), trained(x))
    assert torch.equal(fused.run(x, state={}).logits, trained.run(x, state={}).logits)
    assert fused.config == trained.config.replace(form="deployed")


def test_the_dual_kernel_form_streams_the_same_logits(trained):
    exact = copy.deepcopy(trained).double()
    dual, x = dual_kernel(exact, quiet=True), clips().double()
    expected = fuse(exact, quiet=True).run(x, state={}).logits
    state, logits = None, []
    for piece in x.split((2, 1, 6), 1):
        run = dual.run(piece, state=state or {})
        state = run.state
        logits.append(run.logits)
    torch.testing.assert_close(torch.cat(logits, 1), expected, rtol=1e-11, atol=1e-11)


def test_the_accumulator_gives_the_dense_spikes(deployed):
    runtime = Accumulator(deployed)
    ours, dense = (run(clips(1).double()) for run in (runtime.run, runtime.run_dense))
    assert sum(differing_spikes(ours, dense).values()) == 0
    assert torch.equal(ours.output.logits, dense.output.logits)


def test_the_captured_network_gives_the_same_logits(deployed):
    x = clips()
    with torch.no_grad():
        torch.testing.assert_close(capture(deployed, x)(x), deployed(x), rtol=0, atol=0)


def test_int8_weights_are_saved_and_loaded(deployed, tmp_path):
    x = clips(8)
    stored, calibration = to_int8(deployed, x)
    assert "hierarchy.blocks.1.forward_mamba.in_proj.weight" in stored
    assert calibration.clips == 8
    small = apply_stored(deployed, stored)
    loaded = from_pretrained(save_pretrained(deployed, tmp_path, stored=stored))
    assert torch.equal(loaded.run(x, state={}).logits, small.run(x, state={}).logits)


def test_nir_is_refused(deployed):
    with raises(ConfigError, "causal", mentions="'nmnist'"):
        check_model(deployed)


def test_the_account_counts_one_direction(deployed):
    """Additions and products are those of the clip, however long it is."""
    both = count_flops(deployed.config.replace(causal=False)).by_part
    ours = count_flops(deployed.config).by_part
    assert 2 * ours["scan"] == both["scan"] > 0
    merges = sum(2 * 4 * k * 2 * w * w for k, w in ((9, 8), (5, 16), (3, 24)))
    transitions = sum(2 * 4 * k * v * w for k, v, w in ((5, 8, 16), (3, 16, 24)))
    assert 2 * (ours["hierarchy"] - transitions) == both["hierarchy"] - transitions - merges
    assert {k: v for k, v in ours.items() if k not in ("scan", "hierarchy")} == {
        k: v for k, v in both.items() if k not in ("scan", "hierarchy")
    }
    short, long = measure_activity(deployed, clips(1, 4)), measure_activity(deployed, clips(1, 12))
    assert [3 * layer.macs for layer in short] == [layer.macs for layer in long]
