"""How long the runs of a study take: from runs that have ended, or from a few steps measured on this device."""

import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
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
    """Clips and seconds of the runs, from those that have ended here or were added.

    With `measure`, arms without a finished run are tried for some steps. Without, a network that has not ended on the
    set takes as long for a clip as the median of those that have.
    """
    if not todo:
        return StudyEstimate(0, 0, 0.0, "nothing is left to do")
    speeds = known_speeds(plan)
    counts = _clips(plan, todo)
    total = None if None in counts else sum(count for count in counts if count is not None)
    tried = _measured_speeds(todo, speeds) if measure else {}
    if total is None or not (tried or any(speeds.values())):
        return StudyEstimate(len(todo), total, None, "no run like these has ended yet")
    source = "a few steps on this device" if tried else "runs that have ended"
    pairs = zip(todo, counts, strict=True)
    unknown = sum(_seconds(run, count, speeds[run.set], tried) is None for run, count in pairs)
    if unknown:
        source += f"; {unknown} of networks of which none has, by the median of the others"
    return StudyEstimate(len(todo), total, sum(_all_seconds(todo, counts, speeds, tried)), source)


def run_weights(plan: StudyPlan, todo: Sequence[StudyRun]) -> list[float]:
    """Seconds that the runs take; where no run has ended, here or on another machine, the number of their clips."""
    return _all_seconds(todo, _clips(plan, todo), known_speeds(plan), {})


def known_speeds(plan: StudyPlan) -> dict[str, list[Speed]]:
    """By set: of all runs that have ended here, and of the plan's recipes that ended on another machine."""
    speeds = {name: finished_speeds(plan.out / "runs" / name) for name in plan.sets}
    recipes = {(run.set, run.key): run.recipe for run in plan.runs}
    for record in read_added(plan.folder).values():
        recipe = recipes.get((record.set, record.recipe))
        if recipe is not None and record.seconds > 0 and "train" in record.clips:
            clips = record.clips["train"] * recipe.schedule.epochs
            speeds[record.set].append(Speed(clips / record.seconds, recipe.model.name, record.recipe))
    return speeds


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


def _all_seconds(
    todo: Sequence[StudyRun],
    counts: Sequence[int | None],
    speeds: Mapping[str, Sequence[Speed]],
    tried: Mapping[str, float],
) -> list[float]:
    """Networks of which none has ended take as long for a clip as the median of those that have."""
    known = [one.clips_per_second for found in speeds.values() for one in found]
    usual = statistics.median(known) if known else 1.0
    found = [_seconds(run, count, speeds[run.set], tried) for run, count in zip(todo, counts, strict=True)]
    return [(count or 1) / usual if one is None else one for one, count in zip(found, counts, strict=True)]


def _seconds(run: StudyRun, clips: int | None, speeds: Iterable[Speed], tried: Mapping[str, float]) -> float | None:
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


def _clips(plan: StudyPlan, runs: Sequence[StudyRun]) -> list[int | None]:
    """Of each run, over all epochs; where the data is not there, as many as added runs on the set were trained on."""
    elsewhere = {one.set: one.clips["train"] for one in read_added(plan.folder).values() if "train" in one.clips}
    counted = {key: training_clips(run) for key, run in {_data_key(run): run for run in runs}.items()}

    def clips(run: StudyRun) -> int | None:
        found, added = counted[_data_key(run)], elsewhere.get(run.set)
        return added * run.recipe.schedule.epochs if found is None and added is not None else found

    return [clips(run) for run in runs]


def _measured_speeds(todo: Sequence[StudyRun], speeds: Mapping[str, Sequence[Speed]]) -> dict[str, float]:
    """Clips a second of training steps, for each arm of which no run has ended."""
    return {
        run.key: measure_speed(run)
        for run in {run.key: run for run in todo}.values()
        if not any(one.key == run.key for one in speeds[run.set])
    }


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
