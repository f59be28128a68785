"""Build the event store of a dataset of files.

Shards depend only on the listing; `building` turns them into a store.
"""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.data.building import Progress, ShardNote, ShardTask, build_store, locked_folder, write_shard
from ripe_mambaspike.data.listing import UNSPLIT, Clip, Listing, SourceFile, without_files
from ripe_mambaspike.data.sensors_named import SensorsNamed, choose_sensor
from ripe_mambaspike.data.store import MAX_CLIP_US, EventStore, file_checksum, make_current, open_store, to_stored
from ripe_mambaspike.data.store_index import describe_listing, describe_partitions, key_of
from ripe_mambaspike.data.workers import Workers
from ripe_mambaspike.errors import ConfigError, DataError, InputError, ReadError
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.region import Crop, check_crop, crop_events

SHARD_BYTES = 64 << 20  # of source files in a shard, about
SHARD_FILES = 512


@dataclass(frozen=True)
class FileShardTask(ShardTask):
    """Files to decode."""

    root: Path
    sources: tuple[SourceFile, ...]
    sensor_size: tuple[int, int] | None
    time_unit: str | None
    strict: bool
    skip_unreadable: bool = False
    crop: Crop | None = None
    format: str | None = None

    @property
    def names(self) -> list[str]:
        return [clip.name for source in self.sources for clip in source.clips]


def prepare(
    listing: Listing,
    root: Path,
    folder: Path,
    *,
    workers: int = 1,
    strict: bool = False,
    skip_unreadable: bool = False,
    unsplit: bool = False,
    progress: Progress | None = None,
) -> EventStore:
    """The store of the dataset in `folder`, built if it does not exist yet; it becomes the current one.

    Stores with other keys are kept. `skip_unreadable` leaves out files that cannot be read; `unsplit` allows a dataset
    without splits to replace one with splits. With more than one worker, a script needs the usual
    `if __name__ == "__main__":`.
    """
    report = progress or (lambda what, done, of: None)
    with locked_folder(folder, listing.name) as home:
        check_split(listing, root, home, unsplit)
        with Workers(workers) as run:
            paths = [root / source.path for source in listing.sources]
            groups = [paths[start : start + SHARD_FILES] for start in range(0, len(paths), SHARD_FILES)]
            checksums: list[str] = []
            for result in run.map(partial(file_checksums, skip=skip_unreadable), groups):
                checksums += result
                report("reading the source", len(checksums), len(paths))
            target = home / make_key(listing, checksums, skip_unreadable)
            store = build_store(
                target,
                run,
                lambda building: plan_file_shards(listing, root, building, strict, skip_unreadable),
                make_file_shard,
                partial(_describe, listing, checksums),
                partial(report, "decoding"),
            )
        if strict and (troubles := store.index.troubles):
            raise DataError.expected("strict", "recordings without warnings", troubles[0], path=root)
        return make_current(target)


def check_split(listing: Listing, root: Path, home: Path, unsplit: bool) -> None:
    """Refuse to replace a dataset that has splits by one without, unless `unsplit`."""
    if list(listing.partitions) != [UNSPLIT]:
        if unsplit:
            raise ConfigError.expected("unsplit", "a dataset without splits", ", ".join(listing.partitions))
        return
    try:
        current = open_store(home.parent, home.name)
    except DataError:  # there is no current store, or it cannot be read
        return
    if not unsplit and current.partitions != (UNSPLIT,):
        raise DataError.expected(
            "test_share",
            f"a split, since the current store {current.key} has one ({', '.join(current.partitions)})",
            "none",
            path=root,
            hint="--test-share SHARE makes one, --unsplit goes on without",
        )


def make_key(listing: Listing, checksums: Sequence[str], skip_unreadable: bool = False) -> str:
    """The key: a hash of everything that determines the store's content (files, clips, splits, settings)."""
    more = {"skip_unreadable": True} if skip_unreadable else {}
    facts = {
        **more,
        "set": listing.name,
        "classes": listing.classes,
        "sensor_size": listing.sensor_size,
        "time_unit": listing.time_unit,
        "sources": [
            [source.path, checksum, [list(asdict(clip).values()) for clip in source.clips]]
            for source, checksum in zip(listing.sources, checksums, strict=True)
        ],
        "cuts": describe_partitions(listing),
        "notes": listing.notes,
        **({} if listing.crop is None else {"crop": listing.crop}),
        **({} if listing.format is None else {"format": listing.format}),
    }
    return key_of(facts)


def file_checksums(paths: Sequence[Path], skip: bool = False) -> list[str]:
    """The checksum of each file; empty for files that cannot be opened, with `skip`."""
    checksums = []
    for path in paths:
        try:
            checksums.append(file_checksum(path))
        except DataError:
            if not skip:
                raise
            checksums.append("")
    return checksums


def plan_file_shards(
    listing: Listing, root: Path, folder: Path, strict: bool, skip: bool = False
) -> list[FileShardTask]:
    """Shards of about the same size, by the sizes of the files."""
    groups: list[list[SourceFile]] = []
    room = 0
    for source in listing.sources:
        size = (root / source.path).stat().st_size
        if not groups or size > room or len(groups[-1]) == SHARD_FILES:
            groups.append([])
            room = SHARD_BYTES
        groups[-1].append(source)
        room -= size
    how = (listing.sensor_size, listing.time_unit, strict, skip, listing.crop, listing.format)
    return [FileShardTask(number, folder, root, tuple(group), *how) for number, group in enumerate(groups)]


