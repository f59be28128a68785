"""Building the event store of a set of files.

The work is divided into shards by the listing alone; `building` makes them into a store.
"""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ripe_mambaspike.data.building import (
    Note,
    Progress,
    build,
    cut_facts,
    describe_listing,
    key_of,
    make_current,
    opened_home,
    write_shard,
)
from ripe_mambaspike.data.listing import Clip, Listing, SourceFile
from ripe_mambaspike.data.store import LONGEST, EventStore, file_checksum, pack
from ripe_mambaspike.data.workers import Workers
from ripe_mambaspike.errors import DataError, InputError
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.region import Crop, check_crop, crop_events
from ripe_mambaspike.events.sensors import likely_size

SHARD_BYTES = 64 << 20  # of source files in a shard, about
SHARD_FILES = 512


@dataclass(frozen=True)
class Task:
    """One shard to be made; goes to a worker."""

    number: int
    root: Path
    folder: Path
    sources: tuple[SourceFile, ...]
    sensor_size: tuple[int, int] | None
    time_unit: str | None
    strict: bool
    crop: Crop | None = None

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
    progress: Progress | None = None,
) -> EventStore:
    """The store of the set in `folder`, built if it is not there yet.

    With more than one worker, a script of yours needs the usual `if __name__ == "__main__":`.
    """
    report = progress or (lambda what, done, of: None)
    with opened_home(folder, listing.name) as home:
        return _prepare(listing, root, home, workers, strict, report)


def _prepare(listing: Listing, root: Path, home: Path, workers: int, strict: bool, report: Progress) -> EventStore:
    with Workers(workers) as run:
        paths = [root / source.path for source in listing.sources]
        groups = [paths[start : start + SHARD_FILES] for start in range(0, len(paths), SHARD_FILES)]
        checksums: list[str] = []
        for result in run.map(fingerprint, groups):
            checksums += result
            report("reading the source", len(checksums), len(paths))
        target = home / make_key(listing, checksums)
        store = build(
            target,
            run,
            lambda building: make_tasks(listing, root, building, strict),
            make_shard,
            partial(_describe, listing, checksums),
            partial(report, "decoding"),
        )
    troubles = store.index["troubles"]
    if strict and troubles:  # of a store that was made, or begun, without
        raise DataError(f"{root / troubles[0]}; recordings without such are wanted with --strict")
    return make_current(target)


def make_key(listing: Listing, checksums: Sequence[str]) -> str:
    """Of all that decides what is stored: the content of the files, the clips, their splits, the settings."""
    facts = {
        "set": listing.name,
        "classes": listing.classes,
        "sensor_size": listing.sensor_size,
        "time_unit": listing.time_unit,
        "sources": [
            [source.path, checksum, [list(asdict(clip).values()) for clip in source.clips]]
            for source, checksum in zip(listing.sources, checksums, strict=True)
        ],
        "cuts": cut_facts(listing),
        "notes": listing.notes,
        **({} if listing.crop is None else {"crop": listing.crop}),
    }
    return key_of(facts)


def fingerprint(paths: Sequence[Path]) -> list[str]:
    return [file_checksum(path) for path in paths]


def make_tasks(listing: Listing, root: Path, folder: Path, strict: bool) -> list[Task]:
    """Shards of about one size, by the files' sizes."""
    groups: list[list[SourceFile]] = []
    room = 0
    for source in listing.sources:
        size = (root / source.path).stat().st_size
        if not groups or size > room or len(groups[-1]) == SHARD_FILES:
            groups.append([])
            room = SHARD_BYTES
        groups[-1].append(source)
        room -= size
    return [
        Task(number, root, folder, tuple(group), listing.sensor_size, listing.time_unit, strict, listing.crop)
        for number, group in enumerate(groups)
    ]


