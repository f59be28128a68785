"""DVS-Gesture in both forms: no person is in two splits, and a partition is named by the clips it has."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from trees import make_recording, save_trial

from raising import raises
from ripe_mambaspike.data.checking import source_state
from ripe_mambaspike.data.loading import load_dataset
from ripe_mambaspike.data.prepare import prepare
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.sets.dvsgesture import CLASSES, SENSOR, list_dvsgesture, trials
from ripe_mambaspike.data.store import open_store
from ripe_mambaspike.errors import DataError, ReadError, RipeError
from ripe_mambaspike.events.formats.aedat3 import LabelSpan

ROOT = Path("root")
ROWS = [LabelSpan(1 + row % 11, 1000 * row, 1000 * row + 1500) for row in range(12)]  # one stands twice, spans overlap
RAW = [f"DvsGesture/{trial}{end}" for trial in sorted(trials()) for end in (".aedat", "_labels.csv")]
ABSENT = "user02_lab/0"
LABELS = (1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 11)  # as the label files have them: arm roll twice
SPANS = [LabelSpan(label, 1000 * row, 1000 * row + 900) for row, label in enumerate(LABELS)]


def array_files():
    users = {trial: int(trial[4:6]) for trial in trials()}
    return [
        f"ibmGesture{'Train' if user <= 23 else 'Test'}/{trial}/{label}.npy"
        for trial, user in users.items()
        for label in range(11)
        if f"{trial}/{label}" != ABSENT
    ]


def list_raw(files=RAW, rows=ROWS):
    return list_dvsgesture(ROOT, files, labels=lambda path: list(rows))


def users_by_part(found, partition):
    users = {"train": set(), "val": set(), "test": set(), "": set()}
    for clip, part in zip(found.clips, found.partitions[partition].parts, strict=True):
        users[part].add(int(clip.name[4:6]))
    users.pop("")
    return users


def test_the_trials():
    assert len(trials()) == 122
    assert sum(int(trial[4:6]) <= 23 for trial in trials()) == 98
    assert {int(trial[4:6]) for trial in trials()} == set(range(1, 30))


def test_as_recorded():
    found = list_raw()
    partition = found.partitions["1176-288"]
    sizes = partition.sizes()
    assert (sizes["train"] + sizes["val"], sizes["test"]) == (1176, 288)
    assert list(found.partitions) == ["1176-288", "1077-264"]  # the first is the default
    assert partition.published
    assert found.notes == ()
    assert (found.classes, found.sensor_size, found.time_unit) == (CLASSES, SENSOR, None)
    assert len(found.sources) == 122


def test_every_row_of_the_labels_is_a_clip():
    first = list_raw().sources[0]
    assert first.path == "DvsGesture/user01_fluorescent.aedat"
    assert [(clip.name, clip.label, clip.start_us, clip.stop_us) for clip in first.clips] == [
        (f"user01_fluorescent/{row:02d}", row % 11, 1000 * row, 1000 * row + 1500) for row in range(12)
    ]


@pytest.mark.parametrize("rows", [SPANS, ROWS], ids=["arm roll twice", "hand clapping twice"])
def test_the_smaller_cut_is_made_from_the_recordings_too(rows):
    found = list_raw(rows=rows)
    partition = found.partitions["1077-264"]
    sizes = partition.sizes()
    assert (sizes["train"] + sizes["val"], sizes["test"]) == (1077, 264)
    assert partition.published
    used = [(clip, part) for clip, part in zip(found.clips, partition.parts, strict=True) if part]
    assert Counter(clip.label for clip, part in used if part == "test") == dict.fromkeys(range(11), 24)
    copied = list_dvsgesture(ROOT, array_files())
    split = dict(zip((clip.name for clip in copied.clips), copied.partitions["1077-264"].parts, strict=True))
    assert {f"{clip.name.split('/')[0]}/{clip.label}": part for clip, part in used} == split  # clip by clip


def test_of_two_arm_rolls_the_smaller_cut_has_the_first():
    found = list_raw(rows=SPANS)
    parts = dict(zip((clip.name for clip in found.clips), found.partitions["1077-264"].parts, strict=True))
    assert [parts[f"user24_led/{row:02d}"] for row in range(12)] == ["test"] * 8 + [""] + ["test"] * 3
    assert [parts[f"user02_lab/{row:02d}"] for row in range(12)] == ["", *["train"] * 7, "", *["train"] * 3]


def test_as_arrays():
    found = list_dvsgesture(ROOT, array_files())
    partition = found.partitions["1077-264"]
    sizes = partition.sizes()
    assert (sizes["train"] + sizes["val"], sizes["test"]) == (1077, 264)
    assert list(found.partitions) == ["1077-264"]
    assert partition.published
    assert found.time_unit == "ms"
    assert ABSENT not in {clip.name for clip in found.clips}
    for source in found.sources:
        (clip,) = source.clips
        assert source.path.endswith(f"/{clip.name}.npy")
        assert clip.name.endswith(f"/{clip.label}")


def test_the_number_of_clips_alone_is_not_published():
    """Neither trials that the set does not have, nor labels that it does not have, make the published partition."""
    same = list_raw(rows=[LabelSpan(1, 1000 * row, 1000 * row + 500) for row in range(12)])
    assert not any(partition.published for partition in same.partitions.values())
    assert same.notes[0].startswith("1,176 training and 288 test clips are there")
    assert same.notes[1].startswith("97 training and 24 test clips are there")
    moved = [path.replace("user02_lab/10", "user02_lab/0") for path in array_files()]
    assert not list_dvsgesture(ROOT, moved).partitions["1077-264"].published
    strange = [path.replace("user02_lab", "user77_moon") for path in array_files()]
    found = list_dvsgesture(ROOT, strange)
    assert not found.partitions["1077-264"].published
    assert found.notes[0] == "recordings that are in none of the set's lists of trials were left out: 10"


@pytest.mark.parametrize("form", ["recordings", "arrays"])
def test_no_person_is_in_two_splits(form):
    found = list_raw() if form == "recordings" else list_dvsgesture(ROOT, array_files())
    for partition in found.partitions:
        users = users_by_part(found, partition)
        assert users == {"train": set(range(1, 21)), "val": {21, 22, 23}, "test": set(range(24, 30))}


@pytest.mark.parametrize("form", ["recordings", "arrays"])
def test_the_folder_and_the_order_of_the_files_do_not_matter(form):
    files = RAW if form == "recordings" else array_files()
    make = list_raw if form == "recordings" else lambda given: list_dvsgesture(ROOT, given)
    moved = [f"else/where/{path.split('/', 1)[1]}" for path in random.Random(0).sample(files, len(files))]
    given, other = make(files).partitions, make(moved).partitions
    assert {name: one.checksum for name, one in given.items()} == {name: one.checksum for name, one in other.items()}
    assert all(one.published for one in other.values())


def test_trials_that_the_lists_leave_out_are_left_out():
    extra = ["DvsGesture/user03_lab.aedat", "DvsGesture/user03_lab_labels.csv", "DvsGesture/user30_led.aedat"]
    found = list_raw(RAW + extra)
    assert found.notes == ("recordings that are in none of the set's lists of trials were left out: 2",)
    assert found.partitions["1176-288"].published


def note(trained, tested, partition):
    """A cut that is not complete."""
    numbers = partition.split("-")
    return (
        f"{trained} training and {tested} test clips are there; the {partition} cut has {numbers[0]} and {numbers[1]}"
    )


@pytest.mark.parametrize(
    ("found", "notes", "published"),
    [
        (lambda: list_raw(RAW[:4]), (note("24", "0", "1176-288"), note("22", "0", "1077-264")), set()),
        (lambda: list_raw(rows=ROWS[:11]), (note("1,078", "264", "1176-288"),), {"1077-264"}),
        (lambda: list_dvsgesture(ROOT, ["a/user24_led/3.npy"]), (note("0", "1", "1077-264"),), set()),
    ],
    ids=["two trials", "a row less", "one array"],
)
def test_a_part_of_the_set_is_named_as_such(found, notes, published):
    made = found()
    assert made.notes == notes
    assert {name for name, partition in made.partitions.items() if partition.published} == published


def test_both_forms():
    with raises(DataError, "files", ROOT, (".aedat", ".npy")):
        list_raw(RAW + array_files())


def test_labels_that_are_not_there():
    files = [path for path in RAW if path != "DvsGesture/user05_lab_labels.csv"]
    with raises(DataError, "labels", ROOT / "DvsGesture/user05_lab.aedat", ("DvsGesture/user05_lab_labels.csv",)):
        list_raw(files)


@pytest.mark.parametrize("label", [0, 12])
def test_a_class_out_of_range(label):
    path = ROOT / "DvsGesture/user01_fluorescent_labels.csv"
    with raises(DataError, "labels", path, ("1 to 11", f"got {label}")):
        list_raw(RAW, [*ROWS, LabelSpan(label, 0, 5)])


def test_a_class_out_of_range_among_arrays():
    path = "ibmGestureTrain/user01_led/11.npy"
    with raises(DataError, "class", ROOT / path, ("0 to 10", "got 11")):
        list_dvsgesture(ROOT, [path])


def test_a_clip_twice():
    files = [*array_files(), "copy/user24_led/3.npy"]
    with raises(DataError, "files", ROOT, ("'user24_led/3' 2 times",)):
        list_dvsgesture(ROOT, files)


def test_labels_are_read_from_the_file_beside(tmp_path):
    save_trial(tmp_path, "user24_led", make_recording(0).events, [(8, 1000, 1300), (8, 1200, 1500), (1, 1500, 1900)])
    found = list_dataset("dvsgesture", tmp_path)
    assert [(clip.label, clip.start_us, clip.stop_us) for clip in found.clips] == [
        (7, 1000, 1300),
        (7, 1200, 1500),
        (0, 1500, 1900),
    ]


ROLLS = [(8, 1000, 1300), (8, 1300, 1600), (1, 1600, 1900)]


@pytest.fixture
def trial_tree(tmp_path):
    """A training, a validation and a test trial, each with two arm rolls and hand clapping."""
    for seed, trial in enumerate(("user01_led", "user21_lab", "user24_led")):
        save_trial(tmp_path, trial, make_recording(seed, count=200).events, ROLLS)
    return tmp_path


def test_both_cuts_are_loaded_from_one_store(trial_tree):
    prepare(list_dataset("dvsgesture", trial_tree), trial_tree, trial_tree / ".ripe")
    names = {
        partition: load_dataset("dvsgesture", trial_tree, "test", partition=partition).names
        for partition in ("1176-288", "1077-264", None)
    }
    assert names["1176-288"] == names[None] == [f"user24_led/{row:02d}" for row in range(3)]
    assert names["1077-264"] == ["user24_led/00", "user24_led/02"]


def test_a_store_of_before_is_still_that_of_its_files(trial_tree):
    """It has one partition; that its files make another one too does not change the one it has."""
    listing = list_dataset("dvsgesture", trial_tree)
    before = replace(listing, partitions={"1176-288": listing.partitions["1176-288"]}, notes=listing.notes[:1])
    store = prepare(before, trial_tree, trial_tree / ".ripe")
    assert source_state(store, trial_tree) == "unchanged"
    with raises(DataError, "partition", store.folder, ("1176-288", "'1077-264'")):
        load_dataset("dvsgesture", trial_tree, "test", partition="1077-264")
    again = prepare(listing, trial_tree, trial_tree / ".ripe")
    assert again.key != store.key
    assert again.partitions == ("1176-288", "1077-264")
    assert source_state(again, trial_tree) == "unchanged"
    assert open_store(trial_tree / ".ripe", "dvsgesture", store.key).partitions == ("1176-288",)
    (trial_tree / "user24_led_labels.csv").write_text("8,1000,1300\n1,1600,1900\n")
    assert source_state(store, trial_tree) == "changed: the split would differ now"


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [
        ("class,startTime_usec,endTime_usec\n1,2\n", "line 2", ("'1,2'", "class,start,end")),
        ("1,5,9\n1,a,9\n", "line 2", ("'1,a,9'", "class,start,end")),
        ("1,9,5\n", "line 1", ("9", "5")),
        ("", "labels", ("class, start and end",)),
        ("class,startTime_usec,endTime_usec\n", "labels", ("class, start and end",)),
    ],
    ids=["short", "no number", "backwards", "empty", "header alone"],
)
def test_garbled_labels(tmp_path, text, field, values):
    (tmp_path / "user24_led.aedat").write_bytes(b"")
    path = tmp_path / "user24_led_labels.csv"
    path.write_text(text)
    with raises(RipeError, field, path, values):
        list_dataset("dvsgesture", tmp_path)
    path.write_bytes(b"\xff\xfe\x00")
    with raises(ReadError, "labels", path):
        list_dataset("dvsgesture", tmp_path)
