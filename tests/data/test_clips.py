"""The clips of a run: its parts, what is added, what is refused, and the order of its batches."""

import itertools
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike.data.clips import Clips, EvalBatches, TrainBatches, epoch_order, share_of
from ripe_mambaspike.data.folds import folds_of
from ripe_mambaspike.data.loading import BinnedDataset, load_dataset
from ripe_mambaspike.data.settings import DataSettings
from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.data.store import EventStore, current_key
from ripe_mambaspike.data.store_index import SPLIT_LETTERS, index_checksum
from ripe_mambaspike.data.training_data import open_data
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.events.gesture_classes import CLASSES

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """23 + 11 + 11 simulated gestures."""
    folder = tmp_path_factory.mktemp("gestures")
    simulate_dataset("synthgesture", folder, train=23, val=11, test=11, size=16)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """Gestures by another seed, seen by a larger sensor."""
    folder = tmp_path_factory.mktemp("others")
    simulate_dataset("synthgesture", folder, train=5, val=1, test=1, size=20, seed=1)
    return folder


def recipe(root: Path, **fields: object) -> DataSettings:
    return DataSettings(**{"root": str(root), "time_steps": 3, "grid": (8, 12), "cache": "off", **fields})


def index_of(root: Path) -> dict:
    return json.loads((load_dataset("synthgesture", root, "train").store.folder / "index.json").read_text())


def changed(root: Path, folder: Path, **index: object) -> Path:
    """A copy of a set whose index says something else; other recordings as far as anyone can tell."""
    shutil.copytree(root, folder)
    home = folder / ".ripe" / "synthgesture"
    key = (home / "current").read_text().strip()
    other = f"{int(key, 16) ^ 1:016x}"
    (home / key).rename(home / other)
    (home / "current").write_text(other)
    path = home / other / "index.json"
    index = {**json.loads(path.read_text()), **index}
    for partition in index["cuts"].values():
        partition["sizes"] = {part: partition["parts"].count(letter) for part, letter in SPLIT_LETTERS.items()}
    path.write_text(json.dumps({**index, "sha256": index_checksum(index)}))
    return folder


def test_splits_have_the_clips_of_the_store(root):
    data = open_data(recipe(root))
    assert data.classes == CLASSES
    assert data.partition == "people"
    for part, count in (("train", 23), ("val", 11), ("test", 11)):
        clips, events = getattr(data, part), load_dataset("synthgesture", root, part)
        binned = BinnedDataset(events, 3, grid=(8, 12))
        assert len(clips) == len(clips.names) == len(clips.labels) == count
        assert clips.names == events.names
        assert clips.labels.tolist() == events.labels.tolist()
        for number in (0, count - 1):
            counts, label = clips.clip(number)
            assert counts.shape == (3, 2, 8, 12)
            assert counts.dtype == torch.float32
            assert torch.equal(counts, binned[number][0])
            assert label == events.labels[number]
        for number in (-1, count):
            with pytest.raises(IndexError, match=f"clip {number} of {count}"):
                clips.clip(number)


def test_clips_are_binned_as_the_settings_say(root):
    events = load_dataset("synthgesture", root, "train")
    clips = open_data(recipe(root, by="count", binary=True)).train
    wanted = BinnedDataset(events, 3, grid=(8, 12), by="count", binary=True)[2][0]
    assert torch.equal(clips.clip(2)[0], wanted)
    assert set(wanted.unique().tolist()) == {0.0, 1.0}


def test_the_default_root_is_data_and_the_dataset(root, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "synthgesture").symlink_to(root)
    monkeypatch.chdir(tmp_path)
    data = open_data(DataSettings(time_steps=2, grid=(4, 4)))
    assert data.root == Path("data/synthgesture")
    assert len(data.train) == 23


