"""One deployed sample on the CPU, against its convolutions and matrix products alone.

The products are recorded from a real pass, then replayed with the same operands; both are timed in turns in one run,
so that a noisy machine disturbs them alike. With --keep-memory freed memory is kept for the next tensor, as the
command line does. Usage: python benchmarks/cpu_sample.py [--threads 2] [--repeats 15] [--keep-memory]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.models.probe import probe_events
from ripe_mambaspike.nn.calibrate import recalibrate
from ripe_mambaspike.ops.memory import keep_freed_memory

PRODUCTS = {f"aten::{name}" for name in ("conv2d", "convolution", "linear", "matmul", "mm", "bmm", "addmm")}


class Recorder(TorchDispatchMode):
    """Keeps every convolution and matrix product of a pass, with its operands."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name in PRODUCTS:
            self.calls.append((func, args, kwargs))
        return func(*args, **kwargs)

    def replay(self) -> None:
        for func, args, kwargs in self.calls:
            func(*args, **kwargs)


def in_turns(jobs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each job, after two warm-up rounds."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for round_ in range(repeats + 2):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if round_ > 1:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


@torch.inference_mode()
def measure(threads: int, repeats: int, keep_memory: bool) -> dict[str, Any]:
    torch.set_num_threads(threads)
    kept = keep_memory and keep_freed_memory()
    training = create_model("dvsgesture", seed=0)
    recalibrate(training, [probe_events(16, 64, 64, samples=2, seed=1)])
    model = fuse(training)
    clip = probe_events(16, 128, 128)
    if not torch.equal(model(clip), training.eval()(clip)):
        raise SystemExit("the deployed network does not agree with the one it was fused from: no time is given")
    front = model.front_end(clip)
    with Recorder() as recorder:
        model(clip)
    jobs: dict[str, Callable[[], object]] = {
        "sample": lambda: model(clip),
        "products": recorder.replay,
        "front_end": lambda: model.front_end(clip),
        "classify": lambda: model.classify(front.features, front.attention),
    }
    milliseconds = in_turns(jobs, repeats)
    return {
        "job": "dvsgesture, deployed, T 16, 128×128, batch 1, float32",
        "machine": platform.processor() or platform.machine(),
        "threads": threads,
        "torch": torch.__version__,
        "freed_memory_kept": kept,
        "products_recorded": len(recorder.calls),
        "milliseconds": {name: round(value, 1) for name, value in milliseconds.items()},
        "ratio": round(milliseconds["sample"] / milliseconds["products"], 2),
        "wanted_ratio": 4.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--keep-memory", action="store_true")
    arguments = parser.parse_args()
    measured = measure(arguments.threads, arguments.repeats, arguments.keep_memory)
    print(json.dumps(measured, indent=2, ensure_ascii=False))
    if measured["ratio"] > measured["wanted_ratio"]:
        raise SystemExit("the ratio is above the wanted one")


if __name__ == "__main__":
    main()
