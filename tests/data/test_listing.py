"""Splits are functions of the names alone: the same on every machine, in every order."""

import hashlib
import os
import random

import pytest

from raising import raises
from ripe_mambaspike.data.listing import (
    Clip,
    SourceFile,
    check_listing,
    checksum_of,
    hash_rank,
    hold_out_validation,
    make_listing,
    make_partition,
)
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.sets.registry import dataset_info, datasets
from ripe_mambaspike.errors import ConfigError, DataError

CLIPS = [Clip(f"clip{number}", number % 3) for number in range(60)]

UNSEEN = ("gestures-hard-unseen", "sim-dvsgesture-unseen")
OPEN = [f"{name}{size}" for name in ("sim-cifar10", "sim-caltech101", "gestures-hard") for size in ("", "-small")]
SETS = ["dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "nmnist-600", "dailydvs200", "folder"]


def test_the_checksum_is_of_sorted_lines():
    lines = [("train", "b"), ("test", "a"), ("train", "a")]
    assert checksum_of(lines) == hashlib.sha256(b"test a\ntrain a\ntrain b\n").hexdigest()
    assert checksum_of(reversed(lines)) == checksum_of(lines)
    assert checksum_of([("test", "a"), ("val", "a"), ("train", "b")]) != checksum_of(lines)


def test_a_partition_counts_the_clips_of_its_splits():
    parts = ["train", "val", "", "test"] * 15
    partition = make_partition("some", CLIPS, parts)
    assert partition.sizes() == {"train": 15, "val": 15, "test": 15}
    assert partition.parts == tuple(parts)
    left = [(part, clip.name) for clip, part in zip(CLIPS, parts, strict=True) if part]
    assert partition.checksum == checksum_of(left)
    assert not partition.published
    assert make_partition("some", CLIPS, parts, partition.checksum).published
    assert not make_partition("some", CLIPS, parts, "0" * 64).published


def test_the_hash_rank_is_fixed():
    assert hash_rank("salt", "name") == hashlib.sha256(b"salt/name").hexdigest()
    assert hash_rank("salt", "\udcff") == hashlib.sha256(b"salt/\xff").hexdigest()  # a name that is no text


def test_validation_is_a_tenth_of_each_class_of_the_training_part():
    parts = ["test" if number % 2 else "train" for number in range(60)]
    held = hold_out_validation("salt", CLIPS, parts)
    for label in range(3):
        of_class = [part for clip, part in zip(CLIPS, held, strict=True) if clip.label == label]
        assert (of_class.count("train"), of_class.count("val"), of_class.count("test")) == (9, 1, 10)
    assert [part == "test" for part in held] == [part == "test" for part in parts]
    lowest = [min((hash_rank("salt", c.name), c.name) for c in CLIPS[::2] if c.label == label)[1] for label in range(3)]
    assert sorted(lowest) == sorted(clip.name for clip, part in zip(CLIPS, held, strict=True) if part == "val")


@pytest.mark.parametrize(
    ("count", "share", "taken"), [(1, 0.1, 0), (2, 0.1, 1), (14, 0.1, 1), (16, 0.1, 2), (4, 0.9, 3)]
)
def test_a_class_keeps_a_training_clip_and_gives_one_of_several(count, share, taken):
    clips = [Clip(str(number), 0) for number in range(count)]
    assert hold_out_validation("salt", clips, ["train"] * count, share).count("val") == taken


def test_the_order_of_the_clips_does_not_matter():
    shuffled = random.Random(0).sample(CLIPS, len(CLIPS))
    checksums = {
        make_partition("some", clips, hold_out_validation("salt", clips, ["train"] * len(clips))).checksum
        for clips in (CLIPS, shuffled)
    }
    assert len(checksums) == 1


def test_a_listing_is_checked():
    rows = [("x/a.bin", "a", 0, "train"), ("y/a.bin", "a", 1, "test"), ("y/b.bin", "b", 1, "train")]
    twice = make_listing("some", ("0", "1"), rows, "only")
    assert twice.sources[0] == SourceFile("x/a.bin", (Clip("a", 0),))
    with raises(DataError, "files", "root", ("'a' 2 times",)):
        check_listing(twice, "root")
    with raises(DataError, "files", "root", ("some",)):
        check_listing(make_listing("some", (), (), "only"), "root")
    whole = make_listing("some", ("0", "1"), rows[1:], "only")
    assert check_listing(whole, "root") is whole
    assert [clip.name for clip in whole.clips] == ["a", "b"]
    assert whole.partitions["only"].parts == ("test", "train")


def test_an_unknown_set(tmp_path):
    for call in (dataset_info, lambda name: list_dataset(name, tmp_path)):
        with raises(ConfigError, "dataset", mentions=("'mnist'", *datasets())):
            call("mnist")
    assert {*SETS, "synthgesture", "sim-dvsgesture", "sim-nmnist", *UNSEEN, *OPEN} == set(datasets())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nmnist", {"partial": True}),
        ("dvsgesture", {"time_unit": "ms"}),
        ("cifar10dvs", {"lists": "lists"}),
        ("ncaltech101", {"test_share": 0.0}),
        ("folder", {"partial": True}),
        ("nmnist-600", {"sensor_size": (34, 34)}),
    ],
)
def test_an_option_of_another_set(tmp_path, name, options):
    (option,) = options
    with raises(ConfigError, option, mentions=(name,)):
        list_dataset(name, tmp_path, **options)


@pytest.mark.parametrize("name", SETS)
def test_a_root_that_is_no_folder_is_refused(tmp_path, name):
    missing = tmp_path / "missing"
    with raises(DataError, "root", missing, ("nothing",)):
        list_dataset(name, missing)
    missing.write_text("a file")
    with raises(DataError, "root", missing, ("a file",)):
        list_dataset(name, missing)
    with raises(DataError, "root", tmp_path / ("x" * 5000), ("File name too long",)):
        list_dataset(name, tmp_path / ("x" * 5000))


@pytest.mark.parametrize("name", [name for name in SETS if name != "dailydvs200"])
def test_a_root_without_a_recording(tmp_path, name):
    if name != "folder":
        (tmp_path / "notes.md").write_text("none of it")
    with raises(DataError, "files", tmp_path, (name,)):
        list_dataset(name, tmp_path, partial=name == "cifar10dvs")


def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
    """Refused by a patched system call, since a superuser may read everything."""
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scan(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    with raises(DataError, "root", tmp_path / "closed", ("Permission denied",)):
        list_dataset("folder", tmp_path)


def test_a_link_that_leads_back(tmp_path):
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "up").symlink_to(tmp_path)
    with raises(DataError, "root", tmp_path / "left" / "up", ("every folder once",)):
        list_dataset("folder", tmp_path)


def test_hidden_files_and_the_store_are_passed_over(tmp_path):
    for path in ("left/1.bin", "left/.DS_Store", ".ripe/folder/x/shard-00000.npy", ".git/a.bin"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"")
    assert [source.path for source in list_dataset("folder", tmp_path).sources] == ["left/1.bin"]


def test_links_to_files_and_folders_elsewhere_are_followed(tmp_path):
    (tmp_path / "disk" / "left").mkdir(parents=True)
    (tmp_path / "disk" / "left" / "1.bin").write_bytes(b"")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "left").symlink_to(tmp_path / "disk" / "left")
    assert [clip.name for clip in list_dataset("folder", tmp_path / "root").clips] == ["left/1.bin"]
