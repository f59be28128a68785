"""How much slower is plain `model(x)` than the captured network? Both in one run; the ratio is what counts.

    python benchmarks/plain_call.py [--model dvsgesture] [--batch 1] [--form deployed] [--repeats 30]

On a GPU the captured network is one CUDA graph; `model(x)` then shows the cost of launching from Python.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import tyro

from ripe_mambaspike.inference.capture import capture
from ripe_mambaspike.models.registry import create_model
from ripe_mambaspike.models.synthetic import synthetic_clip


@dataclass(frozen=True)
class Arguments:
    model: str = "dvsgesture"
    batch: int = 1
    form: Literal["training", "deployed"] = "deployed"
    repeats: int = 30


def seconds(call: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


@torch.no_grad()
def main(given: Arguments) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = create_model(given.model, seed=0, form=given.form).eval().to(device)
    config = model.config
    x = synthetic_clip(config.time_steps, *config.in_size, samples=given.batch).to(device)
    captured = capture(model, x)
    calls = (lambda: model(x), lambda: captured(x))
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(given.repeats + 4):
        for which in (0, 1) if repeat % 2 else (1, 0):  # neither always starts with cold caches
            taken = seconds(calls[which], device)
            if repeat >= 4:  # warm-up: compilation, weight preparation and graph capture
                times[which].append(taken)
    first, second = (
        1e3 * statistics.quantiles(one, n=4)[0] for one in times
    )  # the minimum is least affected by other load
    print(f"{given.model}, {given.form}, batch {given.batch}, {device.type}: model(x) {first:.2f} ms, ", end="")
    print(f"captured {second:.2f} ms, ratio {first / second:.3f}")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
