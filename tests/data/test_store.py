"""What is stored is what was read, and every change of a byte is noticed."""

import json
import os
import shutil

import numpy as np
import pytest
from trees import make_recording

from raising import raises
from ripe_mambaspike.data.store import (
    STORED_EVENT,
    compare_source,
    current_key,
    file_checksum,
    from_stored,
    open_store,
    read_store,
    to_stored,
    verify_store,
)
from ripe_mambaspike.data.store_index import HINT, INDEX, LAYOUT_VERSION, index_checksum
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.events import make_events, read

AGAIN = "prepare the set again"


def test_packing_loses_nothing():
    corners = make_events(
        [0, 65535, 7, 0], [0, 32767, 32767, 3], [5, 5, 2**32 + 4, 10], [0, 1, 0, 1]
    )  # the largest that fits
    packed = to_stored(corners, 5)
    assert packed.dtype == STORED_EVENT
    assert STORED_EVENT.itemsize == 8
    assert packed["t"].tolist() == [0, 0, 2**32 - 1, 5]
    np.testing.assert_array_equal(from_stored(packed, 5), corners)
    np.testing.assert_array_equal(from_stored(packed)["t"], corners["t"] - 5)
    assert from_stored(packed[:0]).shape == (0,)


def test_the_facts_of_a_store(store, digits):
    assert store.name == "nmnist-600"
    assert len(store) == 12
    assert store.classes == tuple("0123456789")
    assert store.partitions == ("thirds",)
    assert store.sensor_size == (34, 34)
    assert store.labels.tolist() == [number % 2 for number in range(1, 13)]
    members = {part: store.members("thirds", part).tolist() for part in ("train", "val", "test")}
    assert members["test"] == [2, 5, 8, 11]
    assert sorted(clip for part in members.values() for clip in part) == list(range(12))
    assert len(members["val"]) == 2
    assert verify_store(store) == 12 * 60
    for number in range(12):
        clip = store.clip(number)
        name = f"Train/{(number + 1) % 2}/{number + 1:05d}"
        source = read(digits / f"{name}.bin")
        assert clip.metadata == {"name": name, "start_us": source.first_us}
        np.testing.assert_array_equal(from_stored(to_stored(clip.events, 0), source.first_us), source.events)
        assert (clip.format, clip.sensor_size) == ("store/nmnist-600", (34, 34))


def test_a_store_is_mapped_and_not_read(store):
    shards = {}
    for number in range(12):
        store.clip(number, shards)
    assert list(shards) == [0]
    assert isinstance(shards[0], np.memmap)
    assert shards[0].mode == "r"
    assert shards[0].dtype == STORED_EVENT


def test_a_missing_store_is_refused_with_the_command(tmp_path, store):
    with raises(DataError, "store", tmp_path / "nmnist", "`ripe data prepare nmnist`"):
        open_store(tmp_path, "nmnist")
    (tmp_path / "nmnist").mkdir()
    (tmp_path / "nmnist" / "current").write_bytes(b"\xff\xfe")
    with raises(DataError, "store", tmp_path / "nmnist", "`ripe data prepare nmnist`"):
        open_store(tmp_path, "nmnist")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\x00", '"text"', "null"])
def test_a_damaged_or_missing_index_is_refused(store, text):
    path = store.folder / INDEX
    path.write_text(text)
    home = store.folder.parent.parent
    with raises(DataError, path=path, mentions=HINT):
        open_store(home, "nmnist-600")
    path.unlink()
    with raises(DataError, path=path, mentions=HINT):
        open_store(home, "nmnist-600")


def test_an_index_of_another_layout(store):
    path = store.folder / INDEX
    path.write_text(json.dumps({**json.loads(path.read_text()), "layout": LAYOUT_VERSION + 1}))
    with raises(DataError, "layout", path, (f"expected {LAYOUT_VERSION}", f"got {LAYOUT_VERSION + 1}", HINT)):
        read_store(store.folder)


