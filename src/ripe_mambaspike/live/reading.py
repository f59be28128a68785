"""Read a recording in a process of its own.

An uploaded file may be crafted to exhaust memory, run forever or crash a native decoder. The reading process has limits
on memory and time and can be killed without harm to the server, which keeps serving frames meanwhile.

The process is `python -m ripe_mambaspike.live.reading FILE OUT ORDER`, with a `ReadOrder` as JSON. It writes the events
to OUT and one line of JSON to standard output: a `ReadReply`.
"""

import asyncio
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from ripe_mambaspike.errors import ReadError, RipeError
from ripe_mambaspike.events.isolated_reader import limit_memory_growth
from ripe_mambaspike.events.reading import open_recording, open_with_default_size
from ripe_mambaspike.events.recording import EVENT, Events, Recording
from ripe_mambaspike.live.limits import ServerLimits
from ripe_mambaspike.own_modules import import_own_modules

MAX_MEMORY_BYTES = 4 << 30  # address space of the reading process, on top of what its modules use
MAX_REPLY_BYTES = 1 << 20


class RecordingTooLargeError(ReadError):
    """A recording that would take more events, memory or time than the server allows."""


class ReadOrder(msgspec.Struct, frozen=True):
    """How the reading process is to read the file."""

    max_events: int
    max_seconds: int
    sensor_size: tuple[int, int] | None = None  # whatever the file says
    default_size: tuple[int, int] | None = None  # of a file of this format without a header
    format: str | None = None


class ReadReply(msgspec.Struct, frozen=True):
    """What the reading process replies: why the recording cannot be read, or what it is."""

    error: str | None = None
    too_large: bool = False  # the error is that of a limit
    sensor_size: tuple[int, int] = (0, 0)
    sensor_size_from: str = ""
    format: str = ""
    warnings: tuple[str, ...] = ()


async def read_in_subprocess(
    path: Path,
    name: str,
    folder: Path,
    limits: ServerLimits,
    sensor_size: tuple[int, int] | None = None,
    *,
    format: str | None = None,
    default_size: tuple[int, int] | None = None,
) -> Recording:
    """The recording at the path, ordered by time; errors call it `name`. `folder` is a private one for the transfer.

    `sensor_size` overrides the size that the file names; `format` names its format, and `default_size` is that of a
    file of this format without a header.
    """
    out = folder / f"{os.urandom(12).hex()}.events"
    order = ReadOrder(limits.events, limits.seconds, sensor_size, default_size, format)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "ripe_mambaspike.live.reading", path, out, msgspec.json.encode(order),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        try:
            reply, _ = await asyncio.wait_for(process.communicate(), limits.reading_seconds)
        except TimeoutError:
            raise RecordingTooLargeError(
                f"{name}: expected a recording that is read within {limits.reading_seconds} s, got a longer one",
                path=name,
            ) from None
        return await asyncio.to_thread(_recording, process.returncode, reply[:MAX_REPLY_BYTES], out, path, name)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        out.unlink(missing_ok=True)


def _recording(code: int | None, reply: bytes, out: Path, path: Path, name: str) -> Recording:
    try:
        found = msgspec.json.decode(reply, type=ReadReply)
    except (msgspec.MsgspecError, ValueError):
        found = None
    if found is not None and found.error is not None:
        kind = RecordingTooLargeError if found.too_large else ReadError
        raise kind(found.error.replace(str(path), name), path=name)
    if code != 0 or found is None:
        raise ReadError(f"{name}: expected a whole recording, got one whose reader ended with {code}", path=name)
    metadata = {"sensor_size_from": found.sensor_size_from}
    return Recording(np.fromfile(out, EVENT), found.sensor_size, found.format, metadata, found.warnings)


def read_bounded(
    path: Path,
    max_events: int,
    max_seconds: int,
    sensor_size: tuple[int, int] | None = None,
    *,
    format: str | None = None,
    default_size: tuple[int, int] | None = None,
) -> Recording:
    """The recording ordered by time, refused as soon as it is known to be larger or longer than allowed."""
    opened = open_with_default_size(
        open_recording, path, sensor_size=sensor_size, default_size=default_size, format=format
    )
    pieces: list[Events] = []
    count = 0
    for piece in opened.pieces():
        pieces.append(piece.copy())
        count += len(piece)
        if count > max_events:
            raise RecordingTooLargeError.expected("events", f"at most {max_events:,}", "more", path=path)
    recording = opened.recording(np.concatenate(pieces)).ordered()
    if recording.duration_us > max_seconds * 1_000_000:
        raise RecordingTooLargeError.expected(
            "duration", f"at most {max_seconds:,} s", f"{recording.duration_us / 1e6:,.0f} s", path=path
        )
    return recording


def run_reading_process(arguments: list[str]) -> int:
    """The reading process."""
    path, out = Path(arguments[0]), Path(arguments[1])
    order = msgspec.json.decode(arguments[2], type=ReadOrder)
    warnings.simplefilter("ignore")  # they are part of the reply
    try:
        import_own_modules()  # which may read the recording's format, and may need more memory than the recording
        limit_memory_growth(MAX_MEMORY_BYTES)
        recording = read_bounded(
            path, order.max_events, order.max_seconds, order.sensor_size,
            format=order.format, default_size=order.default_size,
        )  # fmt: skip
        recording.events.tofile(out)
        size_from = recording.metadata["sensor_size_from"]
        reply = ReadReply(None, False, recording.sensor_size, size_from, recording.format, tuple(recording.warnings))
    except RipeError as error:
        reply = ReadReply(str(error), isinstance(error, RecordingTooLargeError))
    except MemoryError:
        reply = ReadReply(f"{path}: expected a smaller recording, got one that needs too much memory", True)
    except Exception as error:  # damage that the decoder did not expect
        reply = ReadReply(f"{path}: expected a whole recording, got one that cannot be read ({type(error).__name__})")
    print(msgspec.json.encode(reply).decode())
    return 0


if __name__ == "__main__":
    raise SystemExit(run_reading_process(sys.argv[1:]))
