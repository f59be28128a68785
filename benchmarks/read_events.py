"""Decoding and binning on one core, against copying the same events; and the memory of reading 1 GB in pieces.

Files of four million random events are written, decoded and compared before anything is timed; the jobs take turns in
one run. Usage: python benchmarks/read_events.py [--events 4000000] [--repeats 9] [--memory]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_RATE = {"atis": 80, "evt2": 30, "dat": 30, "aedat2": 30, "evt3": 30, "evt3 vectors": 10}
MIN_BINNING_RATE = 50
MAX_MEGABYTES = 300
GIGABYTE = 1 << 30
CHILD = """
import json, resource, sys
from ripe_mambaspike.events import read_chunks
count = sum(len(chunk) for chunk in read_chunks(sys.argv[1], events=1_000_000))
assert "torch" not in sys.modules
print(json.dumps([count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def one_core() -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def make_recording(count: int) -> Any:
    from ripe_mambaspike.events import Recording, make_events

    random = np.random.default_rng(0)
    columns = (random.integers(0, 128, count), random.integers(0, 128, count))
    times = np.sort(random.integers(0, 6_000_000, count))
    return Recording(make_events(*columns, times, random.integers(0, 2, count)), (128, 128))


def write_files(recording: Any, folder: Path) -> dict[str, Path]:
    """One file a format; the two that the package does not write are written here."""
    from ripe_mambaspike.events import write

    files = {name: write(recording, folder / f"a{end}") for name, end in
             (("atis", ".bin"), ("aedat2", ".aedat"), ("evt3", ".raw"), ("npz", ".npz"), ("npy", ".npy"))}  # fmt: skip
    x, y, t, p = (recording[name].astype(np.uint32) for name in "xytp")
    highs = np.unique(t >> 6)
    words = np.concatenate([highs | 8 << 28, p << 28 | (t & 63) << 22 | x << 11 | y]).astype("<u4")
    order = np.argsort(np.concatenate([2 * highs.astype(np.int64), 2 * (t >> 6).astype(np.int64) + 1]), kind="stable")
    files["evt2"] = folder / "b.raw"
    files["evt2"].write_bytes(b"% evt 2.0\n% geometry 128x128\n" + words[order].tobytes())
    pairs = np.stack([t, p << 28 | y << 14 | x], 1).astype("<u4")
    files["dat"] = folder / "c.dat"
    files["dat"].write_bytes(b"% Data file containing CD events.\n% Version 2\n\x00\x08" + pairs.tobytes())
    return files


def write_vectors(folder: Path, count: int) -> Path:
    """EVT 3.0 as a busy camera sends it: rows of vectors, about four events each."""
    random = np.random.default_rng(1)
    rows = count // 16
    low = np.arange(rows) // 4
    block = np.empty((rows, 8), np.uint16)
    block[:, 0] = 8 << 12 | low >> 12 & 0xFFF
    block[:, 1] = 6 << 12 | low & 0xFFF
    block[:, 2] = random.integers(0, 720, rows)
    block[:, 3] = 3 << 12 | random.integers(0, 2, rows) << 11 | random.integers(0, 1200, rows)
    block[:, 4:8] = 4 << 12 | random.integers(0, 1 << 12, (rows, 4)) & random.integers(0, 1 << 12, (rows, 4)) | 1 << 5
    path = folder / "v.raw"
    path.write_bytes(b"% evt 3.0\n% geometry 1280x720\n" + block.astype("<u2").tobytes())
    return path


def best(jobs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The shortest time of each job in seconds, run in turns after a warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in times.items()}


def measure(count: int, repeats: int, folder: Path) -> dict[str, Any]:
    import torch

    from ripe_mambaspike.events import bin_events, read

    torch.set_num_threads(1)
    recording = make_recording(count)
    files = write_files(recording, folder)
    for name, path in files.items():
        if not np.array_equal(read(path).events, recording.events):
            raise SystemExit(f"{name} does not decode to the events written; not timed")
    files["evt3 vectors"] = write_vectors(folder, count)
    sizes = {name: len(read(path)) for name, path in files.items()}
    binnings: dict[str, dict[str, Any]] = {
        "time, 16 steps, 128²": {"time_steps": 16},
        "count, 10 steps, 128²": {"time_steps": 10, "by": "count"},
        "time, 10 steps, to 48²": {"time_steps": 10, "grid": 48},
        "windows of 100 ms": {"by": "window", "window_us": 100_000},
    }
    for name, options in binnings.items():
        if bin_events(recording, **options).sum() != count:
            raise SystemExit(f"binning by {name} loses events; not timed")

    def copy(events: NDArray[np.void] = recording.events) -> NDArray[np.void]:
        return events.copy()

    jobs: dict[str, Callable[[], object]] = {"copy": copy}
    jobs |= {name: partial(read, path) for name, path in files.items()}
    jobs |= {name: partial(bin_events, recording, **options) for name, options in binnings.items()}
    seconds = best(jobs, repeats)
    sizes |= dict.fromkeys(["copy", *binnings], count)
    per_event = {name: 1e9 * seconds[name] / sizes[name] for name in jobs}
    return {
        "events": count,
        "million_events_per_second": {name: round(1e3 / per_event[name], 1) for name in jobs},
        "times_a_copy": {name: round(per_event[name] / per_event["copy"], 2) for name in jobs},
        "wanted": {**MIN_RATE, **dict.fromkeys(binnings, MIN_BINNING_RATE)},
    }


def measure_memory(folder: Path) -> dict[str, Any]:
    """Peak resident megabytes of a process that reads a gigabyte in pieces of a million events."""
    from ripe_mambaspike.events import write

    recording = make_recording(1_000_000)
    peaks = {}
    for name, end, header in (("atis", ".bin", 0), ("evt3", ".raw", 78), ("aedat2", ".aedat", None)):
        path = write(recording, folder / f"m{end}")
        data = path.read_bytes()
        start = (
            data.index(b"#End Of ASCII Header\r\n") + 22
            if header is None
            else data.index(b"% end\n") + 6
            if header
            else 0
        )
        with path.open("ab") as file:
            while file.tell() < GIGABYTE:
                file.write(data[start:])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(path)], check=True, capture_output=True, text=True, env=environment
        )
        count, megabytes = json.loads(done.stdout)
        peaks[name] = {"bytes": path.stat().st_size, "events": count, "peak_megabytes": round(megabytes)}
        path.unlink()
    return {"memory": peaks, "wanted_megabytes": MAX_MEGABYTES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--memory", action="store_true")
    arguments = parser.parse_args()
    one_core()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.memory:
            measured = measure_memory(Path(folder))
            short = [name for name, peak in measured["memory"].items() if peak["peak_megabytes"] > MAX_MEGABYTES]
        else:
            measured = measure(arguments.events, arguments.repeats, Path(folder))
            rates = measured["million_events_per_second"]
            short = [name for name, wanted in measured["wanted"].items() if rates[name] < wanted]
    print(json.dumps(measured, indent=2, ensure_ascii=False))
    if short:
        raise SystemExit(f"below the target: {', '.join(short)}")


if __name__ == "__main__":
    main()
