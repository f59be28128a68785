"""Every network on the open sets under one recipe: accuracy, size, operations, energy, latency and training speed.

    python benchmarks/peers.py --data DIR --out DIR --jobs 6 --limit 560     # repeat until nothing is left to do
    python benchmarks/peers.py --out DIR --report                            # tables and figure of what is there

DIR of --data holds the sets, made by `ripe sim make SET --out DIR/SET`. Each run is a folder of `ripe train` below
OUT/runs, so what was stopped resumes and what has ended is not repeated; --limit stops launching and interrupts what
runs. The recipe of a set is used for all networks as it is; it was written for RIPE-MambaSpike and tuned for none of
the others. Accuracy is that of the epoch chosen on validation clips, on test clips that are read once.
"""

import argparse
import gc
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from ripe_mambaspike.account.document import account_clip
from ripe_mambaspike.data.loading import BinnedDataset, load_dataset
from ripe_mambaspike.models.accuracy import read_result
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.models.registry import list_models, model_config
from ripe_mambaspike.train.callback import SilentCallback, TrainingStopped
from ripe_mambaspike.train.checkpoint import BestEpoch
from ripe_mambaspike.train.history import Row
from ripe_mambaspike.train.recipes import load_recipe, with_settings
from ripe_mambaspike.train.run import train

SETS = ("sim-cifar10", "sim-caltech101", "gestures-hard")
OURS = "ours"  # the network that the recipe names
NETWORK = "cifar10dvs"  # under which it is timed; the recipes' three differ in their classes alone
LEFT_OUT = (  # forms that their authors made for larger inputs; of each network there is one left for small ones
    "c3d", "tsm", "mamba-spike", "plif-net", "plif-net-cifar10dvs",
)  # fmt: skip
VARIANTS = ("spikmamba-256", "spikepool-large")
PRECISIONS = {"cpu": "float32", "cuda": "bfloat16"}  # of latency
STEP_BATCH = 64  # clips of a timed training step
CLIPS = 16  # on which operations and energy are measured
COLUMNS = ("network", "top-1, %", "n", "training M", "deployed M", "GFLOP", "SOP, M", "µJ", "GPU ms", "CPU ms",
           "training clips/s")  # fmt: skip


@dataclass(frozen=True)
class Job:
    dataset: str
    network: str
    seed: int

    def folder(self, out: Path) -> Path:
        return out / "runs" / self.dataset / self.network / f"seed-{self.seed}"

    def settings(self, data: Path, more: list[str]) -> list[str]:
        own = [] if self.network == OURS else [f"model.name={self.network}"]
        return [f"data.root={data / self.dataset}", f"run.seed={self.seed}", *own, *more]


def networks() -> list[str]:
    """Ours first, then every other architecture under the names it is registered by; variants of one come last."""
    ours = model_config("dvsgesture").architecture
    others = [name for name in list_models() if model_config(name).architecture != ours and name not in LEFT_OUT]
    return [OURS, *sorted(others, key=lambda name: name in VARIANTS)]


class LoggedRun(SilentCallback):
    """Writes the lines of a run to its log."""

    def __init__(self, log: TextIO) -> None:
        self.log = log

    def on_message(self, text: str) -> None:
        print(text, file=self.log, flush=True)

    def on_epoch_end(self, row: Row, best: BestEpoch | None) -> None:
        print(json.dumps(row), file=self.log, flush=True)


def run_job(job: Job, data: Path, out: Path, settings: list[str], end: float) -> str | None:
    """Train one network in this process, until `end` at most; returns what went wrong."""
    folder = job.folder(out)
    if time.time() > end:
        return "stopped"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        try:
            recipe = with_settings(load_recipe(job.dataset), job.settings(data, settings))
            train(recipe, folder, resume=True, callback=LoggedRun(log), stop_requested=lambda: time.time() > end)
            if not (kept := cost_file(job, out)).exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(cost_of(folder, test_clips(job.dataset, data))))
        except TrainingStopped:
            return "stopped"
        except Exception as error:  # what a network does wrong must not end the others
            print(f"{type(error).__name__}: {error}", file=log)
            return f"{type(error).__name__}: {error}".splitlines()[0]
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return None


