"""Words a command cannot use: exit code 2, one sentence that names them, nothing on standard output."""

import re
from importlib import import_module

import numpy as np
import pytest

from ripe_mambaspike.cli.main import COMMANDS
from ripe_mambaspike.models.synthetic import synthetic_clip


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("account", "dvsgestures"), ["dvsgestures", "dvsgesture"]),
        (("account", "nope"), ["nope"]),
        (("account", "nmnist", "--set", "time_stepz=3"), ["time_stepz", "time_steps"]),
        (("account", "nmnist", "--set", "steps"), ["steps", "field=value"]),
        (("account", "nmnist", "--set", "=3"), ["=3"]),
        (("account", "nmnist", "--set", "time_steps=[3"), ["time_steps=[3"]),
        (("account", "nmnist", "--set", "mixer=rnn"), ["mixer", "rnn"]),
        (("account", "nmnist", "--set", "neurons=lif,lif"), ["neurons", "lif,lif"]),
        (("account", "nmnist", "--set", "num_tokens=0"), ["tokens", "0"]),
        (("account", "nmnist", "--set", "num_tokens=26"), ["26", "25"]),
        (("account", "nmnist", "--in-size", "4"), ["--in-size", "4", "8"]),
        (("account", "nmnist", "--in-size", "0"), ["--in-size", "0"]),
        (("account", "nmnist", "--in-size", "-34"), ["--in-size", "-34"]),
        (("account", "nmnist", "--in-size", "abc"), ["--in-size", "abc"]),
        (("account", "nmnist", "--in-size", "34.5"), ["--in-size", "34.5"]),
        (("account", "nmnist", "--time-steps", "0"), ["steps", "0"]),
        (("account", "nmnist", "--time-steps", "-3"), ["steps", "-3"]),
        (("account", "nmnist", "--time-steps", "many"), ["--time-steps", "many"]),
        (("account", "--set", "time_steps=2024-13-45"), ["time_steps=2024-13-45"]),
        (("account", "--set", "time_steps=8", "--time-steps", "4"), ["steps"]),
        (("account", "--sweep", "time_steps", "--time-steps", "8"), ["steps", "sweep"]),
        (("account", "x" * 5000), ["xxx"]),
        (("account", "x/" * 3000), ["x/"]),
        (("account", "--sweep", "depth"), ["--sweep", "depth"]),
        (("account", "--sweep", "resolution"), ["--sweep in_size"]),
        (("account", "--sweep", "steps"), ["--sweep time_steps"]),
        (("account", "--sweep", "tokens"), ["--sweep num_tokens"]),
        (("bench", "infer", "--side", "16"), ["--side", "--in-size"]),
        (("bench", "scan", "--sides", "16"), ["--sides", "--in-size"]),
        (("account", "mamba-spike", "--sweep", "time_steps"), ["Mamba-Spike", "steps"]),
        (("account", "--sweep", "time_steps", "--set", "num_classes=-1"), ["num_classes", "-1"]),
        (("account", "nmnist", "extra"), ["extra"]),
        (("account", "nmnist", "--colour"), ["--colour"]),
        (("models", "--colour", "red"), ["--colour"]),
        (("mdels",), ["mdels"]),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else None,
)
@pytest.mark.parametrize("json", [False, True], ids=["text", "json"])
def test_invalid_options_are_refused(refused, words, named, json):
    if json and words and words[0] in ("account", "models"):
        words = (*words[:1], "--json", *words[1:])
    refused(words, *named)


def test_no_command_shows_the_help(ripe):
    assert ripe() == ripe("--help")
    code, out, err = ripe()
    assert (code, err) == (0, "")
    assert all(f"• {name} " in out for name in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [("account", "--steps", "3"), ("account", "--resolution", "34"), ("predict", "net", "a.raw", "--steps", "3")],
    ids=" ".join,
)
def test_an_earlier_option_is_refused_with_the_current_one(refused, words):
    refused(words, "--in-size" if "--resolution" in words else "--time-steps")


def test_invalid_folders_are_refused(refused, saved, tmp_path):
    refused(("account", tmp_path / "nowhere"), tmp_path / "nowhere")
    refused(("account", tmp_path), "config.json")
    refused(("account", saved / "config.json"), "config.json")
    refused(("account", saved, "--set", "num_classes=3"), "classes", saved)
    refused(("account", saved, "--time-steps", "5"), "5", "4")
    refused(("account", saved, "--in-size", "4"), "4", "8")