def test_the_test_split_is_opened_on_first_use_only(root, monkeypatch):
    tested = set(load_dataset("synthgesture", root, "test").members.tolist())
    real = EventStore.clip

    def guarded(self, number, shards=None):
        assert number not in tested, "a test clip was read"
        return real(self, number, shards)

    monkeypatch.setattr(EventStore, "clip", guarded)
    data = open_data(recipe(root, cache="memory"))
    for part in (data.train, data.val):
        assert len(list(EvalBatches(part, 8, CPU))) == -(-len(part) // 8)
    assert "test" not in vars(data)
    assert data.describe()["test"] == 11
    with pytest.raises(AssertionError, match="a test clip was read"):
        data.test.clip(0)


def test_classes_that_come_first(root, other):
    """As many clips as in any epoch, all of those classes, each about as often as the others; nothing else changes."""
    data = open_data(recipe(root, extra=(f"synthgesture={other}",), first=(CLASSES[3], CLASSES[0])))
    labels, count = data.train.labels, len(data.train)
    wanted = [number for number in range(count) if labels[number] in (0, 3)]
    assert data.train.first.tolist() == wanted
    alone = np.concatenate(TrainBatches(data.train, 5, 1, 0, CPU, first_classes=True).plan)
    assert len(alone) == count
    times = np.bincount(alone, minlength=count)
    assert set(np.flatnonzero(times)) == set(wanted)
    assert times[wanted].max() - times[wanted].min() <= 1
    later = np.concatenate(TrainBatches(data.train, 5, 1, 1, CPU).plan)
    assert sorted(later) == list(range(count))
    plain = open_data(recipe(root)).train
    assert np.array_equal(
        np.concatenate(TrainBatches(plain, 5, 1, 0, CPU, first_classes=True).plan),
        np.concatenate(TrainBatches(plain, 5, 1, 0, CPU).plan),
    )


@pytest.mark.parametrize("folds", [0, 3])
def test_without_validation_its_clips_are_trained_on(root, folds):
    """What would have been held out is trained on; the test part stays."""
    held, whole = (open_data(recipe(root, folds=folds, validation=wanted)) for wanted in (True, False))
    assert len(held.members["val"]) > 0
    assert sorted(whole.train.names) == sorted(held.train.names + held.val.names)
    assert whole.test.names == held.test.names
    assert whole.val is None
    assert (whole.describe()["train"], whole.describe()["val"]) == (len(whole.train), 0)


def test_folds(root):
    seen = []
    for fold in range(3):
        data = open_data(recipe(root, folds=3, fold=fold))
        parts = folds_of(data.store, "people", 3, fold)
        every = data.store.index.clips.name
        for part, members in parts.items():
            assert getattr(data, part).names == [every[member] for member in members]
        assert data.partition == "people"
        assert (data.describe()["folds"], data.describe()["fold"]) == (3, fold)
        seen += data.test.names
    assert sorted(seen) == sorted(every)


def test_a_set_without_validation(root, tmp_path):
    index = index_of(root)
    parts = index["cuts"]["people"]["parts"].replace("v", "r")
    bare = changed(root, tmp_path / "bare", cuts={"people": {**index["cuts"]["people"], "parts": parts}})
    data = open_data(recipe(bare))
    assert data.val is None
    assert len(data.train) == 34
    untested = parts.replace("t", "-")
    bare = changed(root, tmp_path / "untested", cuts={"people": {**index["cuts"]["people"], "parts": untested}})
    with raises(DataError, "test", mentions="synthgesture (people)"):
        open_data(recipe(bare))


def test_extra_datasets_add_training_clips(root, other):
    data = open_data(recipe(root, extra=(f"synthgesture={other}",)))
    own, more = load_dataset("synthgesture", root, "train"), load_dataset("synthgesture", other, "train")
    assert data.train.names == own.names + more.names
    assert data.train.labels.tolist() == own.labels.tolist() + more.labels.tolist()
    assert torch.equal(data.train.clip(22)[0], BinnedDataset(own, 3, grid=(8, 12))[22][0])
    assert torch.equal(data.train.clip(23)[0], BinnedDataset(more, 3, grid=(8, 12))[0][0])
    assert torch.equal(data.train.clip(27)[0], BinnedDataset(more, 3, grid=(8, 12))[4][0])
    assert (len(data.val), len(data.test)) == (11, 11)
    assert data.describe()["train"] == 28


def test_without_validation_all_of_another_set_but_its_test_part_trains(root, tmp_path):
    index = index_of(root)
    copy = changed(root, tmp_path / "copy", clips={**index["clips"], "name": [f"c{k}" for k in range(45)]})
    data = open_data(recipe(root, validation=False, extra=(f"synthgesture={copy}",) * 2))
    parts = index["cuts"]["people"]["parts"]
    more = [f"c{k}" for k in range(45) if parts[k] != "t"]
    assert data.train.names[34:] == more * 2
    assert [one["clips"] for one in data.describe()["extra"]] == [34, 34]


def test_classes_in_another_order_are_renumbered(root, other, tmp_path):
    backwards = changed(other, tmp_path / "backwards", classes=list(reversed(CLASSES)))
    data = open_data(recipe(root, extra=(f"synthgesture={backwards}",)))
    assert data.train.labels[23:].tolist() == [10, 9, 8, 7, 6]
    assert data.train.clip(23)[1] == 10


def test_held_out_clips_are_left_out_of_extra_datasets(root, tmp_path):
    """A copy that calls everything training: the clips that this run validates and tests on are left out."""
    index = index_of(root)
    parts = "r" * len(index["clips"]["name"])
    copy = changed(root, tmp_path / "copy", cuts={"people": {**index["cuts"]["people"], "parts": parts}})
    data = open_data(recipe(root, extra=(f"synthgesture={copy}",)))
    own = load_dataset("synthgesture", root, "train").names
    assert data.train.names == own + own
    key = current_key(copy / ".ripe" / "synthgesture")
    assert data.describe()["extra"] == [
        {"dataset": "synthgesture", "root": str(copy), "partition": "people", "store": key, "clips": 23, "left_out": 22}
    ]


def test_describe(root):
    index = open_data(recipe(root)).describe()
    assert json.loads(json.dumps(index)) == index
    assert index == {
        "dataset": "synthgesture",
        "time_steps": 3,
        "by": "time",
        "binary": False,
        "folds": 0,
        "fold": 0,
        "grid": [8, 12],
        "root": str(root),
        "store": load_dataset("synthgesture", root, "val").store.folder.name,
        "simulated": True,
        "partition": "people",
        "sensor_size": [16, 16],
        "classes": 11,
        "train": 23,
        "val": 11,
        "test": 11,
        "extra": [],
        "first": [],
    }


def test_invalid_settings_are_refused(root, other, tmp_path):
    gone = tmp_path / "gone"
    none = changed(root, tmp_path / "none", classes=[*CLASSES, "clap"])
    strange = changed(other, tmp_path / "strange", classes=[*CLASSES[:-1], "yawn"])
    make = f"`ripe sim make synthgesture --out {gone}`"
    for kind, field, given, mentions in (
        (DataError, "data.root", recipe(gone), (gone, make)),
        (DataError, "data.root", recipe(gone, dataset="nmnist"), (gone, f"`ripe data prepare nmnist --root {gone}`")),
        (ConfigError, "dataset", recipe(root, dataset="nothing"), ("'nothing'", "synthgesture")),
        (DataError, "partition", recipe(root, partition="rooms"), ("people", "'rooms'")),
        (DataError, "data.partition", recipe(root, partition="rooms", folds=2), ("people", "'rooms'")),
        (ConfigError, "data.fold", recipe(root, fold=1), ("data.folds", "got 1")),
        (DataError, "data.first", recipe(none, first=(CLASSES[0], "clap")), ("'clap'",)),
        (ConfigError, "data.first", recipe(root, first=("clap",)), ("'clap'", *CLASSES)),
        *(
            (ConfigError, "data.extra", recipe(root, extra=(text,)), ("DATASET=ROOT", repr(text)))
            for text in ("synthgesture", "=x", "synthgesture=")
        ),
        (DataError, "data.root", recipe(root, extra=(f"synthgesture={gone}",)), (make,)),
        (ConfigError, "data.extra", recipe(root, extra=(f"synthgesture={root}",)), (root,)),
        (
            DataError,
            "data.extra",
            recipe(root, extra=(f"synthgesture={strange}",)),
            (strange, "11", "'other_gestures'"),
        ),
    ):
        with raises(kind, field, mentions=mentions) as caught:
            assert open_data(given).train
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_an_order_is_a_permutation(count):
    order = epoch_order(count, 3, 5)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(count))
    assert np.array_equal(order, epoch_order(count, 3, 5))


