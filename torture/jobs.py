"""The commands that write: how each is called, and which part of its output must be reproducible."""

import csv
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SETTINGS = (
    "name=tiny", "data.time_steps=4", "data.grid=16", "optimizer.min_learning_rate=1e-4", "schedule.batch_size=4",
    "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8]}", "schedule.epochs=2",
    "schedule.warmup_epochs=1", "run.recalibrate_batches=2", "run.device=cpu", "run.checkpoint_minutes=0.0001",
)  # fmt: skip
TIMED = (
    "seconds",
    "samples_per_second",
    "memory_mib",
    "clips_per_second",
    "hours",
    "written",
    "commit",
)  # differ between runs
State = dict[str, str]


@dataclass(frozen=True)
class Job:
    """`words(out)` is the command that writes into a folder; `state(out)` is its result, path → digest."""

    name: str
    words: Callable[[Path], list[str]]
    state: Callable[[Path], State]
    only_kills: bool = False  # it writes from processes of its own, where changes on disk are not counted


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def tree(folder: Path) -> State:
    """The digest of every file except locks."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in files}


def run_state(folder: Path) -> State:
    """The digests of a run's files, without the times in the log, the result and the checkpoints."""
    state = tree(folder)
    for name in list(state):
        path = folder / name
        if path.name == "log.csv":
            with path.open(newline="") as file:
                rows = [{key: value for key, value in row.items() if key not in TIMED} for row in csv.DictReader(file)]
            state[name] = digest(json.dumps(rows).encode())
        elif path.name == "result.json":
            found = {key: value for key, value in json.loads(path.read_text()).items() if key not in TIMED}
            state[name] = digest(json.dumps(found, sort_keys=True).encode())
        elif path.suffix == ".safetensors" and path.parent.name == "checkpoints":
            data = path.read_bytes()
            header = int.from_bytes(data[:8], "little")
            state[name] = digest(data[8 + header :])  # the tensors; the document has times
        elif path.name.startswith("events.out") or path.name == ".lock":  # TensorBoard's, named by time
            del state[name]
    newest = sorted(name for name in state if name.startswith("checkpoints/"))
    for old in newest[:-1]:  # which older one is left depends on when a run was stopped
        del state[old]
    return state


def study_state(folder: Path) -> State:
    """The digest of a study's results without times, and of its networks."""
    networks = {name: value for name, value in tree(folder).items() if name.endswith("best/model.safetensors")}
    results = json.loads((folder / "components" / "results.json").read_text())
    return {"results.json": digest(json.dumps(_untimed(results), sort_keys=True).encode()), **networks}


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(one) for key, one in value.items() if key not in TIMED}
    return [_untimed(one) for one in value] if isinstance(value, list) else value


def recorded_state(folder: Path) -> State:
    """The digest of the recording; what a killed recorder left under a temporary name may stay, to be recovered."""
    return {name: value for name, value in tree(folder).items() if not name.startswith(".")}


def store_state(folder: Path) -> State:
    return {name: value for name, value in tree(folder).items() if not name.endswith(".part")}


def make_sources(folder: Path, classes: int = 3, each: int = 8, side: int = 34) -> Path:
    """Recordings of one's own, as `class/recording.bin`."""
    from ripe_mambaspike.events.recording import Recording, make_events
    from ripe_mambaspike.events.writing import write

    draws = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            times = np.sort(draws.integers(0, 100_000, 400))
            x, y = draws.integers(0, side, (2, 400))
            events = make_events(x, y, times, draws.integers(0, 2, 400))
            write(Recording(events, (side, side)), folder / f"class{label}" / f"{number}.bin")
    return folder


def make_jobs(base: Path, run: Callable[[list[str]], None]) -> dict[str, Job]:
    """The jobs over sources made once below `base`; `run` runs a command to its end."""
    gestures, network, sources = base / "synthgesture", base / "network", make_sources(base / "sources")
    small = make_sources(base / "small", each=2, side=16)  # of the network's sensor
    run(_simulate(gestures))
    run(_train(gestures, network))
    shutil.rmtree(network / "checkpoints")
    jobs = (
        Job("train", lambda out: _train(gestures, out), run_state),
        Job("prepare", lambda out: prepare_words(sources, out), store_state),
        Job("export", lambda out: ["export", str(network), "--to", "safetensors", "--out", str(out / "small"),
                                   "--weights", "fp16"], tree),
        Job("sim make", _simulate, store_state),
        Job("record", lambda out: _record(sources / "class0" / "0.bin", out), recorded_state),
        Job("fuse", lambda out: ["fuse", str(network), "--out", str(out / "fused")], tree),
        Job("adapt", lambda out: ["adapt", str(network), str(small), "--out", str(out / "adapted")], tree),
        Job("calibrate", lambda out: ["calibrate", str(network), "--out", str(out / "calibrated"), "--keep", "0.9",
                                      "--device", "cpu"], tree),
        Job("study", lambda out: _study(base, out), study_state, only_kills=True),
    )  # fmt: skip
    return {job.name: job for job in jobs}


def _train(root: Path, out: Path) -> list[str]:
    return [
        "train", "synthgesture", "--out", str(out), "--resume", "auto", "--no-report", "--json", "--set",
        f"data.root={root}", *SETTINGS,
    ]  # fmt: skip


def _study(root: Path, out: Path) -> list[str]:
    return [
        "study", "components", "--on", "synthgesture", "--arms", "no-tdm", "--seeds", "0", "--out", str(out), "--json",
        "--root", str(root), "--set", *SETTINGS[1:],
    ]  # fmt: skip


def _record(source: Path, out: Path) -> list[str]:
    return ["record", "--source", str(source), "--pace", "fast", "--out", str(out / "clip.raw"), "--force", "--json"]


def prepare_words(root: Path, out: Path, workers: int = 1) -> list[str]:
    return [
        "data", "prepare", "folder", "--root", str(root), "--store", str(out), "--test-share", "0.25",
        "--sensor-size", "34", "34", "--workers", str(workers),
    ]  # fmt: skip


def _simulate(out: Path) -> list[str]:
    sizes = ["--train", "11", "--val", "11", "--test", "11", "--size", "16", "--seconds", "0.5"]
    return ["sim", "make", "synthgesture", "--out", str(out), *sizes, "--workers", "1"]