def run_all(jobs: list[Job], data: Path, out: Path, at_once: int, limit: float, settings: list[str]) -> list[Job]:
    """Run what has not ended, several at once, until the time is over; returns what failed."""
    started, end = time.time(), time.time() + limit
    waiting = [job for job in jobs if read_result(job.folder(out)) is None]
    print(f"{len(jobs) - len(waiting)} of {len(jobs)} runs have ended", flush=True)
    failed: list[Job] = []
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn")) as pool:
        begun = {pool.submit(run_job, job, data, out, settings, end): job for job in waiting}
        for future in as_completed(begun):
            job, error = begun[future], future.result()
            if error == "stopped":
                continue
            if error is not None:
                failed.append(job)
            found = read_result(job.folder(out))
            answer = error or (found.top1 if found else "no result")
            print(f"{time.time() - started:.0f} s: {job.dataset} {job.network} seed {job.seed}: {answer}", flush=True)
    return failed


def test_clips(dataset: str, data: Path) -> torch.Tensor:
    """The first test clips of a set, binned as its recipe says [B, T, 2, H, W]."""
    settings = load_recipe(dataset).data
    events = load_dataset(settings.dataset, data / dataset, "test")
    grid = settings.grid or 128
    binned = BinnedDataset(events, time_steps=settings.time_steps, grid=grid)
    return torch.stack([binned[index][0] for index in range(min(CLIPS, len(binned)))])


def row_of(dataset: str, network: str, seeds: list[int], out: Path) -> dict[str, Any] | None:
    """What is known of a network on a set; None if no run has ended."""
    folders = [Job(dataset, network, seed).folder(out) for seed in seeds]
    results = [found for folder in folders if (found := read_result(folder)) is not None]
    if not results:
        return None
    kept = cost_file(Job(dataset, network, seeds[0]), out)
    top1 = [100 * one.top1 for one in results]
    return {
        "set": dataset,
        "network": network,
        "n": len(top1),
        "top1": statistics.fmean(top1),
        "sd": statistics.stdev(top1) if len(top1) > 1 else None,
        "parameters": results[0].parameters,
        **(json.loads(kept.read_text()) if kept.exists() else {}),
    }


def cost_file(job: Job, out: Path) -> Path:
    """Where the costs of a network are kept: those of the run that ends first."""
    return out / "costs" / f"{job.dataset}-{job.network}.json"


def cost_of(folder: Path, clips: torch.Tensor) -> dict[str, Any]:
    """Operations and energy of a trained network for one clip, the mean over these."""
    model = from_pretrained(folder / "best").eval()
    document = account_clip(model, clips.to(model.dtype), f"{len(clips)} test clips")
    energy = document["energy"]
    return {
        "gflop": document["flops"]["total"] / 1e9,
        "synaptic_operations_m": energy["synaptic_operations"] / 1e6,
        "microjoules": energy["network_event_microjoules"],
        "dense_microjoules": energy["network_dense_microjoules"],
    }