def test_orders_differ_between_epochs_and_seeds():
    orders = {tuple(epoch_order(50, seed, epoch).tolist()) for seed, epoch in itertools.product(range(4), range(4))}
    assert len(orders) == 16


def test_the_order_of_an_epoch_is_fixed():
    assert epoch_order(8, 0, 0).tolist() == [3, 6, 2, 0, 4, 7, 1, 5]


def test_an_order_does_not_touch_the_global_generators():
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    epoch_order(100, 0, 0)
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shares_are_contiguous_and_cover_the_batch(world):
    for total in range(20):
        shares = [list(range(total))[share_of(total, rank, world)] for rank in range(world)]
        assert [each for share in shares for each in share] == list(range(total))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.fixture
def train(root) -> Clips:
    return open_data(recipe(root)).train


def test_batches_are_the_order(train):
    batches = list(TrainBatches(train, 5, 1, 2, CPU))
    order = epoch_order(23, 1, 2)
    assert [index for index, *_ in batches] == [0, 1, 2, 3, 4]
    assert [total for *_, total in batches] == [5, 5, 5, 5, 3]
    assert len(TrainBatches(train, 5, 1, 2, CPU)) == 5
    x, y = torch.cat([x for _, x, _, _ in batches]), torch.cat([y for _, _, y, _ in batches])
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert torch.equal(x, torch.stack([train.clip(int(number))[0] for number in order]))
    assert y.tolist() == train.labels[order].tolist()


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("size", [1, 4, 6])
def test_the_shares_of_all_processes_are_the_batch_of_one(train, world, size):
    whole = list(TrainBatches(train, size * world, 0, 7, CPU))
    shares = [list(TrainBatches(train, size, 0, 7, CPU, rank, world)) for rank in range(world)]
    for (index, x, y, total), *parts in zip(whole, *shares, strict=True):
        assert {(part[0], part[3]) for part in parts} == {(index, total)}
        assert torch.equal(torch.cat([part[1] for part in parts]), x)
        assert torch.equal(torch.cat([part[2] for part in parts]), y)
        assert max(len(part[2]) for part in parts) - min(len(part[2]) for part in parts) <= 1


