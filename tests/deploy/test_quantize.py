"""int8 and float16 weights: moments against brute force, sizes on disk, accuracy of a trained network."""

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.raising import raises

from ripe_mambaspike import create_model, dual_kernel, from_pretrained, fuse
from ripe_mambaspike.deploy.export.registry import ExportOptions
from ripe_mambaspike.deploy.export.write import write_export
from ripe_mambaspike.deploy.quantize.convert import apply_stored, compare_accuracy, to_float16, to_int8
from ripe_mambaspike.deploy.quantize.moments import input_moments
from ripe_mambaspike.errors import ConfigError, InputError, WeightsError
from ripe_mambaspike.models.base import clip_logits
from ripe_mambaspike.models.labels import Labels, read_labels
from ripe_mambaspike.models.pretrained import save_pretrained
from ripe_mambaspike.models.stored import Stored, restore
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.ops.backend import kernels

NAMES = ("left", "right", "up", "down")
LABELS = Labels(NAMES, "bars", None, 4, (12, 12), "time", False, 2, "validation")


def bars(count, seed):
    """Clips [N, 4, 2, 12, 12] of a bar that moves in one of four directions through noise, and the directions."""
    random = np.random.default_rng(seed)
    clips = random.poisson(0.05, (count, 4, 2, 12, 12)).astype(np.float32)
    directions = random.integers(0, 4, count)
    for clip, direction, start in zip(clips, directions, random.integers(1, 4, count), strict=True):
        for step in range(4):
            position = start + 2 * step
            for polarity, line in ((1, position + 1), (0, position - 1)):  # ON is ahead, OFF behind
                line = line if direction % 2 else 11 - line
                frame = clip[step, polarity]
                (frame[:, line] if direction < 2 else frame[line])[...] += random.poisson(1.2, 12)
    return torch.from_numpy(clips), torch.from_numpy(directions)


