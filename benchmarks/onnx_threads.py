"""Time of a pass in ONNX Runtime by its number of threads, with and without busy programs on the same cores.

All sessions are in one process and take turns, so that a change of the machine's load meets all of them. `spin` lets
waiting threads compute in circles, which is ONNX Runtime's default.
Usage: python -m benchmarks.onnx_threads EXPORT [--busy 0 2] [--rounds 20], after ripe export … --to onnx --static
"""

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.threads import busy


def make_session(path: Path, threads: int, spin: bool) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads  # 0: one for each core
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path, help="folder with clip.onnx")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    settings = {
        f"{threads} threads, {'spin' if spin else 'no spin'}": (threads, spin) for threads in (1, 2) for spin in (1, 0)
    }
    sessions = {
        name: make_session(given.export / "clip.onnx", threads, bool(spin))
        for name, (threads, spin) in settings.items()
    }
    (entry,) = next(iter(sessions.values())).get_inputs()
    clip = np.random.default_rng(0).poisson(0.2, entry.shape).astype(np.float32)
    for count in given.busy:
        taken: dict[str, list[float]] = {name: [] for name in sessions}
        with busy(count):
            for _ in range(given.rounds):
                for name, session in sessions.items():
                    began = time.perf_counter()
                    session.run(None, {entry.name: clip})
                    taken[name].append(1000 * (time.perf_counter() - began))
            row = {"busy": count, "load": round(os.getloadavg()[0], 1)}
            print(
                json.dumps({**row, "median_ms": {name: round(median(times)) for name, times in taken.items()}}),
                flush=True,
            )


if __name__ == "__main__":
    main()