@pytest.mark.parametrize("option", ["time-steps", "in-size"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_sizes_of_a_saved_network(refused, saved, option, value):
    refused(("account", saved, f"--{option}", value), option, value)


def test_a_corrupt_folder(refused, saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    refused(("account", saved, "--json"), path)
    (saved / "config.json").write_text("{")
    refused(("account", saved), saved / "config.json")


def write(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "data",
    [b"", b"hello\nworld", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x01\x00\x10\x00{'descr':\n\n\n\n\n", b"PK\x03\x04 no zip"],
    ids=["empty", "text", "cut header", "broken header", "broken zip"],
)
def test_unreadable_input(refused, saved, tmp_path, data):
    path = write(tmp_path / "clip.npy", data)
    refused(("account", saved, "--input", path), path)


def test_a_missing_input_is_refused(refused, saved, tmp_path):
    refused(("account", saved, "--input", tmp_path / "none.npy"), tmp_path / "none.npy")
    refused(("account", saved, "--input", tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.zeros(3), ["(3,)"]),
        (np.zeros((3, 3, 18, 18)), ["3, 18, 18"]),
        (np.zeros((11, 2, 18, 18)), ["11"]),
        (np.zeros((3, 2, 18, 5)), ["18", "5"]),
        (np.zeros((0, 2, 18, 18)), ["0"]),
        (np.zeros((3, 2, 18, 18), complex), ["complex128"]),
        (np.array([["a"]]), ["U1"]),
        (np.array([{"a": 1}], dtype=object), ["clip.npy"]),
        (np.full((3, 2, 18, 18), np.nan), ["clip.npy"]),
    ],
    ids=["flat", "channels", "steps", "small", "empty", "complex", "text", "pickle", "nan"],
)
@pytest.mark.parametrize("network", ["saved", "registered"])
def test_input_of_another_kind(refused, saved, tmp_path, array, named, network):
    path = tmp_path / "clip.npy"
    np.save(path, array)
    model = saved if network == "saved" else "nmnist"
    refused(("account", model, "--input", path), *named)


def test_two_arrays_in_one_file(refused, saved, tmp_path):
    clip = synthetic_clip(3, 18, 18)[0].numpy()
    np.savez(tmp_path / "clips.npz", a=clip, b=clip)
    refused(("account", saved, "--input", tmp_path / "clips.npz"), "clips.npz", "2")


def test_options_that_exclude_each_other(refused, saved, tmp_path):
    np.save(tmp_path / "clip.npy", synthetic_clip(3, 18, 18)[0].numpy())
    refused(
        ("account", saved, "--input", tmp_path / "clip.npy", "--time-steps", "2"), "--input", "time_steps", "3", "2"
    )
    refused(("account", "--sweep", "time_steps", "--input", tmp_path / "clip.npy"), "--input", "--sweep")


def test_too_little_memory_names_options_of_the_command(refused, monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    # By their modules: `ripe_mambaspike.account` and `.train` are functions.
    monkeypatch.setattr(import_module("ripe_mambaspike.account.run"), "account", fail)
    refused(("account", "nmnist"), "memory", "--in-size or --time-steps")
    monkeypatch.setattr(import_module("ripe_mambaspike.train.recipes"), "load_recipe", fail)
    refused(("train", "nmnist"), "memory", "schedule.batch_size", "--set")
    monkeypatch.setattr(import_module("ripe_mambaspike.studies.claims"), "run_claims", fail)
    refused(("check",), "not enough memory\n")


def test_a_positional_argument_is_named_as_in_the_help(refused):
    for words, name in ((("train", "nosuch"), "RECIPE"), (("account", "nosuch"), "MODEL")):
        refused(words, f"ripe: {name}: ", "'nosuch'", "dvsgesture")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("eval", "run", "--splitt", "test"), "ripe eval --help"),
        (("eval",), "ripe eval --help"),
        (("data", "prepare", "folder", "--splitt"), "ripe data prepare --help"),
        (("data",), "ripe data --help"),
        (("data", "prepair"), "ripe data --help"),
        (("bench", "infer", "--nothing"), "ripe bench infer --help"),
        (("evl",), "ripe --help"),
    ],
)
def test_a_parse_error_names_the_help_of_its_command_alone(ripe, words, command):
    result = ripe(*words)
    assert result.code == 2
    text = " ".join(result.err.translate(dict.fromkeys(map(ord, "╭╮╰╯│─"))).split())
    assert re.findall(r"ripe(?: [a-z]+)* --help", text) == [command]


def test_ripe_alone_shows_its_help(ripe):
    alone, asked = ripe(), ripe("--help")
    assert (alone.code, alone.out) == (asked.code, asked.out)
    assert alone.code == 0
    assert "predict" in alone.out