@pytest.fixture(scope="module")
def trained():
    """A narrow network trained on the four directions, fused."""
    torch.manual_seed(0)  # of drop path
    fields = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "num_classes": 4}
    model = create_model("nmnist", seed=0, in_size=12, **fields).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    x, y = bars(240, 0)
    for step in range(60):  # enough for all four directions with any seed
        part = slice(step % 10 * 24, step % 10 * 24 + 24)
        logits = model.run(x[part], ForwardMode(sharpness=2.0)).logits
        loss = F.cross_entropy(logits.flatten(0, 1), y[part].repeat_interleave(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return fuse(model.eval(), quiet=True)


@pytest.fixture(scope="module")
def calibrated(trained):
    return to_int8(trained, bars(16, 1)[0])


def test_moments_are_those_of_the_kernels_inputs(trained):
    x = bars(6, 2)[0]
    moments = input_moments(trained, x.split(4))
    with torch.no_grad(), kernels("off"):
        front = trained.front_end(x, observe=("spikes",))
    _, spikes, inner, *_ = front.observed.values()
    rate = trained.stages[1].first_conv.coefficient.detach()[None, :, None, None]
    patches = []
    for clip in spikes:
        for step in range(4):
            before = clip[step - 1] if step else torch.zeros_like(clip[0])
            padded = F.pad((1 + rate) * clip[step] - rate * before, (1, 1, 1, 1))[0]
            patches += [padded[:, r : r + 3, c : c + 3].flatten() for r in (0, 2, 4) for c in (0, 2, 4)]
    read = torch.stack(patches).double()
    torch.testing.assert_close(moments["stages.1.first_conv.weight"][0], read.T @ read, rtol=1e-5, atol=1e-4)

    before = torch.cat((torch.zeros_like(inner[:, :1]), inner[:, :-1]), 1).transpose(1, 2).flatten(2).double()
    expected = torch.einsum("bcn,bdn->cd", before, before)
    torch.testing.assert_close(moments["stages.1.attention.value.0"][0], expected)

    tokens = trained.bridge(front.features, front.attention).detach()
    block = trained.hierarchy.blocks[0]
    read = block.norm(trained.hierarchy.norm(tokens)).detach().flatten(0, 2).double()
    for direction in ("forward_mamba", "backward_mamba"):
        found = moments[f"hierarchy.blocks.0.{direction}.in_proj.weight"][0]
        torch.testing.assert_close(found, read.T @ read, rtol=1e-4, atol=1e-3)


def test_moments_of_the_bridge_are_those_of_rates(trained):
    x = bars(3, 3)[0]
    with torch.no_grad(), kernels("off"):
        spikes = trained.front_end(x, observe=("spikes",)).observed["stages.2.second_neuron.spikes"]
    rates = spikes.cumsum(1) / torch.arange(1, 5).reshape(1, 4, 1, 1, 1)
    changes = rates - torch.cat((torch.zeros_like(rates[:, :1]), rates[:, :-1]), 1)
    read = F.unfold(torch.cat((rates, changes), 2).flatten(0, 1), 3, padding=1).transpose(1, 2).flatten(0, 1).double()
    found = input_moments(trained, [x])["bridge.mixture.scales.2.weight"][0]
    torch.testing.assert_close(found, read.T @ read, rtol=1e-4, atol=1e-4)


def test_the_dtype_of_each_stored_weight(trained, calibrated):
    stored, report = calibrated
    kinds = {n: "int8" if one.scale is not None else "float16" for n, one in stored.items()}
    assert kinds["stages.0.first_conv.weight"] == kinds["stages.0.second_conv.weight"] == "float16"
    assert kinds["stages.1.second_conv.weight"] == kinds["stages.2.attention.query.0"] == "int8"
    assert kinds["hierarchy.blocks.2.backward_mamba.out_proj.weight"] == kinds["head.weight"] == "int8"
    assert kinds["entry.scale"] == kinds["hierarchy.blocks.0.forward_mamba.A_log"] == "float16"
    assert (
        kinds["hierarchy.blocks.0.forward_mamba.conv1d.weight"]
        == kinds["hierarchy.blocks.2.forward_mamba.dt_proj.weight"]
        == "float16"
    )
    vectors = {name for name in kinds if trained.get_parameter(name).ndim < 2}
    assert vectors == {f"stages.{level}.{which}_conv.coefficient" for level in (1, 2) for which in ("first", "second")}
    assert sum(report.numbers.values()) == trained.parameter_count()
    assert report.numbers["int8"] == sum(one.values.numel() for one in stored.values() if one.scale is not None)
    assert (report.clips, report.rounding) == (16, "compensated")
    assert all(0 < layer.error < layer.round_nearest for layer in report.layers if layer.round_nearest)
    assert report.worst.error == max(layer.error for layer in report.layers)
    every = to_int8(trained, bars(8, 1)[0], rounding="plain", float16_stages=0)[0]
    assert every["stages.0.first_conv.weight"].values.dtype == torch.int8


def test_a_trained_network_keeps_its_accuracy(trained, calibrated):
    x, y = bars(240, 4)
    batches = list(zip(x.split(60), y.split(60), strict=True))
    change = compare_accuracy(trained, calibrated[0], batches)
    assert change.clips == 240
    assert change.top1 > 0.9
    assert abs(change.points) <= 0.5
    assert change.agreement >= 0.99
    halves = compare_accuracy(trained, to_float16(trained), batches)
    assert abs(halves.points) <= 0.5


def test_accuracy_is_counted_clip_by_clip(trained):
    x, y = bars(40, 5)
    broken = {"head.weight": Stored(torch.zeros_like(trained.head.weight).half(), None)}
    first = trained.predict(x)
    second = apply_stored(trained, broken).predict(x)
    change = compare_accuracy(trained, broken, [(x[:15], y[:15]), (x[15:], y[15:])])
    assert change.correct == int((first == y).sum())
    assert change.correct_stored == int((second == y).sum())
    assert change.agreeing == int((first == second).sum()) < 40
    assert change.points == pytest.approx(100 * (change.top1_stored - change.top1))
    assert str(change).endswith(f"{change.agreeing} of 40 labels agree")
    with raises(InputError, "clips", mentions="got none"):
        compare_accuracy(trained, broken, [])


def test_a_saved_network_computes_as_apply_stored(trained, calibrated, tmp_path):
    x = bars(12, 6)[0]
    before = deepcopy(trained.state_dict())
    checked = apply_stored(trained, calibrated[0])
    for weights, stored in (("int8", calibrated[0]), ("fp16", to_float16(trained))):
        write_export(trained, ExportOptions("safetensors", weights), tmp_path / weights, LABELS, stored)
        loaded = from_pretrained(tmp_path / weights, form="deployed")
        with torch.no_grad():
            assert torch.equal(loaded(x), apply_stored(trained, stored)(x))
        assert read_labels(tmp_path / weights) == LABELS
    assert torch.equal(checked.head.weight, restore(calibrated[0]["head.weight"]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.state_dict().items())


def test_labels_of_another_network_write_nothing(trained, calibrated, tmp_path):
    other = Labels(("a", "b"), "x", None, 4, (12, 12), "time", False, 0, "validation")
    options = ExportOptions("safetensors", "int8")
    with raises(ConfigError, "labels", mentions=("expected 4", "got 2")):
        write_export(trained, options, tmp_path / "new", other, calibrated[0])
    twice = Labels(("a", "a", "b", "c"), "x", None, 4, (12, 12), "time", False, 0, "validation")
    with raises(WeightsError, "classes", mentions="'a'"):
        write_export(trained, options, tmp_path / "new", twice, calibrated[0])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["nmnist", "dvsgesture"])
def test_files_of_the_whole_networks_are_small(tmp_path, name):
    model = create_model(name, seed=0, form="deployed")
    assert model.parameter_count() == {"nmnist": 869_593, "dvsgesture": 875_122}[name]
    halves = to_float16(model)
    small = to_int8(model, synthetic_clip(2, 8, 8, 8), rounding="plain")[0]
    two_stages = small | {name: one for name, one in halves.items() if name.startswith("stages.1.")}
    for stored, limit in ((halves, 1_800_000), (small, 980_000), (two_stages, 1_050_000)):
        save_pretrained(model, tmp_path, stored=stored)
        assert 900_000 < (tmp_path / "model.safetensors").stat().st_size <= limit


@pytest.mark.parametrize(
    "fields",
    [{"attention": kind} for kind in ("low-rank", "grouped", "sigmoid", "gate", "none")]
    + [{"mixer": kind} for kind in ("transformer", "gru", "conv1d", "none", "flat", "flat-matched")]
    + [{"bridge": "stage3"}, {"tdm": False}, {"head_hidden_size": 20}, {"num_tokens": 3}]
    + [{"bridge_dim": 13}, {"d_state": 6}, {"attention_feature_map": "exp"}, {"csilif_reset": 0.2}],
    ids=lambda fields: "-".join(map(str, *fields.items())),
)
def test_int8_changes_the_layers_of_every_variant_by_less_than_10_percent(loud, fields):
    model = fuse(loud(time_steps=3, **fields), quiet=True)
    stored, report = to_int8(model, synthetic_clip(3, 12, 12, 8), rounding="searched")
    restored = apply_stored(model, stored)
    for layer_error in report.layers:
        ours, theirs = model.get_parameter(layer_error.name), restored.get_parameter(layer_error.name)
        silent = layer_error.name == "bridge.attention.weight" and fields == {"attention": "none"}
        assert layer_error.error < 0.1, layer_error
        assert silent or bool((ours != theirs).any())
    missing = {n for n, p in model.named_parameters() if p.ndim > 1 and p[0].numel() > 4} - {*stored}
    assert not missing


def test_both_kernels_of_the_dual_form_become_int8(loud):
    model = dual_kernel(loud(time_steps=3), quiet=True)
    stored, _ = to_int8(model, synthetic_clip(3, 12, 12, 8))
    for name in ("weight_now", "weight_before"):
        assert stored[f"stages.1.second_conv.{name}"].values.dtype == torch.int8
    with torch.no_grad():
        logits = clip_logits(apply_stored(model, stored)(synthetic_clip(3, 12, 12, 2)))
    assert torch.isfinite(logits).all()


def test_clips_of_several_sizes_and_shapes(trained):
    clips = [*bars(4, 7)[0], bars(3, 8)[0], synthetic_clip(3, 16, 20, 2).double()]
    assert to_int8(trained, iter(clips), rounding="plain")[1].clips == 9


@pytest.mark.parametrize(
    ("clips", "field", "mentions"),
    [
        (bars(7, 0)[0], "clips", ("at least 8", "got 7")),
        (bars(1, 0)[0], "clips", ("at least 8", "got 1")),
        ([], "clips", "got 0"),
        (torch.cat((bars(5, 0)[0], torch.zeros(9, 4, 2, 12, 12))), "clips", "got 5"),
        (torch.full((8, 4, 2, 12, 12), torch.nan), "x", "finite"),
        (torch.ones(8, 5, 2, 12, 12), "x", ("at most 4", "got 5")),
        (torch.ones(8, 4, 1, 12, 12), "x", "(8, 4, 1, 12, 12)"),
        (["clip"], "clips", "a str"),
    ],
    ids=["seven", "one", "none", "empty", "nan", "steps", "polarities", "words"],
)
def test_clips_that_cannot_calibrate(trained, clips, field, mentions):
    with raises(InputError, field, mentions=mentions):
        to_int8(trained, clips)


def test_networks_and_options_that_cannot_be_used(loud, trained):
    clips = bars(8, 0)[0]
    with raises(ConfigError, "form", mentions=("got training of 'nmnist'", "fuse it first")):
        to_int8(loud(), clips)
    with raises(ConfigError, "model", mentions="'mamba-spike-nmnist'"):
        to_float16(create_model("mamba-spike-nmnist"))
    with raises(ConfigError, "model", mentions="a Linear"):
        to_float16(torch.nn.Linear(2, 2))
    with raises(ConfigError, "rounding", mentions=("plain, searched, compensated", "upwards")):
        to_int8(trained, clips, rounding="upwards")
    with raises(ConfigError, "float16_stages", mentions=("from 0 to 3", "got 4")):
        to_int8(trained, clips, float16_stages=4)
    broken = deepcopy(trained)
    broken.head.bias.data[1] = torch.nan
    with raises(ConfigError, field="head.bias"):
        to_int8(broken, clips)
    with raises(WeightsError, field="other"):
        apply_stored(trained, {"other": Stored(torch.zeros(1, 1).half(), None)})


def test_weights_beyond_float16_stay_float32(trained, tmp_path):
    wide = deepcopy(trained)
    wide.entry.scale.data[0, 0] = 1e6
    stored = to_float16(wide)
    assert "entry.scale" not in stored
    save_pretrained(wide, tmp_path, stored=stored)
    assert float(from_pretrained(tmp_path).entry.scale[0, 0].detach()) == 1e6