@pytest.mark.parametrize("cache", ["off", "memory"])
def test_a_process_without_a_share_gets_an_empty_batch(root, cache):
    clips = open_data(recipe(root, cache=cache)).train
    last = [list(TrainBatches(clips, 2, 0, 0, CPU, rank, 11))[-1] for rank in range(11)]
    assert {(index, total) for index, _, _, total in last} == {(1, 1)}
    assert sorted(len(y) for _, _, y, _ in last) == [0] * 10 + [1]
    assert all(x.shape == (len(y), 3, 2, 8, 12) for _, x, y, _ in last)
    assert {x.dtype for _, x, _, _ in last} == {torch.float32}
    assert {y.dtype for _, _, y, _ in last} == {torch.int64}


@pytest.mark.parametrize("first", [0, 1, 3, 6])
def test_batches_from_the_middle_are_those_of_the_epoch(train, first):
    whole = list(TrainBatches(train, 4, 0, 1, CPU))
    rest = TrainBatches(train, 4, 0, 1, CPU, first=first)
    assert len(rest) == len(whole) - first
    for (index, x, y, total), (index_again, x_again, y_again, total_again) in zip(whole[first:], rest, strict=True):
        assert (index, total) == (index_again, total_again)
        assert torch.equal(x, x_again)
        assert torch.equal(y, y_again)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_evaluation_sees_every_clip_once_and_in_order(train, world):
    batches = [batch for rank in range(world) for batch in EvalBatches(train, 4, CPU, rank, world)]
    assert sum(len(EvalBatches(train, 4, CPU, rank, world)) for rank in range(world)) == len(batches)
    assert max(len(y) for _, y in batches) == 4
    assert torch.cat([y for _, y in batches]).tolist() == train.labels.tolist()
    wanted = torch.stack([train.clip(number)[0] for number in range(23)])
    assert torch.equal(torch.cat([x for x, _ in batches]), wanted)


def test_clips_are_made_once_for_a_device(root):
    data = open_data(recipe(root, cache="memory"))
    cache = data.train.cache(CPU)
    assert data.train.cache(CPU) is cache
    assert cache.mode == "memory"
    data.train.close()
    assert data.train.cache(CPU) is not cache


def test_cached_clips_are_not_pickled(root):
    clips = open_data(recipe(root, cache="memory")).train
    bare = len(pickle.dumps(clips))
    clips.cache(CPU)
    assert len(pickle.dumps(clips)) == bare
    assert torch.equal(pickle.loads(pickle.dumps(clips)).clip(3)[0], clips.clip(3)[0])
