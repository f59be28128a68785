"""Simulated sets: the same bytes however they are made, the original's split, and all that a store is good for."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from shown import caltech_names, camera, save_mnist, save_tree, split_names
from trees import contents

from raising import raises
from ripe_mambaspike import load_dataset
from ripe_mambaspike.data import building, simulated
from ripe_mambaspike.data.checking import source_state
from ripe_mambaspike.data.listing import SPLITS
from ripe_mambaspike.data.loading import BinnedDataset
from ripe_mambaspike.data.pictures import find_pictures, read_pictures
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.sets.registry import datasets
from ripe_mambaspike.data.simulated import clip_seed, simulate_dataset
from ripe_mambaspike.data.store import open_store, read_store, verify_store
from ripe_mambaspike.errors import ConfigError, DataError, InputError
from ripe_mambaspike.events.simulate.fitted import load_calibration, simulate_pictures

DRIVER = """
import os, signal, stat, sys
from ripe_mambaspike import files
from ripe_mambaspike.data import simulated
from ripe_mambaspike.cli.main import main

simulated.SHARD_PIXELS = 8 * 34 * 34
count, real = 0, os.fsync
def counted(descriptor):
    global count
    count += not stat.S_ISDIR(os.fstat(descriptor).st_mode)  # files alone: a folder is synced after each
    if count == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)
files.os.fsync = counted
if __name__ == "__main__":
    sys.exit(main(["sim", "make", "sim-nmnist", "--workers", "1", *sys.argv[2:]]))
