"""Several preparations of one set live side by side; none takes the place of a better one without being asked to."""

import json
import os
import time

import numpy as np
import pytest
from trees import contents, make_recording, save, save_classes

from raising import raises
from ripe_mambaspike.data import building
from ripe_mambaspike.data import prepare as module
from ripe_mambaspike.data.checking import source_state
from ripe_mambaspike.data.loading import load_dataset
from ripe_mambaspike.data.prepare import prepare
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.store import current_key, open_store, store_keys, verify_store
from ripe_mambaspike.errors import ConfigError, DataError, ReadError
from ripe_mambaspike.events import Recording, make_events
from ripe_mambaspike.files import locked

HOW = ("workers", "strict", "skip_unreadable", "unsplit")


def make(root, **options):
    how = {name: options.pop(name) for name in HOW if name in options}
    return prepare(list_dataset("folder", root, **options), root, root / ".ripe", **how)


@pytest.fixture
def tree(tmp_path):
    return save_classes(tmp_path / "tree")


def test_every_preparation_stays(tree):
    made = [make(tree, test_share=share) for share in (0.2, 0.4, 0.6)]
    kept = [contents(store.folder) for store in made]
    home = tree / ".ripe" / "folder"
    assert store_keys(home) == sorted(store.key for store in made)
    assert current_key(home) == made[2].key
    assert make(tree, test_share=0.2).key == current_key(home) == made[0].key
    assert [contents(store.folder) for store in made] == kept
    for store, share in zip(made, (0.2, 0.4, 0.6), strict=True):
        (partition,) = store.partitions
        found = load_dataset("folder", tree, "test", store_key=store.key)
        assert (found.store.key, found.partition) == (store.key, partition) == (store.key, f"share-{share}")
    assert load_dataset("folder", tree, "test").store.key == made[0].key


def test_a_preparation_that_is_not_there(tree):
    store = make(tree, test_share=0.2)
    for key in ("0" * 16, "..", "", "current", store.key[:-1]):
        with raises(DataError, "store", mentions=store.key):
            load_dataset("folder", tree, "test", store_key=key)


def test_a_set_without_a_split_does_not_replace_one_that_has_one(tree):
    split = make(tree, test_share=0.2)
    before = contents(tree / ".ripe")
    with pytest.raises(DataError) as caught:
        make(tree)
    assert (caught.value.field, caught.value.path) == ("test_share", tree)
    assert split.key in str(caught.value)
    assert contents(tree / ".ripe") == before
    without_files = make(tree, unsplit=True)
    home = tree / ".ripe" / "folder"
    assert current_key(home) == without_files.key
    assert store_keys(home) == sorted((split.key, without_files.key))
    assert make(tree).key == without_files.key  # it is the current one already
    assert make(tree, test_share=0.2).key == current_key(home) == split.key


def test_unsplit_is_for_sets_without_a_split(tree):
    with raises(ConfigError, "unsplit"):
        make(tree, test_share=0.2, unsplit=True)
    assert store_keys(tree / ".ripe" / "folder") == []


def test_a_damaged_store_is_not_kept_current_for_its_split(tree):
    split = make(tree, test_share=0.2)
    (split.folder / "index.json").write_text("{}")
    assert make(tree).key == current_key(tree / ".ripe" / "folder")


# Sensors


def sensor_troubles(store):
    return [trouble for trouble in store.index.troubles if trouble.startswith("sensor_size: ")]


@pytest.mark.parametrize("files", [1, 512])
def test_mixed_sensors_are_named(tmp_path, monkeypatch, files):
    """Both sizes, how many recordings each and one of them; in one shard or in several."""
    monkeypatch.setattr(module, "SHARD_FILES", files)
    for number in range(3):
        save(tmp_path / "a" / f"{number}.npz", make_recording(number, size=(50, 20)))
    save(tmp_path / "b" / "9.npz", make_recording(9, size=(20, 60)))
    store = make(tmp_path, test_share=0.4)
    assert store.sensor_size == (50, 60)
    (message,) = sensor_troubles(store)
    for fact in ("50×20 (3 recordings, a/0.npz first)", "20×60 (1 recording, b/9.npz)", "50×60"):
        assert fact in message
    assert not [note for note in store.index.notes if "guessed" in note]
    key = current_key(tmp_path / ".ripe" / "folder")
    with raises(DataError, "strict"):
        make(tmp_path, test_share=0.3, strict=True)
    assert current_key(tmp_path / ".ripe" / "folder") == key