def test_any_flipped_byte_of_a_shard_is_noticed(store):
    path = store.folder / "shard-00000.npy"
    whole = path.read_bytes()
    places = [0, 5, 8, 60, 127, 128, 130, len(whole) // 2, len(whole) - 1]
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with raises(DataError, "sha256", path, HINT):
            verify_store(store)
    path.write_bytes(whole)
    assert verify_store(store) == 720
    path.unlink()
    with raises(DataError, "file", path, "No such file or directory"):
        verify_store(store)


@pytest.mark.parametrize("keep", [0, 3, 64, 100, -1, -8])
def test_a_shard_that_is_cut_off_is_not_used(store, keep):
    path = store.folder / "shard-00000.npy"
    path.write_bytes(path.read_bytes()[:keep])
    with raises(DataError, "shard", path, HINT):
        store.clip(0)


def test_a_shard_of_something_else_is_not_used(store):
    path = store.folder / "shard-00000.npy"
    for array in (np.zeros(720), np.zeros(719, STORED_EVENT)):
        np.save(path, array)
        with raises(DataError, "shard", path, ("720 events", f"{array.shape} of {array.dtype}")):
            store.clip(0)


def test_any_change_of_the_index_is_noticed(store):
    """Even one that leaves it as sound as before: a label, a name, a part."""
    path = store.folder / INDEX
    text = path.read_text()
    for old, new in (
        ('"label": [1, 0', '"label": [0, 0'),
        ("Train/1/00001", "Train/1/00091"),
        ('"classes": ["0"', '"classes": ["o"'),
        ('"sensor_size": [34', '"sensor_size": [33'),
        ('"published": false', '"published": true'),
    ):
        assert text.count(old) >= 1, old
        path.write_text(text.replace(old, new, 1))
        for opening in (read_store, lambda folder: verify_store(store)):
            with raises(DataError, "sha256", path):
                opening(store.folder)
    path.write_text(text)
    verify_store(read_store(store.folder))


def edited(store, edit):
    """The store with an index that was changed, and sealed again as if it had been made so."""
    index = json.loads((store.folder / INDEX).read_text())
    edit(index)
    index["sha256"] = index_checksum(index)
    (store.folder / INDEX).write_text(json.dumps(index))
    return read_store(store.folder)


def move(column, clip, by):
    def edit(index):
        index["clips"][column][clip] += by

    return edit


def drop_the_last(index):
    """A clip less, everywhere."""
    for column in index["clips"].values():
        column.pop()
    partition = index["cuts"]["thirds"]
    partition["parts"] = partition["parts"][:-1]
    partition["sizes"]["test"] -= 1


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (move("at", 3, 1), "clips.at"),
        (move("at", 3, -1), "clips.at"),
        (move("events", 3, -1), "clips.at"),
        (move("events", 3, 1), "clips.at"),
        (move("events", 11, -1), "shards"),
        (drop_the_last, "shards"),
    ],
    ids=["later", "overlap", "gap", "longer", "short of the end", "clip less"],
)
def test_an_index_that_does_not_fit_the_shards(store, edit, field):
    changed = edited(store, edit)
    with raises(DataError, field, store.folder / INDEX, HINT):
        verify_store(changed)


def test_a_shard_of_another_length_than_the_index_says(store):
    changed = edited(store, lambda index: index["shards"][0].update(events=721))
    with raises(DataError, "shard", store.folder / "shard-00000.npy", ("721 events", f"(720,) of {STORED_EVENT}")):
        verify_store(changed)


def put(value, *place):
    """An edit of one entry; None takes it away."""

    def edit(index):
        for name in place[:-1]:
            index = index[name]
        if value is None:
            del index[place[-1]]
        else:
            index[place[-1]] = value

    return edit


HOSTILE = [
    *((put(None, name), name) for name in ("set", "classes", "cuts", "clips", "shards", "notes", "sources", "options")),
    (put(7, "set"), "set"),
    (put([], "classes"), "classes"),
    (put(["a", "a"], "classes"), "classes"),
    (put([1, 2], "classes"), "classes[0]"),
    (put([34], "sensor_size"), "sensor_size"),
    (put([34, 0], "sensor_size"), "sensor_size[1]"),
    (put([34, True], "sensor_size"), "sensor_size[1]"),
    (put([34.0, 34], "sensor_size"), "sensor_size[0]"),
    (put([1 << 70, 34], "sensor_size"), "sensor_size[0]"),
    (put("none", "troubles"), "troubles"),
    (put({"a\0b": "0"}, "sources"), "sources"),
    (put({"a": 5}, "sources"), "sources.a"),
    (put({"a\0b": "why"}, "unreadable"), "unreadable"),
    (put([], "shards"), "shards"),
    (put({"events": -1, "sha256": ""}, "shards", 0), "shards[0].events"),
    (put({"events": 720}, "shards", 0), "shards[0].sha256"),
    (put({"events": 719, "sha256": ""}, "shards", 0), "clips.at"),
    (put([], "clips"), "clips"),
    (put([], "clips", "name"), "clips.name"),
    (put([3] * 12, "clips", "name"), "clips.name[0]"),
    (put([0] * 11, "clips", "label"), "clips.label"),
    (put(10, "clips", "label", 3), "clips.label"),
    (put(-1, "clips", "label", 3), "clips.label[3]"),
    (put("1", "clips", "label", 3), "clips.label[3]"),
    (put(1, "clips", "shard", 0), "clips.shard"),
    (put(-1, "clips", "shard", 0), "clips.shard[0]"),
    (put(1.5, "clips", "at", 3), "clips.at[3]"),
    (put(-8, "clips", "at", 3), "clips.at[3]"),
    (put(719, "clips", "at", 3), "clips.at"),
    (put(1 << 62, "clips", "at", 3), "clips.at[3]"),
    (put(10**400, "clips", "at", 3), "clips.at[3]"),
    (put(0, "clips", "events", 3), "clips.events[3]"),
    (put(1 << 40, "clips", "events", 3), "clips.at"),
    (put(1 << 63, "clips", "start_us", 3), "clips.start_us[3]"),
    (put({}, "cuts"), "cuts"),
    (put(3, "cuts", "thirds"), "cuts.thirds"),
    (put("rrr", "cuts", "thirds", "parts"), "cuts.thirds.parts"),
    (put("x" * 12, "cuts", "thirds", "parts"), "cuts.thirds.parts"),
    (put(1, "cuts", "thirds", "published"), "cuts.thirds.published"),
    (put({"train": 12}, "cuts", "thirds", "sizes"), "cuts.thirds.sizes"),
    (put("yes", "simulated"), "simulated"),
    (put(True, "simulated"), "recipe"),
]


