"""Real gestures by networks that have only seen simulated ones: four clips fit the camera, the fifth is classified.

For each real clip in turn: the camera of sim-dvsgesture is fitted to the statistics of the other clips
(`ripe sim calibrate-gestures`), a set is simulated with it, a network is trained on that set and picked on its
validation clips, and then it classifies the clip that was left out, as a whole and in windows of 0.5 and 1 s, half a
window apart. Its accuracy on simulated test clips is measured too, also with their time steps shuffled.

The real clips are in no training, and no answer of a network plays a part in a fit. But the ranges of the simulated
scenes were set by hand with a look at the statistics of all of them (docs/simulator.md): only the camera is left out.
--out keeps the cameras, the sets, the runs and a results.json; what is there is not done again, the same command
continues, and other settings or clips are refused.

Usage: python benchmarks/left_out_gestures.py --real DIR --out DIR [--recipe NAME] [--set FIELD=VALUE …] [--jobs N]
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from ripe_mambaspike import evaluate, simulate_dataset
from ripe_mambaspike.data.gesture_calibration import calibrate_gestures, read_gestures
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.events.gesture_classes import CLASSES
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.simulate.gestures.fit import GestureRecording
from ripe_mambaspike.files import write_file
from ripe_mambaspike.inference.classifier import Classifier, load_network
from ripe_mambaspike.inference.evaluate_windows import evaluate_windows
from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.ops.cores import available_cores
from ripe_mambaspike.train.callback import SilentCallback
from ripe_mambaspike.train.recipes import load_recipe, with_settings
from ripe_mambaspike.train.run import train

SET = "sim-dvsgesture"
SENSOR = (128, 128)
WINDOWS_MS = (500, 1000)
COUNTS = {"train": 2200, "val": 330, "test": 660}


class Lines(SilentCallback):
    """Prints a run's lines after the name of its clip."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_message(self, line: str) -> None:
        print(f"{self.name}: {line}", flush=True)

    def on_epoch_end(self, row: dict[str, float | None], best: Any) -> None:
        shown = "  ".join(
            f"{name} {row[name]:.4g}" for name in ("epoch", "loss", "val_top1") if row.get(name) is not None
        )
        print(f"{self.name}: {shown}", flush=True)


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """What an answer depends on, beside the clips."""
    counts = {part: getattr(given, part) for part in COUNTS}
    return {"recipe": given.recipe, "set": given.set, "clips": counts, "rounds": given.rounds, "seed": given.seed}


def checksum(clip: GestureRecording) -> str:
    """Of its events."""
    return hashlib.sha256(b"".join(clip.events[name].tobytes() for name in ("x", "y", "t", "p"))).hexdigest()


def classify(classifier: Classifier, clip: GestureRecording) -> dict[str, Any]:
    """The answer to a clip as a whole, and to its windows."""
    recording, label = Recording(clip.events, SENSOR), CLASSES[clip.label]
    found = predict(classifier, recording)
    labeled = cast(Any, [(recording, classifier.class_names.index(label))])
    windows = [evaluate_windows(classifier, labeled, 1000 * length) for length in WINDOWS_MS]
    return {
        "clip": clip.name,
        "class": label,
        "answer": found.label,
        "probabilities": found.probabilities,
        "windows": [one.to_dict() for one in windows],
    }


def leave_out(clip: GestureRecording, given: argparse.Namespace) -> dict[str, Any]:
    """Train a network with the camera of the other clips, and let it classify this one."""
    root, folder, settings = given.out / "sets" / clip.name, given.out / "runs" / clip.name, settings_of(given)
    camera = given.out / f"camera-{clip.name}.json"
    store = simulate_dataset(SET, root, calibration=camera, workers=given.workers, **settings["clips"])
    data = [f"data.dataset={SET}", f"data.root={root}", f"data.store={store.key}", f"run.seed={given.seed}"]
    recipe = with_settings(load_recipe(given.recipe), [*data, *given.set])
    trained = train(recipe, folder, resume=True, callback=Lines(clip.name))
    plain, shuffled = (evaluate(folder, shuffle=shuffle).scores for shuffle in (False, True))
    return {
        **classify(load_network(folder), clip),
        "simulated_top1": plain.top1,
        "simulated_shuffled_top1": shuffled.top1,
        "simulated_clips": plain.n,
        "epoch": trained.epoch,
        "settings": settings,
    }


