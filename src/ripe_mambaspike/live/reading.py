"""Reading a recording in a process of its own.

A file that a viewer sent may be made to exhaust memory, to run for ever or to crash a decoder in C. The process that
reads it has a bound on each and is given up without the service noticing; and while it decodes, frames go on.
"""

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.recording import EVENT, Recording
from ripe_mambaspike.live.limits import ServerLimits

MAX_MEMORY_BYTES = 4 << 30  # bytes of address space the reading process may have
MAX_REPLY_BYTES = 1 << 20  # bytes it may say


async def read_in_subprocess(
    path: Path, name: str, folder: Path, limits: ServerLimits, sensor_size: tuple[int, int] | None = None
) -> Recording:
    """The recording at the path, in order; an error speaks of it by `name`. `folder` is a private one for the way.

    `sensor_size` is the recording's, whatever the file says.
    """
    made = folder / f"{os.urandom(12).hex()}.events"
    words = [str(path), str(made), str(limits.events), str(limits.seconds), *map(str, sensor_size or ())]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "ripe_mambaspike.live.reader", *words,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        try:
            said, _ = await asyncio.wait_for(process.communicate(), limits.reading_seconds)
        except TimeoutError:
            raise ReadError(
                f"{name} was not read within {limits.reading_seconds} s; a smaller recording is wanted"
            ) from None
        return await asyncio.to_thread(_taken, process.returncode, said[:MAX_REPLY_BYTES], made, path, name)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        made.unlink(missing_ok=True)


def _taken(code: int | None, said: bytes, made: Path, path: Path, name: str) -> Recording:
    try:
        facts = json.loads(said)
    except ValueError:
        facts = None
    if isinstance(facts, dict) and "error" in facts:
        raise ReadError(str(facts["error"]).replace(str(path), name))
    if code != 0 or not isinstance(facts, dict):
        raise ReadError(
            f"{name} cannot be read: the process that read it ended with {code}; a whole recording is wanted"
        )
    events = np.fromfile(made, EVENT)
    width, height = facts["sensor_size"]
    warnings = tuple(str(sentence) for sentence in facts["warnings"])
    metadata = {"sensor_size_from": str(facts["sensor_size_from"])}
    return Recording(events, (int(width), int(height)), str(facts["format"]), metadata, warnings)


def limit_memory(size: int = MAX_MEMORY_BYTES) -> None:
    """Let this process have no more address space than that, where the system knows such bounds."""
    try:
        import resource
    except ImportError:  # not everywhere
        return
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
