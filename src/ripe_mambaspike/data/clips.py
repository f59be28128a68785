"""What a run learns from: a set's parts as clips [T, 2, H, W], and the order in which they come.

Batches are a function of seed and epoch alone. Of every batch of all processes, each takes its contiguous share, so
that their shares, joined, are what one process would see.
"""

import hashlib
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ripe_mambaspike.data.clip_cache import ClipCache, Numbers, Progress, open_cache
from ripe_mambaspike.data.folds import folds_of
from ripe_mambaspike.data.listing import PARTS, TEST, TRAIN, VALIDATION
from ripe_mambaspike.data.loading import BinnedDataset, EventDataset, load_dataset
from ripe_mambaspike.data.sets.registry import STORE, dataset_info
from ripe_mambaspike.data.store import CURRENT, EventStore, open_store, store_keys
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.events.region import format_size
from ripe_mambaspike.train.recipe import DataSettings, Recipe
from ripe_mambaspike.train.sizes import settled_grid, with_sizes


class Clips:
    """Binned clips of one or more sets by number: counts [T, 2, H, W] float32 and a label. Goes to workers whole."""

    def __init__(self, parts: Sequence[EventDataset], labels: Sequence[Numbers], data: DataSettings) -> None:
        """`labels` of each part, as numbers of the first part's classes."""
        height, width = settled_grid(data)
        self.settings = data
        self.shape = (data.time_steps, 2, height, width)
        self.classes = parts[0].classes
        self.labels: Numbers = np.concatenate(labels)
        self._parts = [
            BinnedDataset(part, data.time_steps, by=data.by, grid=(height, width), binary=data.binary) for part in parts
        ]
        self._ends = np.cumsum([len(part) for part in parts])
        self._cache: ClipCache | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getstate__(self) -> dict[str, Any]:
        """What a worker and a copy get: no clips that were made."""
        return {**self.__dict__, "_cache": None}

    @property
    def names(self) -> list[str]:
        return [name for part in self._parts for name in part.events.names]

    @property
    def first(self) -> Numbers:
        """The clips of the classes that are learned before the others; all of them where none are."""
        wanted = [number for number, name in enumerate(self.classes) if name in self.settings.first]
        return np.flatnonzero(np.isin(self.labels, wanted)) if wanted else np.arange(len(self), dtype=np.int64)

    def clip(self, number: int) -> tuple[Tensor, int]:
        """(counts [T, 2, H, W] float32, label)."""
        if not 0 <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        part = int(np.searchsorted(self._ends, number, side="right"))
        counts, _ = self._parts[part][number - int(self._ends[part]) + len(self._parts[part])]
        return counts, int(self.labels[number])

    def cache(self, device: torch.device, *, processes: int = 1, progress: Progress | None = None) -> ClipCache:
        """Where batches come from, as `data.cache` says; the clips are made when this is first asked for a device.

        `processes` is how many share this machine's memory.
        """
        if self._cache is None or self._cache.device != device:
            self.close()
            self._cache = open_cache(copy(self), self.settings, device, processes=processes, progress=progress)
        return self._cache

    def close(self) -> None:
        """Let go of clips that are kept and of workers that wait."""
        if self._cache is not None:
            self._cache.close()
        self._cache = None


@dataclass(frozen=True)
class Extra:
    """The training part of another set."""

    root: Path
    events: EventDataset
    labels: Numbers  # as the run's classes are numbered
    left_out: int  # clips that have the name of one that is held out


