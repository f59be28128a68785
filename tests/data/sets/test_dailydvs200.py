"""DailyDVS-200: the official lists, made disjoint; other lists are named as such."""

import random
import re
from pathlib import Path

import pytest

from raising import raises
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.sets.dailydvs200 import CLASSES, list_dailydvs200
from ripe_mambaspike.errors import DataError

ROOT = Path("root")
OTHER = "the lists are not the official ones (by their checksums)"


def name(label, person, second=0):
    return f"action_{label + 1}/C{label}P{person}M0S1_20231111_15_47_{second:02d}.aedat4"


def write_lists(folder, **named):
    """train, val, test: (label, person) pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val", "test"):
        lines = [f"{name(*pair)} {pair[0]}\n" for pair in named.get(part, [])]
        (folder / f"{part}.txt").write_text("".join(lines))
    return folder


@pytest.fixture
def lists(tmp_path):
    """One recording shared by val and test, as in the official lists."""
    return write_lists(tmp_path / "lists", train=[(0, 1), (5, 1)], val=[(0, 4), (1, 3)], test=[(0, 4), (199, 2)])


NAMES = [name(0, 1), name(5, 1), name(0, 4), name(1, 3), name(199, 2)]


@pytest.fixture(scope="module")
def official(shared):
    return shared / "dailydvs200"


@pytest.fixture(scope="module")
def lines(official):
    return {part: (official / f"{part}.txt").read_text().split()[::2] for part in ("train", "val", "test")}


def test_the_official_lists(official, lines):
    named = sorted({path for part in lines.values() for path in part})
    random.Random(0).shuffle(named)
    found = list_dailydvs200(ROOT, [f"set/{path}" for path in named], lists=official)
    partition = found.partitions["official"]
    assert partition.sizes() == {"train": 14_773, "val": 3_180, "test": 4_093}
    assert partition.published
    assert found.notes == ("555 recordings stand in val.txt and in test.txt; they are in the test part alone",)
    assert found.classes == CLASSES
    parts = {clip.name: part for clip, part in zip(found.clips, partition.parts, strict=True)}
    both = set(lines["val"]) & set(lines["test"])
    assert len(both) == 555
    assert {parts[path] for path in both} == {"test"}
    people = {part: {re.search(r"P(\d+)M", path)[1] for path in parts if parts[path] == part} for part in lines}
    assert not people["train"] & people["val"]
    assert not people["train"] & people["test"]
    assert not people["val"] & people["test"]
    assert all(clip.name.startswith(f"action_{clip.label + 1}/C{clip.label}P") for clip in found.clips)


def test_a_part_of_the_official_set(official, lines):
    named = lines["train"][1:] + lines["val"] + [path for path in lines["test"] if path not in set(lines["val"])]
    with raises(DataError, "files", ROOT, ("22,046", " 1,", lines["train"][0], "--partial")):
        list_dailydvs200(ROOT, named, lists=official)
    found = list_dailydvs200(ROOT, named, partial=True, lists=official)
    assert found.notes[1:] == ("22,045 of the 22,046 recordings are there",)
    assert found.partitions["official"].sizes()["train"] == 14_772
    assert not found.partitions["official"].published


def test_lists_that_are_not_the_official_ones(lists):
    found = list_dailydvs200(ROOT, NAMES, lists=lists)
    partition = found.partitions["official"]
    assert not partition.published
    assert found.notes == ("1 recordings stand in val.txt and in test.txt; they are in the test part alone", OTHER)
    parts = {clip.name: part for clip, part in zip(found.clips, partition.parts, strict=True)}
    assert parts == dict(zip(NAMES, ["train", "train", "test", "val", "test"], strict=True))
    assert [clip.label for clip in found.clips] == [0, 0, 1, 199, 5]
    assert found.sensor_size == (320, 240)


def test_one_changed_byte_makes_the_lists_others(official, lines, tmp_path):
    for part in ("train", "val", "test"):
        (tmp_path / f"{part}.txt").write_bytes((official / f"{part}.txt").read_bytes() + b"\n" * (part == "val"))
    named = sorted({path for part in lines.values() for path in part})
    found = list_dailydvs200(ROOT, named, lists=tmp_path)
    assert OTHER in found.notes
    assert not found.partitions["official"].published


@pytest.mark.parametrize("place", ["", "lists/", "deep/er/"])
def test_the_lists_are_found_in_the_root(tmp_path, place):
    write_lists(tmp_path / place, train=[(0, 1)], test=[(0, 2)])
    for path in (name(0, 1), name(0, 2)):
        (tmp_path / "events" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "events" / path).write_bytes(b"")
    found = list_dataset("dailydvs200", tmp_path)
    assert found.partitions["official"].sizes() == {"train": 1, "val": 0, "test": 1}
    assert found.sources[0].path == f"events/{name(0, 1)}"


def test_no_lists(tmp_path, lists):
    with raises(DataError, "lists", tmp_path / "no" / "train.txt"):
        list_dataset("dailydvs200", lists.parent / "lists" / "..", lists=tmp_path / "no")
    (lists / "val.txt").unlink()
    with raises(DataError, "lists", lists, ("train.txt", "val.txt", "test.txt")):
        list_dataset("dailydvs200", lists)


def test_lists_may_be_named_by_a_text(tmp_path, lists):
    (tmp_path / "root").mkdir()
    with raises(DataError, "files", tmp_path / "root", ("all but 5", "5 recordings", name(0, 1), "--partial")):
        list_dataset("dailydvs200", tmp_path / "root", lists=str(lists))
    with raises(DataError, "files", tmp_path / "root", ("dailydvs200",)):
        list_dataset("dailydvs200", tmp_path / "root", lists=lists, partial=True)


@pytest.mark.parametrize(
    "line",
    [
        "action_3/C3P1M0S1_20231111_15_47_33.aedat4 3",  # action K has label K − 1
        "action_3/C2P1M0S1_20231111_15_47_33.aedat4 3",
        "action_201/C200P1M0S1_20231111_15_47_33.aedat4 200",
        "action_0/C0P1M0S1_20231111_15_47_33.aedat4 0",
        "action_3/C2P1M0S1_20231111_15_47_33.aedat4",
        "../C2P1M0S1_20231111_15_47_33.aedat4 2",
        "nonsense",
    ],
)
def test_a_malformed_line_is_named(lists, line):
    path = lists / "test.txt"
    path.write_text(f"{name(7, 9)} 7\n\n{line}\n")
    with raises(DataError, "line 3", path, (line,)):
        list_dailydvs200(ROOT, NAMES, lists=lists)


def test_a_recording_twice_in_the_lists(tmp_path):
    folder = write_lists(tmp_path / "one", train=[(0, 1), (0, 1)])
    with raises(DataError, "line 2", folder / "train.txt", (name(0, 1),)):
        list_dailydvs200(ROOT, NAMES, lists=folder)
    for other in ("val", "test"):
        folder = write_lists(tmp_path / other, train=[(0, 1), (1, 1)], **{other: [(0, 1)]})
        with raises(DataError, "lists", folder, (name(0, 1), "0 more", "train.txt")):
            list_dailydvs200(ROOT, NAMES, lists=folder)


def test_a_recording_twice_on_disk(lists):
    with raises(DataError, "files", ROOT, (f"'{NAMES[0]}'", f"'copy/{NAMES[0]}'")):
        list_dailydvs200(ROOT, [*NAMES, f"copy/{NAMES[0]}"], lists=lists)
