"""The measured matrix rate and memory bandwidth of this machine, and its description."""

import datetime
import platform
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.bench.measure import Job, time_jobs
from ripe_mambaspike.commit import commit

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SIDES = {"cpu": (768, 1024, 1536), "cuda": (2048, 4096, 8192)}  # of the square matrices multiplied
COPY_BYTES = {"cpu": 1 << 27, "cuda": 1 << 30}  # larger than any cache
REPEATS = {"cpu": 5, "cuda": 20}


class Product(NamedTuple):
    """A product of two square matrices at the machine's best rate."""

    rate: float  # operations a second
    side: int
    job: Job

    @property
    def operations(self) -> int:
        return 2 * self.side**3


def measure_product(device: torch.device, precision: str, sides: tuple[int, ...] | None = None) -> Product:
    """The best of several sizes, each by its median."""
    found = []
    for side in sides or SIDES[device.type]:
        left, right = (torch.randn(side, side, device=device, dtype=PRECISIONS[precision]) for _ in range(2))
        job: Job = partial(_multiply, left, right, torch.empty_like(left))
        median = time_jobs({"product": job}, device, REPEATS[device.type])["product"].median
        found.append(Product(2e3 * side**3 / median, side, job))
    return max(found, key=lambda product: product.rate)


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    torch.mm(left, right, out=out)


def measure_memory_rate(device: torch.device, size: int | None = None) -> float:
    """Bytes per second over a large array, each read once and written once.

    By a copy or by a multiplication, whichever is faster: a GPU's copy engine need not be the fastest.
    """
    size = size or COPY_BYTES[device.type]
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    jobs: dict[str, Job] = {
        "copy": partial(target.copy_, source),
        "product": partial(torch.mul, source, 2.0, out=target),
    }
    timed = time_jobs(jobs, device, REPEATS[device.type])
    return 2e3 * source.nbytes / min(timing.median for timing in timed.values())


def describe(device: torch.device) -> dict[str, Any]:
    """The machine and versions that belong to every measurement."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {
        "device": device.type,
        "name": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tf32_convolutions": device.type == "cuda" and torch.backends.cudnn.allow_tf32,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
