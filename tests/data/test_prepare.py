"""Stores made of small trees of real files: what is in them, what their key stands for, what is refused."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from trees import aedat3, contents, make_recording, save, save_classes, save_digits, save_trial

from raising import raises
from ripe_mambaspike.data import prepare as module
from ripe_mambaspike.data.listing import Clip, Listing, SourceFile, make_partition
from ripe_mambaspike.data.prepare import prepare
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.store import open_store, verify_store
from ripe_mambaspike.data.workers import Workers
from ripe_mambaspike.errors import DataError, ReadError
from ripe_mambaspike.events import Recording, make_events, read, write
from ripe_mambaspike.files import locked


def make(name, root, folder=None, **options):
    how = {key: options.pop(key) for key in ("workers", "strict", "progress") if key in options}
    return prepare(list_dataset(name, root, **options), root, folder or root / ".ripe", **how)


@pytest.fixture
def classes(tmp_path):
    return save_classes(tmp_path / "classes")


@pytest.mark.parametrize("suffix", [".bin", ".npz", ".npy", ".raw", ".aedat", ".csv"])
def test_every_format_is_stored_as_it_is_read(tmp_path, suffix):
    root = save_classes(tmp_path, each=2, suffix=suffix)
    store = make("folder", root, test_share=0.5, sensor_size=(128, 128))
    assert store.sensor_size == (128, 128)
    assert store.classes == ("left", "right")
    assert store.labels.tolist() == [0, 0, 1, 1]
    named = suffix not in (".bin", ".npy")  # these say nothing of the sensor; the others that it has 40×30
    assert [trouble.split(":")[0] for trouble in store.index.troubles] == ["sensor_size"] * named
    for number, path in enumerate(sorted(root.glob(f"*/*{suffix}"))):
        recording, clip = read(path), store.clip(number)
        assert clip.metadata["name"] == path.relative_to(root).as_posix()
        for name in "xyp":
            np.testing.assert_array_equal(clip[name], recording[name])
        np.testing.assert_array_equal(clip["t"], recording["t"] - recording.first_us)
    assert sorted(store.index.partitions["share-0.5"].parts) == ["r", "r", "t", "t"]


def test_events_out_of_order_are_put_in_order(tmp_path):
    events = make_events([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [500, 100, 300, 100, 400], [0, 1, 0, 1, 1])
    save(tmp_path / "a" / "1.npz", Recording(events, (40, 30)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = make("folder", tmp_path)
    assert store.clip(0)["t"].tolist() == [0, 0, 200, 300, 400]
    assert store.clip(0)["x"].tolist() == [2, 4, 3, 5, 1]
    assert store.index.troubles == ["a/1.npz: times run backwards at 2 events"]
    assert store.index.clips.start_us == [100]


def test_clips_have_the_events_of_their_spans(tmp_path):
    """Half-open, overlapping or repeated; times count from the beginning of the span."""
    events = make_events(range(10), range(10), range(0, 1000, 100), [0, 1] * 5)
    save_trial(tmp_path, "user24_led", events, [(1, 100, 300), (8, 200, 401), (8, 200, 401), (11, 850, 5000)])
    save_trial(tmp_path, "user21_lab", events, [(2, 0, 1)])
    store = make("dvsgesture", tmp_path)
    names = store.index.clips.name
    assert names == ["user21_lab/00", *(f"user24_led/{row:02d}" for row in range(4))]
    assert store.labels.tolist() == [1, 0, 7, 7, 10]
    assert [store.clip(number)["x"].tolist() for number in range(5)] == [[0], [1, 2], [2, 3, 4], [2, 3, 4], [9]]
    assert [store.clip(number)["t"].tolist() for number in range(5)] == [
        [0],
        [0, 100],
        [0, 100, 200],
        [0, 100, 200],
        [50],
    ]
    assert store.index.clips.start_us == [0, 100, 200, 200, 850]
    assert store.members("1176-288", "val").tolist() == [0]
    assert store.members("1176-288", "test").tolist() == [1, 2, 3, 4]
    assert store.members("1176-288", "train").tolist() == []
    assert store.sensor_size == (128, 128)
    assert verify_store(store) == 10


def test_a_span_without_events(tmp_path):
    save_trial(tmp_path, "user24_led", make_events([1], [1], [100], [1]), [(1, 100, 200), (3, 5000, 6000)])
    with raises(DataError, "user24_led/01", tmp_path / "user24_led.aedat", "from 5000 to 6000 µs"):
        make("dvsgesture", tmp_path)
    assert not (tmp_path / ".ripe" / "dvsgesture" / "current").exists()


def test_gesture_arrays_are_in_milliseconds(tmp_path):
    for user in (1, 21, 24):
        folder = tmp_path / f"user{user:02d}_fluorescent"
        folder.mkdir()
        np.save(folder / "4.npy", np.array([[3, 5, 1, 10], [4, 6, 0, 12], [7, 8, 1, 15], [90, 100, 0, 18]]))
    store = make("dvsgesture", tmp_path)
    assert store.clip(1)["t"].tolist() == [0, 2000, 5000, 8000]
    assert store.clip(1)["x"].tolist() == [3, 4, 7, 90]
    assert store.clip(1)["p"].tolist() == [1, 0, 1, 0]
    assert [store.members("1077-264", part).tolist() for part in ("train", "val", "test")] == [[0], [1], [2]]


def test_the_sensor_holds_all_recordings(tmp_path):
    save(tmp_path / "a" / "1.npz", make_recording(1, size=(50, 20)))
    save(tmp_path / "a" / "2.npz", make_recording(2, size=(20, 60)))
    assert make("folder", tmp_path).sensor_size == (50, 60)
    save(tmp_path / "a" / "3.npy", make_recording(3, 500, size=(70, 10)))  # which does not say
    assert make("folder", tmp_path).sensor_size == (70, 60)
    other = tmp_path / "other"
    save(other / "a" / "1.npy", Recording(make_events([200], [3], [0], [1]), (240, 180)))
    save(other / "a" / "2.npy", Recording(make_events([2], [170], [0], [1]), (240, 180)))
    assert make("folder", other).sensor_size == (240, 180)  # the likely one of both together


@pytest.mark.parametrize("size", [(1 << 20, 512), (2000, 512), (1 << 20, 3)], ids=["one shard", "by bytes", "by files"])
def test_shards_hold_all_clips_in_order(classes, monkeypatch, size):
    monkeypatch.setattr(module, "SHARD_BYTES", size[0])
    monkeypatch.setattr(module, "SHARD_FILES", size[1])
    store = make("folder", classes)
    shards = store.index.clips.shard
    assert shards == sorted(shards)
    assert (len(store.index.shards) > 1) == (size != (1 << 20, 512))
    assert max(shards.count(shard) for shard in shards) <= size[1]
    assert verify_store(store) == sum(40 + seed for seed in range(10))
    assert [len(store.clip(number)) for number in range(10)] == [40 + seed for seed in range(10)]


def test_the_number_of_workers_changes_no_byte(classes, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHARD_FILES", 3)
    stores = []
    for workers in (1, 2):
        make("folder", classes, tmp_path / str(workers), workers=workers, test_share=0.2)
        stores.append(contents(tmp_path / str(workers)))
    assert stores[0] == stores[1]
    assert sum(name.endswith(".npy") for name in stores[0]) == 4
    assert {name.rsplit("/", 1)[-1] for name in stores[0]} == {"current", "index.json"} | {
        f"shard-{number:05d}.npy" for number in range(4)
    }


def test_progress_is_reported(classes, monkeypatch):
    monkeypatch.setattr(module, "SHARD_FILES", 4)
    reports = []
    make("folder", classes, progress=lambda *report: reports.append(report))
    assert reports == [("reading the source", n, 10) for n in (4, 8, 10)] + [("decoding", n, 3) for n in range(4)]


@pytest.fixture
def decoded(monkeypatch):
    """The files that are decoded from here on."""
    names = []

    def count(path, **options):
        names.append(Path(path).name)
        return read(path, **options)

    monkeypatch.setattr(module, "read", count)
    return names


def test_nothing_is_decoded_twice(digits, decoded):
    first = make("nmnist-600", digits)
    assert len(decoded) == 12
    before = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    assert make("nmnist-600", digits).folder == first.folder
    assert len(decoded) == 12
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == before


@pytest.mark.parametrize("change", ["byte", "name", "file", "setting", "split"])
def test_another_content_has_another_key(tmp_path, decoded, change):
    root = save_classes(tmp_path, each=3, suffix=".csv")
    first = make("folder", root, test_share=0.4)
    kept = contents(first.folder)
    path, options = root / "left" / "1.csv", {"test_share": 0.4}
    if change == "byte":
        path.write_bytes(path.read_bytes().replace(b",1\n", b",0\n", 1))
    elif change == "name":
        path.rename(root / "left" / "9.csv")
    elif change == "file":
        path.unlink()
    elif change == "setting":
        options["time_unit"] = "ns"
    else:
        options["test_share"] = 0.9
    second = make("folder", root, **options)
    assert second.folder != first.folder
    assert second.folder.parent == first.folder.parent
    assert contents(first.folder) == kept
    assert open_store(root / ".ripe", "folder").folder == second.folder


def test_the_first_store_is_found_again(digits, decoded):
    first = make("nmnist-600", digits)
    path = digits / "Train" / "0" / "00012.bin"
    whole = path.read_bytes()
    path.unlink()
    assert make("nmnist-600", digits).folder != first.folder
    path.write_bytes(whole)
    count = len(decoded)
    assert make("nmnist-600", digits).folder == first.folder
    assert len(decoded) == count
    assert open_store(digits / ".ripe", "nmnist-600").folder == first.folder


def test_the_key_does_not_depend_on_the_folder(digits, tmp_path):
    one = make("nmnist-600", digits)
    other = make("nmnist-600", save_digits(tmp_path / "else" / "where"))
    assert one.folder.name == other.folder.name
    assert contents(one.folder) == contents(other.folder)


@pytest.mark.parametrize("damage", ["shard", "no shard", "index", "no index", "label"])
def test_preparing_again_repairs_a_store(store, digits, decoded, damage):
    whole = contents(store.folder)
    shard, index = store.folder / "shard-00000.npy", store.folder / "index.json"
    if damage == "shard":
        shard.write_bytes(shard.read_bytes()[:-1] + b"\x99")
    elif damage == "no shard":
        shard.unlink()
    elif damage == "index":
        index.write_text('{"layout": 1, "clips": 3}')
    elif damage == "no index":
        index.unlink()
    else:
        index.write_text(index.read_text().replace('"label": [1', '"label": [0'))
    again = make("nmnist-600", digits)
    assert again.folder == store.folder
    assert contents(store.folder) == whole
    assert len(decoded) == 12
    assert {path.name for path in store.folder.parent.iterdir()} == {"current", store.folder.name}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_recording(digits, monkeypatch, workers):
    monkeypatch.setattr(module, "SHARD_FILES", 3)
    path = digits / "Train" / "0" / "00008.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with raises(ReadError, "size", path):
        make("nmnist-600", digits, workers=workers)
    home = digits / ".ripe" / "nmnist-600"
    assert not (home / "current").exists()
    assert not (home / "lock").exists()
    with raises(DataError, "store", home, "`ripe data prepare nmnist-600`"):
        open_store(digits / ".ripe", "nmnist-600")


def test_strict(tmp_path):
    events = make_events([1, 2, 3], [1, 2, 3], [5, 9, 7], [0, 1, 0])
    path = save(tmp_path / "a" / "1.npz", Recording(events, (40, 30)))
    with raises(ReadError, "strict", path, "times run backwards at 1 event"):
        make("folder", tmp_path, strict=True)
    made = make("folder", tmp_path)
    current = made.folder.parent / "current"
    current.unlink()
    with raises(DataError, "strict", tmp_path, "a/1.npz: times run backwards at 1 event"):
        make("folder", tmp_path, strict=True)
    assert not current.exists()
    write(Recording(np.sort(events, order="t"), (40, 30)), path)
    assert make("folder", tmp_path, strict=True).index.troubles == []


def one_clip(path, clip):
    return Listing("folder", ("a",), (SourceFile(path, (clip,)),), {"unsplit": make_partition("unsplit", [clip], [""])})


def test_clips_that_the_store_cannot_hold(tmp_path):
    long = Recording(make_events([1, 2], [1, 2], [7, 7 + 2**32], [0, 1]), (40, 30))
    path = save(tmp_path / "a" / "1.npz", long)
    with raises(DataError, "t", path, ("72 minutes", "at most 71")):
        make("folder", tmp_path)
    # Short itself, but far from where its span begins.
    listed = one_clip("a/1.npz", Clip("a", 0, 8 - 1, None))
    with raises(DataError, "t", path, "72 minutes"):
        prepare(listed, tmp_path, tmp_path / ".ripe")
    listed = one_clip("a/1.npz", Clip("a", 0, 8, None))
    assert prepare(listed, tmp_path, tmp_path / ".ripe").clip(0)["t"].tolist() == [2**32 - 1]
    save(tmp_path / "a" / "1.npz", Recording(make_events([1], [32768], [7], [0]), (65536, 65536)))
    with raises(DataError, "y", path, ("at most 32767", "32768")):
        make("folder", tmp_path)


def test_a_second_process_is_refused(digits):
    home = digits / ".ripe" / "nmnist-600"
    home.mkdir(parents=True)
    with (
        locked(home / "lock", "held"),
        raises(DataError, "lock", home / "lock", f"another one that prepares {home}"),
    ):
        make("nmnist-600", digits)
    assert len(make("nmnist-600", digits)) == 12


def test_a_folder_that_cannot_be_written_is_refused(digits, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for folder, reason in ((file / "store", "Not a directory"), (tmp_path / ("x" * 300), "File name too long")):
        with raises(DataError, "store", folder / "nmnist-600", reason):
            make("nmnist-600", digits, folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="a superuser may write everywhere")
def test_a_folder_that_is_read_only(digits):
    digits.chmod(0o555)
    with raises(DataError, "store", digits / ".ripe", "Permission denied"):
        make("nmnist-600", digits)
    digits.chmod(0o755)


def test_a_file_removed_after_listing_is_named(digits, monkeypatch):
    listed = list_dataset("nmnist-600", digits)
    path = digits / listed.sources[3].path
    path.unlink()
    with raises(DataError, "file", path, "No such file or directory"):
        prepare(listed, digits, digits / ".ripe")


def test_a_killed_worker():
    with Workers(2) as run, raises(DataError, "workers", mentions="run the same command again"):
        list(run.map(os._exit, [3, 3, 3]))


def test_a_file_that_cannot_grow(digits, tmp_path):
    """A real limit of the system, met in the middle of a shard; without it the same command goes on."""
    command = [sys.executable, "-m", "ripe_mambaspike", "data", "prepare", "nmnist-600", "--root", str(digits)]
    command += ["--workers", "1"]
    limit = "import resource, os; resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))"
    limited = f"{limit}; os.execv({command[0]!r}, {command!r})"
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True)
    assert done.returncode == 2
    assert "store: expected" in done.stderr
    assert "run the same command again" in done.stderr
    assert not (digits / ".ripe" / "nmnist-600" / "current").exists()
    assert subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize("step", range(1, 15))
def test_a_full_disk(digits, monkeypatch, full_disk, step):
    """At each file that is written: six shards with their notes, the index, then `current` (the 14th)."""
    monkeypatch.setattr(module, "SHARD_FILES", 2)
    home = digits / ".ripe" / "nmnist-600"
    reason = ("No space left on device", "run the same command again")
    with full_disk(step), raises(DataError, "store", mentions=reason) as caught:
        make("nmnist-600", digits)
    assert caught.value.path.is_relative_to(home)
    assert not (home / "current").exists()
    left = [path for path in home.rglob("*") if path.is_file()]
    assert not [path for path in left if path.name.startswith(".")]
    done = {path.stem: path.stat().st_ino for path in left if path.suffix == ".npy"}
    noted = {path.stem for path in left if path.suffix == ".json" and path.stem.startswith("shard")}
    assert len(noted) == (0 if step == 14 else (step - 1) // 2)
    store = make("nmnist-600", digits)
    assert verify_store(store) == 720
    for stem in noted:
        assert (store.folder / f"{stem}.npy").stat().st_ino == done[stem]
    assert json.loads((store.folder / "index.json").read_text())["sha256"] == store.index.sha256


def test_a_hand_made_recording_reads_back(tmp_path):
    """The helper of these tests writes what the reader takes for AEDAT 3.1."""
    events = make_recording(3, size=(128, 128)).events
    (tmp_path / "a.aedat").write_bytes(aedat3(events))
    recording = read(tmp_path / "a.aedat")
    assert (recording.format, recording.sensor_size) == ("aedat3", (128, 128))
    np.testing.assert_array_equal(recording.events, events)
