"""Recording a source: what is kept, what is counted as missing, when it ends; labels and the folders of classes."""

import os

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike import read
from ripe_mambaspike.data.datasets import prepare_dataset
from ripe_mambaspike.errors import DataError, InputError
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.live import class_folders
from ripe_mambaspike.live.class_folders import MAX_LABEL_LENGTH, ClassFolders, safe_label
from ripe_mambaspike.live.recorder import FILM_FRAMES, RATE_BINS, ClipRecorder

SENSOR = (24, 20)


class Counts:
    """Of packets that a source could not read or lost."""

    def __init__(self):
        self.invalid = self.lost = 0

    def __call__(self):
        return {"invalid": self.invalid, "lost": self.lost}


@pytest.fixture
def counts():
    return Counts()


@pytest.fixture
def make_recorder(counts):
    return lambda events=10_000, seconds=60: ClipRecorder(events, seconds, counts, clock=lambda: 0.0)


def packet(*times):
    return make_events([1] * len(times), [2] * len(times), times, [1] * len(times))


@pytest.fixture
def clip(random_events):
    return Recording(random_events(400, 0.2, start_us=0), SENSOR)


def test_what_comes_between_start_and_stop_is_kept(make_recorder, random_events):
    recorder = make_recorder()
    events = random_events(3000, 0.6, seed=1, start_us=5_000_000)
    recorder.add(packet(4_000_000), SENSOR)  # before
    recorder.start()
    for part in np.array_split(events, 7):
        recorder.add(part, SENSOR)
    assert recorder.status()["events"] == 3000
    recorder.stop()
    recorder.add(packet(6_000_000), SENSOR)  # after
    found = recorder.clip.recording
    assert found.sensor_size == SENSOR
    assert found["t"].tolist() == (events["t"] - 5_000_000).tolist()
    assert all((found[name] == events[name]).all() for name in "xyp")
    assert recorder.clip.seconds == 0.6
    assert (recorder.clip.dropped, recorder.clip.missing, recorder.clip.ended) == (0, {}, "")
    recorder.discard()
    assert recorder.phase == "idle"
    assert recorder.clip is None


def test_a_clip_is_trimmed_by_time(make_recorder):
    recorder = make_recorder()
    recorder.start()
    recorder.add(packet(*range(0, 1_000_000, 100_000)), SENSOR)
    recorder.stop()
    assert recorder.clip.between(0.25, 0.6)["t"].tolist() == [0, 100_000, 200_000]
    with raises(InputError, field="clip"):
        recorder.clip.between(0.91, 2.0)


def test_a_preview_counts_every_event(make_recorder, random_events):
    recorder = make_recorder()
    recorder.start()
    recorder.add(random_events(5000, 0.6), SENSOR)
    recorder.stop()
    preview = recorder.clip.preview()
    assert len(preview["rates"]) == RATE_BINS
    assert sum(preview["rates"]) * 0.6 / RATE_BINS == pytest.approx(5000, rel=1e-3)
    assert len(preview["film"]) == FILM_FRAMES
    assert (preview["width"], preview["height"]) == SENSOR


def test_events_out_of_order_are_sorted_in(make_recorder):
    recorder = make_recorder()
    recorder.start()
    for times in ((100, 300), (200, 250), (400,)):
        recorder.add(packet(*times), SENSOR)
    recorder.stop()
    assert recorder.clip.recording["t"].tolist() == [0, 100, 150, 200, 300]


def test_what_is_missing_is_counted(make_recorder, counts):
    counts.invalid = 3  # before it began
    recorder = make_recorder()
    recorder.start()
    recorder.add(packet(100, 200, 90_000_000), SENSOR)  # the last one's time fits no other
    counts.invalid, counts.lost = 5, 7
    recorder.add(packet(300), SENSOR)
    assert (recorder.status()["dropped"], recorder.status()["missing"]) == (1, {"invalid": 2, "lost": 7})
    recorder.stop()
    assert (recorder.clip.dropped, recorder.clip.missing) == (1, {"invalid": 2, "lost": 7})
    assert len(recorder.clip.recording) == 3


