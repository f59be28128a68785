"""A tree of one's own: with and without parts, and where it is not as it should be."""

import random
from collections import Counter
from pathlib import Path

import pytest

from raising import raises
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.sets.folder import list_folder
from ripe_mambaspike.errors import DataError

ROOT = Path("root")
PLAIN = [f"{name}/{number}.bin" for name in ("left", "right", "up") for number in range(20)]
SPLIT = [f"{part}/{name}/{number}.bin" for part in ("train", "test") for name in ("a", "b") for number in range(10)]


def parts_of(found):
    (partition,) = found.partitions.values()
    return {clip.name: part for clip, part in zip(found.clips, partition.parts, strict=True)}


def test_without_a_split():
    found = list_folder(ROOT, PLAIN)
    assert list(found.partitions) == ["unsplit"]
    assert set(found.partitions["unsplit"].parts) == {""}
    assert found.partitions["unsplit"].sizes() == {"train": 0, "val": 0, "test": 0}
    assert found.notes == ("the set has no split; train/ and test/ folders or --test-share give one",)
    assert found.classes == ("left", "right", "up")
    assert Counter(clip.label for clip in found.clips) == {0: 20, 1: 20, 2: 20}
    assert [clip.name for clip in found.clips] == [source.path for source in found.sources] == sorted(PLAIN)


def test_train_and_test_folders_are_the_splits():
    found = list_folder(ROOT, SPLIT)
    assert found.partitions["folders"].sizes() == {"train": 18, "val": 2, "test": 20}
    assert found.notes == ()
    assert found.classes == ("a", "b")
    for name, part in parts_of(found).items():
        assert name.startswith("test/") == (part == "test")
    assert Counter(name.split("/")[1] for name, part in parts_of(found).items() if part == "val") == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    "names", [("train", "val", "test"), ("Training", "VALIDATION", "Testing"), ("train", "valid", "test")]
)
def test_its_own_validation(names):
    train, val, test = names
    found = list_folder(
        ROOT, [f"{train}/a/1.npz", f"{train}/b/1.npz", f"{val}/a/2.npz", f"{test}/b/3.npz", f"{test}/a/3.npz"]
    )
    assert found.partitions["folders"].sizes() == {"train": 2, "val": 1, "test": 2}
    assert parts_of(found)[f"{val}/a/2.npz"] == "val"


@pytest.mark.parametrize(("share", "tested"), [(0.1, 2), (0.25, 5), (0.5, 10), (0.001, 1), (0.999, 19)])
def test_a_share_of_each_class_is_tested(share, tested):
    found = list_folder(ROOT, PLAIN, test_share=share)
    partition = found.partitions[f"share-{share:g}"]
    trained = 20 - tested
    held = min(trained - 1, max(1, round(trained / 10)))
    assert partition.sizes() == {"train": 3 * (trained - held), "val": 3 * held, "test": 3 * tested}
    by_class = Counter((name.split("/")[0], part) for name, part in parts_of(found).items())
    assert {by_class[name, "test"] for name in found.classes} == {tested}
    assert found.notes == (() if held else ("classes without a recording to choose by (val): left, right, up",))
    assert not partition.published


def test_classes_without_clips_in_a_split_are_noted():
    alone = list_folder(ROOT, [f"{name}/1.npz" for name in "abcdefg"], test_share=0.2)
    assert alone.notes == (
        "classes without a recording to choose by (val): a, b, c, d, e …",
        "classes without a recording to report on (test): a, b, c, d, e …",
    )
    apart = list_folder(ROOT, ["train/a/1.npz", "train/a/2.npz", "test/b/1.npz"])
    assert apart.notes == (
        "classes without a recording to learn from (train): b",
        "classes without a recording to choose by (val): b",
        "classes without a recording to report on (test): a",
    )


def test_the_order_of_the_files_does_not_matter():
    shuffled = random.Random(0).sample(PLAIN, len(PLAIN))
    assert parts_of(list_folder(ROOT, shuffled, test_share=0.2)) == parts_of(list_folder(ROOT, PLAIN, test_share=0.2))


def test_a_larger_share_holds_the_smaller():
    small, large = (
        {name for name, part in parts_of(list_folder(ROOT, PLAIN, test_share=share)).items() if part == "test"}
        for share in (0.1, 0.3)
    )
    assert small < large


def test_sidecar_files_are_not_recordings():
    found = list_folder(ROOT, ["a/1.aedat", "a/1_labels.csv", "a/.hidden", "b/2.aedat"])
    assert [source.path for source in found.sources] == ["a/1.aedat", "b/2.aedat"]


def test_settings_are_kept():
    found = list_folder(ROOT, PLAIN, sensor_size=(40, 30), time_unit="ms")
    assert (found.sensor_size, found.time_unit) == ((40, 30), "ms")
    assert (list_folder(ROOT, PLAIN).sensor_size, list_folder(ROOT, PLAIN).time_unit) == (None, None)


@pytest.mark.parametrize(
    ("files", "path", "wanted"),
    [
        ([*PLAIN, "stray.bin"], "stray.bin", "class/recording"),
        ([*PLAIN, "left/deep/1.bin"], "left/deep/1.bin", "class/recording"),
        ([*SPLIT, "train/stray.bin"], "train/stray.bin", "split/class/recording"),
        ([*SPLIT, "labels.txt"], "labels.txt", "split/class/recording"),
        ([*SPLIT, "more/a/1.bin"], "train/a/0.bin", "class/recording"),
    ],
)
def test_a_file_in_the_wrong_depth(files, path, wanted):
    with raises(DataError, "files", ROOT / path, (f"expected {wanted},",)):
        list_folder(ROOT, files)


def test_an_empty_class(tmp_path):
    for folder in ("left", "right"):
        (tmp_path / folder).mkdir()
    (tmp_path / "left" / "1.bin").write_bytes(b"")
    with raises(DataError, "files", tmp_path / "right"):
        list_dataset("folder", tmp_path)
    files, folders = ["train/a/1.bin", "test/a/2.bin"], ["train", "test", "train/a", "test/a", "test/b"]
    with raises(DataError, "files", ROOT / "test/b"):
        list_folder(ROOT, files, folders)
    assert list_folder(ROOT, files, folders[:-1]).partitions["folders"].sizes()["test"] == 1


@pytest.mark.parametrize("share", [0.0, 0, 1.0, -0.5, 2.0, float("nan")])
def test_a_share_out_of_range_is_refused(tmp_path, share):
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "1.bin").write_bytes(b"")
    with raises(DataError, "test_share", mentions=(share, "between 0 and 1")):
        list_dataset("folder", tmp_path, test_share=share)


def test_a_share_of_a_tree_that_has_parts():
    with raises(DataError, "test_share", ROOT):
        list_folder(ROOT, SPLIT, test_share=0.2)


def test_a_single_recording_is_not_divided():
    found = list_folder(ROOT, ["a/1.bin", "b/1.bin", "b/2.bin"], test_share=0.5)
    assert parts_of(found)["a/1.bin"] == "train"
    assert Counter(parts_of(found).values()) == {"train": 2, "test": 1}


def test_a_name_that_is_no_text():
    found = list_folder(ROOT, ["a/\udcff.bin", "a/b.bin", "a/c.bin"], test_share=0.3)
    assert sorted(parts_of(found).values()) == ["test", "train", "val"]