class TrainingData:
    """The parts of a set. The test part is opened when it is asked for and not before."""

    def __init__(
        self, data: DataSettings, root: Path, store: EventStore, cut: str, members: dict[str, Numbers]
    ) -> None:
        self.settings, self.root, self.store, self.cut = data, root, store, cut
        self.members = members
        self.classes = store.classes
        self.extra = tuple(_open_extra(text, self) for text in data.extra)
        if strange := [name for name in data.first if name not in self.classes]:
            raise ConfigError.expected("data.first", f"some of {', '.join(self.classes)}", repr(strange[0]))

    @cached_property
    def train(self) -> Clips:
        """What is learned from, the extra sets' training parts behind the set's own."""
        own = self._events(TRAIN)
        pairs = [(own, own.labels), *((extra.events, extra.labels) for extra in self.extra)]
        clips = Clips([events for events, _ in pairs], [labels for _, labels in pairs], self.settings)
        for name in self.settings.first:
            if self.classes.index(name) not in clips.labels:
                raise DataError.expected("data.first", "classes with training clips", f"'{name}', which has none")
        return clips

    @cached_property
    def val(self) -> Clips | None:
        """What the network is picked on; None where the set has no such clips."""
        events = self._events(VALIDATION)
        return Clips([events], [events.labels], self.settings) if len(events) else None

    @cached_property
    def test(self) -> Clips:
        events = self._events(TEST)
        return Clips([events], [events.labels], self.settings)

    def _events(self, part: str) -> EventDataset:
        return EventDataset(self.store, self.cut, part, self.members[part])

    @cached_property
    def duration_us(self) -> int:
        """The median duration of the set's own training clips."""
        return self.store.median_duration_us(self.members[TRAIN])

    @property
    def other_sensors(self) -> list[str]:
        """A sentence for every extra set whose sensor, or crop of it, is another than the set's own."""
        own = self.store
        others = {(extra.events.name, _sensor(extra.events.store)) for extra in self.extra}
        return [
            f"data.extra: expected the sensor of {own.name}, {_sensor(own)}, got {sensor} of {name}; "
            f"the network keeps that of {own.name}"
            for name, sensor in sorted(others)
            if sensor != _sensor(own)
        ]

    def describe(self) -> dict[str, Any]:
        """All of it for a JSON document: where from, how split and binned, how many clips."""
        kept = ("dataset", "time_steps", "by", "binary", "folds", "fold")
        said = {name: value for name, value in asdict(self.settings).items() if name in kept}
        extra = [
            {
                "set": extra.events.name,
                "root": str(extra.root),
                "cut": extra.events.cut,
                "store": extra.events.store.key,
                "clips": len(extra.events),
                "left_out": extra.left_out,
            }
            for extra in self.extra
        ]
        return {
            **said,
            "grid": list(settled_grid(self.settings)),
            "root": str(self.root),
            "store": self.store.key,
            "simulated": dataset_info(self.store.name).simulated,
            "cut": self.cut,
            "sensor_size": list(self.store.sensor_size),
            "classes": len(self.classes),
            "train": len(self.members[TRAIN]) + sum(len(one.events) for one in self.extra),
            "first": list(self.settings.first),
            "val": len(self.members[VALIDATION]),
            "test": len(self.members[TEST]),
            "extra": extra,
        }


def root_of(data: DataSettings) -> Path:
    """The folder that a set lies in."""
    return Path("data") / data.dataset if data.root is None else Path(data.root)


def open_data(recipe: Recipe) -> TrainingData:
    """The set that a recipe names, split as it says; no recording is read yet."""
    data = recipe.data
    root = root_of(data)
    _check_there(data.dataset, root)
    if data.folds:
        store = open_store(root / STORE, data.dataset, data.store)
        cut = store.cuts[0] if data.cut is None else data.cut
        members = folds_of(store, cut, data.folds, data.fold)
    elif data.fold:
        raise ConfigError.expected("data.folds", f"the number of folds with data.fold={data.fold}", 0)
    else:
        train = load_dataset(data.dataset, root, TRAIN, cut=data.cut, store_key=data.store)
        store, cut = train.store, train.cut
        members = {part: store.members(cut, part) for part in PARTS}
    if not data.validation:
        members[TRAIN] = np.sort(np.concatenate((members[TRAIN], members[VALIDATION])))
        members[VALIDATION] = members[VALIDATION][:0]
    for part in (TRAIN, TEST):  # said now, not when all epochs are over
        if not len(members[part]):
            raise DataError.expected("data.cut", f"{part} clips of {data.dataset} ({cut})", "none", path=store.folder)
    return TrainingData(with_sizes(data, store.sensor_size), root, store, cut, members)


def _sensor(store: EventStore) -> str:
    """The sensor of a set and what is binned of it, in words."""
    return format_size(store.whole_size) + (f", cropped to {' '.join(map(str, store.crop))}" if store.crop else "")


