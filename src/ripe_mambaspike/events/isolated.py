"""Run native decoders in a separate process.

A native decoder can abort on a damaged file, allocate any amount of memory or never return, and no `except` helps. The
process has limits on memory and time; if it dies, a `ReadError` is raised here. The process is reused for the next
file, so its start-up time is paid once.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.recording import EVENT, Events
from ripe_mambaspike.events.source import EventSource, ReadOptions

MAX_WAIT_SECONDS = 120  # without a reply; the reader itself has a tighter limit on CPU time
MAX_REPLY_BYTES = 1 << 22  # of one reply, without the events
MAX_EVENTS = 1 << 20  # of one reply
PIPE_BYTES = 1 << 20
ROOT = Path(__file__).parents[2]


class ReaderProcess:
    """The reader process and its pipes."""

    def __init__(self) -> None:
        searched = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            # -P: do not import from the working folder
            [sys.executable, "-P", "-W", "ignore", "-m", "ripe_mambaspike.events.isolated_reader"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, **one_thread, "PYTHONPATH": searched, "RUST_BACKTRACE": "0"},
        )  # fmt: skip
        with suppress(ImportError, AttributeError, OSError):  # a larger pipe buffer, where allowed
            import fcntl

            fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)  # type: ignore[arg-type]

    def send_request(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def read_reply(self) -> tuple[dict[str, Any], Events]:
        """The next reply, and the events that come with it."""
        watch = threading.Timer(MAX_WAIT_SECONDS, self.process.kill)
        watch.daemon = True
        watch.start()
        try:
            length = int.from_bytes(self._read(4), "little")
            reply = json.loads(self._read(min(length, MAX_REPLY_BYTES)))
            events = np.empty(min(reply.get("events", 0), MAX_EVENTS), EVENT)
            if len(events):
                self._read_into(memoryview(events.view(np.uint8)))  # type: ignore[arg-type]
        finally:
            watch.cancel()
        if "error" in reply:
            raise ReadError(reply["error"], field=reply["field"])
        return reply, events

    def _read(self, count: int) -> bytes:
        data = bytearray(count)
        self._read_into(memoryview(data))
        return bytes(data)

    def _read_into(self, view: memoryview) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readinto(view) != len(view):  # type: ignore[attr-defined]
            self.process.kill()
            code = self.process.wait()
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            raise ReadError.expected(
                "file", "data that its decoder can read within bounds of time and memory", f"an end {how}"
            )

    def usable(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self) -> None:
        """End the process, unless a parent of this (forked) process started it."""
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        if self.owner != os.getpid():
            self.process.returncode = 0  # not ours to wait for
            return
        self.process.kill()
        self.process.wait()


_idle: list[ReaderProcess] = []  # at most one; list.pop and list.append are atomic


@contextmanager
def lease_reader() -> Iterator[ReaderProcess]:
    """A process to read one file with. It is reused for the next file unless it failed."""
    try:
        reader = _idle.pop()
    except IndexError:
        reader = None
    if reader is not None and not reader.usable():
        reader.close()
        reader = None
    try:
        reader = reader or ReaderProcess()
    except (OSError, TypeError) as error:
        raise ReadError.expected("process", "a process to read with", str(error)) from error
    kept = False
    try:
        yield reader
        kept = True
    except ReadError:
        kept = True  # the decoder refused the file, but works
        raise
    except OSError as error:
        raise ReadError.expected("process", "a process that reads the file", f"none any more ({error})") from error
    finally:
        if kept and reader.usable() and not _idle:
            _idle.append(reader)
        else:
            reader.close()


def open_isolated(name: str, path: Path, options: ReadOptions) -> EventSource:
    """Open a file of the named format in the reader process, which also decodes its events."""
    request = {
        "format": name,
        "path": os.path.abspath(path),  # noqa: PTH100  (a link stays one)
        "sensor_size": options.sensor_size and [int(side) for side in options.sensor_size],
        "time_unit": options.time_unit,
        "read": False,
    }
    with lease_reader() as process:
        process.send_request(request)
        reply, _ = process.read_reply()

    def read_events(source: EventSource) -> Iterator[Events]:
        with lease_reader() as process:
            process.send_request({**request, "read": True})
            while True:
                reply, events = process.read_reply()
                source.metadata, source.left_out = reply["metadata"], reply["left_out"]
                if reply["ended"]:
                    return
                yield events

    size = reply["sensor_size"]
    return EventSource(name, read_events, size and (size[0], size[1]), reply["metadata"])


@atexit.register
def close_idle() -> None:
    while _idle:
        _idle.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=close_idle)
