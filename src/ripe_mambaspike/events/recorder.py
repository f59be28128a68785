"""Write a recording while its events arrive: to a temporary file, which gets its name when the recording is complete.

Formats that can be written piece by piece go to the disk as they come, so memory does not grow. Others (npz) are kept
on disk as plain records, and encoded at the end.
"""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import EVENT, Events, Recording
from ripe_mambaspike.events.registry import CHUNK_ENCODERS, ChunkEncoder
from ripe_mambaspike.events.writing import check_target
from ripe_mambaspike.files import atomic_write


class EventRecorder:
    """A context: `add` events inside it; at its end the file is there, complete. Without an event none is written.

    An error inside the context also completes the file with all that was added before: a recording cannot be repeated.
    """

    def __init__(self, path: str | Path, sensor_size: tuple[int, int] | None = None) -> None:
        self.path = Path(os.fspath(path))
        self.sensor_size = sensor_size  # needed from the first events on
        self.events = self.written_bytes = 0
        self._encode = check_target(self.path)
        self._encoder: ChunkEncoder | None = None
        self._stack = ExitStack()
        self._file: IO[bytes] | None = None
        self._spool: IO[bytes] | None = None  # of formats that cannot be written piece by piece
        self._length = 0  # bytes that hold all events so far

    def __enter__(self) -> Self:
        return self

    def add(self, events: Events) -> None:
        """Write events. Raises InputError, and adds none, if the format cannot hold them or the disk is full."""
        if not len(events):
            return
        try:
            if self._file is None:
                self._open(events)
            data = (
                np.ascontiguousarray(events, EVENT).tobytes() if self._encoder is None else self._encoder.encode(events)
            )
            target = self._spool or self._file
            assert target is not None
            self._write(target.fileno(), data)
        except OSError as error:
            raise self._unwritable(error) from error
        self.events += len(events)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        try:
            with self._stack:  # an error here removes the temporary file
                if not self.events:
                    raise _NothingRecordedError
                self._finish(self._file)
            self.written_bytes = self.path.stat().st_size
        except _NothingRecordedError:
            return
        except OSError as cause:
            raise self._unwritable(cause) from cause

    def _open(self, events: Events) -> None:
        assert self.sensor_size is not None
        maker = CHUNK_ENCODERS.get(self.path.suffix.lower())
        self._encoder = None if maker is None else maker(self.sensor_size, int(events["t"].min()))
        self._file = self._stack.enter_context(atomic_write(self.path))
        if self._encoder is None:
            self._spool = self._stack.enter_context(tempfile.TemporaryFile(dir=self.path.parent))  # noqa: SIM115

    def _write(self, descriptor: int, data: bytes) -> None:
        """Write everything or, if that fails, nothing: what was written before stays a complete recording."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except BaseException:
            os.ftruncate(descriptor, self._length)
            os.lseek(descriptor, self._length, os.SEEK_SET)
            raise
        self._length += len(data)

    def _finish(self, file: IO[bytes]) -> None:
        if self._spool is not None:
            assert self.sensor_size is not None
            events = np.memmap(self._spool, EVENT, "r")
            file.writelines(self._encode(Recording(events, self.sensor_size)))
        elif self._encoder is not None and (header := self._encoder.new_header()) is not None:
            os.pwrite(file.fileno(), header, 0)

    def _unwritable(self, cause: OSError) -> InputError:
        return InputError.expected("out", "a file that can be written", cause, path=self.path)


class _NothingRecordedError(Exception):
    """Removes the temporary file of a recording without events."""
