"""How hard the open sets are: validation accuracy and time of each set's recipe, for several difficulties.

Makes each set, trains its recipe, and prints a JSON line after each; the same lines go to --results, and what is there
already is not done again. The network is never run on a test clip. Where a recipe would take longer than --seconds on
this machine, it gets fewer epochs. The time of compiling the kernels is given apart. With --jobs 3 the three sets go
side by side on one GPU: all is done sooner, and each training takes longer than it would alone. The cores are divided
among them where sets are made.

Usage: python benchmarks/open_sets.py --pictures DIR [--work DIR] [--sets …] [--variants …] [--seconds 60] [--limit 570]
       python benchmarks/open_sets.py --pictures DIR --checksums    # the lines of data/known_stores.py

DIR holds cifar10/ and caltech101/, each with an images.zip, a tree of pictures, or CIFAR-10's binary batches.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ripe_mambaspike import simulate_dataset
from ripe_mambaspike.data.known_stores import check_known
from ripe_mambaspike.data.sets.preparations import PREPARATIONS
from ripe_mambaspike.data.store import EventStore
from ripe_mambaspike.train.callback import SilentCallback, TrainingStopped
from ripe_mambaspike.train.checkpoint import BestEpoch
from ripe_mambaspike.train.history import Row
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipes import load_recipe, with_settings
from ripe_mambaspike.train.run import train
from ripe_mambaspike.train.trainer import Trainer

PICTURES = {"cifar": "cifar10", "caltech": "caltech101"}  # folders in --pictures
SETS = ("sim-cifar10", "sim-caltech101", "gestures-hard")
OPEN_SETS = (*SETS, *(f"{name}-small" for name in SETS))
COUNTS = ("train", "val", "test")  # options of a variant that are not fields of its difficulty
OF_PICTURES: dict[str, dict[str, Any]] = {
    "default": {},
    "one-picture": {"pictures": 1},
    "three-pictures": {"pictures": 3},
    "easier": {"pictures": 9},
    "harder": {"contrast": 1.5, "noise_hz": 2.0, "shift": 0.1},
}
OF_GESTURES: dict[str, dict[str, Any]] = {
    "default": {},
    "easier": {"clutter": 2, "noise_hz": 0.5, "angle": 20.0, "shake": 0.0},
    "harder": {"speed": 1.6, "distance": 1.7, "angle": 40.0, "clutter": 4, "shake": 0.5, "noise_hz": 2.0},
    "half-the-clips": {"train": 1100},
}
WARM_STEPS, TIMED_STEPS = 8, 24  # before the clock starts, and those that are timed


def variants_of(name: str) -> dict[str, dict[str, Any]]:
    return OF_PICTURES if PREPARATIONS[name].needs_pictures else OF_GESTURES


def workers_of_each(jobs: int) -> int:
    """Processes that make one of so many sets at the same time, so that all of them together have a core each."""
    return max(1, len(os.sched_getaffinity(0)) // jobs)


def make(name: str, changes: dict[str, Any], pictures: Path, out: Path, workers: int) -> EventStore:
    prepared = PREPARATIONS[name]
    images = pictures / PICTURES[prepared.shows] if prepared.needs_pictures else None
    counts = {part: changes[part] for part in COUNTS if part in changes}
    difficulty = {field: value for field, value in changes.items() if field not in COUNTS}
    return simulate_dataset(name, out, images=images, difficulty=difficulty, workers=workers, **counts)


class StepTimer(SilentCallback):
    """Stops a run after some steps, and knows how long they took."""

    def __init__(self) -> None:
        self.started, self.begin, self.steps, self.seconds = time.perf_counter(), 0.0, 0, 0.0

    def on_step_end(self, trainer: Trainer) -> None:
        self.steps += 1
        self.batches = trainer.batches
        if self.steps == WARM_STEPS:
            self.compiled, self.begin = time.perf_counter() - self.started, time.perf_counter()
        if self.steps == WARM_STEPS + TIMED_STEPS:
            self.seconds = (time.perf_counter() - self.begin) / TIMED_STEPS
            raise TrainingStopped


class UntestedRun(SilentCallback):
    """Keeps the epochs of a run, and ends it before its test split is read."""

    def __init__(self, epochs: int, until: float) -> None:
        self.epochs, self.until, self.rows, self.best = epochs, until, list[Row](), 0.0

    def on_epoch_end(self, row: Row, best: BestEpoch | None) -> None:
        self.rows.append(row)
        self.best = max(self.best, row.get("val_top1") or 0.0)
        if row["epoch"] == self.epochs or time.monotonic() > self.until:
            raise TrainingStopped


def run_untested(recipe: Recipe, callback: SilentCallback) -> None:
    """Train in a folder of its own, which is removed; the callback ends the run."""
    folder = Path(tempfile.mkdtemp(prefix="open-sets-"))
    try:
        train(recipe, folder / "run", callback=callback)
        raise SystemExit("the run was tested: its callback did not end it")
    except TrainingStopped:
        pass
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fitted_epochs(recipe: Recipe, seconds: float) -> tuple[int, float]:
    """As many epochs as fit, at most the recipe's, and the seconds that compiling took."""
    timer = StepTimer()
    run_untested(with_settings(recipe, ["schedule.epochs=1000000"]), timer)
    share = 1.25  # validation and norms take a part of the time
    fitting = int(seconds / (share * timer.batches * timer.seconds))
    return max(2, min(recipe.schedule.epochs, fitting)), timer.compiled


