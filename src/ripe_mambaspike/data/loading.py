"""A split of a prepared dataset, for training and evaluation."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.data.listing import SPLITS, UNSPLIT
from ripe_mambaspike.data.sets.registry import STORE, dataset_info
from ripe_mambaspike.data.store import EventStore, open_store
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.events.binning import BinBy, bin_events
from ripe_mambaspike.events.recording import Recording

if TYPE_CHECKING:
    from torch import Tensor


def load_dataset(
    name: str,
    root: str | Path | None,
    split: str,
    *,
    partition: str | None = None,
    store: str | Path | None = None,
    store_key: str | None = None,
) -> "EventDataset":
    """The clips of one split, `train`, `val` or `test`, of a prepared dataset.

    Args:
        name: a dataset of `list_datasets`
        root: its folder, which was prepared with `prepare_dataset`
        split: "train", "val" or "test"
        partition: one of several ways of splitting; by default the dataset's first
        store: the folder of the stores, by default in the root; with it, the root may be None
        store_key: one of several preparations, by its key (`ripe data list`); by default the current one
    """
    dataset_info(name)
    if split not in SPLITS:
        raise DataError.expected("split", f"one of {', '.join(SPLITS)}", repr(split))
    if store is None and root is None:
        raise DataError.expected("root", "a root or a store", "neither")
    folder = Path(os.fspath(store)) if store is not None else Path(os.fspath(root or "")) / STORE
    opened = open_store(folder, name, store_key)
    chosen = opened.partitions[0] if partition is None else partition
    if chosen not in opened.partitions:
        raise DataError.expected(
            "partition", f"one of {', '.join(opened.partitions)}", repr(chosen), path=opened.folder
        )
    if chosen == UNSPLIT:
        hint = "give it train/ and test/ folders, or prepare it with --test-share"
        raise DataError.expected("partition", "a dataset with a split", "one without", path=opened.folder, hint=hint)
    members = opened.members(chosen, split)
    if not len(members):
        raise DataError.expected("split", f"a split of {name} ({chosen}) with clips", split, path=opened.folder)
    return EventDataset(opened, chosen, split, members)


class EventDataset:
    """Recordings and labels by index. Files are memory-mapped on first use, in each process."""

    def __init__(self, store: EventStore, partition: str, split: str, members: NDArray[np.int64]) -> None:
        self.store, self.partition, self.split, self.members = store, partition, split, members
        self.name, self.classes, self.sensor_size = store.name, store.classes, store.sensor_size
        self._shards: dict[int, NDArray[np.void]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, number: int) -> tuple[Recording, int]:
        """(recording, label); its times count from the clip's start."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        clip = int(self.members[number])
        return self.store.clip(clip, self._shards), int(self.store.labels[clip])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shards": {}}

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.store.labels[self.members]

    @property
    def names(self) -> list[str]:
        every = self.store.index.clips.name
        return [every[clip] for clip in self.members]


class BinnedDataset:
    """The dataset with binned clips: (counts [T, 2, H, W], label), for a `torch.utils.data.DataLoader`."""

    def __init__(
        self,
        events: EventDataset,
        time_steps: int,
        *,
        by: BinBy = "time",
        grid: int | tuple[int, int] | None = None,
        binary: bool = False,
    ) -> None:
        self.events = events
        self.time_steps, self.by, self.grid, self.binary = time_steps, by, grid, binary

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, number: int) -> "tuple[Tensor, int]":
        recording, label = self.events[number]
        return bin_events(recording, self.time_steps, by=self.by, grid=self.grid, binary=self.binary), label
