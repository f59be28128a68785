"""Build a store from any source: shard by shard, in parallel, resumable and deterministic.

Each shard is written atomically, followed by a note of its contents; a later run that finds the note skips the shard.
The store gets its final name, and becomes the dataset's `current` one, when all shards are done.
"""

import errno
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ripe_mambaspike.data.sensors_named import SensorsNote
from ripe_mambaspike.data.store import (
    STORED_EVENT,
    EventStore,
    file_checksum,
    read_store,
    shard_name,
    verify_store,
)
from ripe_mambaspike.data.store_index import COLUMNS, INDEX, LAYOUT_VERSION, index_checksum
from ripe_mambaspike.data.workers import Workers
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import atomic_write, locked, make_folder, sync_folder
from ripe_mambaspike.schema import read_json

UNFINISHED_PATTERN = "*.part"  # folders of stores that are being built, or whose process was killed
NOTE_VERSION = 2  # format version of a shard's note; shards with another version are rebuilt
MAX_UNFINISHED_SECONDS = 7 * 24 * 3600.0  # that an unfinished store is kept, to be resumed
Progress = Callable[[str, int, int], None]  # (what is being done, done, of)


class PlacedClip(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    label: int
    events: int
    start_us: int
    at: int


class ShardNote(msgspec.Struct, frozen=True, kw_only=True):
    """The note of a finished shard; the index is built from all notes."""

    version: int
    clips: list[PlacedClip]
    events: int
    sha256: str
    troubles: list[str] = msgspec.field(default_factory=list)
    unreadable: dict[str, str] = msgspec.field(default_factory=dict)
    left_out: list[str] = msgspec.field(default_factory=list)  # clips of files that could not be read
    outside_crop: int = 0
    sensors: SensorsNote | None = None


@dataclass(frozen=True)
class ShardTask:
    """One shard to build; sent to a worker."""

    number: int
    folder: Path

    @property
    def names(self) -> list[str]:
        """Of its clips, in order."""
        raise NotImplementedError


AnyTask = TypeVar("AnyTask", bound=ShardTask)


@contextmanager
def locked_folder(folder: Path, name: str) -> Iterator[Path]:
    """The folder of a dataset's stores, locked by this process; OSErrors become DataErrors."""
    home = folder / name
    try:
        make_folder(home)
        with locked(home / "lock", f"another one that prepares {home}") as held:
            if held:  # the lock is held, so no other process is writing here
                for stray in (*home.glob(".*"), *home.glob(f"{UNFINISHED_PATTERN}/.*")):  # left by a killed process
                    with suppress(OSError):  # a folder, or a file of the operating system
                        stray.unlink()
            yield home
            if held:
                _remove_unfinished(home)
    except OSError as error:
        raise explain_write_error(error, home) from error


def _remove_unfinished(home: Path) -> None:
    """Remove unfinished stores with other keys that were not resumed for days."""
    for folder in home.glob(UNFINISHED_PATTERN):
        if folder.is_dir() and time.time() - folder.stat().st_mtime > MAX_UNFINISHED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def build_store(
    target: Path,
    run: Workers,
    tasks: Callable[[Path], Sequence[AnyTask]],
    make_shard: Callable[[AnyTask], None],
    describe: Callable[[list[ShardNote]], dict[str, Any]],
    report: Callable[[int, int], None],
) -> EventStore:
    """The store at the target, built unless an intact one exists.

    `tasks` divides the work, given the working folder; `describe` gives the index entries that are not known here.
    """
    building = target.with_name(f"{target.name}.part")
    if not _is_intact(target):
        building.mkdir(exist_ok=True)
        every = tasks(building)
        todo = [task for task in every if read_shard_note(task) is None]
        done = len(every) - len(todo)
        report(done, len(every))
        for _ in run.map(make_shard, todo):
            done += 1
            report(done, len(every))
        _finish(every, describe, building)
        shutil.rmtree(target, ignore_errors=True)  # a damaged one
        building.replace(target)
        sync_folder(target.parent)
    return read_store(target)


def write_shard(task: ShardTask, packed: Sequence[NDArray[np.void]], clips: list[dict[str, Any]], **more: Any) -> None:
    """Write the shard, then its note; the offsets of `clips` are filled in here."""
    shard = task.folder / shard_name(task.number)
    ends = np.cumsum([len(events) for events in packed]).tolist()
    placed = [{**clip, "at": end - len(events)} for clip, events, end in zip(clips, packed, ends, strict=True)]
    try:
        with atomic_write(shard) as file:
            _write_array(file, np.concatenate([np.empty(0, STORED_EVENT), *packed]))
        note = {
            "version": NOTE_VERSION,
            "clips": placed,
            "events": ends[-1] if ends else 0,
            "sha256": file_checksum(shard),
            **more,
        }
        with atomic_write(_note(task)) as file:
            file.write(json.dumps(note).encode())
    except OSError as error:
        raise explain_write_error(error, task.folder) from error


def read_shard_note(task: ShardTask) -> ShardNote | None:
    """The note of a shard, if the shard exists and matches it."""
    shard = task.folder / shard_name(task.number)
    try:
        note = read_json(_note(task), ShardNote)
        wanted = [name for name in task.names if name not in set(note.left_out)]
        whole = note.version == NOTE_VERSION and [clip.name for clip in note.clips] == wanted
        return note if whole and file_checksum(shard) == note.sha256 else None
    except DataError:
        return None


def explain_write_error(error: OSError, folder: Path) -> DataError:
    full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    hint = "free some space and run the same command again, it continues" if full else ""
    path = folder if full else error.filename or folder
    return DataError.expected("store", "a folder that can be written", error, path=path, hint=hint)


def _finish(tasks: Sequence[ShardTask], describe: Callable[[list[ShardNote]], dict[str, Any]], folder: Path) -> None:
    """Write the index from the notes, then remove the notes."""
    notes = [read_shard_note(task) for task in tasks]
    whole = [note for note in notes if note is not None]
    if len(whole) != len(tasks):
        raise DataError.expected("shards", f"{len(tasks)}", len(whole), path=folder, hint="run the same command again")
    placed = [(number, clip) for number, note in enumerate(whole) for clip in note.clips]
    columns = {name: [getattr(clip, name) for _, clip in placed] for name in COLUMNS if name != "shard"}
    index: dict[str, Any] = {
        "layout": LAYOUT_VERSION,
        **describe(whole),
        "clips": {name: columns.get(name) or [number for number, _ in placed] for name in COLUMNS},
        "shards": [{"events": note.events, "sha256": note.sha256} for note in whole],
    }
    index["sha256"] = index_checksum(index)
    with atomic_write(folder / INDEX) as file:
        file.write(json.dumps(index).encode())
    for task in tasks:
        _note(task).unlink(missing_ok=True)
    sync_folder(folder)


def _is_intact(target: Path) -> bool:
    """Whether the store exists and is undamaged."""
    try:
        verify_store(read_store(target))
    except DataError:
        return False
    return True


def _write_array(file: IO[bytes], array: NDArray[np.void]) -> None:
    """Like `np.save`, which does not report why a write to a real file failed."""
    npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
    file.write(array.view(np.uint8).data)


def _note(task: ShardTask) -> Path:
    return task.folder / f"shard-{task.number:05d}.json"
