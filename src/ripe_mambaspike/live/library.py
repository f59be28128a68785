"""The recordings that can be watched: those of a folder, by number, and uploads, by key.

A number or a key is looked up in a table; nothing that a viewer sends ever becomes part of a path.
"""

import asyncio
import os
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import InputError, ReadError, RipeError
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.live.limits import MEGABYTE, ServerLimits
from ripe_mambaspike.live.network import ServedNetwork
from ripe_mambaspike.live.reading import read_in_subprocess
from ripe_mambaspike.live.watched import PredictionWorker, WatchedRecording

SUFFIXES = (
    ".aedat", ".aedat4", ".bin", ".csv", ".dat", ".h5", ".hdf5", ".npy", ".npz", ".raw", ".tsv", ".txt",
)  # fmt: skip
MAX_NAME_LENGTH = 120
RecordingKey = int | str  # the number of a listed recording, or the key of an upload


@dataclass(frozen=True)
class ListedRecording:
    """A recording of the folder."""

    path: Path
    name: str
    size: int


def list_recordings(folder: Path, count: int) -> tuple[list[ListedRecording], int]:
    """The recordings under a folder by name, at most `count`, and how many there are in all."""
    try:
        if not folder.is_dir():
            given = "one that is no folder" if folder.exists() else "one that does not exist"
            raise InputError(f"recordings: expected a folder, got {given}: {folder}", field="recordings", path=folder)
        paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        rows = [
            ListedRecording(path, display_name(str(path.relative_to(folder))), path.stat().st_size)
            for path in paths[:count]
        ]
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError.expected("recordings", "a folder that can be listed", f"{str(folder)!r} ({error})") from error
    return rows, len(paths)


def display_name(name: str) -> str:
    """A name to show: text without control characters, of bounded length. It is never used as a path."""
    text = name.encode("utf-8", "replace").decode()
    text = "".join(character if character.isprintable() else "�" for character in text).strip()
    if len(text) > MAX_NAME_LENGTH:
        text = f"{text[: MAX_NAME_LENGTH - 20]}…{text[-19:]}"
    return text or "unnamed"


def safe_suffix(name: str) -> str:
    """The suffix that an upload of this name gets: a known one, else a neutral one."""
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 (a name, not a path)
    return suffix if suffix in SUFFIXES else ".recording"