def table(results: list[dict[str, Any]]) -> str:
    lengths = [f"windows of {length / 1000:g} s" for length in WINDOWS_MS]
    head = ["clip left out", "answer", "probability of its class", *lengths, "simulated", "shuffled"]
    rows = [head, ["---"] * len(head)]
    for one in results:
        right = "" if one["answer"] == one["class"] else " ✗"
        share = f"{100 * one['probabilities'][one['class']]:.1f} %"
        windows = [f"{each['correct']} of {each['n']}" for each in one["windows"]]
        simulated = [f"{100 * one[key]:.1f} %" for key in ("simulated_top1", "simulated_shuffled_top1")]
        rows.append([one["clip"], one["answer"] + right, share, *windows, *simulated])
    right = sum(one["answer"] == one["class"] for one in results)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", f"{right} of {len(results)} clips right."])


def run_apart(names: list[str], jobs: int, workers: int, threads: int) -> None:
    """Each clip in a process of its own, which gets this one's options and those after them."""

    def run(name: str) -> int:
        own = ["--jobs", "1", "--workers", str(workers), "--clips", name, "--part"]
        environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
        return subprocess.run([sys.executable, *sys.argv, *own], env=environment).returncode

    with ThreadPoolExecutor(jobs) as pool:
        if any(pool.map(run, names)):
            sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", type=Path, required=True, help="clips NN_NAME.bin of a DVS128, NN the class")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default=SET)
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="fields of the recipe")
    parser.add_argument("--clips", nargs="+", help="those that are left out in turn; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="clips that are worked on at the same time")
    parser.add_argument("--workers", type=int, help="processes that simulate one set; cores // jobs by default")
    parser.add_argument("--rounds", type=int, default=40, help="cameras tried in each fit")
    parser.add_argument("--seed", type=int, default=0, help="of training")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)  # of a call with several jobs
    for part, count in COUNTS.items():
        parser.add_argument(f"--{part}", type=int, default=count, help=f"simulated {part} clips")
    given = parser.parse_args()
    for option, number in (("--jobs", given.jobs), ("--workers", given.workers)):
        if number is not None and number < 1:
            parser.error(f"{option}: expected an int of at least 1, got {number}")
    try:
        leave_out_each(given, parser)
    except RipeError as error:
        parser.error(str(error))


def leave_out_each(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """The clips without an answer so far, and then the table of all."""
    clips = {one.name: one for one in read_gestures(given.real)}
    chosen = given.clips or list(clips)
    if unknown := [name for name in chosen if name not in clips]:
        parser.error(f"--clips: expected some of {', '.join(clips)}, got {', '.join(unknown)}")
    cores = available_cores()
    given.workers = given.workers or max(1, cores // given.jobs)
    answers = given.out / "answers"
    answers.mkdir(parents=True, exist_ok=True)
    kept = given.out / "settings.json"
    settings = {**settings_of(given), "real": {name: checksum(clip) for name, clip in clips.items()}}
    if kept.exists() and (before := json.loads(kept.read_text())) != settings:
        parser.error(f"--out: expected a folder of the same settings, got one of {before}")
    write_file(kept, json.dumps(settings, indent=1).encode() + b"\n")
    if not all((given.out / f"camera-{name}.json").exists() for name in clips):
        calibrate_gestures(given.real, given.out, rounds=given.rounds)
    missing = [name for name in chosen if not (answers / f"{name}.json").exists()]
    if given.jobs > 1:
        run_apart(missing, given.jobs, given.workers, max(1, cores // given.jobs))
    else:
        for name in missing:
            found = leave_out(clips[name], given)
            write_file(answers / f"{name}.json", json.dumps(found, indent=1).encode() + b"\n")
    if not given.part:
        results = [json.loads(path.read_text()) for path in sorted(answers.glob("*.json"))]
        write_file(given.out / "results.json", json.dumps(results, indent=1).encode() + b"\n")
        print(table(results))


if __name__ == "__main__":
    main()