def make_shard(task: Task) -> None:
    """Decode the files of one shard and write it."""
    packed, clips, troubles = [], [], []
    corner, size, outside = (0, 0), task.sensor_size, 0
    for source in task.sources:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = task.root / source.path
            recording = read(path, sensor_size=task.sensor_size, time_unit=task.time_unit, strict=task.strict)
        troubles += [f"{source.path}: {sentence}" for sentence in recording.warnings]
        if recording.metadata["sensor_size_from"] == "the file":
            size = _union(size, recording.sensor_size)
        corner = _union(corner, (int(recording["x"].max()), int(recording["y"].max())))
        ordered = _cropped(recording.ordered(), task.crop, path)
        outside += len(recording) - len(ordered)
        for clip in source.clips:
            part = _cut_out(ordered, clip, path)
            start = part.first_us if clip.start_us is None else clip.start_us
            _check_room(part, start, path)
            packed.append(pack(part.events, start))
            clips.append({"name": clip.name, "label": clip.label, "events": len(part), "start_us": start})
    write_shard(task, packed, clips, corner=corner, size=size, troubles=troubles, outside_crop=outside)


def _cropped(recording: Recording, crop: Crop | None, path: Path) -> Recording:
    """The events inside the crop, counted from its corner."""
    if crop is None:
        return recording
    if recording.metadata["sensor_size_from"] == "the file":
        try:
            check_crop(crop, recording.sensor_size)
        except InputError as error:
            raise DataError(f"{path}: {error}", field="crop", path=path) from error
    kept = replace(recording, events=crop_events(recording.events, crop))
    if not len(kept):
        raise DataError(f"{path}: crop: expected events in {crop}, got none", field="crop", path=path)
    return kept


def _cut_out(ordered: Recording, clip: Clip, path: Path) -> Recording:
    """The clip's events."""
    stop = ordered.last_us + 1 if clip.stop_us is None else clip.stop_us
    part = ordered if clip.start_us is None else ordered.crop(clip.start_us, stop)
    if not len(part):
        span = f"from {clip.start_us} to {clip.stop_us} µs"
        raise DataError(f"{path} has no events {span}, where {clip.name} is said to be")
    return part


def _check_room(part: Recording, start_us: int, path: Path) -> None:
    """The times must fit in 32 bits; y must leave one of 16 for the polarity."""
    if (length := part.last_us - start_us) >= LONGEST:
        raise DataError(f"{path} has a clip of {length / 6e7:.0f} minutes; at most 71 are wanted")
    if (bottom := int(part["y"].max())) >= 1 << 15:
        raise DataError(f"{path} has an event at y = {bottom}; at most 32767 is wanted")


def _describe(listing: Listing, checksums: Sequence[str], notes: list[Note]) -> dict[str, Any]:
    """What the index says of the set, its sensor, its source and what was wrong with it."""
    declared: tuple[int, int] | None = None
    corner = (0, 0)
    for note in notes:
        corner = _union(corner, note["corner"])
        declared = _union(declared, note["size"]) if note["size"] else declared
    # Recordings that say their sensor and recordings that do not may be mixed: the sensor holds them all.
    seen = (corner[0] + 1, corner[1] + 1)
    size = listing.sensor_size or (_union(declared, seen) if declared else likely_size(*corner))
    return {
        **describe_listing(listing),
        "sensor_size": size,
        **_describe_crop(listing, size, sum(note.get("outside_crop", 0) for note in notes)),
        "troubles": [trouble for note in notes for trouble in note["troubles"]],
        "sources": {source.path: checksum for source, checksum in zip(listing.sources, checksums, strict=True)},
    }


def _describe_crop(listing: Listing, size: tuple[int, int], outside: int) -> dict[str, Any]:
    """Of a set that was cropped: what is stored has the crop's size, and the sensor's own is kept beside it."""
    if listing.crop is None:
        return {}
    try:
        crop = check_crop(listing.crop, size)
    except InputError as error:
        raise DataError(f"{error}; --sensor-size says how large the sensor is", field="crop") from error
    note = f"{outside:,} events outside the crop {' '.join(map(str, crop))} of the {size[0]}×{size[1]} sensor left out"
    return {"sensor_size": crop[2:], "whole_size": size, "crop": crop, "notes": (*listing.notes, note)}


def _union(first: Sequence[int] | None, second: Sequence[int]) -> tuple[int, int]:
    return (max(first[0], second[0]), max(first[1], second[1])) if first else (second[0], second[1])