def test_it_ends_after_the_seconds_asked_for(make_recorder):
    recorder = make_recorder()
    recorder.start(0.5)
    recorder.add(packet(1_000_000, 1_499_999), SENSOR)
    assert recorder.phase == "recording"
    recorder.add(packet(1_499_999, 1_500_000), SENSOR)
    assert recorder.phase == "clip"
    assert recorder.clip.recording["t"].tolist() == [0, 499_999, 499_999]
    assert recorder.clip.ended == ""


@pytest.mark.parametrize(("limits", "times"), [((3, 60), (1, 2, 3, 4)), ((100, 1), (1, 500_000, 2_000_000))])
def test_a_limit_ends_it_and_is_told(make_recorder, limits, times):
    recorder = make_recorder(*limits)
    recorder.start()
    recorder.add(packet(*times), SENSOR)
    assert recorder.phase == "clip"
    assert recorder.clip.ended
    assert len(recorder.clip.recording) < len(times)


def test_a_restarted_clock_ends_it(make_recorder):
    recorder = make_recorder()
    recorder.start()
    for start in (50_000_000, 1000, 2000):
        recorder.add(packet(start, start + 10), SENSOR)
    assert recorder.phase == "clip"
    assert recorder.clip.ended
    assert recorder.clip.recording["t"].tolist() == [0, 10]


def test_commands_out_of_turn_are_refused(make_recorder):
    recorder = make_recorder()
    with raises(InputError, field="recording"):
        recorder.stop()
    recorder.start()
    with raises(InputError, field="recording"):
        recorder.start()
    with raises(InputError, field="recording"):
        recorder.stop()  # nothing came
    assert recorder.phase == "idle"
    recorder.start()
    recorder.add(packet(1), SENSOR)
    recorder.stop()
    with raises(InputError, field="recording"):
        recorder.start()  # the clip waits
    recorder.stop()  # twice does no harm


# Labels and folders


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("wave", "wave"), (" left hand ", "left_hand"), ("../../etc/passwd", "etc_passwd"), ("a/b\\c", "a_b_c"),
        (".hidden", "hidden"), ("winken ü", "winken_ü"), ("<b>x</b>", "b_x_b"), ("拍手", "拍手"), ("-rf", "rf"),
        ("a\u202eb\x00c", "a_b_c"), ("x" * 100, "x" * MAX_LABEL_LENGTH), ("e\u0301", "é"), ("a__b", "a_b"),
    ],
)  # fmt: skip
def test_a_label_becomes_a_safe_name(text, label):
    assert safe_label(text) == label
    assert safe_label(label) == label


@pytest.mark.parametrize(
    "text", ["", " ", "..", "/", "---", "\ud800", "train", "TEST", "con", "Lpt1", "@eaDir", "x" * 300]
)
def test_a_label_that_cannot_be_a_folder_is_refused(text):
    if text == "@eaDir":  # loses its sign, and is harmless without it
        assert safe_label(text) == "eaDir"
        return
    with raises(InputError, field="label"):
        safe_label(text)


@pytest.fixture
def folders(tmp_path):
    return ClassFolders(tmp_path / "mine", max_classes=3, max_recordings=6, max_bytes=1 << 20)


def test_recordings_are_numbered_by_class(folders, clip):
    names = [
        folders.save(clip, label).relative_to(folders.root).as_posix() for label in ("wave", "clap", "Wave", "wave")
    ]
    assert names == ["wave/001.raw", "clap/001.raw", "wave/002.raw", "wave/003.raw"]
    found = read(folders.root / "wave" / "003.raw")
    assert found.sensor_size == SENSOR
    assert np.array_equal(found.events, clip.events)
    assert [(one.label, len(one.names)) for one in folders.classes()] == [("clap", 1), ("wave", 3)]
    folders.delete("wave", "002.raw")
    assert folders.save(clip, "wave").name == "004.raw"
    folders.delete("clap", "001.raw")
    assert not (folders.root / "clap").exists()  # an empty class folder is no dataset