"""
SIMULATED = {name: info for name, info in datasets().items() if info.simulated}


@pytest.fixture
def make(tmp_path, quick, mnist, monkeypatch):
    """A set of digits in shards of eight."""
    monkeypatch.setattr(simulated, "SHARD_PIXELS", 8 * 34 * 34)

    def call(out="out", name="sim-nmnist", **options):
        given = {"images": mnist, "calibration": quick, **options}
        return simulate_dataset(name, tmp_path / out, **given)

    return call


def test_a_simulated_store_is_read_like_any_other(make, tmp_path, mnist, quick):
    store = make()
    root = tmp_path / "out"
    assert store.folder.parent == root / ".ripe" / "sim-nmnist"
    assert (store.sensor_size, store.classes, len(store)) == ((34, 34), tuple("0123456789"), 60)
    assert len(store.index.shards) == 8
    assert verify_store(store) == sum(store.index.clips.events)
    assert store.index.simulated is True
    assert source_state(store, root) == "simulated"
    assert store.index.notes[0] == "every recording of this set is simulated"
    assert not store.index.partitions["folders"].published
    named = split_names(root, "sim-nmnist")
    assert {part: len(names) for part, names in named.items()} == {"train": 30, "val": 10, "test": 20}
    assert len({name for names in named.values() for name in names}) == 60
    train = load_dataset("sim-nmnist", root, "train")
    assert train.labels.tolist() == [int(name.split("/")[1]) for name in train.names]
    recording, label = train[3]
    assert recording.sensor_size == (34, 34)
    assert recording.last_us < 20_000
    counts, binned_label = BinnedDataset(train, 4)[3]
    assert (tuple(counts.shape), binned_label) == ((4, 2, 34, 34), label)
    assert counts.sum() == len(recording)


def test_a_clip_is_its_picture_under_its_own_seed(make, tmp_path, mnist, quick):
    make(seed=5)
    train = load_dataset("sim-nmnist", tmp_path / "out", "train")
    name = train.names[7]
    found = find_pictures(mnist)
    (picture,) = read_pictures(found.source, [found.listed[int(name[-5:]) - 1]])
    seeds = [clip_seed(5, name)]
    (events,) = simulate_pictures(torch.from_numpy(picture)[None], load_calibration(quick), seeds)
    recording, _ = train[7]
    for column in "xytp":
        np.testing.assert_array_equal(recording[column], events[column])


@pytest.mark.slow
def test_the_same_bytes_with_any_number_of_workers(make, tmp_path):
    make("one", workers=1)
    make("two", workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_the_same_bytes_with_any_number_of_threads(make, tmp_path):
    make("one", workers=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    make("threads", workers=1)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    assert contents(tmp_path / "one") == contents(tmp_path / "threads")


def test_what_the_key_stands_for(make, tmp_path, mnist):
    few = {"train": 6, "val": 2, "test": 2}
    first = make(**few)
    assert make("again", **few).folder.name == first.folder.name
    drawn = [make(**few, seed=1), make(**few, variation=0.5)]
    other = [*drawn, make(**few, size=40), make(**few | {"train": 4})]
    other.append(make(**few, calibration=camera(tmp_path / "other.json", leak_hz=4.0)))
    other.append(make(images=save_mnist(tmp_path / "more", 40, 30)))
    keys = {store.folder.name for store in [first, *other]}
    assert len(keys) == 7
    assert open_store(tmp_path / "out" / ".ripe", "sim-nmnist").folder == other[-1].folder
    assert make(**few, images=save_mnist(tmp_path / "unpacked", packed=False)).folder == first.folder
    assert all(store.index.shards[0].sha256 != first.index.shards[0].sha256 for store in drawn)


def test_a_smaller_dataset_has_the_same_clips(make, tmp_path):
    """The classes by turns, and each clip as it is in the whole set."""
    make()
    make("few", train=15, val=10, test=5)
    named = split_names(tmp_path / "few", "sim-nmnist")
    whole = split_names(tmp_path / "out", "sim-nmnist")
    assert {part: len(names) for part, names in named.items()} == {"train": 15, "val": 10, "test": 5}
    assert all(set(named[part]) <= set(whole[part]) for part in SPLITS)
    few = load_dataset("sim-nmnist", tmp_path / "few", "train")
    assert np.bincount(few.labels, minlength=10).tolist() == [2] * 5 + [1] * 5
    every = load_dataset("sim-nmnist", tmp_path / "out", "train")
    for number, name in enumerate(few.names):
        np.testing.assert_array_equal(few[number][0].events, every[every.names.index(name)][0].events)


@pytest.mark.slow
@pytest.mark.parametrize(("at", "noted"), [(1, 0), (2, 0), (7, 3), (17, 8), (18, None)])
def test_killed(make, tmp_path, mnist, quick, at, noted):
    """At a shard, a note, the index and `current`; the next run keeps what is there."""
    (tmp_path / "driver.py").write_text(DRIVER)
    options = ["--images", mnist, "--out", tmp_path / "killed", "--calibration", quick]
    done = subprocess.run([sys.executable, tmp_path / "driver.py", str(at), *options], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done
    home = tmp_path / "killed" / ".ripe" / "sim-nmnist"
    home = tmp_path / "killed" / ".ripe" / "sim-nmnist"
    with raises(DataError, "store", home, "`ripe sim make sim-nmnist`"):
        load_dataset("sim-nmnist", tmp_path / "killed", "val")
    kept = {path.stem: path.with_suffix(".npy").stat().st_ino for path in home.glob("*.part/shard-*.json")}
    assert len(kept) == (noted or 0)
    store = make("killed")
    make("whole")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert all((store.folder / f"{stem}.npy").stat().st_ino == inode for stem, inode in kept.items())


@pytest.mark.parametrize("step", [1, 2, 9, 17, 18])
def test_a_full_disk(make, tmp_path, full_disk, step):
    with full_disk(step), raises(DataError, "store", mentions="run the same command again"):
        make()
    assert not (tmp_path / "out" / ".ripe" / "sim-nmnist" / "current").exists()
    verify_store(make())


def test_a_recipe_that_was_changed(make, tmp_path, monkeypatch):
    store = make()
    path = store.folder / "index.json"
    whole = path.read_text()
    index = json.loads(whole)
    index["recipe"]["seed"] = 7
    index["sha256"] = building.index_checksum(index)
    path.write_text(json.dumps(index))
    assert source_state(read_store(store.folder), tmp_path).startswith("changed: the recipe")
    path.write_text(whole)
    monkeypatch.setattr("ripe_mambaspike.data.checking.VERSION", 99)
    state = source_state(store, tmp_path)
    assert state.startswith("changed: ")
    assert {"1", "99"} <= set(state.replace(",", " ").split())


@pytest.mark.parametrize(
    ("options", "kind", "field", "mentions"),
    [
        ({"name": "nmnist"}, ConfigError, "dataset", ("'nmnist'", "synthgesture", "sim-nmnist", "sim-caltech101")),
        ({"images": None}, ConfigError, "images", ("MNIST's IDX files for sim-nmnist",)),
        ({"name": "synthgesture"}, ConfigError, "images", ("synthgesture",)),
        ({"train": 0}, ConfigError, "train", ("1 to 30", "got 0")),
        ({"val": -1}, ConfigError, "val", ("1 to 10", "got -1")),
        ({"test": 21}, ConfigError, "test", ("1 to 20", "got 21")),
        ({"size": 4}, ConfigError, "size", ("8 to 1024", "got 4")),
        ({"variation": -1}, ConfigError, "variation", ("0 to 10", "got -1")),
        ({"variation": float("nan")}, ConfigError, "variation", ("0 to 10", "nan")),
        ({"seed": -1}, ConfigError, "seed", ("from 0 to", "got -1")),
        ({"images": "nowhere"}, DataError, "images", ("nowhere", "nothing")),
        ({"calibration": "nowhere"}, InputError, None, ("nowhere",)),
        ({"name": "sim-cifar10"}, DataError, "images", ("CIFAR-10's ten classes", "airplane")),
        ({"name": "sim-caltech101"}, DataError, "images", ("class/picture", "train and test folders")),
    ],
)
def test_invalid_options_are_refused(make, tmp_path, options, kind, field, mentions):
    with raises(kind, field, mentions=mentions):
        make(**options)
    assert not (tmp_path / "out").exists()


def test_odd_pictures_are_found_before_anything_is_written(tmp_path, quick):
    tree = save_tree(tmp_path / "tree", caltech_names(a=11))
    save_tree(tree, ["a/image_0009.png"], (3, 3))

    def refused(images, field, path, mentions):
        with raises(DataError, field, path, mentions):
            simulate_dataset("sim-caltech101", tmp_path / "out", images=images, calibration=quick)
        assert not (tmp_path / "out").exists()

    odd = tree / "a" / "image_0009.png"
    refused(tree, "picture", odd, ("3×3", "from 8 to 4096"))
    odd.write_bytes(b"none")
    refused(tree, "picture", odd, "JPEG or PNG")
    save_tree(tree, ["a/image_0009.png", "a/image_09.png"])
    refused(tree, "images", tree, "'a/image_0009' twice")
    refused(save_tree(tmp_path / "one", caltech_names()), "images", None, "val clips")


def test_other_classes_than_digits_are_refused(tmp_path, quick):
    tree = save_tree(tmp_path / "tree", ["train/a/1.png", "test/a/1.png"])
    flat = save_tree(tmp_path / "flat", ["0/1.png", "1/1.png"])
    for images, mentions in ((tree, ("'a'", "0 to 9")), (flat, ("train and test",))):
        with raises(DataError, "images", images, mentions):
            simulate_dataset("sim-nmnist", tmp_path / "o", images=images, calibration=quick)


def test_a_clip_without_events(tmp_path, mnist):
    quiet = camera(tmp_path / "quiet.json", leak_hz=0, shot_hz=0, threshold_on=1e3, threshold_off=1e3)
    with raises(DataError, "Train/0/00001", mentions="no events"):
        simulate_dataset("sim-nmnist", tmp_path / "out", images=mnist, calibration=quiet)


def test_simulated_datasets_are_not_prepared_from_files(tmp_path):
    for name in SIMULATED:
        with raises(ConfigError, "dataset", mentions=f"`ripe sim make {name}`"):
            list_dataset(name, tmp_path)