def measure(name: str, root: Path, seconds: float, until: float, device: str, seed: int) -> dict[str, Any]:
    settings = [f"data.root={root}", f"run.device={device}", f"run.seed={seed}"]
    recipe = with_settings(load_recipe(name), settings)
    epochs, compiled = fitted_epochs(recipe, seconds)
    warm = min(recipe.schedule.warmup_epochs, epochs)
    recipe = with_settings(recipe, [f"schedule.epochs={epochs}", f"schedule.warmup_epochs={warm}"])
    run = UntestedRun(epochs, until)
    start = time.perf_counter()
    run_untested(recipe, run)
    last = run.rows[-1]
    return {
        "epochs": len(run.rows),
        "epochs_planned": epochs,
        "epochs_of_recipe": load_recipe(name).schedule.epochs,
        "val_top1": last.get("val_top1"),
        "best_val_top1": run.best,
        "val_by_epoch": {row["epoch"]: round(top1, 4) for row in run.rows if (top1 := row.get("val_top1")) is not None},
        "train_top1": last.get("train_top1"),
        "train_seconds": round(time.perf_counter() - start, 1),
        "compile_seconds": round(compiled, 1),
        "samples_per_second": round(last.get("samples_per_second") or 0),
    }


class Results:
    """The lines of earlier calls and of this one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.done = {(line["set"], line["variant"], line["seed"], line["what"]) for line in map(json.loads, lines)}

    def add(self, line: dict[str, Any]) -> None:
        text = json.dumps(line)
        print(text, flush=True)
        with self.path.open("a") as file:
            file.write(text + "\n")


def print_checksums(pictures: Path, work: Path, workers: int) -> None:
    for name in OPEN_SETS:
        store = make(name, {}, pictures, work / name, workers)
        print(f'    "{store.key}": "{store.index.sha256}",  # {name}', flush=True)


def run_apart(names: list[str], jobs: int, workers: int) -> None:
    """Each set in a process of its own, which gets this one's options and those after them."""

    def run(name: str) -> int:
        own = ["--jobs", "1", "--workers", str(workers), "--sets", name]
        return subprocess.run([sys.executable, *sys.argv, *own]).returncode

    with ThreadPoolExecutor(jobs) as pool:
        sys.exit(max(pool.map(run, names)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, required=True, help="the folder with cifar10/ and caltech101/")
    parser.add_argument("--work", type=Path, default=Path("open-sets"), help="where sets and results go")
    parser.add_argument("--results", type=Path, help="the file of JSON lines; WORK/results.jsonl by default")
    parser.add_argument("--jobs", type=int, default=1, help="sets that are worked on at the same time")
    parser.add_argument("--workers", type=int, help="processes that make one set; cores // jobs by default")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=OPEN_SETS)
    parser.add_argument("--variants", nargs="+", help="all by default, those called default first")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, for each set and variant")
    parser.add_argument("--limit", type=float, default=570.0, help="of this call; nothing is begun after it")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0, help="of training")
    parser.add_argument("--checksums", action="store_true", help="make every open set and print its checksum")
    given = parser.parse_args()
    for option, number in (("--jobs", given.jobs), ("--workers", given.workers)):
        if number is not None and number < 1:
            parser.error(f"{option}: expected an int of at least 1, got {number}")
    jobs = 1 if given.checksums else min(given.jobs, len(given.sets))  # sets at the same time
    workers = given.workers or workers_of_each(jobs)
    given.work.mkdir(parents=True, exist_ok=True)
    if given.checksums:
        print_checksums(given.pictures, given.work, workers)
        return
    if jobs > 1:
        run_apart(given.sets, jobs, workers)
        return
    started, until = time.monotonic(), time.monotonic() + given.limit
    results = Results(given.results or given.work / "results.jsonl")
    every = [(variant, name) for name in given.sets for variant in given.variants or variants_of(name)]
    order = {variant: number for number, variant in enumerate(dict.fromkeys([*OF_PICTURES, *OF_GESTURES]))}
    for variant, name in sorted(every, key=lambda one: order.get(one[0], 0)):
        if variant not in variants_of(name):
            continue
        root, changes = given.work / f"{name}-{variant}", variants_of(name)[variant]
        line = {"set": name, "variant": variant, "seed": given.seed, "changes": changes}
        if (name, variant, given.seed, "trained") in results.done:
            continue
        if time.monotonic() > until:
            print(json.dumps({"stopped": "the limit is reached; the same command continues"}), flush=True)
            return
        begun = time.monotonic()
        store = make(name, changes, given.pictures, root, workers)
        if (name, variant, given.seed, "made") not in results.done:
            seconds = round(time.monotonic() - begun, 1)
            counts = next(iter(store.index.partitions.values())).sizes
            facts = {"key": store.key, "sha256": store.index.sha256, "checksum_ships": check_known(store)}
            events = round(sum(store.index.clips.events) / len(store))
            results.add({**line, "what": "made", "seconds": seconds, "clips": counts, "events_each": events, **facts})
        measured = measure(name, root, given.seconds, until, given.device, given.seed)
        total = round(time.monotonic() - started, 1)
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        results.add({**line, "what": "trained", **measured, "device": device, "total_seconds": total})


if __name__ == "__main__":
    main()
