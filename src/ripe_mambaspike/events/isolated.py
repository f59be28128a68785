"""Reading with a package written in another language, in a process of its own.

Such a decoder can abort on a damaged file, ask for any amount of memory or never come back, and no `except` helps. The
process it runs in has bounds on memory and on time; what it does to itself is a `ReadError` here. One process reads
file after file, so that the time to start it is paid once.
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

MAX_WAIT_SECONDS = 120  # seconds without an answer; the time that it computes is bounded there, and tighter
MAX_REPLY_BYTES = 1 << 22  # bytes of one answer, without the events
MAX_EVENTS = 1 << 20  # of one answer
PIPE_BYTES = 1 << 20
ROOT = Path(__file__).parents[2]


class ReaderProcess:
    """The process, and the pipes to it."""

    def __init__(self) -> None:
        searched = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            # -P: what lies in the working folder is not imported
            [sys.executable, "-P", "-W", "ignore", "-m", "ripe_mambaspike.events.isolated_reader"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, **one_thread, "PYTHONPATH": searched, "RUST_BACKTRACE": "0"},
        )  # fmt: skip
        with suppress(ImportError, AttributeError, OSError):  # a block of events in one go, where that is allowed
            import fcntl

            fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)  # type: ignore[arg-type]

    def send_request(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def read_reply(self) -> tuple[dict[str, Any], Events]:
        """What it says next, and the events that come with it."""
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
        """End it; one that another process started, before this one was forked from it, is left alone."""
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
    """A process to read one file with. It is kept for the next file, unless this one did not end well."""
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
        kept = True  # the decoder refused the file, in order
        raise
    except OSError as error:
        raise ReadError.expected("process", "a process that reads the file", f"none any more ({error})") from error
    finally:
        if kept and reader.usable() and not _idle:
            _idle.append(reader)
        else:
            reader.close()


def open_isolated(name: str, path: Path, options: ReadOptions) -> EventSource:
    """Open a file by the format of that name, in the other process; its events are decoded there too."""
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
