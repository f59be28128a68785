"""The training, validation and test clips of a dataset, plus the training clips of extra datasets."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ripe_mambaspike.data.clip_cache import Indices
from ripe_mambaspike.data.clips import Clips
from ripe_mambaspike.data.folds import folds_of
from ripe_mambaspike.data.listing import SPLITS, TEST, TRAIN, UNSPLIT, VALIDATION
from ripe_mambaspike.data.loading import EventDataset, load_dataset
from ripe_mambaspike.data.sets.preparations import PREPARATIONS
from ripe_mambaspike.data.sets.registry import STORE, dataset_info
from ripe_mambaspike.data.settings import DataSettings, resolved_grid, root_of, with_grid
from ripe_mambaspike.data.store import CURRENT, EventStore, open_store, store_keys
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.events.region import format_size


@dataclass(frozen=True)
class ExtraDataset:
    """The training split of another dataset."""

    root: Path
    events: EventDataset
    labels: Indices  # as indices of the run's classes
    left_out: int  # clips with the name of one that is held out


class TrainingData:
    """The splits of a dataset. The test split is opened on first use, not before."""

    def __init__(
        self, data: DataSettings, root: Path, store: EventStore, partition: str, members: dict[str, Indices]
    ) -> None:
        self.settings, self.root, self.store, self.partition = data, root, store, partition
        self.members = members
        self.classes = store.classes
        self.extra = tuple(_open_extra(text, self) for text in data.extra)
        if unknown := [name for name in data.first if name not in self.classes]:
            raise ConfigError.expected("data.first", f"some of {', '.join(self.classes)}", repr(unknown[0]))

    @cached_property
    def train(self) -> Clips:
        """The training clips, followed by those of the extra datasets."""
        own = self.events(TRAIN)
        pairs = [(own, own.labels), *((extra.events, extra.labels) for extra in self.extra)]
        clips = Clips([events for events, _ in pairs], [labels for _, labels in pairs], self.settings)
        for name in self.settings.first:
            if self.classes.index(name) not in clips.labels:
                raise DataError.expected("data.first", "classes with training clips", repr(name))
        return clips

    @cached_property
    def val(self) -> Clips | None:
        """The clips that the network is selected on; None where the dataset has none."""
        events = self.events(VALIDATION)
        return Clips([events], [events.labels], self.settings) if len(events) else None

    @cached_property
    def test(self) -> Clips:
        events = self.events(TEST)
        return Clips([events], [events.labels], self.settings)

    @property
    def is_tested(self) -> bool:
        """Whether there are test clips; only a run that may do without (`data.prepare`) has none."""
        return bool(len(self.members[TEST]))

    def events(self, split: str) -> EventDataset:
        """The recordings of a split, without extra datasets."""
        return EventDataset(self.store, self.partition, split, self.members[split])

    @cached_property
    def duration_us(self) -> int:
        """The median duration of the dataset's own training clips."""
        return self.store.median_duration_us(self.members[TRAIN])

    @property
    def other_sensors(self) -> list[str]:
        """A warning for every extra dataset with another sensor, or another crop of it, than the dataset's own."""
        own = self.store
        others = {(extra.events.name, _sensor(extra.events.store)) for extra in self.extra}
        return [
            f"data.extra: expected the sensor of {own.name}, {_sensor(own)}, got {sensor} of {name}; "
            f"the network keeps that of {own.name}"
            for name, sensor in sorted(others)
            if sensor != _sensor(own)
        ]

    def describe(self) -> dict[str, Any]:
        """A summary for a JSON document: origin, split, binning, and numbers of clips."""
        kept = ("dataset", "time_steps", "by", "binary", "folds", "fold")
        binning = {name: value for name, value in asdict(self.settings).items() if name in kept}
        extra = [
            {
                "dataset": extra.events.name,
                "root": str(extra.root),
                "partition": extra.events.partition,
                "store": extra.events.store.key,
                "clips": len(extra.events),
                "left_out": extra.left_out,
            }
            for extra in self.extra
        ]
        return {
            **binning,
            "grid": list(resolved_grid(self.settings)),
            "root": str(self.root),
            "store": self.store.key,
            "simulated": dataset_info(self.store.name).simulated,
            "partition": self.partition,
            "sensor_size": list(self.store.sensor_size),
            "classes": len(self.classes),
            "train": len(self.members[TRAIN]) + sum(len(one.events) for one in self.extra),
            "first": list(self.settings.first),
            "val": len(self.members[VALIDATION]),
            "test": len(self.members[TEST]),
            "extra": extra,
        }


