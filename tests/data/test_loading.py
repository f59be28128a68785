"""Parts of a prepared set: by number, in workers, binned."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, random_split
from trees import make_recording, save, save_classes

import ripe_mambaspike
from raising import raises
from ripe_mambaspike.data.loading import BinnedDataset, EventDataset, load_dataset
from ripe_mambaspike.data.prepare import prepare
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.errors import ConfigError, DataError, InputError
from ripe_mambaspike.events import bin_events, read


@pytest.fixture
def train(store, digits):
    return load_dataset("nmnist-600", digits, "train")


def source_of(events, number, digits):
    return read(digits / f"{events.names[number]}.bin", sensor_size=(34, 34))


def test_the_splits_are_disjoint_and_complete(store, digits):
    parts = {split: load_dataset("nmnist-600", digits, split) for split in ("train", "val", "test")}
    names = [name for part in parts.values() for name in part.names]
    assert Counter(names) == Counter(store.index.clips.name)
    assert parts["test"].names == [f"Train/{number % 2}/{number:05d}" for number in (3, 6, 9, 12)]
    assert {split: len(part) for split, part in parts.items()} == {"train": 6, "val": 2, "test": 4}


def test_clips_labels_and_names_belong_together(train, digits):
    assert train.name == "nmnist-600"
    assert train.classes == tuple("0123456789")
    assert train.sensor_size == (34, 34)
    assert (train.partition, train.split) == ("thirds", "train")
    assert len(train.labels) == len(train.names) == len(train) == 6
    for number, (recording, label) in enumerate(train):
        source = source_of(train, number, digits)
        assert label == train.labels[number] == int(train.names[number].split("/")[1])
        assert isinstance(label, int)
        assert recording.metadata["name"] == train.names[number]
        np.testing.assert_array_equal(recording["t"], source["t"] - source.first_us)
        for name in "xyp":
            np.testing.assert_array_equal(recording[name], source[name])
    assert number == 5


def test_indices_out_of_range_are_refused(train):
    assert train[-1][0].metadata["name"] == train.names[-1]
    assert train[-6][0].metadata["name"] == train.names[0]
    assert train[np.int64(2)][0].metadata["name"] == train.names[2]
    for number in (6, -7, 100):
        with pytest.raises(IndexError, match=f"clip {number} of 6"):
            train[number]


def test_files_are_mapped_once_and_not_pickled(train):
    recordings = [recording for recording, _ in train]
    (shard,) = train._shards.values()
    assert isinstance(shard, np.memmap)
    again = pickle.loads(pickle.dumps(train))
    assert again._shards == {}
    assert train._shards
    assert again.names == train.names
    np.testing.assert_array_equal(again[3][0].events, recordings[3].events)
    recordings[0].events["t"] += 5  # one's own copy
    np.testing.assert_array_equal(train[0][0]["t"] + 5, recordings[0]["t"])


@pytest.mark.parametrize("by", ["time", "count"])
@pytest.mark.parametrize("grid", [None, 17, (10, 20)])
def test_binned(train, digits, by, grid):
    binned = BinnedDataset(train, 5, by=by, grid=grid)
    height, width = (34, 34) if grid is None else (17, 17) if grid == 17 else grid
    assert len(binned) == 6
    for number in range(6):
        counts, label = binned[number]
        assert counts.shape == (5, 2, height, width)
        assert counts.dtype == torch.float32
        assert counts.sum() == 60
        assert torch.equal(counts, bin_events(source_of(train, number, digits), 5, by=by, grid=grid))
        assert label == train.labels[number]


def test_binary(train, digits):
    counts, _ = BinnedDataset(train, 2, grid=4, binary=True)[0]
    assert set(counts.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(counts, bin_events(source_of(train, 0, digits), 2, grid=4).clamp(max=1))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_data_loader_gives_batches(train, workers):
    binned = BinnedDataset(train, 4)
    context = "spawn" if workers else None  # which pickles the set
    loader = DataLoader(binned, batch_size=4, num_workers=workers, multiprocessing_context=context)
    batches = list(loader)
    assert [len(labels) for _, labels in batches] == [4, 2]
    counts = torch.cat([batch for batch, _ in batches])
    assert torch.equal(counts, torch.stack([binned[number][0] for number in range(6)]))
    assert torch.cat([labels for _, labels in batches]).tolist() == train.labels.tolist()


def test_whole_clips_in_a_loader(train):
    loader = DataLoader(train, batch_size=None)
    assert [label for _, label in loader] == train.labels.tolist()


def test_a_torch_dataset_in_one_call(train, digits):
    binned = load_dataset("nmnist-600", digits, "train", time_steps=5, grid=17, by="count", binary=True)
    assert isinstance(binned, Dataset)
    assert isinstance(train, Dataset)
    wanted = BinnedDataset(train, 5, by="count", grid=17, binary=True)
    for number in (0, 5, -1):
        assert torch.equal(binned[number][0], wanted[number][0])
        assert binned[number][1] == train.targets[number] == binned.targets[number]
    assert binned.targets == train.labels.tolist()
    assert all(type(target) is int for target in binned.targets)
    assert binned.classes == train.classes
    assert binned.class_to_idx == train.class_to_idx == {name: int(name) for name in "0123456789"}
    first, second = random_split(binned, [4, 2], generator=torch.Generator().manual_seed(0))
    assert (len(first), len(second)) == (4, 2)
    assert len(binned + binned) == 12
    with pytest.raises(IndexError):
        binned[6]
    assert torch.equal(pickle.loads(pickle.dumps(binned))[3][0], binned[3][0])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"grid": 16}, "time_steps"), ({"by": "count"}, "time_steps"), ({"binary": True}, "time_steps"),
        ({"time_steps": 0}, "time_steps"), ({"time_steps": 4, "grid": 0}, "grid"),
        ({"time_steps": 4, "grid": (4, 5, 6)}, "grid"), ({"time_steps": 4, "by": "window"}, "by"),
        ({"transform": "DropEvent"}, "transform"), ({"sensor_size": (8, 8)}, "sensor_size"),
        ({"transform": len, "sensor_size": (0, 8)}, "sensor_size"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_at_once(store, digits, options, field):
    with raises(InputError, field):
        load_dataset("nmnist-600", digits, "train", **options)


def test_a_store_in_another_folder(digits, tmp_path):
    prepare(list_dataset("nmnist-600", digits), digits, tmp_path / "stores")
    assert len(load_dataset("nmnist-600", digits, "train", store=str(tmp_path / "stores"))) == 6
    assert len(load_dataset("nmnist-600", tmp_path / "gone", "train", store=tmp_path / "stores")) == 6
    with raises(DataError, "store", digits / ".ripe" / "nmnist-600", "`ripe data prepare nmnist-600`"):
        load_dataset("nmnist-600", digits, "train")


def test_it_is_public(store, digits):
    assert ripe_mambaspike.load_dataset is load_dataset
    assert isinstance(ripe_mambaspike.load_dataset("nmnist-600", str(digits), "val"), EventDataset)


def test_several_partitions(tmp_path):
    for number in (5, 905, 906):
        save(tmp_path / "dog" / f"cifar10_dog_{number}.aedat", make_recording(number, size=(128, 128)))
    prepare(list_dataset("cifar10dvs", tmp_path, partial=True), tmp_path, tmp_path / ".ripe")
    assert load_dataset("cifar10dvs", tmp_path, "test").names == ["cifar10_dog_5"]
    assert load_dataset("cifar10dvs", tmp_path, "test").partition == "first-100"
    last = load_dataset("cifar10dvs", tmp_path, "test", partition="last-100")
    assert last.names == ["cifar10_dog_905", "cifar10_dog_906"]
    assert last.labels.tolist() == [5, 5]
    with raises(DataError, "partition", mentions=("first-100, last-100, random-100", "'middle-100'")):
        load_dataset("cifar10dvs", tmp_path, "test", partition="middle-100")


def test_invalid_arguments_are_refused(store, digits, tmp_path):
    with raises(ConfigError, "dataset", mentions="'nothing'"):
        load_dataset("nothing", digits, "train")
    with raises(DataError, "split", mentions=("train, val, test", "'testing'")):
        load_dataset("nmnist-600", digits, "testing")
    root = save_classes(tmp_path / "own")
    store = prepare(list_dataset("folder", root), root, root / ".ripe")
    with raises(DataError, "partition", store.folder, ("train/ and test/", "--test-share")):
        load_dataset("folder", root, "train")
    root = save_classes(tmp_path / "parts" / "train", each=1).parent
    store = prepare(list_dataset("folder", root), root, root / ".ripe")
    assert len(load_dataset("folder", root, "train")) == 2
    for split in ("val", "test"):
        with raises(DataError, "split", store.folder, ("folder (folders)", split)):
            load_dataset("folder", root, split)


def test_a_shard_that_is_lost_later(train):
    path = train.store.folder / "shard-00000.npy"
    path.unlink()
    with raises(DataError, "shard", path):
        train[0]
