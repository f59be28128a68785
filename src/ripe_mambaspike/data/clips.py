"""Clips of a dataset by index, and the order in which training and evaluation see them.

Batches depend only on seed and epoch. Each process takes a contiguous share of every global batch; the concatenated
shares are the batch that a single process would see.
"""

import hashlib
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ripe_mambaspike.data.clip_cache import ClipCache, Indices, Progress, open_cache
from ripe_mambaspike.data.loading import BinnedDataset, EventDataset
from ripe_mambaspike.data.settings import DataSettings, resolved_grid


class Clips:
    """Binned clips of one or more datasets by index: counts [T, 2, H, W] float32 and a label. Workers get a copy."""

    def __init__(self, parts: Sequence[EventDataset], labels: Sequence[Indices], data: DataSettings) -> None:
        """`labels` of each part, as indices of the first part's classes."""
        height, width = resolved_grid(data)
        self.settings = data
        self.shape = (data.time_steps, 2, height, width)
        self.classes = parts[0].classes
        self.labels: Indices = np.concatenate(labels)
        self._parts = [
            BinnedDataset(part, data.time_steps, by=data.by, grid=(height, width), binary=data.binary) for part in parts
        ]
        self._ends = np.cumsum([len(part) for part in parts])
        self._cache: ClipCache | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getstate__(self) -> dict[str, Any]:
        """Everything except the cached clips, for workers and copies."""
        return {**self.__dict__, "_cache": None}

    @property
    def names(self) -> list[str]:
        return [name for part in self._parts for name in part.events.names]

    @property
    def identity(self) -> tuple[Any, ...]:
        """What determines the binned clips: two that have the same one are equal."""
        parts = [(part.events.store.folder.resolve(), part.events.members.tobytes()) for part in self._parts]
        return (*parts, self.shape, self.settings.by, self.settings.binary)

    @property
    def first(self) -> Indices:
        """The clips of the classes in `data.first`; all clips where that is empty."""
        wanted = [number for number, name in enumerate(self.classes) if name in self.settings.first]
        return np.flatnonzero(np.isin(self.labels, wanted)) if wanted else np.arange(len(self), dtype=np.int64)

    def clip(self, index: int) -> tuple[Tensor, int]:
        """(counts [T, 2, H, W] float32, label)."""
        if not 0 <= index < len(self):
            raise IndexError(f"clip {index} of {len(self)}")
        part = int(np.searchsorted(self._ends, index, side="right"))
        counts, _ = self._parts[part][index - int(self._ends[part]) + len(self._parts[part])]
        return counts, int(self.labels[index])

    def cache(self, device: torch.device, *, processes: int = 1, progress: Progress | None = None) -> ClipCache:
        """The source of batches, as `data.cache` says; clips are binned on the first call for a device.

        `processes` is how many share this machine's memory.
        """
        if self._cache is None or self._cache.device != device:
            self.close()
            self._cache = open_cache(copy(self), self.settings, device, processes=processes, progress=progress)
        return self._cache

    def close(self) -> None:
        """Release cached clips and idle workers."""
        if self._cache is not None:
            self._cache.close()
        self._cache = None


def epoch_order(count: int, seed: int, epoch: int) -> Indices:
    """The order of an epoch's clips [count]: sorted raw words of PCG64, the same in every version of NumPy."""
    digest = hashlib.blake2b(f"order {seed} {epoch}".encode(), digest_size=16).digest()
    words = np.random.PCG64(int.from_bytes(digest, "little")).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int64)


def share_of(total: int, rank: int, world: int) -> slice:
    """The contiguous share of one process; sizes differ by at most one."""
    return slice(total * rank // world, total * (rank + 1) // world)


class TrainBatches:
    """One epoch: (index, x [B, T, 2, H, W] float32, y [B] int64, total), from batch `first` on.

    Batch `index` has `batch_size` · `world` clips over all processes, the last one of an epoch fewer: `total`. If that
    is less than the number of processes, some of them get an empty batch, B = 0. With `first_classes` the number of
    clips is the same, but all belong to the classes in `data.first`, repeated.
    """

    def __init__(
        self,
        clips: Clips,
        batch_size: int,
        seed: int,
        epoch: int,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
        first: int = 0,
        first_classes: bool = False,
    ) -> None:
        count = len(clips)
        order, global_batch = epoch_order(count, seed, epoch), batch_size * world
        if first_classes:
            order = np.resize(clips.first, count)[order]
        batches = [order[start : start + global_batch] for start in range(first * global_batch, count, global_batch)]
        self.clips, self.device, self.world, self.first = clips, device, world, first
        self.totals = [len(batch) for batch in batches]
        self.plan = [batch[share_of(len(batch), rank, world)] for batch in batches]

    def __len__(self) -> int:
        """Batches left from `first` on."""
        return len(self.plan)

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor, int]]:
        for index, (x, y) in enumerate(self.clips.cache(self.device, processes=self.world).batches(self.plan)):
            yield self.first + index, x, y, self.totals[index]


class EvalBatches:
    """(x [B, T, 2, H, W] float32, y [B] int64) of all clips in order; each process has its share."""

    def __init__(self, clips: Clips, batch_size: int, device: torch.device, rank: int = 0, world: int = 1) -> None:
        numbers = np.arange(len(clips), dtype=np.int64)[share_of(len(clips), rank, world)]
        self.clips, self.device, self.world = clips, device, world
        self.plan = [numbers[start : start + batch_size] for start in range(0, len(numbers), batch_size)]

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.clips.cache(self.device, processes=self.world).batches(self.plan)