def bench(out: Path, kind: str, device: str, names: list[str], size: tuple[int, int], run: bool) -> dict[str, float]:
    """Milliseconds of one clip (`infer`) or of a training step (`train`) by network; kept in OUT, measured with `run`.

    size: the side and the time steps. All networks in one process, and each alone where one of them fails.
    """
    kept = out / f"{kind}-{device}-{size[0]}-{size[1]}.json"
    found: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    missing = [name for name in names if name not in found] if run else []
    for group in (missing, *([name] for name in missing)):
        if not group or group[0] in found:
            continue
        batch = ["--batches", "1"] if kind == "infer" else ["--batch", str(STEP_BATCH)]
        models = [NETWORK if name == OURS else name for name in group]
        words = ["bench", kind, "--models", *models, *batch, "--precision", PRECISIONS[device], "--json",
                 "--device", device, "--in-size", str(size[0]), "--time-steps", str(size[1])]  # fmt: skip
        done = subprocess.run([sys.executable, "-m", "ripe_mambaspike", *words], capture_output=True, text=True)
        if done.returncode:
            print(f"{kind} of {', '.join(group)}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
            continue
        for name, row in zip(group, json.loads(done.stdout)["rows"], strict=True):
            times = row.get("captured", row["plain"])
            if "median_ms" in times:
                found[name] = times["median_ms"]
        kept.write_text(json.dumps(found, indent=1))
    return found


def write_report(out: Path, rows: list[dict[str, Any]], line: str) -> None:
    """OUT/peers.json, peers.md and peers.svg."""
    (out / "peers.json").write_text(json.dumps(rows, indent=1))
    text = [f"# Every network under one recipe\n\n{line}\n"]
    for dataset in dict.fromkeys(row["set"] for row in rows):
        text.append(f"## {dataset}\n")
        text += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        mine = sorted((row for row in rows if row["set"] == dataset), key=lambda row: -row["top1"])
        text += [_markdown(row) for row in mine]
        text.append("")
    (out / "peers.md").write_text("\n".join(text))
    if rows:
        draw(out / "peers.svg", rows)


def _markdown(row: dict[str, Any]) -> str:
    def number(name: str, digits: int = 3) -> str:
        value = row.get(name)
        return "–" if value is None or (isinstance(value, float) and math.isnan(value)) else f"{value:.{digits}g}"

    spread = "" if row["sd"] is None else f" ± {row['sd']:.1f}"
    counts = (f"{row['parameters'][form] / 1e6:.3f}" for form in ("training", "deployed"))
    cells = (row["network"], f"{row['top1']:.1f}{spread}", str(row["n"]), *counts, number("gflop"),
             number("synaptic_operations_m"), number("microjoules"), number("cuda_infer_ms"), number("cpu_infer_ms"),
             f"{1e3 * STEP_BATCH / step:.0f}" if (step := row.get("cuda_train_ms")) else "–")  # fmt: skip
    return f"| {' | '.join(cells)} |"


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """Accuracy against deployed parameters and against latency, one row of panels a set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sets = list(dict.fromkeys(row["set"] for row in rows))
    figure, axes = plt.subplots(len(sets), 2, figsize=(11, 3.6 * len(sets)), squeeze=False)
    for pair, dataset in zip(axes, sets, strict=True):
        for axis, name, label in (
            (pair[0], "parameters", "deployed parameters, M"),
            (pair[1], "latency", "latency of one clip, ms"),
        ):
            for row in rows:
                if row["set"] != dataset:
                    continue
                x = (
                    row["parameters"]["deployed"] / 1e6
                    if name == "parameters"
                    else row.get("cuda_infer_ms") or row.get("cpu_infer_ms")
                )
                if x is None:
                    continue
                color = "tab:red" if row["network"] == OURS else "tab:blue"
                axis.errorbar(x, row["top1"], yerr=row["sd"] or 0, fmt="o", color=color, capsize=2)
                axis.annotate(row["network"], (x, row["top1"]), (4, 3), textcoords="offset points", fontsize=7)
            axis.set(xscale="log", xlabel=label, ylabel="top-1, %", title=dataset)
            axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where runs, costs and the report go")
    parser.add_argument("--data", type=Path, help="the folder of the sets")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--networks", nargs="+", default=networks())
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no run goes on")
    parser.add_argument("--set", nargs="*", default=[], help="fields of every recipe, such as schedule.epochs=10")
    parser.add_argument("--time", nargs="*", default=[], choices=("cpu", "cuda"), help="measure latency there")
    parser.add_argument("--report", action="store_true", help="train nothing")
    given = parser.parse_args()
    jobs = [Job(one, net, seed) for seed in given.seeds for one in given.sets for net in given.networks]
    failed: list[Job] = []
    if not given.report:
        if given.data is None:
            parser.error("--data: expected the folder of the sets, got none")
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // given.jobs)))
        failed = run_all(jobs, given.data, given.out, given.jobs, given.limit, given.set)
    rows = []
    for dataset in given.sets:
        settings = load_recipe(dataset).data
        side = settings.grid[0] if settings.grid else 128
        size = (side, settings.time_steps)
        timed = {
            f"{device}_{kind}_ms": bench(given.out, kind, device, given.networks, size, device in given.time)
            for device, kind in (("cpu", "infer"), ("cuda", "infer"), ("cuda", "train"))
        }
        for network in given.networks:
            row = row_of(dataset, network, given.seeds, given.out)
            if row is not None:
                rows.append({**row, **{name: found.get(network) for name, found in timed.items()}})
    missing = sum(read_result(job.folder(given.out)) is None for job in jobs)
    write_report(given.out, rows, f"{len(jobs) - missing} of {len(jobs)} runs have ended.")
    print(f"{len(jobs) - missing} of {len(jobs)} runs have ended, {len(failed)} failed: {given.out / 'peers.md'}")


if __name__ == "__main__":
    main()