def make_file_shard(task: FileShardTask) -> None:
    """Decode the files of one shard and write it."""
    packed: list[NDArray[np.void]] = []
    clips: list[dict[str, Any]] = []
    troubles: list[str] = []
    unreadable: dict[str, str] = {}
    sensors = SensorsNamed()
    outside = 0
    for source in task.sources:
        try:
            recording, parts, left = _read_source(task, source)
        except (ReadError, DataError) as error:
            if not task.skip_unreadable:
                path, hint = task.root / source.path, "--skip-unreadable leaves such files out"
                raise type(error)(f"{error}; {hint}", field=error.field, path=path) from error
            unreadable[source.path] = str(error).replace(f"{task.root / source.path}", source.path)
            continue
        if task.strict and recording.warnings:
            path = task.root / source.path
            raise ReadError.expected("strict", "a recording without warnings", recording.warnings[0], path=path)
        troubles += [f"{source.path}: {sentence}" for sentence in recording.warnings]
        sensors.see(recording, source.path)
        outside += left
        for clip, (part, start) in zip(source.clips, parts, strict=True):
            packed.append(to_stored(part.events, start))
            clips.append({"name": clip.name, "label": clip.label, "events": len(part), "start_us": start})
    left_out = [clip.name for source in task.sources if source.path in unreadable for clip in source.clips]
    facts = {"troubles": troubles, "unreadable": unreadable, "left_out": left_out, "outside_crop": outside}
    write_shard(task, packed, clips, **facts, sensors=sensors.to_dict())


def _read_source(task: FileShardTask, source: SourceFile) -> tuple[Recording, list[tuple[Recording, int]], int]:
    """A file, the events and start time of each of its clips, and the number of events outside the crop."""
    path = task.root / source.path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recording = read(path, sensor_size=task.sensor_size, time_unit=task.time_unit, format=task.format)
    ordered = _cropped(recording.ordered(), task.crop, path)
    parts = []
    for clip in source.clips:
        part = _select_events(ordered, clip, path)
        start = part.first_us if clip.start_us is None else clip.start_us
        _check_limits(part, start, path)
        parts.append((part, start))
    return recording, parts, len(recording) - len(ordered)


def _cropped(recording: Recording, crop: Crop | None, path: Path) -> Recording:
    """The events inside the crop, counted from its corner."""
    if crop is None:
        return recording
    if recording.metadata["sensor_size_from"] == "the file":
        try:
            check_crop(crop, recording.sensor_size)
        except InputError as error:
            raise DataError(str(error), field="crop").in_file(path) from error
    kept = replace(recording, events=crop_events(recording.events, crop))
    if not len(kept):
        raise DataError.expected("crop", f"events in {crop}", "none", path=path)
    return kept


def _select_events(ordered: Recording, clip: Clip, path: Path) -> Recording:
    """The clip's events."""
    stop = ordered.last_us + 1 if clip.stop_us is None else clip.stop_us
    part = ordered if clip.start_us is None else ordered.crop(clip.start_us, stop)
    if not len(part):
        span = f"from {clip.start_us} to {clip.stop_us} µs"
        raise DataError.expected(clip.name, f"events {span}", "none", path=path)
    return part


def _check_limits(part: Recording, start_us: int, path: Path) -> None:
    """Raise unless times fit into 32 bits and y into 15 (the polarity takes the last bit)."""
    if (length := part.last_us - start_us) >= MAX_CLIP_US:
        raise DataError.expected("t", "clips of at most 71 minutes", f"{length / 6e7:.0f} minutes", path=path)
    if (bottom := int(part["y"].max())) >= 1 << 15:
        raise DataError.expected("y", "at most 32767", bottom, path=path)


def _describe(listing: Listing, checksums: Sequence[str], notes: list[ShardNote]) -> dict[str, Any]:
    """The index entries for the dataset, its sensor, its source and its warnings."""
    sensors = SensorsNamed()
    unreadable: dict[str, str] = {}
    for note in notes:
        sensors.add(note.sensors)
        unreadable |= note.unreadable
    settled = choose_sensor(sensors, listing.sensor_size)
    cropped, outside = _describe_crop(listing, settled.size, sum(note.outside_crop for note in notes))
    described = describe_listing(without_files(listing, unreadable))
    return {
        **described,
        "sensor_size": settled.size,
        **cropped,
        "notes": [*described["notes"], *settled.notes, *outside],
        "troubles": [*(trouble for note in notes for trouble in note.troubles), *settled.troubles],
        "sources": {source.path: checksum for source, checksum in zip(listing.sources, checksums, strict=True)},
        **({"unreadable": unreadable} if unreadable else {}),
    }


def _describe_crop(listing: Listing, size: tuple[int, int], outside: int) -> tuple[dict[str, Any], list[str]]:
    """For a cropped dataset: the stored size is the crop's, the sensor's size is kept as well; and a note."""
    if listing.crop is None:
        return {}, []
    try:
        crop = check_crop(listing.crop, size)
    except InputError as error:
        raise DataError(f"{error}; --sensor-size sets the size of the sensor", field="crop") from error
    note = f"{outside:,} events outside the crop {' '.join(map(str, crop))} of the {size[0]}×{size[1]} sensor left out"
    return {"sensor_size": crop[2:], "whole_size": size, "crop": crop}, [note]
