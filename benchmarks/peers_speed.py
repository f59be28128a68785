"""Latency of one clip and time of a training step of every network, at the sizes of the open sets.

    python benchmarks/peers_speed.py --out speed.json --devices cpu cuda     # continues a file that is there
    ripe study peers --latency speed.json --report                          # the tables with these columns

The file has milliseconds by set, device and arm: `cpu` and `cuda` for one clip, captured, and `cuda-step-64` for a
captured training step of 64 clips. It is written after every few networks. Measure on a machine that does nothing else.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ripe_mambaspike.files import write_file
from ripe_mambaspike.studies.study import load_study
from ripe_mambaspike.train.recipes import load_recipe, with_settings

STEP_BATCH = 64
NETWORKS = 5  # that one process times: a call that is stopped loses no more
PRECISIONS = {"cpu": "float32", "cuda": "bfloat16"}


class Timing(NamedTuple):
    """What is timed of all networks."""

    name: str  # as in the file
    device: str
    words: tuple[str, ...]  # of `ripe bench`


TIMINGS = (
    Timing("cpu", "cpu", ("infer", "--batches", "1")),
    Timing("cuda", "cuda", ("infer", "--batches", "1")),
    Timing(f"cuda-step-{STEP_BATCH}", "cuda", ("train", "--batch", str(STEP_BATCH))),
)


def time_networks(
    timing: Timing, networks: dict[str, str], side: int, time_steps: int, repeats: int | None = None
) -> dict[str, float]:
    """Milliseconds by arm; `networks` are the registered names of the arms. Those that fail are left out, and said."""
    words = [*timing.words, "--models", *dict.fromkeys(networks.values()), "--device", timing.device, "--json"]
    words += ["--precision", PRECISIONS[timing.device], "--in-size", str(side), "--time-steps", str(time_steps)]
    words += [] if repeats is None else ["--repeats", str(repeats)]
    done = subprocess.run([sys.executable, "-m", "ripe_mambaspike", "bench", *words], capture_output=True, text=True)
    if done.returncode:
        print(f"{timing.name}: {', '.join(networks)}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        if len(networks) == 1:
            return {}
        apart = [time_networks(timing, {arm: name}, side, time_steps, repeats) for arm, name in networks.items()]
        return {arm: time for found in apart for arm, time in found.items()}
    rows = {row["model"]: row.get("captured", row["plain"]) for row in json.loads(done.stdout)["rows"]}
    return {arm: rows[name]["median_ms"] for arm, name in networks.items() if "median_ms" in rows[name]}


def batched(items: Iterable[tuple[str, str]], size: int) -> Iterator[list[tuple[str, str]]]:
    rest = iter(items)
    while few := list(islice(rest, size)):
        yield few


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    study = load_study("peers")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--devices", nargs="+", default=["cpu"], choices=list(PRECISIONS))
    parser.add_argument("--sets", nargs="+", default=list(study.sets))
    parser.add_argument("--arms", nargs="+", default=[arm.name for arm in study.arms if not arm.extra])
    parser.add_argument("--repeats", type=int, help="calls that are timed; ripe bench's own by default")
    given = parser.parse_args()
    times: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    settings = {arm.name: list(arm.settings) for arm in study.arms if arm.name in given.arms}
    for timing in (one for one in TIMINGS if one.device in given.devices):
        measured: dict[tuple[int, int], dict[str, float]] = {}  # sets of one size share their times
        for name in given.sets:
            recipe = load_recipe(name)
            size = (recipe.data.grid[0] if recipe.data.grid else 128, recipe.data.time_steps)
            found = times.setdefault(name, {}).setdefault(timing.name, {})
            found |= {arm: time for arm, time in measured.get(size, {}).items() if arm in settings}
            missing = {arm: with_settings(recipe, own).model.name for arm, own in settings.items() if arm not in found}
            for few in batched(missing.items(), NETWORKS):
                found |= time_networks(timing, dict(few), *size, given.repeats)
                write_file(given.out, json.dumps(times, indent=1).encode())
            measured[size] = found
            write_file(given.out, json.dumps(times, indent=1).encode())
            print(f"{name}, {timing.name}: {len(found)} networks", flush=True)


if __name__ == "__main__":
    main()