class RecordingLibrary:
    """Opens recordings, and keeps those that are watched and some recently used ones."""

    def __init__(
        self,
        listed: list[ListedRecording],
        folder: Path,
        network: ServedNetwork,
        worker: PredictionWorker,
        limits: ServerLimits,
        format: str | None = None,
    ) -> None:
        self.listed, self.folder, self.limits, self.format = listed, folder, limits, format
        self.networks = 0  # how often the network was replaced
        self._network, self._worker = network, worker
        self._open: OrderedDict[RecordingKey, WatchedRecording] = OrderedDict()  # the one used last at the end
        self._opening: dict[RecordingKey, asyncio.Task[WatchedRecording]] = {}
        self._readers = asyncio.Semaphore(limits.uploads)

    def describe(self) -> list[dict[str, Any]]:
        return [{"name": one.name, "bytes": one.size} for one in self.listed]

    def describe_network(self) -> dict[str, Any]:
        """What the page shows about the network; class names come from a file, so they are made safe to show."""
        facts = self._network.describe()
        return {**facts, "name": display_name(str(facts["name"])), "classes": [*map(display_name, facts["classes"])]}

    def replace_network(self, network: ServedNetwork) -> None:
        """Another network for all recordings, which are read again when they are asked for."""
        self._network = network
        self.networks += 1
        for recording in self._open.values():
            self._worker.remove(recording)
        self._open.clear()

    async def open(self, key: RecordingKey) -> WatchedRecording:
        """The recording with this number or key. The viewer calls `release` when done."""
        if key not in self._open:
            if isinstance(key, str):
                raise InputError.expected("upload", "one that is still kept", "another", hint="upload it again")
            if not 0 <= key < len(self.listed):
                raise InputError.expected("recording", f"the number of one of the {len(self.listed)} listed", key)
            await self._open_listed(key, self.listed[key])
        recording = self._open[key]
        self._open.move_to_end(key)
        recording.viewers += 1
        return recording

    def release(self, recording: WatchedRecording) -> None:
        recording.viewers -= 1

    async def add_upload(self, path: Path, name: str) -> tuple[str, WatchedRecording]:
        """Read an uploaded file; its key, and the recording. The file can be deleted afterwards."""
        networks = self.networks
        recording = await self._read(path, name)
        self._check_current(networks)
        key = secrets.token_urlsafe(18)
        self._keep(key, recording)
        return key, recording

    async def _open_listed(self, key: int, listed: ListedRecording) -> None:
        """Read a listed recording, once for all who ask at the same time."""
        networks, task = self.networks, self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(self._read(listed.path, listed.name, self.format))
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        recording = await asyncio.shield(task)
        self._check_current(networks)
        if key not in self._open:
            self._keep(key, recording)

    def _check_current(self, networks: int) -> None:
        if networks != self.networks:
            raise InputError.expected("recording", "the same network to the end", "a new one; choose it again")

    async def _read(self, path: Path, name: str, format: str | None = None) -> WatchedRecording:
        network = self._network
        async with self._readers:
            found = await read_in_subprocess(
                path, name, self.folder, self.limits, network.given_size,
                format=format, default_size=network.classifier.sensor_size,
            )  # fmt: skip
        return await asyncio.to_thread(self._watched, found, name)

    def _watched(self, recording: Recording, name: str) -> WatchedRecording:
        """Prepare a recording for watching; errors name the recording."""
        try:
            return WatchedRecording(self._network.fit(recording), name, self._network.for_recording)
        except RipeError as error:
            raise error if name in str(error) else InputError(f"{name}: {error}", field=error.field) from error

    def _keep(self, key: RecordingKey, recording: WatchedRecording) -> None:
        """Keep a recording, evicting others that nobody watches."""
        for old in [old for old, kept in self._open.items() if kept.viewers <= 0]:
            if self._fits(recording):
                break
            self._worker.remove(self._open.pop(old))
        if not self._fits(recording):
            raise ReadError(
                f"{recording.name}: expected a recording that fits in memory beside the {len(self._open)} being "
                "watched, got a larger one; try again later"
            )
        self._open[key] = recording
        self._worker.add(recording)

    def _fits(self, recording: WatchedRecording) -> bool:
        events = sum(len(kept.recording) for kept in self._open.values()) + len(recording.recording)
        return len(self._open) < self.limits.held and events <= self.limits.held_events


class UploadError(Exception):
    """An upload that is refused: the HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def check_announced_size(length: str | None, max_bytes: int) -> None:
    """Refuse a body whose announced length is too large, or no number, before a byte of it is read."""
    if length is None:
        return
    if not (length.isascii() and length.isdigit()):
        raise UploadError(400, "content-length: expected a number of bytes, got something else")
    if len(length) > 18 or int(length) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> UploadError:
    return UploadError(413, f"upload: expected at most {max_bytes / MEGABYTE:g} MB, got more")


def private_path(folder: Path, name: str) -> Path:
    """Where an upload is written: nothing of its name is used but a known suffix."""
    return folder / f"{os.urandom(12).hex()}{safe_suffix(name)}"


async def receive_upload(body: AsyncIterator[bytes], path: Path, max_bytes: int, seconds: int) -> int:
    """Write a body to the path and return its size. A body that is too large, too slow or empty leaves no file."""
    size = 0
    try:
        async with asyncio.timeout(seconds):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                async for piece in body:
                    size += len(piece)
                    if size > max_bytes:
                        raise _too_large(max_bytes)
                    file.write(piece)
        if not size:
            raise UploadError(400, "upload: expected a recording, got nothing")
    except TimeoutError:
        path.unlink(missing_ok=True)
        raise UploadError(408, f"upload: expected one that arrives within {seconds} s, got a slower one") from None
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UploadError(507, f"upload: it cannot be written here ({error.strerror or error})") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return size