def with_nothing_held_out(data: DataSettings) -> DataSettings:
    """The settings of the paper protocol: clips that validation would take are trained on.

    An official validation split stays apart.
    """
    official = dataset_info(data.dataset).official_validation and not data.folds
    return data if official else replace(data, validation=False)


def open_data(data: DataSettings) -> TrainingData:
    """The dataset of these settings, split as they say; no recording is read yet."""
    root = root_of(data)
    _check_prepared(data.dataset, root)
    if data.folds:
        store = open_store(root / STORE, data.dataset, data.store)
        partition = store.partitions[0] if data.partition is None else data.partition
        members = folds_of(store, partition, data.folds, data.fold)
    elif data.fold:
        raise ConfigError.expected("data.fold", "0 without data.folds", data.fold)
    elif data.prepare and (whole := _unsplit(data, root)) is not None:
        store, partition = whole, UNSPLIT
        members = {split: np.arange(len(store) if split == TRAIN else 0) for split in SPLITS}
    else:
        train = load_dataset(data.dataset, root, TRAIN, partition=data.partition, store_key=data.store)
        store, partition = train.store, train.partition
        members = {split: store.members(partition, split) for split in SPLITS}
    if not data.validation:
        members[TRAIN] = np.sort(np.concatenate((members[TRAIN], members[VALIDATION])))
        members[VALIDATION] = members[VALIDATION][:0]
    for split in (TRAIN, TEST):  # fail now rather than after training
        if not len(members[split]) and not (split == TEST and data.prepare):
            raise DataError.expected(split, f"clips of {data.dataset} ({partition})", "none", path=store.folder)
    return TrainingData(with_grid(data, store.sensor_size), root, store, partition, members)


def _unsplit(data: DataSettings, root: Path) -> EventStore | None:
    """The store of a dataset without any split; None for one that has a split."""
    store = open_store(root / STORE, data.dataset, data.store)
    asked = store.partitions[0] if data.partition is None else data.partition
    return store if asked == UNSPLIT and UNSPLIT in store.partitions else None


def _sensor(store: EventStore) -> str:
    """The sensor of a dataset, and the part of it that is binned."""
    return format_size(store.whole_size) + (f", cropped to {' '.join(map(str, store.crop))}" if store.crop else "")


def _check_prepared(name: str, root: Path) -> None:
    """Raise where a folder has no such prepared dataset, with the command that makes it."""
    simulated = dataset_info(name).simulated
    try:
        home = root / STORE / name
        there = (home / CURRENT).is_file() or bool(store_keys(home))
    except OSError:
        there = False
    if not there:
        command = f"ripe sim make {name} --out {root}" if simulated else f"ripe data prepare {name} --root {root}"
        command += " --test-share 0.2" * (name == "folder")
        command += " --images PICTURES" * (simulated and PREPARATIONS[name].needs_pictures)
        hint = f"run `{command}` first, or set data.root"
        raise DataError.expected("data.root", f"a prepared {name}", "none", path=root, hint=hint)


def _open_extra(text: str, data: TrainingData) -> ExtraDataset:
    """DATASET=ROOT → its training split, without clips that the run holds out.

    Without validation, its validation split is trained on too. Recordings of the same image or trial have the same
    name in all datasets but a user's own folders.
    """

    name, _, folder = text.partition("=")
    if not name or not folder:
        raise ConfigError.expected("data.extra", "DATASET=ROOT", repr(text))
    root = Path(folder)
    _check_prepared(name, root)
    events = load_dataset(name, root, TRAIN)
    if events.store.key == data.store.key:
        raise ConfigError.expected("data.extra", "another dataset than the run's own", repr(text))
    if sorted(events.classes) != sorted(data.classes):
        only_one = sorted(set(events.classes) ^ set(data.classes))[0]
        wanted = f"the {len(data.classes)} classes of {data.store.name}"
        got = f"{len(events.classes)} of {text!r} ({only_one!r} is in only one of them)"
        raise DataError.expected("data.extra", wanted, got)
    if not data.settings.validation:
        parts = [events.store.members(events.partition, split) for split in (TRAIN, VALIDATION)]
        events = EventDataset(events.store, events.partition, TRAIN, np.sort(np.concatenate(parts)))
    members = events.members
    if "folder" not in (name, data.store.name):
        names = data.store.index.clips.name
        held = {names[member] for split in (VALIDATION, TEST) for member in data.members[split]}
        members = members[[clip not in held for clip in events.names]]
    kept = EventDataset(events.store, events.partition, TRAIN, members)
    renumbered = np.array([data.classes.index(each) for each in events.classes], np.int64)
    return ExtraDataset(root, kept, renumbered[kept.labels], len(events) - len(members))
