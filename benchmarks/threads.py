"""Training steps a second beside busy programs, by how OpenMP's threads wait for each other.

Each row is a process of its own (the OpenMP library reads its settings when it is loaded) that trains the network of
the recipe `quickstart` on random clips, while so many other processes compute without end on the same cores.
Usage: python benchmarks/threads.py [--threads 2] [--busy 0 6] [--seconds 6] [--waits spin 1000 …] [--rounds 1] [--pin]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

BATCH, STEPS, SIDE = 8, 12, 32
WAITS = ("spin", "100000", "10000", "1000", "passive")
SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def environment(wait: str) -> dict[str, str]:
    """`spin` is the library's default, a number the iterations before a thread sleeps, `passive` sleeps at once."""
    base = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    if wait == "passive":
        return {**base, "OMP_WAIT_POLICY": "passive"}
    return base if wait == "spin" else {**base, "GOMP_SPINCOUNT": wait}


def measure(threads: int, seconds: float, pinned: bool) -> float:
    """Clips a second of training in this process; `pinned` to one core once the libraries have counted all of them."""
    import torch

    from ripe_mambaspike import create_model
    from ripe_mambaspike.ops.memory import keep_freed_memory
    from ripe_mambaspike.train.step import StepSettings, make_optimizer, training_step

    keep_freed_memory()
    torch.set_num_threads(threads)
    if pinned:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # threads that are made from here on inherit it
    torch.manual_seed(0)
    model = create_model("dvsgesture", num_classes=11, time_steps=STEPS, in_size=(SIDE, SIDE), neurons=["lif"] * 3)
    model.train()
    optimizer = make_optimizer(model, 1e-3, 0.05)
    clips = torch.poisson(torch.full((BATCH, STEPS, 2, SIDE, SIDE), 0.2))
    targets = torch.nn.functional.one_hot(torch.arange(BATCH) % 11, 11).float()
    settings = StepSettings(passes=1)
    training_step(model, optimizer, clips, targets, settings)
    began, count = time.perf_counter(), 0
    while count < 1 or time.perf_counter() - began < seconds:
        training_step(model, optimizer, clips, targets, settings)
        count += BATCH
    return count / (time.perf_counter() - began)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Start `count` processes that compute forever."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def child(threads: int, seconds: float, wait: str, pinned: bool) -> float:
    words = [sys.executable, __file__, "--child", "--threads", str(threads), "--seconds", str(seconds)]
    words += ["--pin"] * pinned
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment(wait))
    return float(done.stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 6])
    parser.add_argument("--waits", nargs="+", default=list(WAITS))
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--pin", action="store_true", help="all threads on one core")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        print(measure(given.threads[0], given.seconds, given.pin))
        return
    cores = 1 if given.pin else len(os.sched_getaffinity(0))
    for count in given.busy:
        with busy(count):
            for threads in given.threads:
                for wait in given.waits if threads > 1 else given.waits[:1]:
                    found = [child(threads, given.seconds, wait, given.pin) for _ in range(given.rounds)]
                    load = round(os.getloadavg()[0], 1)
                    row = {"cores": cores, "busy": count, "threads": threads, "wait": wait, "load": load}
                    print(json.dumps({**row, "clips_per_second": [round(value, 2) for value in found]}), flush=True)


if __name__ == "__main__":
    main()
