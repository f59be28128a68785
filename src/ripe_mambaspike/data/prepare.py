"""Building an event store: in parallel, resumable, the same bytes however often it was interrupted.

The work is divided into shards by the listing alone. Each is written whole or not at all, with a note of what is in it;
a run that finds the note goes on with the next. The store gets its name, and the set its `current`, when all is done.
"""

import errno
import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ripe_mambaspike.data.archives import locked
from ripe_mambaspike.data.listing import Clip, Listing, SourceFile
from ripe_mambaspike.data.store import (
    CURRENT,
    INDEX,
    LAYOUT,
    LETTERS,
    LONGEST,
    EventStore,
    file_checksum,
    index_checksum,
    open_store,
    pack,
    read_store,
    shard_name,
    verify_store,
)
from ripe_mambaspike.data.workers import Workers
from ripe_mambaspike.errors import DataError, RipeError
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.sensors import likely_size
from ripe_mambaspike.files import atomic_write

SHARD_BYTES = 64 << 20  # of source files in a shard, about
SHARD_FILES = 512
COLUMNS = ("name", "label", "shard", "at", "events", "start_us")
Progress = Callable[[str, int, int], None]  # (what is being done, done, of)


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
    home = folder / listing.name
    try:
        home.mkdir(parents=True, exist_ok=True)
        with locked(home / "lock", f"{home} is being prepared by another process; wait for it to end"):
            for stray in (*home.glob(".*"), *home.glob("*.part/.*")):  # what a killed process was writing
                stray.unlink(missing_ok=True)
            return _prepare(listing, root, home, workers, strict, report)
    except OSError as error:
        raise DataError(_explain(error, home)) from error


def _prepare(listing: Listing, root: Path, home: Path, workers: int, strict: bool, report: Progress) -> EventStore:
    with Workers(workers) as run:
        paths = [root / source.path for source in listing.sources]
        groups = [paths[start : start + SHARD_FILES] for start in range(0, len(paths), SHARD_FILES)]
        checksums: list[str] = []
        for result in run.map(fingerprint, groups):
            checksums += result
            report("reading the source", len(checksums), len(paths))
        key = make_key(listing, checksums)
        target, building = home / key, home / f"{key}.part"
        if not _whole(target):
            building.mkdir(exist_ok=True)
            tasks = make_tasks(listing, root, building, strict)
            todo = [task for task in tasks if _finished(task) is None]
            done = len(tasks) - len(todo)
            report("decoding", done, len(tasks))
            for _ in run.map(make_shard, todo):
                done += 1
                report("decoding", done, len(tasks))
            _finish(listing, checksums, tasks, building)
            shutil.rmtree(target, ignore_errors=True)  # a damaged one
            building.replace(target)
    troubles = read_store(target).index["troubles"]
    if strict and troubles:  # of a store that was made, or begun, without
        raise DataError(f"{root / troubles[0]}; recordings without such are wanted with --strict")
    with atomic_write(home / CURRENT) as file:
        file.write(f"{key}\n".encode())
    return open_store(home.parent, listing.name)


def _whole(target: Path) -> bool:
    """Whether the store is there and undamaged."""
    try:
        verify_store(read_store(target))
    except (DataError, KeyError, TypeError, AttributeError):  # the last three of an index that is not one
        return False
    return True


def make_key(listing: Listing, checksums: Sequence[str]) -> str:
    """Of all that decides what is stored: the content of the files, the clips, their splits, the settings."""
    facts = {
        "layout": LAYOUT,
        "set": listing.name,
        "classes": listing.classes,
        "sensor_size": listing.sensor_size,
        "time_unit": listing.time_unit,
        "sources": [
            [source.path, checksum, [list(asdict(clip).values()) for clip in source.clips]]
            for source, checksum in zip(listing.sources, checksums, strict=True)
        ],
        "cuts": {name: [cut.checksum, cut.published] for name, cut in listing.cuts.items()},
        "notes": listing.notes,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


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
        Task(number, root, folder, tuple(group), listing.sensor_size, listing.time_unit, strict)
        for number, group in enumerate(groups)
    ]