def test_a_header_that_differs_from_what_was_given(tmp_path):
    save(tmp_path / "a" / "1.npz", make_recording(1, size=(50, 20)))
    save(tmp_path / "a" / "2.npz", make_recording(2, size=(40, 40)))
    store = make(tmp_path, sensor_size=(40, 40))
    assert store.sensor_size == (40, 40)
    (message,) = sensor_troubles(store)
    assert "50×20 (1 recording, a/1.npz)" in message
    assert "40×40 (" not in message
    assert sensor_troubles(make(save_classes(tmp_path / "alike"), sensor_size=(40, 30))) == []


def test_a_guessed_sensor_is_reported_as_a_guess(tmp_path):
    root = save_classes(tmp_path, suffix=".bin")
    store = make(root, test_share=0.2)
    assert store.sensor_size == (128, 128)
    assert [note for note in store.index.notes if "guessed 128×128" in note and "--sensor-size" in note]
    assert make(root, test_share=0.2, sensor_size=(40, 30)).index.notes == []
    assert sensor_troubles(store) == []


def test_recordings_that_name_no_sensor_among_such_that_do(tmp_path):
    save(tmp_path / "a" / "1.npz", make_recording(1, size=(50, 60)))
    save(tmp_path / "a" / "2.npy", Recording(make_events([3], [4], [0], [1]), (50, 60)))
    store = make(tmp_path)
    assert (store.sensor_size, sensor_troubles(store)) == ((50, 60), [])
    assert [note for note in store.index.notes if "guessed 50×60" in note and "a/2.npy" in note]
    save(tmp_path / "a" / "2.npy", Recording(make_events([69], [4], [0], [1]), (70, 60)))
    store = make(tmp_path)
    assert store.sensor_size == (70, 60)
    (message,) = sensor_troubles(store)
    assert "50×60" in message
    assert "a/2.npy" in message


# Files that are no recordings