def _check_there(name: str, root: Path) -> None:
    """Refuse a root without the set, with the command that makes it."""
    simulated = dataset_info(name).simulated
    try:
        home = root / STORE / name
        there = (home / CURRENT).is_file() or bool(store_keys(home))
    except OSError:
        there = False
    if not there:
        command = f"ripe sim make {name} --out {root}" if simulated else f"ripe data prepare {name} --root {root}"
        command += " --test-share 0.2" * (name == "folder")
        hint = f"run `{command}`, or set another data.root"
        raise DataError.expected("data.root", f"a prepared {name}", "none", path=root, hint=hint)


def _open_extra(text: str, data: TrainingData) -> Extra:
    """SET=ROOT → its training part, without clips that the run holds out; its validation part too where nothing is.

    Names tell recordings of one picture or trial apart from others in all sets but a person's own folders.
    """
    name, _, place = text.partition("=")
    if not name or not place:
        raise ConfigError.expected("data.extra", "SET=ROOT", repr(text))
    root = Path(place)
    _check_there(name, root)
    events = load_dataset(name, root, TRAIN)
    if events.store.key == data.store.key:
        raise ConfigError.expected("data.extra", "a dataset that is not trained on already", repr(text))
    if sorted(events.classes) != sorted(data.classes):
        strange = sorted(set(events.classes) ^ set(data.classes))
        wanted = f"the {len(data.classes)} classes of {data.store.name}"
        got = f"'{text}' with {len(events.classes)} ('{strange[0]}' is in one of them alone)"
        raise DataError.expected("data.extra", wanted, got)
    if not data.settings.validation:
        parts = [events.store.members(events.cut, part) for part in (TRAIN, VALIDATION)]
        events = EventDataset(events.store, events.cut, TRAIN, np.sort(np.concatenate(parts)))
    members = events.members
    if "folder" not in (name, data.store.name):
        names = data.store.index.clips.name
        held = {names[member] for part in (VALIDATION, TEST) for member in data.members[part]}
        members = members[[clip not in held for clip in events.names]]
    kept = EventDataset(events.store, events.cut, TRAIN, members)
    renumbered = np.array([data.classes.index(each) for each in events.classes], np.int64)
    return Extra(root, kept, renumbered[kept.labels], len(events) - len(members))


def epoch_order(count: int, seed: int, epoch: int) -> Numbers:
    """The order of an epoch's clips [count]: raw words of PCG64 sorted, the same with every version of NumPy."""
    digest = hashlib.blake2b(f"order {seed} {epoch}".encode(), digest_size=16).digest()
    words = np.random.PCG64(int.from_bytes(digest, "little")).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int64)


def share_of(total: int, rank: int, world: int) -> slice:
    """The contiguous share of one process; no two differ by more than one."""
    return slice(total * rank // world, total * (rank + 1) // world)


class TrainBatches:
    """One epoch: (index, x [B, T, 2, H, W] float32, y [B] int64, total), from batch `first` on.

    Batch `index` has `batch_size` · `world` clips of the order, the epoch's last one what is left: `total`, over all
    processes. Where that is fewer than there are processes, some of them get a batch of no clips, B = 0. With `alone`
    there are as many clips, but all are of the classes that come first, again and again.
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
        alone: bool = False,
    ) -> None:
        count = len(clips)
        order, together = epoch_order(count, seed, epoch), batch_size * world
        if alone:
            order = np.resize(clips.first, count)[order]
        batches = [order[start : start + together] for start in range(first * together, count, together)]
        self.clips, self.device, self.world, self.first = clips, device, world, first
        self.totals = [len(batch) for batch in batches]
        self.plan = [batch[share_of(len(batch), rank, world)] for batch in batches]

    def __len__(self) -> int:
        """Batches that are left from `first` on."""
        return len(self.plan)

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor, int]]:
        for index, (x, y) in enumerate(self.clips.cache(self.device, processes=self.world).batches(self.plan)):
            yield self.first + index, x, y, self.totals[index]


class EvalBatches:
    """(x [B, T, 2, H, W] float32, y [B] int64) of all clips in order; each process has its share, every clip once."""

    def __init__(self, clips: Clips, batch_size: int, device: torch.device, rank: int = 0, world: int = 1) -> None:
        numbers = np.arange(len(clips), dtype=np.int64)[share_of(len(clips), rank, world)]
        self.clips, self.device, self.world = clips, device, world
        self.plan = [numbers[start : start + batch_size] for start in range(0, len(numbers), batch_size)]

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.clips.cache(self.device, processes=self.world).batches(self.plan)
