"""A training batch on a CUDA device: binning against the CPU's, and every benchmark's augmentation.

Results are compared with the CPU's before anything is timed. Usage: python benchmarks/gpu_batch.py [--batch 32]
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ripe_mambaspike.bench.measure import time_jobs
from ripe_mambaspike.data.augment import BENCHMARKS, augment_clips, augmentation_for, batch_generator, mix
from ripe_mambaspike.events.binning import bin_batch
from ripe_mambaspike.events.recording import Recording, make_events

SHAPES = {"dvsgesture": (16, 128, 11), "cifar10dvs": (10, 128, 10), "ncaltech101": (10, 128, 101)}
SHAPES |= {"nmnist": (10, 34, 10), "dailydvs200": (10, 224, 200)}


def make_recordings(count: int, events: int, side: int) -> list[Recording]:
    random = np.random.default_rng(0)
    made = []
    for _ in range(count):
        x, y = random.integers(0, side, (2, events))
        times = np.sort(random.integers(0, 6_000_000, events))
        made.append(Recording(make_events(x, y, times, random.integers(0, 2, events)), (side, side)))
    return made


def milliseconds(job: Callable[[], object], device: str = "cuda", repeats: int = 20) -> float:
    """The median time of `repeats` calls."""
    return round(time_jobs({"job": job}, torch.device(device), repeats)["job"].median, 3)


def measure_binning(batch: int, events: int) -> dict[str, Any]:
    recordings = make_recordings(batch, events, 128)
    for grid in (128, 48):
        if not torch.equal(
            bin_batch(recordings, 16, grid=grid, device="cuda").cpu(), bin_batch(recordings, 16, grid=grid)
        ):
            raise SystemExit("binning on the device differs from the CPU: no time is given")
    gpu = milliseconds(lambda: bin_batch(recordings, 16, device="cuda"))
    cpu = milliseconds(lambda: bin_batch(recordings, 16), "cpu", 3)
    rate = batch * events / gpu / 1e3
    return {"events": batch * events, "gpu_ms": gpu, "cpu_ms": cpu, "gpu_million_events_per_second": round(rate)}


def measure_augmentation(batch: int) -> dict[str, Any]:
    measured = {}
    for name in BENCHMARKS:
        steps, side, classes = SHAPES[name]
        settings = augmentation_for(name)
        clips = torch.poisson(torch.full((batch, steps, 2, side, side), 0.3))
        labels = torch.arange(batch) % classes
        on_device, labels_there = clips.cuda(), labels.cuda()
        expected = augment_clips(clips, settings, batch_generator(0, 0, 0))
        if not torch.equal(augment_clips(on_device, settings, batch_generator(0, 0, 0)).cpu(), expected):
            raise SystemExit(f"{name}: augmentation on the device differs from the CPU: no time is given")

        def whole(settings: Any = settings, x: Any = on_device, y: Any = labels_there, n: int = classes) -> object:
            draws = batch_generator(0, 0, 1)
            return mix(augment_clips(x, settings, draws), y, settings, draws, n)

        measured[name] = {"shape": [batch, steps, 2, side, side], "gpu_ms": milliseconds(whole)}
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--events", type=int, default=300_000)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("device: expected CUDA, got none")
    measured = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "binning, 16 steps, 128²": measure_binning(arguments.batch, arguments.events),
        "augmentation and mixing": measure_augmentation(arguments.batch),
    }
    print(json.dumps(measured, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
