"""How the cost grows: with the input's pixels and steps, and the scan's with its length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ripe_mambaspike.bench.agreement import compare_inference
from ripe_mambaspike.bench.bounds import least_bytes
from ripe_mambaspike.bench.machine import describe
from ripe_mambaspike.bench.memory import expect_memory, explain_out_of_memory
from ripe_mambaspike.bench.network import captured, check_sizes, clips, deployed_network, ripe_config
from ripe_mambaspike.bench.operators import Maker, mamba_case
from ripe_mambaspike.bench.ops import bench_case
from ripe_mambaspike.bench.timing import time_jobs
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.ripe import RipeMambaSpike

SIDES = (34, 48, 64, 96, 128, 160, 192, 224)
STEPS = (4, 8, 12, 16, 20, 24, 32)
LENGTHS = (64, 256, 1024, 4096, 16384)
WIDTH = 32  # of the scan alone: the first level's, whose sequence is the longest
WANTED_R2 = 0.98


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    model: str
    batch: int
    precision: str
    sides: Sequence[int]
    steps: Sequence[int]
    lengths: Sequence[int]
    repeats: int


def bench_scan(
    setting: Setting, device: torch.device, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Two sweeps of the deployed network, over sides at its own T and over T at its own side; and the scan alone."""
    check_sizes(sides=setting.sides, steps=setting.steps, batches=(setting.batch,), repeats=setting.repeats)
    for option, values in (("--sides", setting.sides), ("--steps", setting.steps)):
        if len(set(values)) < 3:
            raise ConfigError(f"{option} has {len(set(values))} different values; a line needs at least 3")
    if not all(1 <= length <= 1 << 20 for length in setting.lengths):
        raise ConfigError(f"--lengths is {list(setting.lengths)}; whole numbers from 1 to {1 << 20} are wanted")
    own = ripe_config(setting.model, None, None)
    most = own.replace(time_steps=max(*setting.steps, own.time_steps))
    largest = most.replace(in_size=max(*setting.sides, *own.in_size))
    expect_memory(setting.batch * least_bytes(largest, setting.precision), device, f"batch {setting.batch}")
    progress("fusing the network …")
    model = deployed_network(setting.model, most, device)
    points = {
        "in_size": [own.replace(in_size=side) for side in setting.sides],
        "time_steps": [own.replace(time_steps=steps) for steps in setting.steps],
    }
    with explain_out_of_memory(device, "the comparison"):
        least = min(points["resolution"], key=lambda config: config.in_size)
        agreement = compare_inference(model, clips(least, setting.batch, device), setting.precision)
    sweeps = {name: _sweep(model, configs, setting, device, progress) for name, configs in points.items()}
    scan = [_scan(length, setting, device, progress) for length in setting.lengths]
    return {
        "bench": "scan",
        "machine": describe(device),
        "model": setting.model,
        "precision": setting.precision,
        "batch": setting.batch,
        "wanted_r2": WANTED_R2,
        "agreement": agreement.to_dict(),
        "says": agreement.sentence,
        **sweeps,
        "scan": {"width": WIDTH, "rows": scan},
    }


def _sweep(
    model: RipeMambaSpike,
    configs: Sequence[RipeConfig],
    setting: Setting,
    device: torch.device,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    rows = []
    for config in configs:
        side, steps = config.in_size[0], config.time_steps
        progress(f"side {side}, T {steps} …")
        x = clips(config, setting.batch, device)
        with explain_out_of_memory(device, f"side {side}, T {steps}"):
            run, x = captured(model, x, setting.precision)
            call = partial(run, x)
            times = time_jobs({"captured": call}, device, setting.repeats)["captured"]
        size = side * config.in_size[1] * steps
        rows.append({"side": side, "steps": steps, "pixels_times_steps": size, **times.to_dict()})
    fitted = fit_line([row["pixels_times_steps"] for row in rows], [row["median_ms"] for row in rows])
    return {**fitted, "rows": rows}


def fit_line(sizes: Sequence[float], times: Sequence[float]) -> dict[str, float]:
    """Least squares of time against size: intercept (ms), slope (ms a million pixels and steps), R²."""
    x, y = np.asarray(sizes, float) / 1e6, np.asarray(times, float)
    slope, intercept = np.polyfit(x, y, 1)
    left, all_ = ((y - slope * x - intercept) ** 2).sum(), ((y - y.mean()) ** 2).sum()
    r2 = 1 - left / all_ if all_ > 0 else 0.0
    return {"intercept_ms": round(float(intercept), 5), "ms_per_million": round(float(slope), 5), "r2": float(r2)}


def _scan(length: int, setting: Setting, device: torch.device, progress: Callable[[str], None]) -> dict[str, Any]:
    progress(f"scan of {length} tokens …")
    case = mamba_case(Maker(device, setting.precision), "scan", setting.batch, length, WIDTH)
    with explain_out_of_memory(device, f"a scan of {length} tokens"):
        return {"length": length, **bench_case(case, case, device, setting.precision, setting.repeats)}
