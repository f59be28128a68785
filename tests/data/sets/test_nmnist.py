"""N-MNIST, whole and its first 600: the parts follow from the names."""

import gzip
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.sets.nmnist import PUBLISHED, PUBLISHED_600, list_nmnist, list_nmnist_600
from ripe_mambaspike.errors import DataError

ROOT = Path("root")


def digits_of(path):
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=8)


@pytest.fixture(scope="module")
def names(shared):
    """Those of all 70,000: file NNNNN is image NNNNN − 1."""
    made = {}
    for folder, file in (("Train", "train"), ("Test", "t10k")):
        digits = digits_of(shared / "mnist" / f"{file}-labels-idx1-ubyte.gz")
        made[folder] = [f"{folder}/{digit}/{number:05d}.bin" for number, digit in enumerate(digits, 1)]
    return made


@pytest.mark.slow
def test_the_whole_set(names):
    files = names["Train"] + names["Test"]
    random.Random(0).shuffle(files)
    found = list_nmnist(ROOT, [f"nmnist/{path}" for path in files])
    partition = found.partitions["folders"]
    sizes = partition.sizes()
    assert sizes["train"] + sizes["val"] == 60_000
    assert sizes["test"] == 10_000
    assert partition.published
    assert partition.checksum == PUBLISHED
    assert found.notes == ()
    for clip, part in zip(found.clips, partition.parts, strict=True):
        assert clip.name.split("/")[:2] == ["Test" if part == "test" else "Train", str(clip.label)]
    held = Counter(clip.label for clip, part in zip(found.clips, partition.parts, strict=True) if part == "val")
    trained = Counter(int(path.split("/")[1]) for path in names["Train"])
    assert held == {digit: round(count / 10) for digit, count in trained.items()}


def test_the_first_600(names):
    found = list_nmnist_600(ROOT, names["Train"][:700] + names["Test"])
    partition = found.partitions["thirds"]
    assert partition.sizes() == {"train": 359, "val": 41, "test": 200}
    assert partition.published
    assert partition.checksum == PUBLISHED_600
    assert found.notes == ()


def test_every_third_number_is_tested():
    files = [f"Train/{number % 7}/{number:05d}.bin" for number in range(1, 701)]
    random.Random(0).shuffle(files)
    found = list_nmnist_600(ROOT, files)
    tested = [
        clip.name for clip, part in zip(found.clips, found.partitions["thirds"].parts, strict=True) if part == "test"
    ]
    assert tested == [f"Train/{number % 7}/{number:05d}" for number in range(3, 601, 3)]
    assert len(found.clips) == 600
    assert [clip.label for clip in found.clips[:7]] == [1, 2, 3, 4, 5, 6, 0]
    assert found.sensor_size == (34, 34)


def test_a_part_of_the_set_is_named_as_such():
    files = ["Train/0/00002.bin", "Train/1/00004.bin", "Train/0/00022.bin", "Test/7/00001.bin", "Train/x/00001.bin"]
    found = list_nmnist(ROOT, files)
    assert found.notes == (
        "3 of the 60,000 train recordings are there",
        "1 of the 10,000 test recordings are there",
    )
    assert found.partitions["folders"].sizes() == {"train": 2, "val": 1, "test": 1}
    assert not found.partitions["folders"].published
    assert list_nmnist_600(ROOT, files).notes == ("3 of the 600 recordings are there",)


@pytest.mark.parametrize("make", [list_nmnist, list_nmnist_600])
def test_a_recording_twice(make):
    files = ["Train/0/00002.bin", "copy/Train/0/00002.bin"]
    with raises(DataError, "files", ROOT, ("'Train/0/00002' 2 times",)):
        make(ROOT, files)


def test_the_shared_recordings(shared):
    found = list_dataset("nmnist-600", shared / "nmnist-real")
    assert found.partitions["thirds"].published
    assert found.notes == ()
