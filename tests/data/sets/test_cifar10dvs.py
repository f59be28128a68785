"""CIFAR10-DVS: three splits of the same 10,000 names."""

import random
from collections import Counter
from pathlib import Path

import pytest

from raising import raises
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.sets.cifar10dvs import CLASSES, PUBLISHED, list_cifar10dvs
from ripe_mambaspike.errors import DataError

ROOT = Path("root")
FILES = [f"{name}/cifar10_{name}_{number}.aedat" for name in CLASSES for number in range(1000)]
PARTITIONS = ["first-100", "last-100", "random-100"]


@pytest.fixture(scope="module")
def whole():
    return list_cifar10dvs(ROOT, FILES)


def members(listed, partition, part):
    parts = listed.partitions[partition].parts
    return [clip for clip, own in zip(listed.clips, parts, strict=True) if own == part]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_sizes(whole, partition):
    assert whole.partitions[partition].sizes() == {"train": 8100, "val": 900, "test": 1000}
    for part, each in (("train", 810), ("val", 90), ("test", 100)):
        assert Counter(clip.label for clip in members(whole, partition, part)) == dict.fromkeys(range(10), each)
    names = [clip.name for part in ("train", "val", "test") for clip in members(whole, partition, part)]
    assert len(set(names)) == 10_000


def test_labels_are_the_classes_in_order_of_the_alphabet(whole):
    assert whole.classes == tuple(sorted(CLASSES)) == CLASSES
    for source in whole.sources:
        (clip,) = source.clips
        assert source.path == f"{CLASSES[clip.label]}/{clip.name}.aedat"
    assert whole.sensor_size == (128, 128)
    assert whole.notes == ()


def test_the_first_and_the_last_hundred_are_by_number(whole):
    for partition, numbers in (("first-100", range(100)), ("last-100", range(900, 1000))):
        wanted = {f"cifar10_{name}_{number}" for name in CLASSES for number in numbers}
        assert {clip.name for clip in members(whole, partition, "test")} == wanted


def test_the_random_hundred_is_another_for_each_class(whole):
    drawn = [
        {int(c.name.split("_")[-1]) for c in members(whole, "random-100", "test") if c.label == k} for k in range(10)
    ]
    assert len({frozenset(numbers) for numbers in drawn}) == 10
    assert all(min(numbers) < 100 and max(numbers) > 900 for numbers in drawn)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_fixed_lists(whole, partition):
    assert whole.partitions[partition].published
    assert whole.partitions[partition].checksum == PUBLISHED[partition]
    assert list(whole.partitions) == PARTITIONS


@pytest.mark.parametrize("prefix", ["", "data/cifar/", "a b/"])
def test_the_folder_and_the_order_of_the_files_do_not_matter(prefix):
    files = [prefix + path for path in FILES]
    random.Random(prefix).shuffle(files)
    found = list_cifar10dvs(ROOT, [*files, "README.md", f"{prefix}airplane/notes_1.aedat"])
    assert {name: partition.checksum for name, partition in found.partitions.items()} == PUBLISHED
    assert [clip.name for clip in found.clips][:3] == [f"cifar10_airplane_{number}" for number in range(3)]


def test_aedat4_is_the_same_set():
    assert list_cifar10dvs(ROOT, [f"{path}4" for path in FILES]).partitions["first-100"].published


def test_what_the_lists_name_must_be_there():
    files = [path for path in FILES if path not in ("bird/cifar10_bird_7.aedat", "cat/cifar10_cat_900.aedat")]
    with raises(DataError, "files", ROOT, ("10,000", " 2,", "cifar10_bird_7.aedat", "--partial")):
        list_cifar10dvs(ROOT, files)
    part = list_cifar10dvs(ROOT, files, partial=True)
    assert part.notes == ("9,998 of the 10,000 recordings are there",)
    assert part.partitions["first-100"].sizes() == {"train": 8099, "val": 900, "test": 999}
    assert part.partitions["last-100"].sizes() == {"train": 8099, "val": 900, "test": 999}
    assert not any(partition.published for partition in part.partitions.values())


def test_a_part_of_the_set_keeps_the_parts_of_the_whole(whole):
    """What is tested with half of the recordings is tested with all of them."""
    some = list_cifar10dvs(ROOT, FILES[::3], partial=True)
    for partition in PARTITIONS:
        tested = {clip.name for clip in members(whole, partition, "test")}
        assert {clip.name for clip in members(some, partition, "test")} == tested & {clip.name for clip in some.clips}


def test_a_recording_twice():
    twice = ("dog/cifar10_dog_3.aedat", "copy/cifar10_dog_3.aedat")
    with raises(DataError, "files", ROOT, twice):
        list_cifar10dvs(ROOT, [*FILES, twice[1]])


def test_names_that_are_not_of_the_set_are_passed_over():
    strange = ["dog/cifar10_dog_1000.aedat", "cow/cifar10_cow_1.aedat", "dog/cifar10_dog_x.aedat", "cifar10_dog_1.npy"]
    assert list_cifar10dvs(ROOT, FILES + strange).partitions["last-100"].published


def test_from_a_folder(tmp_path):
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "cifar10_dog_12.aedat").write_bytes(b"")
    found = list_dataset("cifar10dvs", tmp_path, partial=True, lists=None)
    assert [(clip.name, clip.label) for clip in found.clips] == [("cifar10_dog_12", 5)]
    assert found.notes == ("1 of the 10,000 recordings are there",)
