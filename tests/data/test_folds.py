"""Cross-validation: every clip is tested once, class by class, the same on every machine."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike.data.folds import folds_of
from ripe_mambaspike.data.store import EventStore
from ripe_mambaspike.errors import ConfigError, DataError


def make_store(
    sizes: tuple[int, ...], unused: int = 0, shuffle: int | None = None, partition: str = "partition"
) -> EventStore:
    """A store's index alone: so many clips of each class, the last few in no part; in another order if asked."""
    clips = [(f"{label}/{number}", label) for label, size in enumerate(sizes) for number in range(size)]
    letters = ["rvt"[number % 3] for number in range(len(clips) - unused)] + ["-"] * unused
    order = np.arange(len(clips)) if shuffle is None else np.random.default_rng(shuffle).permutation(len(clips))
    parts = "".join("-" if partition == "unsplit" else letters[at] for at in order)
    index = SimpleNamespace(
        set="fake",
        sensor_size=(8, 8),
        whole_size=None,
        crop=None,
        classes=[str(label) for label in range(len(sizes))],
        partitions={partition: SimpleNamespace(parts=parts)},
        clips=SimpleNamespace(name=[clips[at][0] for at in order], label=[clips[at][1] for at in order]),
    )
    return EventStore(Path("nowhere"), index)


def names(store: EventStore, members: np.ndarray) -> set[str]:
    return {store.index.clips.name[member] for member in members}


@pytest.mark.parametrize("sizes", [(10, 10, 10), (23, 7, 12, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("folds", [2, 3, 4])
def test_every_clip_is_tested_once(sizes, folds):
    store = make_store(sizes)
    tested = []
    for fold in range(folds):
        parts = folds_of(store, "partition", folds, fold)
        assert list(parts) == ["train", "val", "test"]
        assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(store)))
        assert all(members.dtype == np.int64 for members in parts.values())
        tested += parts["test"].tolist()
    assert sorted(tested) == list(range(len(store)))


def test_folds_are_equal_and_so_are_classes_in_them():
    store = make_store((23, 7, 12, 5))
    for fold in range(4):
        parts = folds_of(store, "partition", 4, fold)
        assert len(parts["test"]) in (11, 12)
        tested, kept = (Counter(store.labels[parts[part]].tolist()) for part in ("test", "val"))
        for label, size in enumerate((23, 7, 12, 5)):
            assert tested[label] in (size // 4, size // 4 + 1)
            assert kept[label] == max(1, round(0.1 * (size - tested[label])))


def test_a_class_of_few_is_validated_where_two_are_left():
    store = make_store((20, 2, 1))
    for fold in range(4):
        parts = folds_of(store, "partition", 4, fold)
        for label, size in ((1, 2), (2, 1)):
            left = size - int((store.labels[parts["test"]] == label).sum())
            assert int((store.labels[parts["val"]] == label).sum()) == (1 if left == 2 else 0)
            assert int((store.labels[parts["train"]] == label).sum()) == (1 if left else 0)


def test_the_names_decide_and_not_the_order():
    one, other = make_store((9, 8)), make_store((9, 8), shuffle=5)
    for fold in range(3):
        a, b = folds_of(one, "partition", 3, fold), folds_of(other, "partition", 3, fold)
        assert {part: names(one, members) for part, members in a.items()} == {
            part: names(other, members) for part, members in b.items()
        }


def test_a_known_fold():
    """What was drawn once stays: results of other days are compared with it."""
    parts = folds_of(make_store((6, 6)), "partition", 3, 1)
    assert {part: sorted(names(make_store((6, 6)), members)) for part, members in parts.items()} == {
        "train": ["0/0", "0/4", "0/5", "1/2", "1/4", "1/5"],
        "val": ["0/3", "1/0"],
        "test": ["0/1", "0/2", "1/1", "1/3"],
    }


def test_unused_clips_are_left_out_and_an_unsplit_dataset_uses_all():
    store = make_store((8, 8), unused=3)
    used = np.concatenate([folds_of(store, "partition", 2, fold)["test"] for fold in range(2)])
    assert sorted(used.tolist()) == list(range(13))
    store = make_store((8, 8), partition="unsplit")
    used = np.concatenate([folds_of(store, "unsplit", 2, fold)["test"] for fold in range(2)])
    assert sorted(used.tolist()) == list(range(16))


def test_invalid_folds_are_refused():
    store = make_store((4, 4))
    for folds in (1, 9):
        with raises(ConfigError, "data.folds", mentions=("from 2 to the 8 clips", f"got {folds}")):
            folds_of(store, "partition", folds, 0)
    for fold in (-1, 3):
        with raises(ConfigError, "data.fold", mentions=("from 0 to 2", f"got {fold}")):
            folds_of(store, "partition", 3, fold)
    with raises(DataError, "data.partition", store.folder, ("one of partition", "'other'")):
        folds_of(store, "other", 3, 0)