@pytest.mark.parametrize(("edit", "field"), HOSTILE, ids=[f"{n}-{field}" for n, (_, field) in enumerate(HOSTILE)])
def test_a_hostile_index(store, edit, field):
    """Sealed with a checksum that is right: it is looked at all the same."""
    with raises(DataError, field, store.folder / INDEX):
        edited(store, edit)
    with raises(DataError):
        open_store(store.folder.parent.parent, "nmnist-600")


@pytest.mark.parametrize(
    "text", ['{"layout": NaN}', "[" * 100_000, '{"layout": ' + "1" * 5000 + "}", '{"layout": true}']
)
def test_json_that_cannot_be_read_is_refused(store, text):
    (store.folder / INDEX).write_text(text)
    with raises(DataError, path=store.folder / INDEX):
        read_store(store.folder)


def test_pipes_and_sparse_files_are_refused(store, tmp_path):
    """A pipe or a sparse file in the place of the index, a shard, `current` or a source."""
    home, shard, path = store.folder.parent, store.folder / "shard-00000.npy", store.folder / INDEX
    shard.unlink()
    os.mkfifo(shard)
    with raises(DataError, path=shard):
        store.clip(0)
    with raises(DataError, path=shard):
        file_checksum(shard)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with raises(DataError):
        read_store(store.folder)
    (home / "current").unlink()
    os.mkfifo(home / "current")
    with raises(DataError):
        open_store(home.parent, "nmnist-600")


@pytest.mark.parametrize("text", ["../../elsewhere", "a\0b", "0123", "", "0123456789abcdeg", "." * 2000])
def test_a_pointer_to_no_store(store, text):
    home = store.folder.parent
    (home / "current").write_text(text)
    assert current_key(home) is None
    with raises(DataError, path=home):
        open_store(home.parent, "nmnist-600")
    assert open_store(home.parent, "nmnist-600", store.key).key == store.key
    with raises(DataError, "store", home, store.key):
        open_store(home.parent, "nmnist-600", text)


def test_a_store_of_another_set(store):
    home = store.folder.parent
    shutil.copytree(home, home.with_name("nmnist"))
    with raises(DataError, "set", mentions=("expected nmnist,", "'nmnist-600'")):
        open_store(home.parent, "nmnist")


def test_the_source_is_compared(store, digits, tmp_path):
    assert compare_source(store, digits) == "unchanged"
    first, second = digits / "Train" / "1" / "00001.bin", digits / "Train" / "0" / "00002.bin"
    whole = first.read_bytes()
    first.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    state = "changed: 1 files differ and 0 are missing, Train/1/00001.bin first"
    assert compare_source(store, digits) == state
    second.unlink()
    assert compare_source(store, digits) == state.replace("0 are", "1 are")
    first.write_bytes(whole)
    assert compare_source(store, digits) == "changed: 0 files differ and 1 are missing"
    shutil.rmtree(digits / "Train")
    assert compare_source(store, digits) == "gone"
    assert compare_source(store, tmp_path / "nowhere") == "gone"


def test_a_checksum_of_what_cannot_be_read(tmp_path):
    path = tmp_path / "none"
    with raises(DataError, "file", path, "No such file or directory"):
        file_checksum(path)
    path.write_bytes(b"abc")
    assert file_checksum(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_random_recordings_differ():
    """The tests above would pass on a store that mixes up its clips if the recordings were."""
    assert len({make_recording(seed).events.tobytes() for seed in range(12)}) == 12
