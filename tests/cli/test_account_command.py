"""`ripe account`: one JSON document, or tables that hold the same numbers."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.models.synthetic import synthetic_clip

SWEEPS = ("in_size", "time_steps", "width", "num_tokens")


def read(result):
    """The one JSON document of standard output."""
    assert result.code == 0, result.err
    assert result.err == ""
    return json.loads(result.out, parse_constant=pytest.fail)


def test_the_keys_and_totals_of_the_default(ripe):
    document = read(ripe("account", "--json"))
    assert document["model"] == "dvsgesture"
    assert document["parameters"]["training"] == 1_521_586
    assert document["parameters"]["deployed"] == 875_122
    assert sum(document["parameters"]["by_part"].values()) == 875_122
    assert round(document["flops"]["without_scan"] / 1e9, 4) == 8.9884
    assert document["flops"]["total"] == sum(document["flops"]["by_part"].values())
    assert document["weight_bytes"] == {"fp32": 3_500_488, "fp16": 1_750_244, "int8": 875_122}
    assert document["energy"]["synaptic_operations"] > 0
    assert document["dual_kernel"] == {"weights": 875_122 + 285_696, "more_than_deployed": 285_696}


def test_options_reach_the_network(ripe, small_words):
    words = (*small_words, "attention=grouped", "mixer=none", "neurons=[lif, lif, silif]")
    document = read(ripe("account", "nmnist", *words, "--json"))
    config = document["config"]
    assert (config["time_steps"], config["in_size"]) == (4, [18, 18])
    assert (config["attention"], config["mixer"], config["neurons"]) == ("grouped", "none", ["lif", "lif", "silif"])
    assert document["flops"]["by_part"]["scan"] == 0


@pytest.mark.parametrize(
    "fields",
    [{"d_state": 8}, {"expand": 1, "d_conv": 2}, {"bridge_dim": 48}, {"mixer": "flat-matched"}],
    ids=lambda fields: "-".join(fields),
)
def test_the_paper_s_choices_are_counted(ripe, fields):
    words = [f"{name}={value}" for name, value in fields.items()]
    document = read(ripe("account", "dvsgesture", "--in-size", "34", "--set", *words, "--json"))
    for form in ("training", "deployed"):
        model = create_model("dvsgesture", form=form, **fields)
        assert document["parameters"][form] == sum(p.numel() for p in model.parameters())
    assert {name: document["config"][name] for name in fields} == fields
    assert document["energy"]["network_dense_microjoules"] > 0


def test_numbers_may_be_written_with_an_exponent(ripe, small_words):
    words = (*small_words, "attention_epsilon=1e-3", "csilif_reset=0.25", "attention_feature_map=softplus")
    config = read(ripe("account", "nmnist", *words, "--json"))["config"]
    assert (config["attention_epsilon"], config["csilif_reset"]) == (1e-3, 0.25)
    assert config["attention_feature_map"] == "softplus"
    assert ripe("account", "nmnist", "--set", "attention_epsilon=small").code == 2


def test_the_same_arguments_give_the_same_bytes(ripe, small_words):
    first, second = (ripe("account", "nmnist", *small_words, "--json").out for _ in range(2))
    assert first == second


def test_untrained_weights_are_labeled(ripe, small_words):
    about = read(ripe("account", "nmnist", *small_words, "--json"))["energy"]["assumptions"]["measured_on"]
    assert "untrained" in about
    assert "synthetic" in about


@pytest.mark.parametrize("name", ["mamba-spike-nmnist", "mamba-spike-pooled"])
def test_the_baselines(ripe, name):
    document = read(ripe("account", name, "--in-size", "34", "--time-steps", "3", "--json"))
    assert document["parameters"]["training"] == document["parameters"]["deployed"]
    assert "dual_kernel" not in document
    assert document["energy"]["network_dense_microjoules"] > 0
    assert ripe("account", name, "--in-size", "34", "--time-steps", "3").code == 0


@pytest.mark.parametrize(("name", "spikes"), [("event-mlp", 0), ("frame-cnn", 0), ("mamba-spike-pooled", 3)])
def test_a_network_without_spikes_has_no_spiking_part(ripe, name, spikes):
    words = ("account", name, "--in-size", "34", "--time-steps", "3")
    document = read(ripe(*words, "--json"))
    assert document["spiking_layers"] == spikes
    shown = ripe(*words).out
    assert ("spiking part" in shown) == bool(spikes)
    assert ("with additions" in shown) == bool(spikes)


def test_the_text_shows_the_totals(ripe, small_words):
    document = read(ripe("account", "nmnist", *small_words, "--json"))
    result = ripe("account", "nmnist", *small_words)
    assert result.code == 0
    for total in ("training", "deployed"):
        assert f"{document['parameters'][total]:,}" in result.out
    assert f"{document['dual_kernel']['weights']:,}" in result.out
    assert f"{document['flops']['total'] / 1e9:.4f}" in result.out
    assert f"{document['flops']['without_scan'] / 1e9:.4f}" in result.out
    for part in document["parameters"]["by_part"]:
        assert part in result.out


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps(ripe, name):
    document = read(ripe("account", "--sweep", name, "--json"))
    assert document["sweep"] == name
    assert len(document["rows"]) >= 3
    result = ripe("account", "--sweep", name)
    assert result.code == 0
    for row in document["rows"]:
        assert row["setting"] in result.out
        assert f"{row['ours']['gflops']:.4g}" in result.out


def test_a_sweep_of_another_network(ripe):
    document = read(ripe("account", "cifar10dvs", "--sweep", "num_tokens", "--json"))
    assert all(value is None for row in document["rows"] for value in row["paper"].values())


def test_a_saved_network(ripe, saved):
    document = read(ripe("account", saved, "--json"))
    assert document["config"]["stage_channels"] == [8, 12, 16]
    assert str(saved) in document["energy"]["assumptions"]["measured_on"]
    smaller = read(ripe("account", saved, "--time-steps", "2", "--in-size", "34", "--json"))
    assert smaller["counted_at"] == {"time_steps": 2, "in_size": [34, 34]}
    assert smaller["parameters"] == document["parameters"]
    assert ripe("account", saved).code == 0


@pytest.mark.parametrize("form", ["deployed", "bfloat16"])
def test_saved_in_another_form_or_precision(ripe, tmp_path, form):
    fields = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 18}
    model = create_model("nmnist", seed=0, **fields)
    model = fuse(model, quiet=True) if form == "deployed" else model.bfloat16()
    document = read(ripe("account", model.save_pretrained(tmp_path / "net"), "--json"))
    assert document["parameters"]["training"] > document["parameters"]["deployed"]


@pytest.mark.parametrize("kind", ["npy", "npz", "batch", "uint8"])
def test_measured_on_a_file(ripe, saved, tmp_path, kind):
    clip = synthetic_clip(3, 20, 26)[0].numpy()
    path = tmp_path / ("clip.npz" if kind == "npz" else "clip.npy")
    clip = clip[None] if kind == "batch" else clip.astype(np.uint8) if kind == "uint8" else clip
    np.savez(path, clip) if kind == "npz" else np.save(path, clip)
    document = read(ripe("account", saved, "--input", path, "--json"))
    energy = document["energy"]
    assert path.name in energy["assumptions"]["measured_on"]
    assert energy["layers"][0]["rate"] == pytest.approx(clip.mean())
    assert document["counted_at"]["in_size"] == [20, 26]


def test_a_file_for_a_registered_network(ripe, tmp_path):
    np.save(tmp_path / "clip.npy", synthetic_clip(3, 18, 18)[0].numpy())
    document = read(ripe("account", "nmnist", "--input", tmp_path / "clip.npy", "--json"))
    assert document["energy"]["layers"][1]["macs"] > 0


@pytest.mark.slow
def test_the_installed_command():
    words = [sys.executable, "-m", "ripe_mambaspike", "account", "nmnist", "--json"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["parameters"]["deployed"] == 869_593
    done = subprocess.run([*words[:3], "nothing"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing" in done.stderr