def make_shard(task: Task) -> None:
    """Decode the files of one shard and write it, then the note that says it is there."""
    packed, clips, troubles = [], [], []
    corner, size = (0, 0), task.sensor_size
    at = 0
    for source in task.sources:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = task.root / source.path
            recording = read(path, sensor_size=task.sensor_size, time_unit=task.time_unit, strict=task.strict)
        troubles += [f"{source.path}: {sentence}" for sentence in recording.warnings]
        if recording.metadata["sensor_size_from"] == "the file":
            size = _union(size, recording.sensor_size)
        corner = _union(corner, (int(recording["x"].max()), int(recording["y"].max())))
        ordered = recording.ordered()
        for clip in source.clips:
            part = _cut_out(ordered, clip, path)
            start = part.first_us if clip.start_us is None else clip.start_us
            _check_room(part, start, path)
            packed.append(pack(part.events, start))
            clips.append({"name": clip.name, "label": clip.label, "at": at, "events": len(part), "start_us": start})
            at += len(part)
    shard = task.folder / shard_name(task.number)
    try:
        with atomic_write(shard) as file:
            _write_array(file, np.concatenate(packed))
        note = {"clips": clips, "events": at, "sha256": file_checksum(shard), "corner": corner, "size": size}
        with atomic_write(_note(task)) as file:
            file.write(json.dumps({**note, "troubles": troubles}).encode())
    except OSError as error:
        raise DataError(_explain(error, task.folder)) from error


def _write_array(file: IO[bytes], array: NDArray[np.void]) -> None:
    """As `np.save` does, which on a real file hides why a write failed."""
    npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
    file.write(array.view(np.uint8).data)


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


def _note(task: Task) -> Path:
    return task.folder / f"shard-{task.number:05d}.json"


def _finished(task: Task) -> dict[str, Any] | None:
    """The note of a shard that is there and is what the note says."""
    shard = task.folder / shard_name(task.number)
    try:
        note = json.loads(_note(task).read_text())
        names = [clip.name for source in task.sources for clip in source.clips]
        if [clip["name"] for clip in note["clips"]] == names and file_checksum(shard) == note["sha256"]:
            return dict(note)
    except (OSError, ValueError, KeyError, TypeError, RipeError):
        pass
    return None


def _finish(listing: Listing, checksums: Sequence[str], tasks: Sequence[Task], folder: Path) -> None:
    """The index, from the notes; then the notes go."""
    notes = [_finished(task) for task in tasks]
    whole = [note for note in notes if note is not None]
    if len(whole) != len(tasks):
        raise DataError(f"{folder} lost a shard while it was made; run the same command again")
    clips = [{**clip, "shard": number} for number, note in enumerate(whole) for clip in note["clips"]]
    declared: tuple[int, int] | None = None
    corner = (0, 0)
    for note in whole:
        corner = _union(corner, note["corner"])
        declared = _union(declared, note["size"]) if note["size"] else declared
    # Recordings that say their sensor and recordings that do not may be mixed: the sensor holds them all.
    seen = (corner[0] + 1, corner[1] + 1)
    size = listing.sensor_size or (_union(declared, seen) if declared else likely_size(*corner))
    index: dict[str, Any] = {
        "layout": LAYOUT,
        "set": listing.name,
        "classes": listing.classes,
        "sensor_size": size,
        "notes": listing.notes,
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in listing.options.items()},
        "troubles": [trouble for note in whole for trouble in note["troubles"]],
        "cuts": {
            name: {
                "parts": "".join(LETTERS.get(part, "-") for part in cut.parts),
                "checksum": cut.checksum,
                "published": cut.published,
                "sizes": cut.sizes(),
            }
            for name, cut in listing.cuts.items()
        },
        "clips": {name: [clip[name] for clip in clips] for name in COLUMNS},
        "shards": [{"events": note["events"], "sha256": note["sha256"]} for note in whole],
        "sources": {source.path: checksum for source, checksum in zip(listing.sources, checksums, strict=True)},
    }
    index["sha256"] = index_checksum(index)
    with atomic_write(folder / INDEX) as file:
        file.write(json.dumps(index).encode())
    for task in tasks:
        _note(task).unlink(missing_ok=True)


def _union(first: Sequence[int] | None, second: Sequence[int]) -> tuple[int, int]:
    return (max(first[0], second[0]), max(first[1], second[1])) if first else (second[0], second[1])


def _explain(error: OSError, place: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return f"{place} is on a full disk; make room and run the same command again, it goes on where it was"
    return f"{error.filename or place} cannot be used ({error.strerror or error})"
