"""The process of `isolated.py`: `python -m ripe_mambaspike.events.isolated_reader`.

A request is a line of JSON; each reply is the length of a JSON text, the text, and the events that it announces.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

import ripe_mambaspike.events.formats  # noqa: F401  (registers them)
from ripe_mambaspike.errors import ReadError, RipeError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.registry import FORMATS
from ripe_mambaspike.events.source import BLOCK_WORDS, EventSource, ReadOptions, empty_events
from ripe_mambaspike.own_modules import import_own_modules

MAX_MEMORY_BYTES = 3 << 28  # address space on top of what is in use when a file is opened
MAX_SILENT_SECONDS = 5.0  # between two replies while there are events to send
MAX_SECONDS = 8.0  # of CPU time per reply; a whole file gets one more second per megabyte


def run_reader() -> None:
    """Serve requests until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    out = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # packages may print to stdout
    with suppress(BrokenPipeError):
        for line in sys.stdin.buffer:
            serve_request(json.loads(line), out)


def serve_request(request: dict[str, Any], out: IO[bytes]) -> None:
    path = Path(request["path"])
    size = request["sensor_size"]
    try:
        if request["format"] not in FORMATS:
            import_own_modules()
        format_ = FORMATS[request["format"]]
        format_.load_packages()
        limit_memory_growth()
        until = time.process_time() + MAX_SECONDS + path.stat().st_size / 1e6
        limit_cpu_time(until)
        source = format_.open_here(path, ReadOptions(size and (size[0], size[1]), request["time_unit"]))
        if request["read"]:
            _send_events(out, source, until)
        _send_reply(out, source, ended=True)
        return
    except RipeError as error:
        message, field = str(error), error.field
    except OSError as error:
        message, field = f"file: expected a readable one, got {error.strerror or error}", "file"
    except MemoryError:
        message, field = (
            f"file: expected one that needs at most {MAX_MEMORY_BYTES >> 20} MiB, got one that needs more",
            "file",
        )
    except Exception as error:  # damage that the decoder did not expect
        message, field = f"file: expected a whole one, got damage ({type(error).__name__}: {error})", "file"
    _write(out, {"error": str(ReadError(message)), "field": field})


def _send_events(out: IO[bytes], source: EventSource, until: float) -> None:
    """Send events block by block; whatever is pending is sent every few seconds, and before an error."""
    pending: list[Events] = [empty_events()]
    last_sent, count = time.monotonic(), 0
    try:
        for piece in source.pieces():
            pending.append(piece)
            count += len(piece)
            limit_cpu_time(until)
            if count >= BLOCK_WORDS or time.monotonic() - last_sent > MAX_SILENT_SECONDS:
                _send_pending(out, source, pending)
                last_sent, count = time.monotonic(), 0
    finally:
        _send_pending(out, source, pending)


def _send_pending(out: IO[bytes], source: EventSource, pending: list[Events]) -> None:
    events = np.concatenate(pending)
    pending[:] = [empty_events()]
    for at in range(0, max(1, len(events)), BLOCK_WORDS):
        _send_reply(out, source, events[at : at + BLOCK_WORDS])


def _send_reply(out: IO[bytes], source: EventSource, events: Events | None = None, ended: bool = False) -> None:
    reply = {
        "sensor_size": source.sensor_size,
        "metadata": source.metadata,
        "left_out": source.left_out,
        "events": 0 if events is None else len(events),
        "ended": ended,
    }
    _write(out, reply, b"" if events is None else events.tobytes())


def _write(out: IO[bytes], reply: dict[str, Any], data: bytes = b"") -> None:
    text = json.dumps(reply).encode()
    out.write(len(text).to_bytes(4, "little") + text)
    out.write(data)
    out.flush()


def limit_memory_growth(size: int = MAX_MEMORY_BYTES) -> None:
    """Limit the address space of this process to `size` bytes more than it uses now, where the system supports it."""
    try:
        import resource

        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = now + size if hard == resource.RLIM_INFINITY else min(now + size, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_cpu_time(until: float) -> None:
    """Kill this process (by SIGPROF) when it exceeds the CPU time allowed for one reply or for the file."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, max(0.001, min(MAX_SECONDS, until - time.process_time())))


if __name__ == "__main__":
    run_reader()
