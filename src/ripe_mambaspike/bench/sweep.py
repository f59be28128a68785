"""How time grows with the input's pixels and steps, and the scan's with its length."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from ripe_mambaspike.bench.agreement import compare_inference
from ripe_mambaspike.bench.bounds import least_bytes
from ripe_mambaspike.bench.machine import describe
from ripe_mambaspike.bench.measure import time_jobs
from ripe_mambaspike.bench.memory import expect_memory, explain_out_of_memory
from ripe_mambaspike.bench.network import (
    Progress,
    captured,
    check_sizes,
    clips,
    deployed_network,
    quiet,
    repeats_of,
    ripe_config,
)
from ripe_mambaspike.bench.operators import Maker, mamba_case
from ripe_mambaspike.bench.ops import bench_case
from ripe_mambaspike.bench.options import ScanOptions
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.eval_mode import choose_device

MAX_LENGTH = 1 << 20  # tokens
WIDTH = 32  # of the scan alone: that of the first level, which has the longest sequence
MIN_R2 = 0.98


def bench_scan(options: ScanOptions, progress: Progress = quiet) -> dict[str, Any]:
    """The deployed network at every side with its own T, at every T with its own side; and the scan alone."""
    device = choose_device(options.device)
    on_cpu = device.type == "cpu"
    batch = options.batch if options.batch is not None else 1 if on_cpu else 64
    precision = options.precision or ("float32" if on_cpu else "bfloat16")
    repeats = repeats_of(options.repeats, device)
    check_sizes(in_sizes=options.in_size, time_steps=options.time_steps, batches=(batch,), repeats=repeats)
    for option, values in (("--in-size", options.in_size), ("--time-steps", options.time_steps)):
        if len(set(values)) < 3:
            raise ConfigError.expected(option, "at least 3 different values", values)
    if not all(1 <= length <= MAX_LENGTH for length in options.lengths):
        raise ConfigError.expected("--lengths", f"ints from 1 to {MAX_LENGTH}", options.lengths)
    own = ripe_config(options.model, None, None)
    most = own.replace(time_steps=max(*options.time_steps, own.time_steps))
    largest = most.replace(in_size=max(*options.in_size, *own.in_size))
    expect_memory(batch * least_bytes(largest, precision), device, f"batch {batch}")
    progress("fusing the network …")
    model = deployed_network(options.model, most, device)
    by_side = [own.replace(in_size=side) for side in options.in_size]
    by_time = [own.replace(time_steps=steps) for steps in options.time_steps]
    with explain_out_of_memory(device, "the comparison"):
        smallest = min(by_side, key=lambda config: config.in_size)
        agreement = compare_inference(model, clips(smallest, batch, device), precision)
    timer = _Timer(model, batch, precision, device, repeats, progress)
    return {
        "bench": "scan",
        "machine": describe(device),
        "model": options.model,
        "precision": precision,
        "batch": batch,
        "min_r2": MIN_R2,
        "agreement": agreement.to_dict(),
        "summary": agreement.sentence,
        "in_size": timer.sweep(by_side),
        "time_steps": timer.sweep(by_time),
        "scan": {"width": WIDTH, "rows": [timer.scan(length) for length in options.lengths]},
    }


class _Timer(NamedTuple):
    """Times the points of a sweep."""

    model: RipeMambaSpike
    batch: int
    precision: str
    device: torch.device
    repeats: int
    progress: Progress

    def sweep(self, configs: Sequence[RipeConfig]) -> dict[str, Any]:
        rows = []
        for config in configs:
            (height, width), steps = config.in_size, config.time_steps
            self.progress(f"side {height}, T {steps} …")
            x = clips(config, self.batch, self.device)
            with explain_out_of_memory(self.device, f"side {height}, T {steps}"):
                run, x = captured(self.model, x, self.precision)
                times = time_jobs({"captured": partial(run, x)}, self.device, self.repeats)["captured"]
            size = height * width * steps
            rows.append({"side": height, "time_steps": steps, "pixels_times_steps": size, **times.to_dict()})
        fitted = fit_line([row["pixels_times_steps"] for row in rows], [row["median_ms"] for row in rows])
        return {**fitted, "rows": rows}

    def scan(self, length: int) -> dict[str, Any]:
        self.progress(f"scan of {length} tokens …")
        case = mamba_case(Maker(self.device, self.precision), "scan", self.batch, length, WIDTH)
        with explain_out_of_memory(self.device, f"a scan of {length} tokens"):
            return {"length": length, **bench_case(case, case, self.device, self.precision, self.repeats)}


def fit_line(sizes: Sequence[float], times: Sequence[float]) -> dict[str, float]:
    """Least squares of time against size: intercept (ms), slope (ms per million pixels·steps), R²."""
    x, y = np.asarray(sizes, float) / 1e6, np.asarray(times, float)
    slope, intercept = np.polyfit(x, y, 1)
    left, all_ = ((y - slope * x - intercept) ** 2).sum(), ((y - y.mean()) ** 2).sum()
    r2 = 1 - left / all_ if all_ > 0 else 0.0
    return {"intercept_ms": round(float(intercept), 5), "ms_per_million": round(float(slope), 5), "r2": float(r2)}
