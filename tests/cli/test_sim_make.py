"""`ripe sim make`: a set from nothing, checked by `ripe data verify`, and what it refuses."""

import json
import struct

import numpy as np
import pytest

from ripe_mambaspike import load_dataset
from ripe_mambaspike.data.known_stores import KNOWN_STORES
from ripe_mambaspike.events.simulate.fitted import CameraCalibration, Variation, save_calibration
from ripe_mambaspike.events.simulate.pixel import Pixel
from ripe_mambaspike.events.simulate.saccades import Saccades

COMMANDS = ("make", "calibrate", "calibrate-gestures")
UNSEEN = ("gestures-hard-unseen", "sim-dvsgesture-unseen")
OPEN = {
    f"{name}{size}" for name in ("sim-cifar10", "sim-caltech101", "gestures-hard") for size in ("", "-small")
}  # the open sets


@pytest.fixture
def quick(tmp_path):
    saccades = Saccades(((-2.0, 0.0), (2.0, 1.0), (0.0, -1.0)), 10_000, 20_000)
    return save_calibration(CameraCalibration(Pixel(leak_hz=5.0), saccades, Variation()), tmp_path / "camera.json")


@pytest.fixture
def mnist(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for stem, count in (("train", 20), ("t10k", 10)):
        for name, array in (
            ("images-idx3", draw.integers(0, 256, (count, 28, 28))),
            ("labels-idx1", np.arange(count) % 10),
        ):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (folder / f"{stem}-{name}-ubyte").write_bytes(header + array.astype(np.uint8).tobytes())
    return folder


@pytest.fixture
def make(ripe, tmp_path, quick, mnist):
    def call(*words):
        given = ("--images", mnist, "--out", tmp_path / "out", "--calibration", quick, "--workers", "1")
        return ripe("sim", "make", "sim-nmnist", *given, *words)

    return call


def test_make_and_verify(make, ripe, tmp_path, store_document_keys):
    result = make("--json", "--seed", "3", "--variation", "0.5")
    assert result.code == 0
    assert result.err.splitlines() == [
        "ripe: note: every recording of this set is simulated",
        "ripe: note: 30 pictures are there; the whole set has 70,000",
    ]
    document = json.loads(result.out)
    assert list(document) == [*store_document_keys, "simulated", "recipe", "checksum_ships"]
    assert document["recipe"]["seed"] == 3
    assert document["recipe"]["variation"] == 0.5
    assert document["recipe"]["calibration"]["pixel"]["leak_hz"] == 5.0
    partition = document["partitions"]["folders"]
    assert (partition["train"], partition["val"], partition["test"], partition["published"]) == (10, 10, 10, False)
    verified = ripe("data", "verify", "sim-nmnist", "--root", tmp_path / "out", "--json")
    assert (verified.code, verified.err) == (0, "")
    verified = json.loads(verified.out)
    assert verified == {**{key: document[key] for key in store_document_keys}, "verified": True, "source": "simulated"}
    assert len(load_dataset("sim-nmnist", tmp_path / "out", "test")) == 10
    result = ripe("data", "verify", "sim-nmnist", "--root", tmp_path / "out")
    assert "simulated" in result.out.splitlines()[-1]
    shard = next((tmp_path / "out" / ".ripe").rglob("shard-00000.npy"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    result = ripe("data", "verify", "sim-nmnist", "--root", tmp_path / "out")
    assert result.code == 2
    assert "sha256" in result.err


def test_the_default_set(ripe, tmp_path):
    """Without a picture, by the camera that ships; counts and size as asked."""
    counts = ("--train", "11", "--val", "3", "--test", "4", "--size", "16")
    result = ripe("sim", "make", "synthgesture", "--out", tmp_path / "out", *counts, "--workers", "1")
    assert result.code == 0
    assert "synthgesture: 18 clips of 11 classes" in result.out
    assert "16×16" in result.out
    train = load_dataset("synthgesture", tmp_path / "out", "train")
    assert sorted(train.labels.tolist()) == list(range(11))


def test_an_open_set(ripe, tmp_path, monkeypatch):
    """Its difficulty is part of the recipe; whether its checksum ships is printed."""
    counts = ("--train", "11", "--val", "2", "--test", "2", "--size", "12", "--seconds", "0.1", "--workers", "1")
    words = ("sim", "make", "gestures-hard", "--out", tmp_path / "out", *counts, "--set", "clutter=0", "noise_hz=9.5")
    document = json.loads(ripe(*words, "--json").out)
    assert document["recipe"]["difficulty"] | {"clutter": 0, "noise_hz": 9.5} == document["recipe"]["difficulty"]
    assert document["checksum_ships"] is False
    assert "checksum" not in ripe(*words).out
    monkeypatch.setitem(KNOWN_STORES, document["key"], document["sha256"])
    assert "checksum" in ripe(*words).out
    monkeypatch.setitem(KNOWN_STORES, document["key"], "0" * 64)
    for refused in (ripe(*words), ripe("data", "verify", "gestures-hard", "--root", tmp_path / "out")):
        assert (refused.code, refused.out) == (2, "")
        assert len(refused.err.splitlines()) == 1
        assert "sha256" in refused.err


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help(ripe, words):
    result = ripe("sim", *words, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(" ".join(["usage: ripe sim", *words]))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), COMMANDS),
        (("build",), ("build", *COMMANDS)),
        (("make",), ("ripe sim make",)),
        (("make", "sim-nmnist"), ("--out",)),
        (("make", "nmnist", "--out", "o"), ("nmnist", "synthgesture")),
        (("make", "sim-nmnist", "--out", "o"), ("sim-nmnist", "--images")),
        (("make", "sim-nmnist", "--out", "o", "--train", "many"), ("--train", "many")),
        (("make", "sim-nmnist", "--out", "o", "--workers", "0"), ("--workers", "0", "1 to 1024")),
        (("make", "synthgesture", "--out", "o", "--size", "2000"), ("--size", "2000", "8 to 1024")),
        (("make", "synthgesture", "--out", "o", "--set", "clutter=2"), ("clutter", "synthgesture")),
        (("make", "gestures-hard", "--out", "o", "--set", "clutter"), ("--set", "clutter")),
        (("make", "gestures-hard", "--out", "o", "--set", "cluter=2"), ("cluter", "clutter")),
        (("make", "gestures-hard", "--out", "o", "--set", "clutter=99"), ("clutter", "99", "10")),
        (("make", "gestures-hard", "--out", "o", "--images", "i"), ("--images", "gestures-hard")),
        (("make", "sim-cifar10", "--out", "o"), ("--images", "sim-cifar10")),
        (("make", "sim-cifar10", "--out", "o", "--images", "nothing.zip"), ("nothing.zip", "images")),
    ],
)
def test_invalid_options_are_refused(refused, words, named):
    refused(("sim", *words), *named)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--train", "99"), ("--train", "99", "1 to 10")),
        (("--val", "0"), ("--val", "0", "1 to 10")),
        (("--variation", "11"), ("--variation", "11", "0 to 10")),
        (("--calibration", "nowhere.json"), ("nowhere.json", "No such file")),
    ],
)
def test_values_out_of_range_are_refused(make, tmp_path, words, named):
    made = make(*words)
    assert (made.code, made.out) == (2, "")
    assert all(name in made.err for name in named)
    assert len(made.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused(ripe, tmp_path, quick, mnist):
    (tmp_path / "file").write_text("")
    result = ripe("sim", "make", "sim-nmnist", "--images", mnist, "--calibration", quick, "--out", tmp_path / "file")
    assert result.code == 2
    assert result.err.startswith(f"ripe: {tmp_path / 'file'}")


def test_datasets_are_marked_as_simulated(ripe):
    rows = {row["name"]: row for row in json.loads(ripe("data", "sets", "--json").out)}
    made = {name for name, row in rows.items() if row["simulated"]}
    assert made == {"synthgesture", "sim-dvsgesture", "sim-nmnist", *UNSEEN, *OPEN}
    assert all("simulated" in rows[name]["title"] for name in made)
    result = ripe("data", "prepare", "sim-nmnist", "--root", ".")
    assert result.code == 2
    assert "ripe sim make sim-nmnist" in result.err
