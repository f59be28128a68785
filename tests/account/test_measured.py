"""The account on recordings: what was measured, what follows from it, and that it is what was predicted."""

import copy
import json

import pytest
from tests.raising import raises

from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.account.document import account_clip
from ripe_mambaspike.account.energy import backbone_macs, energy_report, measure_activity
from ripe_mambaspike.account.measured import account_recordings, accumulator_of, measure_clip
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.synthetic import synthetic_clip

SMALL = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": (18, 22)}
CONVS = [f"stage{stage}.{which}_conv" for stage in (1, 2, 3) for which in ("first", "second")]


@pytest.fixture(scope="module")
def model():
    made = create_model("nmnist", seed=0, **SMALL)
    randomize(made, 0)
    return fuse(made, quiet=True)


@pytest.fixture(scope="module")
def clips():
    return [(1 + 2 * seed) * synthetic_clip(4, 18, 22, seed=seed) for seed in range(3)]


@pytest.fixture(scope="module")
def activities(model, clips):
    runtime = accumulator_of(model)
    return [measure_clip(runtime, f"clip {index}", x) for index, x in enumerate(clips)]


@pytest.fixture(scope="module")
def document(model, activities):
    return account_recordings(model, activities, "three clips")


def test_the_activity_of_one_clip(model, clips, activities):
    wide = copy.deepcopy(model).double()
    for x, one in zip(clips, activities, strict=True):
        predicted = measure_activity(wide, x.double())
        assert [one.operand(layer.layer) for layer in predicted] == pytest.approx([layer.rate for layer in predicted])
        assert list(one.additions.values()) == [layer.accumulates for layer in predicted[1:]]
        assert one.differing == 0
        assert one.spikes > 1000


@pytest.mark.parametrize("resolution", [(18, 22), (34, 34), (11, 9)], ids=str)
def test_multiply_adds_without_running(model, resolution):
    config = model.config.replace(in_size=resolution, time_steps=2)
    ran = {layer.layer: layer.macs for layer in measure_activity(model, synthetic_clip(2, *resolution))}
    assert backbone_macs(config) == ran


def test_means_and_ranges(document, activities):
    layers = document["energy"]["layers"]
    assert [layer["layer"] for layer in layers] == CONVS
    assert layers[0]["accumulates"] is None
    assert layers[0]["accumulates_range"] is None
    assert not layers[0]["binary"]
    for layer in layers[1:]:
        made = [one.additions[layer["layer"]] for one in activities]
        assert layer["accumulates"] == pytest.approx(sum(made) / 3)
        assert layer["accumulates_range"] == {"mean": layer["accumulates"], "min": min(made), "max": max(made)}
    for layer in layers:
        rates = [one.operand(layer["layer"]) for one in activities]
        assert layer["rate"] == pytest.approx(sum(rates) / 3)
        assert (layer["rate_range"]["min"], layer["rate_range"]["max"]) == (min(rates), max(rates))
    seen = document["recordings"]
    assert (seen["count"], seen["spikes_that_differ"], seen["sums"]) == (3, 0, "float64")
    assert seen["spikes"] == sum(one.spikes for one in activities)
    assert len(seen["rates"]) == 6
    for name, rate in seen["rates"].items():
        own = [one.rates[name] for one in activities]
        assert rate == {"mean": pytest.approx(sum(own) / 3), "min": min(own), "max": max(own)}
    totals = [sum(one.additions.values()) for one in activities]
    assert min(totals) < max(totals)
    assert seen["additions"] == {"mean": pytest.approx(sum(totals) / 3), "min": min(totals), "max": max(totals)}
    assert [one["file"] for one in seen["files"]] == ["clip 0", "clip 1", "clip 2"]
    assert [one["additions"] for one in seen["files"]] == [one.additions for one in activities]


def test_operations_and_energy_follow(document, model):
    config, operations, energy = model.config, document["operations"], document["energy"]
    macs, flops = backbone_macs(config), count_flops(config)
    rest = (flops.total - flops.by_part["backbone"]) / 2
    made = document["recordings"]["additions"]["mean"]
    entry = macs["stage1.first_conv"]
    assert operations["backbone"] == {
        "dense_macs": sum(macs.values()), "macs": entry, "additions": pytest.approx(made)
    }  # fmt: skip
    assert operations["network"]["dense_macs"] == pytest.approx(sum(macs.values()) + rest)
    assert operations["network"]["macs"] == pytest.approx(entry + rest)
    assert sum(operations["macs_that_stay"].values()) == pytest.approx(operations["network"]["macs"])
    assert energy["synaptic_operations"] == pytest.approx(made)
    for part in ("backbone", "network"):
        one = operations[part]
        assert energy[f"{part}_dense_microjoules"] == pytest.approx(one["dense_macs"] * 4.6e-6)
        assert energy[f"{part}_event_microjoules"] == pytest.approx(one["macs"] * 4.6e-6 + one["additions"] * 0.9e-6)
        eligible = sum(macs.values()) - entry
        assert energy[f"eligible_share_of_{part}"] == pytest.approx(eligible / one["dense_macs"])
    assert energy["assumptions"]["measured_on"] == "three clips"


def test_a_single_clip_is_accounted_as_without_recordings(model, clips, activities):
    """The same keys and numbers as the account of a clip, and the two parts more."""
    ours, theirs = account_recordings(model, activities[:1], "x"), account_clip(model, clips[0], "x")
    assert set(ours) - set(theirs) == {"operations", "recordings"}
    for key in set(theirs) - {"energy"}:
        assert ours[key] == theirs[key]
    for key, value in theirs["energy"].items():
        if key != "layers":
            assert ours["energy"][key] == (pytest.approx(value) if isinstance(value, float) else value)
    assert json.loads(json.dumps(ours, allow_nan=False)) == ours


def test_additions_are_exact_not_estimated(model, clips, activities):
    """Rate times multiply-adds, twice: it reads the last step's spikes once too often and misses where they lie."""
    layers = energy_report(model, clips[0], "x")["layers"][1:]
    for layer in layers:
        thumb = 2 * activities[0].operand(layer["layer"]) * layer["macs"]
        assert activities[0].additions[layer["layer"]] < thumb < 1.6 * activities[0].additions[layer["layer"]]


def test_what_the_dual_kernel_stores(document, model):
    deployed, whole = model.parameter_count(), document["dual_kernel"]["weights"]
    more = document["dual_kernel"]["more_than_deployed"]
    assert whole == deployed + more
    assert document["dual_kernel_bytes"] == {
        "whole": {"fp32": 4 * whole, "fp16": 2 * whole, "int8": whole},
        "more_than_deployed": {"fp32": 4 * more, "fp16": 2 * more, "int8": more},
    }


def test_networks_without_a_dual_kernel_form():
    with raises(ConfigError, "model", mentions=("'mamba-spike-nmnist'",)):
        accumulator_of(create_model("mamba-spike-nmnist"))
    with raises(ConfigError, "tdm", mentions=("false",)):
        accumulator_of(create_model("nmnist", **{**SMALL, "tdm": False}))


def test_clips_of_two_sizes_have_no_common_account(model, activities):
    other = measure_clip(accumulator_of(model), "small", synthetic_clip(4, 10, 10))
    with raises(InputError, "recordings", mentions=("2 sizes",)):
        account_recordings(model, [*activities, other], "x")
