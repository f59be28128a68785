"""Real recordings, prepared, checked and loaded."""

import shutil

import numpy as np

from ripe_mambaspike.data.loading import BinnedDataset, load_dataset
from ripe_mambaspike.data.prepare import prepare
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.store import compare_source, verify_store
from ripe_mambaspike.events import read


def test_the_600_of_nmnist(shared, tmp_path):
    root = shared / "nmnist-real"
    store = prepare(list_dataset("nmnist-600", root), root, tmp_path)
    assert len(store) == 600
    assert verify_store(store) == sum(store.index.clips.events) == 2_440_263
    assert store.index.partitions["thirds"].sizes == {"train": 359, "val": 41, "test": 200}
    assert store.index.partitions["thirds"].published
    assert (store.index.notes, store.index.troubles) == ([], [])
    assert store.sensor_size == (34, 34)
    assert compare_source(store, root) == "unchanged"
    parts = [load_dataset("nmnist-600", root, part, store=tmp_path) for part in ("train", "val", "test")]
    assert sum(len(part) for part in parts) == len({name for part in parts for name in part.names}) == 600
    for part in parts:
        recording, label = part[7]
        source = read(root / f"{part.names[7]}.bin", sensor_size=(34, 34))
        assert label == int(part.names[7].split("/")[1])
        np.testing.assert_array_equal(recording["t"], source["t"] - source.first_us)
        assert BinnedDataset(part, 10)[7][0].sum() == len(source)


def test_gestures_in_folders(shared, tmp_path):
    """Five clips and a second of each, shortened, in a folder a class."""
    names = {}
    for path in sorted((shared / "gesture-real").glob("*.bin")):
        folder = tmp_path / "root" / path.stem[3:]
        folder.mkdir(parents=True)
        shutil.copy(path, folder / "whole.bin")
        (folder / "begin.bin").write_bytes(path.read_bytes()[: 5 * 20_000])
        names[folder.name] = len(read(path))
    root = tmp_path / "root"
    store = prepare(list_dataset("folder", root, test_share=0.5), root, root / ".ripe")
    assert store.classes == tuple(sorted(names))
    assert store.index.partitions["share-0.5"].sizes == {"train": 5, "val": 0, "test": 5}
    assert store.sensor_size == (128, 128)
    assert len(names) == 5
    for split in ("train", "test"):
        part = load_dataset("folder", root, split)
        assert part.labels.tolist() == [0, 1, 2, 3, 4]
        for number, name in enumerate(part.names):
            recording, label = part[number]
            source = read(root / name)
            assert store.classes[label] == name.split("/")[0]
            assert len(recording) == len(source)
            assert recording.duration_us == source.duration_us
    assert verify_store(store) == sum(len(read(path)) for path in root.glob("*/*.bin"))