def test_what_is_saved_is_a_dataset(folders, clip):
    for label in ("wave", "clap"):
        for _ in range(2):
            folders.save(clip, label)
    made = prepare_dataset("folder", folders.root, test_share=0.5, workers=1)
    assert made.store.classes == ("clap", "wave")
    assert len(made.store.index.clips.name) == 4


def test_a_failed_save_leaves_nothing(folders, clip, monkeypatch):
    folders.save(clip, "wave")

    def fail(recording, path):
        path.write_bytes(b"half")
        raise DataError.expected("path", "room on the disk", "none")

    monkeypatch.setattr(class_folders, "write", fail)
    with raises(DataError, field="path"):
        folders.save(clip, "clap")
    assert [path.name for path in folders.root.iterdir()] == ["wave"]


def test_what_a_killed_server_left_is_removed(folders, clip):
    folders.save(clip, "wave")
    (folders.root / ".clap.abcdefgh").mkdir()
    (folders.root / ".clap.abcdefgh" / "001.raw").write_bytes(b"half")
    (folders.root / "wave" / ".002.raw.abcdefgh").write_bytes(b"half")
    (folders.root / ".own.settings").mkdir()  # looks like it, and is somebody's own
    again = ClassFolders(folders.root, 3, 6, 1 << 20)
    assert [one.names for one in again.classes()] == [("001.raw",)]
    assert list((folders.root / "wave").iterdir()) == [folders.root / "wave" / "001.raw"]
    again.save(clip, "clap")
    assert sorted(path.name for path in folders.root.iterdir()) == [".own.settings", "clap", "wave"]


def test_limits_of_the_folder(tmp_path, folders, clip):
    for label in ("a", "b", "c"):
        folders.save(clip, label)
    with raises(InputError, field="label"):
        folders.save(clip, "d")
    for _ in range(3):
        folders.save(clip, "a")
    with raises(InputError, field="record_to"):
        folders.save(clip, "a")
    with raises(InputError, field="record_to"):
        ClassFolders(folders.root, 9, 99, 10).save(clip, "a")


def test_only_what_was_saved_here_is_deleted(folders, clip, tmp_path):
    folders.save(clip, "wave")
    (folders.root / "wave" / "own.npz").write_bytes(b"another's")
    (tmp_path / "001.raw").write_bytes(b"elsewhere")
    tried = [("wave", "own.npz"), ("wave", "../../001.raw"), ("..", "001.raw"), ("wave", "002.raw"), (".", "wave")]
    for label, name in tried:
        with raises(InputError, field="recording"):
            folders.delete(label, name)
    assert (folders.root / "wave" / "own.npz").exists()
    assert (tmp_path / "001.raw").exists()
    assert folders.classes()[0].to_dict()["saved"] == ["001.raw"]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="there are no links here")
def test_links_are_not_followed(folders, clip, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folders.root / "wave").symlink_to(elsewhere)
    with raises(DataError, field="label"):
        folders.save(clip, "wave")
    assert list(elsewhere.iterdir()) == []
    assert folders.classes() == []


def test_a_folder_whose_name_cannot_be_shown_is_left_out(folders, clip):
    folders.save(clip, "wave")
    for name in (b"\xff", "a\u202eb".encode()):
        other = folders.root / os.fsdecode(name)
        other.mkdir()
        (other / "001.raw").write_bytes(b"")
    assert [one.label for one in folders.classes()] == ["wave"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("a file")
    with raises(InputError, field="record_to"):
        ClassFolders(tmp_path / "file", 1, 1, 1)
