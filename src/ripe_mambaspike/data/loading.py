"""A split of a prepared dataset, as a `torch.utils.data.Dataset`: recordings, or binned clips."""

import os
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ripe_mambaspike.data.listing import SPLITS, UNSPLIT
from ripe_mambaspike.data.sets.registry import STORE, dataset_info
from ripe_mambaspike.data.store import EventStore, open_store
from ripe_mambaspike.data.transforms import EventTransform, apply_transform, check_transform
from ripe_mambaspike.errors import DataError, InputError
from ripe_mambaspike.events.binning import MAX_STEPS, BinBy, as_grid, bin_events
from ripe_mambaspike.events.recording import Recording, check_int

Grid = int | tuple[int, int]


@overload
def load_dataset(
    name: str, root: str | Path | None, split: str, *, time_steps: int, grid: Grid | None = None, by: BinBy = "time",
    binary: bool = False, transform: EventTransform | None = None, sensor_size: tuple[int, int] | None = None,
    partition: str | None = None, store: str | Path | None = None, store_key: str | None = None,
) -> "BinnedDataset": ...  # fmt: skip


@overload
def load_dataset(
    name: str, root: str | Path | None, split: str, *, time_steps: None = None, grid: None = None, by: BinBy = "time",
    binary: bool = False, transform: EventTransform | None = None, sensor_size: tuple[int, int] | None = None,
    partition: str | None = None, store: str | Path | None = None, store_key: str | None = None,
) -> "EventDataset": ...  # fmt: skip


def load_dataset(
    name: str,
    root: str | Path | None,
    split: str,
    *,
    time_steps: int | None = None,
    grid: Grid | None = None,
    by: BinBy = "time",
    binary: bool = False,
    transform: EventTransform | None = None,
    sensor_size: tuple[int, int] | None = None,
    partition: str | None = None,
    store: str | Path | None = None,
    store_key: str | None = None,
) -> "EventDataset | BinnedDataset":
    """The clips of one split, `train`, `val` or `test`, of a prepared dataset.

    Args:
        name: a dataset of `list_datasets`
        root: its folder, which was prepared with `prepare_dataset`
        split: "train", "val" or "test"
        time_steps: bin every clip into counts [T, 2, H, W], for a DataLoader; without it, items are recordings
        grid: H and W of the bins as for `bin_events`, with time_steps
        by: "time" or "count" as for `bin_events`, with time_steps
        binary: as for `bin_events`, with time_steps
        transform: a callable over the events of a clip (a structured array of x, y, t, p) that returns such an array,
            for example one of tonic's; it is called before binning, for every item
        sensor_size: (width, height) of what the transform returns, where it differs from the recordings'
        partition: one of several ways of splitting; by default the dataset's first
        store: the folder of the stores, by default in the root; with it, the root may be None
        store_key: one of several preparations, by its key (`ripe data list`); by default the current one
    """
    dataset_info(name)
    check_transform(transform, sensor_size)
    if by not in ("time", "count"):
        raise InputError.expected("by", "'time' or 'count' for a dataset", repr(by))
    if time_steps is None and (grid is not None or by != "time" or binary):
        raise InputError.expected("time_steps", "an int with grid, by or binary", "none")
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
    events = EventDataset(opened, chosen, split, members, transform, sensor_size)
    if time_steps is None:
        return events
    check_int("time_steps", time_steps, 1, MAX_STEPS)  # now, not in a worker of a DataLoader
    as_grid(grid, events.sensor_size)
    return BinnedDataset(events, time_steps, by=by, grid=grid, binary=binary)


class EventDataset(Dataset[tuple[Recording, int]]):
    """Recordings and labels by index. Files are memory-mapped on first use, in each process."""

    def __init__(
        self,
        store: EventStore,
        partition: str,
        split: str,
        members: NDArray[np.int64],
        transform: EventTransform | None = None,
        sensor_size: tuple[int, int] | None = None,
    ) -> None:
        self.store, self.partition, self.split, self.members = store, partition, split, members
        self.name, self.classes, self.transform = store.name, store.classes, transform
        self.sensor_size = store.sensor_size if sensor_size is None else sensor_size
        self._shards: dict[int, NDArray[np.void]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, number: int) -> tuple[Recording, int]:
        """(recording, label); its times count from the clip's start."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        clip = int(self.members[number])
        recording = self.store.clip(clip, self._shards)
        if self.transform is not None:
            recording = apply_transform(recording, self.transform, self.sensor_size)
        return recording, int(self.store.labels[clip])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shards": {}}

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.store.labels[self.members]

    @property
    def targets(self) -> list[int]:
        """The label of every clip, as in torchvision."""
        return [int(label) for label in self.labels]

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def names(self) -> list[str]:
        every = self.store.index.clips.name
        return [every[clip] for clip in self.members]


class BinnedDataset(Dataset[tuple[Tensor, int]]):
    """The dataset with binned clips: (counts [T, 2, H, W], label), for a `torch.utils.data.DataLoader`."""

    def __init__(
        self,
        events: EventDataset,
        time_steps: int,
        *,
        by: BinBy = "time",
        grid: Grid | None = None,
        binary: bool = False,
    ) -> None:
        self.events = events
        self.time_steps, self.by, self.grid, self.binary = time_steps, by, grid, binary

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        recording, label = self.events[number]
        return bin_events(recording, self.time_steps, by=self.by, grid=self.grid, binary=self.binary), label

    @property
    def classes(self) -> tuple[str, ...]:
        return self.events.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        return self.events.class_to_idx

    @property
    def targets(self) -> list[int]:
        return self.events.targets
