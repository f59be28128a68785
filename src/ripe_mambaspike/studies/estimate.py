"""How long the runs of a study take: from runs that have ended, or from a few steps measured on this device."""

import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.models.accuracy import read_result
from ripe_mambaspike.studies.plan import StudyPlan, StudyRun, training_clips
from ripe_mambaspike.studies.records import read_added
from ripe_mambaspike.train.callback import SilentCallback, TrainingStopped
from ripe_mambaspike.train.recipes import load_recipe
from ripe_mambaspike.train.run import train
from ripe_mambaspike.train.run_folder import RECIPE_FILE

WARMUP_STEPS, MEASURED_STEPS = 3, 6


class Speed(NamedTuple):
    """Of a run that has ended: clips trained on in a second, with validation and test, and its network."""

    clips_per_second: float
    network: str
    key: str


class StudyEstimate(NamedTuple):
    """What is left to do, in one process at a time. None where it is not known."""

    runs: int
    clips: int | None
    seconds: float | None
    source: str  # of the seconds


def estimate_study(plan: StudyPlan, todo: Sequence[StudyRun], *, measure: bool = False) -> StudyEstimate:
    """Clips and seconds of the runs; with `measure`, arms without a finished run are tried for some steps."""
    clips = _clips(todo)
    counts = [clips[_data_key(run)] for run in todo]
    total = None if None in counts else sum(count for count in counts if count is not None)
    tried = _measured_speeds(plan, todo) if measure else {}
    speeds = {name: finished_speeds(plan.out / "runs" / name) for name in plan.sets}
    found = [_seconds(run, count, speeds[run.set], tried) for run, count in zip(todo, counts, strict=True)]
    if not todo:
        return StudyEstimate(0, 0, 0.0, "nothing is left to do")
    if None in found:
        return StudyEstimate(len(todo), total, None, "no run like these has ended yet")
    source = "a few steps on this device" if tried else "runs that have ended"
    return StudyEstimate(len(todo), total, sum(one for one in found if one is not None), source)


def run_weights(plan: StudyPlan, todo: Sequence[StudyRun]) -> list[float]:
    """Seconds that the runs take: networks of which none has ended as many for a clip as the median of those that have.

    Where no run has ended, here or on another machine, the number of their clips.
    """
    clips = _clips(todo)
    epochs = {(run.set, run.key): run.recipe.schedule.epochs for run in plan.runs}
    elsewhere: dict[str, list[float]] = {}
    known = []
    for record in read_added(plan.folder).values():
        elsewhere.setdefault(record.recipe, []).append(record.seconds)
        if (record.set, record.recipe) in epochs and record.seconds > 0 and "train" in record.clips:
            known.append(record.clips["train"] * epochs[record.set, record.recipe] / record.seconds)
    speeds = {name: finished_speeds(plan.out / "runs" / name) for name in plan.sets}
    known += [one.clips_per_second for found in speeds.values() for one in found]
    usual = statistics.median(known) if known else 1.0
    counts = [clips[_data_key(run)] for run in todo]
    found = [_seconds(run, count, speeds[run.set], {}) for run, count in zip(todo, counts, strict=True)]
    return [
        (statistics.median(elsewhere[run.key]) if run.key in elsewhere else (count or 1) / usual)
        if one is None
        else one
        for run, one, count in zip(todo, found, counts, strict=True)
    ]


def longest_first(todo: Sequence[StudyRun], weights: Sequence[float]) -> tuple[list[StudyRun], list[float]]:
    """The runs of every seed, those that take longest first, so that no long one is left when the others have ended."""
    seeds = list(dict.fromkeys(run.seed for run in todo))
    order = sorted(range(len(todo)), key=lambda at: (seeds.index(todo[at].seed), -weights[at]))
    return [todo[at] for at in order], [weights[at] for at in order]


def finished_speeds(folder: Path) -> list[Speed]:
    """Of all runs of a set that have ended, whatever study they belong to."""
    found = []
    for path in sorted(folder.glob("*/result.json")):
        try:
            result, recipe = read_result(path.parent), load_recipe(path.parent / RECIPE_FILE)
        except RipeError:
            continue
        if result is not None and result.seconds > 0 and "train" in result.clips:
            clips = result.clips["train"] * recipe.schedule.epochs
            found.append(Speed(clips / result.seconds, recipe.model.name, path.parent.name.partition("-seed-")[0]))
    return found


def _seconds(run: StudyRun, clips: int | None, speeds: Iterable[Speed], tried: dict[str, float]) -> float | None:
    """By the same arm with another seed, else by the same network on this set."""
    if clips is None:
        return None
    if run.key in tried:
        return clips / tried[run.key]
    same = [one for one in speeds if one.key == run.key]
    same = same or [one for one in speeds if one.network == run.recipe.model.name]
    return clips / statistics.median(one.clips_per_second for one in same) if same else None


def _data_key(run: StudyRun) -> tuple[Any, ...]:
    data = run.recipe.data
    return data.root, data.dataset, data.store, data.folds, data.validation, run.recipe.schedule.epochs


def _clips(runs: Sequence[StudyRun]) -> dict[tuple[Any, ...], int | None]:
    return {key: training_clips(run) for key, run in {_data_key(run): run for run in runs}.items()}


def _measured_speeds(plan: StudyPlan, todo: Sequence[StudyRun]) -> dict[str, float]:
    """Clips a second of training steps, for each arm of which no run has ended."""
    found = {}
    for run in {run.key: run for run in todo}.values():
        if not any(one.key == run.key for one in finished_speeds(plan.out / "runs" / run.set)):
            found[run.key] = measure_speed(run)
    return found


class _StepTimes(SilentCallback):
    """Notes when each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, trainer: Any) -> None:
        float(trainer.sums[0])  # waits for the device
        self.times.append(time.monotonic())


def measure_speed(run: StudyRun) -> float:
    """Clips a second over some steps of a run, without compiling and without validation."""
    timer = _StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        try:
            stop = WARMUP_STEPS + MEASURED_STEPS
            train(run.recipe, Path(folder) / "run", callback=timer, stop_requested=lambda: len(timer.times) >= stop)
        except TrainingStopped:
            pass
    first = min(WARMUP_STEPS, len(timer.times) - 2)
    if first < 0:  # a set of a single batch
        return float("nan")
    steps = len(timer.times) - 1 - first
    schedule = run.recipe.schedule
    return steps * schedule.batch_size * schedule.grad_accum_steps / (timer.times[-1] - timer.times[first])