def test_other_files_are_skipped_and_change_no_store(tree):
    plain = make(tree, test_share=0.2)
    litter = ["Thumbs.db", "left/Thumbs.db", "left/desktop.ini", "README.md", "LICENSE", "readme.txt", "left/shot.png"]
    for path in (*litter, "left/.DS_Store", "__MACOSX/left/._0.npz"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(b"\x00litter")
    assert sorted(list_dataset("folder", tree, test_share=0.2).passed_over) == sorted(litter)
    assert make(tree, test_share=0.2).key == plain.key


@pytest.fixture
def damaged(tree):
    """The first of each class cannot be read, and one of them in another way."""
    (tree / "left" / "0.npz").write_bytes(b"nothing that is known")
    whole = (tree / "right" / "0.npz").read_bytes()
    (tree / "right" / "0.npz").write_bytes(whole[:-30])
    return tree


def test_a_file_that_cannot_be_read_names_the_option(damaged):
    with raises(ReadError, "format", damaged / "left" / "0.npz", "--skip-unreadable"):
        make(damaged, test_share=0.2)
    assert current_key(damaged / ".ripe" / "folder") is None


@pytest.mark.parametrize(("files", "workers"), [(512, 1), (1, 1), (3, 2)])
def test_files_that_cannot_be_read_are_left_out(damaged, monkeypatch, files, workers):
    """Also where they are all that a shard has; the rest is stored as if they had not been there."""
    monkeypatch.setattr(module, "SHARD_FILES", files)
    store = make(damaged, test_share=0.2, skip_unreadable=True, workers=workers)
    assert sorted(store.index.unreadable) == ["left/0.npz", "right/0.npz"]
    assert str(damaged) not in str(store.index.unreadable)  # the bytes do not depend on where the root is
    assert len(store) == 8
    assert verify_store(store) == sum(40 + seed for seed in range(10) if seed not in (0, 5))
    names = [store.clip(number).metadata["name"] for number in range(8)]
    assert names == [f"{name}/{number}.npz" for name in ("left", "right") for number in range(1, 5)]
    assert store.labels.tolist() == [0] * 4 + [1] * 4
    (partition,) = store.index.partitions.values()
    listed = list_dataset("folder", damaged, test_share=0.2)
    parts = dict(zip([clip.name for clip in listed.clips], listed.partitions["share-0.2"].parts, strict=True))
    letters = {"train": "r", "val": "v", "test": "t"}
    assert list(partition.parts) == [letters[parts[name]] for name in names]
    assert sum(partition.sizes.values()) == 8
    assert source_state(store, damaged) == "unchanged"
    again = make(damaged, test_share=0.2, skip_unreadable=True)
    assert contents(again.folder) == contents(store.folder)


def test_skipping_is_part_of_the_key(tree):
    assert make(tree, test_share=0.2).key != make(tree, test_share=0.2, skip_unreadable=True).key


def test_a_class_that_loses_all_its_recordings(tree):
    for path in (tree / "left").iterdir():
        path.write_bytes(b"nothing that is known")
    with raises(DataError, "left"):
        make(tree, test_share=0.2, skip_unreadable=True)
    assert store_keys(tree / ".ripe" / "folder") == []


def test_a_pipe_among_the_recordings(tree):
    os.mkfifo(tree / "left" / "7.npz")
    with raises(DataError, path=tree / "left" / "7.npz"):
        make(tree, test_share=0.2)
    store = make(tree, test_share=0.2, skip_unreadable=True)
    assert list(store.index.unreadable) == ["left/7.npz"]


def test_strict_refuses_what_skipping_would_not_leave_out(tree):
    """Times that run backwards do not make a recording unreadable."""
    events = make_events([1, 2, 3], [1, 2, 3], [5, 9, 7], [0, 1, 0])
    save(tree / "left" / "8.npz", Recording(events, (40, 30)))
    with pytest.raises(ReadError):
        make(tree, test_share=0.2, skip_unreadable=True, strict=True)
    assert make(tree, test_share=0.2, skip_unreadable=True).index.unreadable == {}


# What killed processes left


def leave(home, key, days):
    folder = home / f"{key}.part"
    folder.mkdir(parents=True)
    np.save(folder / "shard-00000.npy", np.zeros(3))
    before = time.time() - 86400 * days
    os.utime(folder, (before, before))
    return folder


def test_what_killed_processes_left_is_removed(tree):
    """Temporary files at once; unfinished stores when they were not resumed for a week. Strange folders stay."""
    home = tree / ".ripe" / "folder"
    old, recent = leave(home, "0" * 16, 8), leave(home, "1" * 16, 6)
    (home / ".current.abc").write_text("half")
    (recent / ".shard-00001.npy.abc").write_text("half")
    (home / ".folder").mkdir()
    stay = time.time() - 86400 * 6
    os.utime(recent, (stay, stay))
    store = make(tree, test_share=0.2)
    assert {path.name for path in home.iterdir()} == {"current", ".folder", recent.name, store.key}
    assert [path.name for path in recent.iterdir()] == ["shard-00000.npy"]
    assert not old.exists()


def test_a_failed_preparation_removes_no_other(damaged):
    home = damaged / ".ripe" / "folder"
    old = leave(home, "0" * 16, 30)
    with pytest.raises(ReadError):
        make(damaged, test_share=0.2)
    assert old.exists()


def test_nothing_is_removed_while_the_lock_is_held(tree, monkeypatch):
    """On a file system without locks, and while another process holds the lock."""
    home = tree / ".ripe" / "folder"
    old = leave(home, "0" * 16, 30)
    (home / ".current.abc").write_text("half")
    with locked(home / "lock", "held"), pytest.raises(DataError):
        make(tree, test_share=0.2)
    assert (home / ".current.abc").exists()
    assert old.exists()

    def refuse(*_):
        raise OSError("no locks here")

    monkeypatch.setattr("fcntl.flock", refuse)
    make(tree, test_share=0.2)
    assert (home / ".current.abc").exists()
    assert old.exists()


def test_a_note_of_an_older_version_is_made_again(tree, monkeypatch):
    """A preparation that an older version began ends as if it had not."""
    real, written = module.write_shard, []

    def stop(task, *args, **more):
        real(task, *args, **more)
        written.append(task)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "SHARD_FILES", 4)
    monkeypatch.setattr(module, "write_shard", stop)
    with pytest.raises(KeyboardInterrupt):
        make(tree, test_share=0.2)
    monkeypatch.setattr(module, "write_shard", real)
    note = building._note(written[0])
    facts = json.loads(note.read_text())
    note.write_text(json.dumps({name: value for name, value in facts.items() if name not in ("version", "sensors")}))
    store = make(tree, test_share=0.2)
    assert verify_store(store) == sum(40 + seed for seed in range(10))
    assert open_store(tree / ".ripe", "folder").sensor_size == (40, 30)
