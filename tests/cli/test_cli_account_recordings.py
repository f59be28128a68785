"""`ripe account CHECKPOINT --recordings`: one JSON document, tables with the same numbers, and what is refused."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from ripe_mambaspike import create_model, dual_kernel, fuse, write
from ripe_mambaspike.deploy.fuse.accumulate import Accumulator
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.models.labels import Labels, save_labels

SHARED = Path(os.environ.get("RIPE_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")
FIELDS = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 5, "in_size": 16, "num_classes": 4}
KEYS = {
    "model", "config", "spiking_layers", "counted_at", "parameters", "flops", "weight_bytes", "energy", "dual_kernel",
    "dual_kernel_bytes", "operations", "recordings",
}  # fmt: skip


@pytest.fixture(scope="module")
def network():
    model = create_model("nmnist", seed=0, **FIELDS)
    randomize(model, 0)
    return model


@pytest.fixture
def run(tmp_path, network):
    """The folder of a run whose network saw clips of four steps."""
    folder = network.save_pretrained(tmp_path / "run" / "best")
    save_labels(Labels(("a", "b", "c", "d"), "x", None, 4, (16, 16), "time", False, 3, "validation"), folder)
    return tmp_path / "run"


@pytest.fixture(scope="module")
def quick(tmp_path_factory, network):
    """The same network in the form that is run: nothing has to be converted."""
    return dual_kernel(network, quiet=True).save_pretrained(tmp_path_factory.mktemp("quick") / "net")


def make_recording(seed=0, size=(20, 20)):
    random = np.random.default_rng(seed)
    t = np.sort(random.integers(0, 300_000, 2000))
    x, y = random.integers(0, size[0], 2000), random.integers(0, size[1], 2000)
    return Recording(make_events(x, y, t, t % 2), size)


@pytest.fixture
def clips(tmp_path):
    return [write(make_recording(seed), tmp_path / f"clip [{seed}].npz") for seed in range(3)]


def read(result):
    assert result.code == 0, result.err
    assert result.err == ""
    return json.loads(result.out, parse_constant=pytest.fail)


def test_json(ripe, run, clips, network):
    document = read(ripe("account", run, "--recordings", *clips, "--json"))
    assert set(document) == KEYS
    assert document["counted_at"] == {"time_steps": 4, "in_size": [16, 16]}
    seen = document["recordings"]
    assert (seen["count"], seen["spikes_that_differ"]) == (3, 0)
    assert [one["file"] for one in seen["files"]] == [str(clip) for clip in clips]
    about = document["energy"]["assumptions"]
    assert about["measured_on"] == f"3 recordings, weights of {run}"
    runtime = Accumulator(network)
    for seed, one in enumerate(seen["files"]):
        made = runtime.run(bin_events(make_recording(seed), 4, grid=(16, 16))[None])
        assert one["additions"] == made.additions
        assert list(one["rates"].values()) == pytest.approx(made.output.rates.tolist(), rel=1e-6)
    assert document["energy"]["synaptic_operations"] == pytest.approx(seen["additions"]["mean"])


def test_text_output(ripe, run, clips):
    document = read(ripe("account", run, "--recordings", *clips, "--json"))
    result = ripe("account", run, "--recordings", *clips)
    assert (result.code, result.err) == (0, "")
    text = " ".join(result.out.split())
    assert "over 3 recordings" in text
    assert f"measured on 3 recordings, weights of {run}" in text
    for layer, rate in document["recordings"]["rates"].items():
        row = next(line for line in result.out.splitlines() if layer in line)
        assert [f"{rate[key]:.4f}" for key in ("mean", "min", "max")] == row.replace("│", " ").split()[1:]
    assert f"of {document['recordings']['spikes']:,} spikes 0 differ from the dense network's" in text
    assert f"{document['dual_kernel']['more_than_deployed']:,} more than deployed" in text
    assert f"{document['dual_kernel_bytes']['more_than_deployed']['fp32'] / 1e6:.2f} MB of" in text
    assert f"{document['operations']['network']['additions'] / 1e6:.4f} M additions" in text
    for part in document["operations"]["macs_that_stay"]:
        assert part.replace("_", " ") in text
    assert "4.6 pJ a multiply-add, 0.9 pJ an addition" in text


def test_limit_steps_and_resolution(ripe, run, clips):
    words = ("account", run, "--recordings", *clips, "--limit", "2", "--time-steps", "2", "--in-size", "9", "--json")
    document = read(ripe(*words))
    assert document["recordings"]["count"] == 2
    assert document["counted_at"] == {"time_steps": 2, "in_size": [9, 9]}
    one = read(ripe("account", run, "--recordings", clips[0], "--json"))
    assert one["energy"]["assumptions"]["measured_on"] == f"1 recording, weights of {run}"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["deployed", "dual-kernel"])
def test_any_form_gives_the_same_numbers(ripe, run, clips, network, tmp_path, form):
    other = fuse(network, quiet=True) if form == "deployed" else dual_kernel(network, quiet=True)
    folder = other.save_pretrained(tmp_path / form)
    wanted = read(ripe("account", run, "--recordings", clips[0], "--json"))
    given = read(ripe("account", folder, "--recordings", clips[0], "--time-steps", "4", "--json"))
    assert given["config"]["form"] == form
    for key in ("recordings", "operations", "parameters", "dual_kernel"):
        assert given[key] == wanted[key]


def test_a_run_without_recordings_is_labeled_as_before(ripe, run):
    document = read(ripe("account", run, "--json"))
    about = document["energy"]["assumptions"]["measured_on"]
    assert about == f"a synthetic clip (a sweeping bar and noise), weights of {run}"
    assert set(document) == KEYS - {"operations", "recordings"}


def test_invalid_options_are_refused(refused, quick, clips, tmp_path):
    on = ("--recordings", clips[0])
    missing, damaged = tmp_path / "nothing.npz", tmp_path / "damaged.npz"
    damaged.write_bytes(b"PK\x03\x04 no more")
    refused(("account", quick, *on, missing), missing)
    refused(("account", quick, *on, damaged), damaged)
    refused(("account", quick, "--recordings", tmp_path), tmp_path)
    small = write(make_recording(size=(12, 12)), tmp_path / "small.npz")
    refused(("account", quick, "--recordings", small), small, "grid: ", "12×12", "16×16")
    bright = Recording(make_recording().events[make_recording().events["p"] == 1], (20, 20))
    one_polarity = write(bright, tmp_path / "bright.npz")
    refused(("account", quick, "--recordings", one_polarity), one_polarity, "both polarities")
    refused(("account", tmp_path / "none", *on), "none")
    refused(("account", "nmnist", *on), "--recordings", "nmnist")
    refused(("account", quick, *on, "--sweep", "time_steps"), "--recordings", "--sweep")
    refused(("account", quick, *on, "--input", missing), "--input", "--recordings")
    refused(("account", quick, *on, "--set", "num_tokens=3"), "--set", "--recordings")
    refused(("account", quick, *on, "--limit", "0"), "--limit", "0")
    refused(("account", quick, "--limit", "3"), "--limit", "3", "--recordings")
    refused(("account", quick, *on, "--time-steps", "9"), "--time-steps", "9", "1 to 5")
    refused(("account", quick, "--recordings"), "--recordings")
    fields = {"channels": (4, 5, 6), "embed_dim": 16, "depth": 1, "time_steps": 3, "in_size": 16}
    baseline = create_model("mamba-spike", seed=0, **fields).save_pretrained(tmp_path / "baseline")
    refused(("account", baseline, *on), "mamba-spike")


@pytest.mark.skipif(not (SHARED / "nmnist-real").is_dir(), reason="the shared recordings are not there")
def test_real_recordings(ripe, tmp_path):
    model = create_model("nmnist", seed=0, **{**FIELDS, "in_size": 34})
    randomize(model, 0)
    paths = sorted((SHARED / "nmnist-real").rglob("*.bin"))[::200]
    labels = Labels(tuple("0123"), "nmnist", None, 5, (34, 34), "time", False, sensor_size=(34, 34))
    folder = model.save_pretrained(tmp_path / "net")
    save_labels(labels, folder)
    document = read(ripe("account", folder, "--recordings", *paths, "--json"))
    assert document["recordings"]["count"] == len(paths) == 3
    assert document["recordings"]["spikes_that_differ"] == 0
    assert document["recordings"]["spikes"] > 10_000
    assert document["energy"]["layers"][0]["rate"] == pytest.approx(4067 / (5 * 2 * 34 * 34), rel=0.5)
