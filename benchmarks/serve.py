"""`ripe serve` with many viewers on two cores: frames a second that each of them gets, and the latency of predictions.

The server runs in a separate process on two cores, shared with the viewers of this process, which are websockets that
read everything they get. First all viewers watch one recording, then each its own, so that the network has as many
recordings to classify; the table shows its lag. Recordings are simulated gestures at 128×128.
Usage: python benchmarks/serve.py [CHECKPOINT] [--viewers 8] [--seconds 10] [--cores 2]
"""

import argparse
import asyncio
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SIDE = 128
MIN_FRAME_RATE = 10.0  # frames a second for each viewer
HEADER = struct.Struct("<HHIddII")


@dataclass
class ViewerStats:
    """Statistics of one viewer."""

    began: float = 0.0
    ended: float = 0.0
    frames: int = 0
    skipped: int = 0
    longest: float = 0.0  # s between two frames
    bytes: int = 0
    early: int = 0
    latencies: list[float] = field(default_factory=list)  # ms, of final predictions
    behind: list[float] = field(default_factory=list)  # s

    @property
    def rate(self) -> float:
        return self.frames / (self.ended - self.began)


async def watch(address: str, recording: int, seconds: float) -> ViewerStats:
    """One viewer that plays a recording for `seconds`."""
    from websockets.asyncio.client import connect

    seen = ViewerStats()
    async with connect(address, max_size=None, compression=None) as socket:
        await socket.recv()
        await socket.send(json.dumps({"do": "play", "value": recording}))
        while json.loads(await socket.recv())["kind"] != "opened":
            pass
        last = seen.began = time.perf_counter()
        while (now := time.perf_counter()) < seen.began + seconds:
            message = await socket.recv()
            seen.bytes += len(message)
            if isinstance(message, bytes):
                seen.frames += 1
                seen.skipped = HEADER.unpack_from(message)[6]
                seen.longest, last = max(seen.longest, now - last), now
                continue
            reply = json.loads(message)
            for answer in reply.get("predictions", ()):
                if answer["step"] == answer["time_steps"]:
                    seen.latencies.append(answer["ms"])
                else:
                    seen.early += 1
            if reply["kind"] == "status":
                seen.behind.append(reply["lag"])
        seen.ended = now
    return seen


async def watch_all(address: str, recordings: list[int], seconds: float) -> list[ViewerStats]:
    return list(await asyncio.gather(*(watch(address, number, seconds) for number in recordings)))


def make_recordings(folder: Path, count: int, seconds: float) -> int:
    """Simulated gestures, one file each; the events a second of all of them together, on average."""
    import torch

    from ripe_mambaspike.events import Recording, write
    from ripe_mambaspike.events.simulate.gestures import CLASSES, draw_clip, render
    from ripe_mambaspike.events.simulate.pixel import Pixel, simulate_events

    total = 0
    for number in range(count):
        clips = [draw_clip(number % len(CLASSES), number, "train")]

        def scene(times: torch.Tensor, clips: Any = clips) -> torch.Tensor:
            return render(clips, times, (SIDE, SIDE))

        made = simulate_events(scene, Pixel(), (SIDE, SIDE), int(1e6 * seconds), [number], step_us=2000, frames=256)
        write(Recording(made[0], (SIDE, SIDE)), folder / f"gesture-{number}.npz")
        total += len(made[0])
    return round(total / count / seconds)


def make_checkpoint(folder: Path) -> Path:
    """A network at 128×128 with weights drawn so that every stage fires; its predictions mean nothing."""
    from ripe_mambaspike import create_model
    from ripe_mambaspike.deploy.fuse.randomize import randomize

    model = create_model("dvsgesture", seed=0)
    randomize(model, 0)
    return model.save_pretrained(folder / "network")


def start(checkpoint: Path, recordings: Path, cores: set[int]) -> tuple["subprocess.Popen[str]", str]:
    """Start the server on these cores; returns the process and its address."""
    words = [sys.executable, "-m", "ripe_mambaspike", "serve", str(checkpoint), "--port", "0"]
    process = subprocess.Popen(
        [*words, "--recordings", str(recordings)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
        env={**os.environ, "OMP_NUM_THREADS": str(max(1, len(cores) - 1))},
    )
    assert process.stdout is not None
    reply = process.stdout.readline()
    if "http://" not in reply:
        raise SystemExit(f"the server did not start: {reply!r}")
    return process, reply.split("http://")[1].split("/")[0]


def row(name: str, seen: list[ViewerStats]) -> dict[str, Any]:
    latencies = sorted(one for viewer in seen for one in viewer.latencies)
    rates = [viewer.rate for viewer in seen]
    return {
        "case": name,
        "viewers": len(seen),
        "frames a second, least": round(min(rates), 1),
        "frames a second, median": round(statistics.median(rates), 1),
        "longest gap, ms": round(1e3 * max(viewer.longest for viewer in seen)),
        "frames skipped": sum(viewer.skipped for viewer in seen),
        "final predictions": len(latencies),
        "early predictions": sum(viewer.early for viewer in seen),
        "latency p50, ms": round(latencies[len(latencies) // 2], 1) if latencies else None,
        "latency p95, ms": round(latencies[int(0.95 * len(latencies))], 1) if latencies else None,
        "behind at most, s": round(max((one for viewer in seen for one in viewer.behind), default=0), 2),
        "MB/s": round(sum(viewer.bytes for viewer in seen) / 1e6 / (seen[0].ended - seen[0].began), 1),
        "held": min(rates) >= MIN_FRAME_RATE,
    }


def show(rows: list[dict[str, Any]]) -> None:
    names = [name for name in rows[0] if name != "case"]
    width = max(map(len, names))
    print(" " * width, *(f"{one['case']:>24}" for one in rows))
    for name in names:
        print(f"{name:<{width}}", *(f"{one[name]!s:>24}" for one in rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkpoint", nargs="?", type=Path, help="a network; one of 128×128 is made when not given")
    parser.add_argument("--viewers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--length", type=float, default=4.0, help="seconds of a recording")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    arguments = parser.parse_args()
    cores = set(sorted(os.sched_getaffinity(0))[: arguments.cores])
    os.sched_setaffinity(0, cores)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "recordings").mkdir()
        rate = make_recordings(folder / "recordings", arguments.viewers, arguments.length)
        checkpoint = arguments.checkpoint or make_checkpoint(folder)
        cases = {
            "one recording": [0] * arguments.viewers,
            "one each": list(range(arguments.viewers)),
            "one viewer": [0],
        }
        rows = []
        for case, recordings in cases.items():
            process, address = start(checkpoint, folder / "recordings", cores)
            try:
                rows.append(row(case, asyncio.run(watch_all(f"ws://{address}/watch", recordings, arguments.seconds))))
            finally:
                process.terminate()
                process.wait(30)
    print(f"{len(cores)} cores for the service and the viewers, {SIDE}×{SIDE}, {rate:,} events/s a recording")
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(one["held"] for one in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
