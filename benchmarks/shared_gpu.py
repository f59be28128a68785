"""How many trainings should share one GPU: clips a second, of all processes together, for more and more of them.

    nvidia-cuda-mps-control -d
    python benchmarks/shared_gpu.py --models cifar10dvs spikformer --in-size 34 --time-steps 12 --batch 64 --jobs 1 4 8

Each process has a captured training step on clips that stay on the GPU, so what is measured is the GPU alone, not the
reading of clips. All processes are ready before the first is timed. Prints a JSON line for each network.
"""

import argparse
import json
import subprocess
import sys
import time
from typing import Any, Literal

import torch

SECONDS = 3.0  # of each number of processes
PAUSE = 0.5  # between two of them


def prepare_step(model_name: str, size: int, time_steps: int, batch: int) -> Any:
    """A captured step of the network, ready to be called."""
    from ripe_mambaspike.models.registry import create_model
    from ripe_mambaspike.train.capture import capture_step
    from ripe_mambaspike.train.objective import LossWeights
    from ripe_mambaspike.train.step import StepSettings, make_optimizer

    torch.manual_seed(0)
    model = create_model(model_name, num_classes=10, in_size=(size, size), time_steps=time_steps).cuda().train()
    passes: Literal[1, 2] = 2 if model.has_relaxed_pass else 1
    optimizer = make_optimizer(model, torch.tensor(1e-4, device="cuda"), 0.05)
    x = (torch.rand(batch, time_steps, 2, size, size, device="cuda") < 0.15).float()
    y = torch.nn.functional.one_hot(torch.arange(batch, device="cuda") % 10, 10).float()
    weights = LossWeights(0.5, 5e-3, 1.0, 1e-4, label_smoothing=0.0)
    return capture_step(model, optimizer, x, y, StepSettings(2.0, weights, passes, True, 1.0))


def work(words: list[str]) -> None:
    """A process: say when it is ready, and do steps between the times that standard input names."""
    name, *numbers = words
    size, time_steps, batch = map(int, numbers)
    step = prepare_step(name, size, time_steps, batch)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    counts = []
    for begin, end in json.loads(sys.stdin.readline()):
        time.sleep(max(0.0, begin - time.time()))
        done = 0
        while time.time() < end:
            step()
            torch.cuda.synchronize()
            done += 1
        counts.append(done)
    print(json.dumps(counts), flush=True)


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    sizes = [str(number) for number in (given.in_size, given.time_steps, given.batch)]
    started = time.monotonic()
    command = [sys.executable, __file__, "--work", name, *sizes]
    # the first compiles the kernels, the others find them compiled
    processes = []
    for _ in range(max(given.jobs)):
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        if len(processes) == 1:
            _read(processes[0])
    for process in processes[1:]:
        _read(process)
    ready, served = time.monotonic() - started, is_shared_by_mps()
    start = time.time() + 0.5
    begins = [start + index * (SECONDS + PAUSE) for index in range(len(given.jobs))]
    for number, process in enumerate(processes):
        mine = [(at, at + SECONDS if number < jobs else 0.0) for at, jobs in zip(begins, given.jobs, strict=True)]
        process.stdin.write(json.dumps(mine) + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    counts = [json.loads(_read(process)) for process in processes]
    rates = [sum(one[index] for one in counts) * given.batch / SECONDS for index in range(len(given.jobs))]
    return {
        "model": name,
        "in_size": given.in_size,
        "time_steps": given.time_steps,
        "batch": given.batch,
        "clips_per_second": {jobs: round(rate) for jobs, rate in zip(given.jobs, rates, strict=True)},
        "ready_seconds": round(ready, 1),
        "mps": served,
    }


def is_shared_by_mps() -> bool | None:
    """Whether MPS serves processes, else they take turns; None if that cannot be found out."""
    try:
        done = subprocess.run(
            ["nvidia-cuda-mps-control"], input="get_server_list\n", capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return any(line.strip().isdigit() for line in done.stdout.splitlines())


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a process ended with exit code {process.wait()}")
    return line


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["cifar10dvs"])
    parser.add_argument("--in-size", type=int, default=34)
    parser.add_argument("--time-steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 4, 8])
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a CUDA device, got none")
    for name in given.models:
        print(json.dumps(measure(name, given)), flush=True)


if __name__ == "__main__":
    main()
