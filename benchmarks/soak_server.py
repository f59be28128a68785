"""`ripe serve` for half an hour: eight viewers, and uploads of good and damaged recordings; memory and frames a second.

Everything stays on the loopback address. The service runs in a process of its own; its resident memory, with that of
the processes that read uploads, is sampled, and the frames of every viewer are counted in windows of ten seconds.
Usage: python -m benchmarks.soak_server [CHECKPOINT] [--minutes 30] [--viewers 8] [--json FILE]
"""

import argparse
import asyncio
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.serve import make_checkpoint, make_recordings, start

MIN_FRAME_RATE = 15.0  # frames a second for each viewer
MAX_MEMORY_GROWTH = 1.10  # ratio of the last third's memory to the second third's that still counts as flat
WINDOW_SECONDS = 10.0  # s in which frames are counted
SAMPLE_SECONDS = 2.0  # s between two samples of the memory
UPLOAD_SECONDS = 6.0  # s between two uploads: the service takes 12 a minute
CHANGE_SECONDS = 20.0  # s after which a viewer plays something else
MAX_UPLOADS = 4  # keys kept to be played


@dataclass
class Soak:
    """Measurements of the soak test."""

    address: str
    ends: float
    frames: list[Counter[int]]  # of each viewer, by window
    began: float = field(default_factory=time.monotonic)
    memory: list[tuple[float, int]] = field(default_factory=list)  # s, bytes
    uploads: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    keys: list[str] = field(default_factory=list)

    def running(self) -> bool:
        return time.monotonic() < self.ends


async def view(soak: Soak, number: int, recordings: int) -> None:
    """One viewer that reads everything and switches to another recording from time to time."""
    from websockets.asyncio.client import connect

    draw = random.Random(number)
    async with connect(f"ws://{soak.address}/watch", max_size=None, compression=None) as socket:
        changed = -CHANGE_SECONDS
        while soak.running():
            now = time.monotonic()
            if now - changed >= CHANGE_SECONDS:
                changed = now
                key = draw.choice(soak.keys) if soak.keys and draw.random() < 0.5 else None
                command = {"do": "upload", "value": key} if key else {"do": "play", "value": draw.randrange(recordings)}
                await socket.send(json.dumps(command))
                await socket.send(json.dumps({"do": "attention", "value": draw.random() < 0.5}))
            message = await socket.recv()
            if isinstance(message, bytes):
                soak.frames[number][int((now - soak.began) // WINDOW_SECONDS)] += 1
            elif (reply := json.loads(message))["kind"] == "error":
                soak.errors[reply["message"][:60]] += 1
                changed = -CHANGE_SECONDS  # the upload has been evicted


def damaged(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    """A recording with a fault, and its kind."""
    kind = draw.choice(("cut", "flipped", "noise", "empty"))
    if kind == "cut":
        return kind, data[: draw.randrange(1, len(data))]
    if kind == "flipped":
        changed = bytearray(data)
        for _ in range(20):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        return kind, bytes(changed)
    return kind, draw.randbytes(10_000) if kind == "noise" else b""


def send(address: str, name: str, data: bytes) -> tuple[int, dict[str, Any]]:
    host, port = address.rsplit(":", 1)
    link = http.client.HTTPConnection(host, int(port), timeout=120)
    try:
        link.request("POST", f"/upload?name={quote(name)}", data)
        answer = link.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        link.close()


async def upload(soak: Soak, files: list[Path]) -> None:
    """Good and damaged recordings in turn."""
    draw, turn = random.Random(0), 0
    while soak.running():
        turn += 1
        kind, data = "good", draw.choice(files).read_bytes()
        if turn % 2:
            kind, data = damaged(data, draw)
        status, reply = await asyncio.to_thread(send, soak.address, f"{kind} {turn}.npz", data)
        soak.uploads[f"{kind}: {status}"] += 1
        if status == 200:
            soak.keys = [*soak.keys, reply["upload"]][-MAX_UPLOADS:]
        await asyncio.sleep(UPLOAD_SECONDS)


def resident(pid: int) -> int:
    """Bytes of a process and its children."""
    total = 0
    try:
        total = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(resident(int(child)) for child in (task / "children").read_text().split())
    except (OSError, IndexError):  # the process has ended
        pass
    return total


async def sample(soak: Soak, pid: int) -> None:
    while soak.running():
        soak.memory.append((time.monotonic() - soak.began, resident(pid)))
        await asyncio.sleep(SAMPLE_SECONDS)


async def run(soak: Soak, pid: int, recordings: list[Path]) -> None:
    viewers = (view(soak, number, len(recordings)) for number in range(len(soak.frames)))
    await asyncio.gather(*viewers, upload(soak, recordings), sample(soak, pid))


def thirds(soak: Soak) -> list[float]:
    """Median memory in MiB of each third; the median ignores short-lived reader processes."""
    each = max(1, len(soak.memory) // 3)
    parts = (soak.memory[:each], soak.memory[each : 2 * each], soak.memory[2 * each :])
    return [statistics.median(size for _, size in part or soak.memory) / 2**20 for part in parts]


def summary(soak: Soak, minutes: float) -> dict[str, Any]:
    whole = max(1, int(60 * minutes // WINDOW_SECONDS))
    rates = [[frames[window] / WINDOW_SECONDS for window in range(whole)] for frames in soak.frames]
    memory, least = thirds(soak), min(statistics.mean(rate) for rate in rates)
    return {
        "viewers": len(rates),
        "minutes": minutes,
        "frames a second, each": [round(statistics.mean(rate), 2) for rate in rates],
        "frames a second, worst ten seconds": [round(min(rate), 2) for rate in rates],
        "memory MiB, thirds": [round(part, 1) for part in memory],
        "memory MiB, most": round(max(size for _, size in soak.memory) / 2**20, 1),
        "uploads": dict(sorted(soak.uploads.items())),
        "errors": dict(soak.errors),
        "held": least >= MIN_FRAME_RATE and memory[2] <= MAX_MEMORY_GROWTH * memory[1],
    }


def origin() -> dict[str, Any]:
    """When, of which commit, by which command, on what."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": found.stdout.strip() or None,
        "command": "python -m benchmarks.soak_server " + " ".join(sys.argv[1:]),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(one, 1) for one in os.getloadavg()],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkpoint", nargs="?", type=Path, help="a network; one of 128×128 is made when not given")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--viewers", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write what was seen there, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "recordings").mkdir()
        make_recordings(folder / "recordings", 4, 4.0)
        checkpoint = arguments.checkpoint or make_checkpoint(folder)
        process, address = start(checkpoint, folder / "recordings", os.sched_getaffinity(0))
        try:
            frames: list[Counter[int]] = [Counter() for _ in range(arguments.viewers)]
            soak = Soak(address, time.monotonic() + 60 * arguments.minutes, frames)
            asyncio.run(run(soak, process.pid, sorted((folder / "recordings").iterdir())))
        finally:
            process.terminate()
            process.wait(60)
    seen = summary(soak, arguments.minutes)
    for key, value in seen.items():
        print(f"{key:<36}{value}")
    if arguments.json:
        memory = [[round(at, 1), size] for at, size in soak.memory]
        windows = [dict(sorted(frames.items())) for frames in soak.frames]
        document = {**origin(), **seen, "frames by window": windows, "memory": memory}
        arguments.json.write_text(json.dumps(document) + "\n")
    return 0 if seen["held"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
