"""DVS-Gesture in both forms: no person is in two splits, and the partition is named by the clips it has."""

import random
from pathlib import Path

import pytest
from trees import make_recording, save_trial

from raising import raises
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.sets.dvsgesture import CLASSES, SENSOR, list_dvsgesture, trials
from ripe_mambaspike.errors import DataError, ReadError, RipeError
from ripe_mambaspike.events.formats.aedat3 import LabelSpan

ROOT = Path("root")
ROWS = [LabelSpan(1 + row % 11, 1000 * row, 1000 * row + 1500) for row in range(12)]  # one stands twice, spans overlap
RAW = [f"DvsGesture/{trial}{end}" for trial in sorted(trials()) for end in (".aedat", "_labels.csv")]
ABSENT = "user02_lab/0"


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


def users_by_part(found):
    (partition,) = found.partitions.values()
    users = {"train": set(), "val": set(), "test": set()}
    for clip, part in zip(found.clips, partition.parts, strict=True):
        users[part].add(int(clip.name[4:6]))
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
    assert list(found.partitions) == ["1176-288"]
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
    assert not same.partitions["1176-288"].published
    assert "1,176 training and 288 test clips are there" in same.notes[-1]
    moved = [path.replace("user02_lab/10", "user02_lab/0") for path in array_files()]
    assert not list_dvsgesture(ROOT, moved).partitions["1077-264"].published
    strange = [path.replace("user02_lab", "user77_moon") for path in array_files()]
    found = list_dvsgesture(ROOT, strange)
    assert not found.partitions["1077-264"].published
    assert found.notes[0] == "recordings that are in none of the set's lists of trials were left out: 10"


@pytest.mark.parametrize("form", ["recordings", "arrays"])
def test_no_person_is_in_two_splits(form):
    found = list_raw() if form == "recordings" else list_dvsgesture(ROOT, array_files())
    users = users_by_part(found)
    assert users == {"train": set(range(1, 21)), "val": {21, 22, 23}, "test": set(range(24, 30))}


@pytest.mark.parametrize("form", ["recordings", "arrays"])
def test_the_folder_and_the_order_of_the_files_do_not_matter(form):
    files = RAW if form == "recordings" else array_files()
    make = list_raw if form == "recordings" else lambda given: list_dvsgesture(ROOT, given)
    moved = [f"else/where/{path.split('/', 1)[1]}" for path in random.Random(0).sample(files, len(files))]
    (one,), (other,) = make(files).partitions.values(), make(moved).partitions.values()
    assert one.checksum == other.checksum
    assert other.published


def test_trials_that_the_lists_leave_out_are_left_out():
    extra = ["DvsGesture/user03_lab.aedat", "DvsGesture/user03_lab_labels.csv", "DvsGesture/user30_led.aedat"]
    found = list_raw(RAW + extra)
    assert found.notes == ("recordings that are in none of the set's lists of trials were left out: 2",)
    assert found.partitions["1176-288"].published


@pytest.mark.parametrize(
    ("found", "there", "partition"),
    [
        (lambda: list_raw(RAW[:4]), "24 training and 0 test", "1176-288 cut has 1176 and 288"),
        (lambda: list_raw(rows=ROWS[:11]), "1,078 training and 264 test", "1176-288 cut has 1176 and 288"),
        (
            lambda: list_dvsgesture(ROOT, ["a/user24_led/3.npy"]),
            "0 training and 1 test",
            "1077-264 cut has 1077 and 264",
        ),
    ],
    ids=["two trials", "a row less", "one array"],
)
def test_a_part_of_the_set_is_named_as_such(found, there, partition):
    made = found()
    assert made.notes == (f"{there} clips are there; the {partition}",)
    assert not any(partition.published for partition in made.partitions.values())


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
