"""The accumulate-only convolution against the dense one at the network's layer sizes, by firing rate.

Dense is the deployed form: one kernel over the filtered input (float32, channels last), ready in memory. The other is
the dual-kernel form over the spikes: two kernels by additions alone, and the arrangement of their weights. Both are
compared before they are timed, and timed in turns in one run; the fastest of all rounds counts, because others on the
machine only ever add time. The break-even rate is where the two times cross, between two measured rates.
Usage: python benchmarks/sparse_conv.py [--threads 2] [--repeats 30] [--json FILE]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.sparse_conv import accumulate_conv
from ripe_mambaspike.ops.tdm import tdm

RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
STEPS = 16
TOLERANCE = 1e-5  # of the largest output


class Layer(NamedTuple):
    in_channels: int
    channels: int
    size: int
    stride: int = 1

    def __str__(self) -> str:
        return f"{self.in_channels}→{self.channels} at {self.size}²" + (", stride 2" if self.stride == 2 else "")


LAYERS = (Layer(32, 32, 64), Layer(32, 64, 64, 2), Layer(64, 64, 32), Layer(64, 128, 32, 2), Layer(128, 128, 16))


def jobs_of(layer: Layer, rate: float) -> tuple[dict[str, Callable[[], Any]], int]:
    """The two convolutions of the same spikes, checked against each other, and the additions of the one."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, STEPS, layer.size, layer.size, layer.in_channels)
    spikes = (torch.rand(shape, generator=generator) < rate).byte()
    weight = torch.randn(layer.channels, layer.in_channels, 3, 3, generator=generator)
    bias, coefficient = (torch.randn(size, generator=generator) for size in (layer.channels, layer.in_channels))
    now, before = ((weight * factor[:, None, None]).contiguous() for factor in (1 + coefficient, coefficient))
    filtered = tdm(spikes.movedim(-1, 2).float(), coefficient)[0][0].contiguous(memory_format=torch.channels_last)
    weight = weight.contiguous(memory_format=torch.channels_last)

    def dense() -> Tensor:
        return F.conv2d(filtered, weight, bias, layer.stride, 1)

    def sparse() -> tuple[Tensor, int]:
        return accumulate_conv(spikes, now, before, bias, layer.stride)

    out, additions = sparse()
    expected = dense().movedim(1, -1)[None]
    difference = (out - expected).abs().max().item() / expected.abs().max().item()
    if not difference <= TOLERANCE:
        raise SystemExit(f"{layer} at {rate:.1%}: the two differ by {difference:.1e} of the largest: no time is given")
    return {"dense": dense, "sparse": sparse}, additions


def in_turns(jobs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The fastest milliseconds of each job."""
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(repeats):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def break_even(rates: list[float], ratios: list[float]) -> float | None:
    """The rate at which sparse over dense becomes 1; None where it does not between the rates measured."""
    points = list(zip(rates, ratios, strict=True))
    for (low, below), (high, above) in pairwise(points):
        if below <= 1 < above:
            return low + (high - low) * (1 - below) / (above - below)
    return None


@torch.inference_mode()
def measure(threads: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    layers = []
    with kernels("native"):
        for layer in LAYERS:
            rows = []
            for rate in RATES:
                jobs, additions = jobs_of(layer, rate)
                times = in_turns(jobs, repeats)
                rows.append({"rate": rate, "additions": additions, **times, "ratio": times["sparse"] / times["dense"]})
            crossing = break_even([row["rate"] for row in rows], [row["ratio"] for row in rows])
            layers.append({"layer": str(layer), "rows": rows, "break_even": crossing})
    return {
        "job": f"B 1, T {STEPS}, float32; milliseconds, the fastest of {repeats}",
        "machine": platform.processor() or platform.machine(),
        "threads": threads,
        "torch": torch.__version__,
        "layers": layers,
    }


def table(measured: dict[str, Any]) -> str:
    lines = [f"{'layer':<22} {'rate':>6} {'additions':>13} {'dense ms':>9} {'sparse ms':>9} {'ratio':>6}"]
    for layer in measured["layers"]:
        for row in layer["rows"]:
            times = f"{row['dense']:9.2f} {row['sparse']:9.2f} {row['ratio']:6.2f}"
            lines.append(f"{layer['layer']:<22} {row['rate']:6.1%} {row['additions']:13,} {times}")
        found, last = layer["break_even"], layer["rows"][-1]
        where = f"at {found:.1%}" if found else f"{'above' if last['ratio'] <= 1 else 'below'} the rates measured"
        lines.append(f"{layer['layer']:<22} breaks even {where}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    measured = measure(arguments.threads, arguments.repeats)
    print(table(measured))
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
