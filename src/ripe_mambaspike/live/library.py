"""The recordings there are to watch: a folder's, by numbers given at the start, and those that viewers sent.

A number or a key is looked up in a table; nothing that comes from the network is ever part of a path.
"""

import asyncio
import os
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import InputError, ReadError, RipeError
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.live.engine import PredictionWorker
from ripe_mambaspike.live.limits import ServerLimits
from ripe_mambaspike.live.network import ServedNetwork
from ripe_mambaspike.live.reading import read_in_subprocess
from ripe_mambaspike.live.watched import WatchedRecording

SUFFIXES = (
    ".aedat", ".aedat4", ".bin", ".csv", ".dat", ".h5", ".hdf5", ".npy", ".npz", ".raw", ".tsv", ".txt",
)  # fmt: skip
MAX_NAME_LENGTH = 120
Key = int | str  # a listed recording's number, or an upload's


@dataclass(frozen=True)
class ListedRecording:
    """A recording of the folder."""

    path: Path
    name: str
    size: int


def list_recordings(folder: Path, most: int) -> tuple[list[ListedRecording], int]:
    """The recordings under a folder by name, at most so many, and how many there are in all."""
    try:
        if not folder.is_dir():
            given = "is no folder" if folder.exists() else "is not there"
            raise InputError(f"--recordings is {folder}, which {given}; a folder with recordings is wanted")
        found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        rows = [
            ListedRecording(path, display_name(str(path.relative_to(folder))), path.stat().st_size)
            for path in found[:most]
        ]
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--recordings is {str(folder)!r}, which cannot be listed ({error})") from error
    return rows, len(found)


def display_name(name: str) -> str:
    """A name to show: text without control signs, of a bounded length. It is never used as a path."""
    text = name.encode("utf-8", "replace").decode()
    text = "".join(sign if sign.isprintable() else "�" for sign in text).strip()
    if len(text) > MAX_NAME_LENGTH:
        text = f"{text[: MAX_NAME_LENGTH - 20]}…{text[-19:]}"
    return text or "unnamed"


def safe_suffix(name: str) -> str:
    """The ending that a file of this name gets here: one of the known ones, else a neutral one."""
    ending = os.path.splitext(name)[1].lower()  # noqa: PTH122 (a name, not a path)
    return ending if ending in SUFFIXES else ".recording"


class RecordingLibrary:
    """Opens recordings, keeps those that are watched and a few more, and forgets the rest."""

    def __init__(
        self,
        listed: list[ListedRecording],
        folder: Path,
        network: ServedNetwork,
        engine: PredictionWorker,
        limits: ServerLimits,
    ) -> None:
        self.listed, self.folder, self.limits = listed, folder, limits
        self._network, self._engine = network, engine
        self._tracks: OrderedDict[Key, WatchedRecording] = OrderedDict()  # the one asked for last at the end
        self._opening: dict[Key, asyncio.Task[WatchedRecording]] = {}
        self._readers = asyncio.Semaphore(limits.uploads)

    def describe(self) -> list[dict[str, Any]]:
        return [{"name": one.name, "bytes": one.size} for one in self.listed]

    async def open(self, key: Key) -> WatchedRecording:
        """The track of a number or key, for a viewer, who calls `leave` in the end."""
        if key not in self._tracks:
            if isinstance(key, str):
                raise InputError("that upload is not held any more; upload the recording once more")
            if not 0 <= key < len(self.listed):
                raise InputError(f"there is no recording {key}; one of the {len(self.listed)} listed is wanted")
            await self._load(key, self.listed[key])
        track = self._tracks[key]
        self._tracks.move_to_end(key)
        track.viewers += 1
        return track

    def leave(self, track: WatchedRecording) -> None:
        track.viewers -= 1

    async def take(self, path: Path, name: str) -> tuple[str, WatchedRecording]:
        """An uploaded file as a track, and its key. The file may go once this returns."""
        async with self._readers:
            recording = await self._read_apart(path, name)
        track = await asyncio.to_thread(self._track, recording, name)
        key = secrets.token_urlsafe(18)
        self._hold(key, track)
        return key, track

    async def _load(self, key: int, listed: ListedRecording) -> None:
        """Read a listed recording, once for all who ask at the same time."""
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(self._read(listed))
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        track = await asyncio.shield(task)
        if key not in self._tracks:
            self._hold(key, track)

    async def _read(self, listed: ListedRecording) -> WatchedRecording:
        async with self._readers:
            recording = await self._read_apart(listed.path, listed.name)
        return await asyncio.to_thread(self._track, recording, listed.name)

    async def _read_apart(self, path: Path, name: str) -> Recording:
        return await read_in_subprocess(path, name, self.folder, self.limits, self._network.asked_size)

    def _track(self, recording: Recording, name: str) -> WatchedRecording:
        """A track; an error always names the recording."""
        try:
            return WatchedRecording(self._network.fit(recording), name, self._network.for_recording)
        except RipeError as error:
            raise error if name in str(error) else InputError(f"{name}: {error}") from error

    def _hold(self, key: Key, track: WatchedRecording) -> None:
        """Keep a track, in the place of some that no one watches."""
        for old in [old for old, held in self._tracks.items() if held.viewers <= 0]:
            if self._fits(track):
                break
            self._engine.remove(self._tracks.pop(old))
        if not self._fits(track):
            raise ReadError(
                f"{track.name} does not fit beside the {len(self._tracks)} recordings being watched; try again later"
            )
        self._tracks[key] = track
        self._engine.add(track)

    def _fits(self, track: WatchedRecording) -> bool:
        events = sum(len(held.recording) for held in self._tracks.values()) + len(track.recording)
        return len(self._tracks) < self.limits.held and events <= self.limits.held_events
