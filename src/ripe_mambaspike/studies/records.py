"""What the results of a study need of a run, without its folder: so results of several machines can be put together.

`results.json` lists the record of every run. `ripe study NAME --add results.json` takes those of another machine over:
they are kept in `added.json` beside the study's own results, and count as runs that have ended.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ripe_mambaspike.errors import DataError, InputError
from ripe_mambaspike.files import make_folder, write_file
from ripe_mambaspike.models.accuracy import TrainingResult, read_result
from ripe_mambaspike.schema import read_json
from ripe_mambaspike.studies.measures import RunMeasures, is_measured, read_measures
from ripe_mambaspike.studies.plan import StudyPlan, StudyRun
from ripe_mambaspike.studies.study import Study

ADDED_FILE = "added.json"
RunId = tuple[str, str, int]  # set, hash of the recipe, seed


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended, and whose network was evaluated again with the same result."""

    set: str
    arm: str
    seed: int
    recipe: str  # its hash, see `plan.recipe_hash`
    store: str | None  # of the prepared data
    clips: dict[str, int]
    parameters: dict[str, int]
    seconds: float  # of training
    commit: str | None
    unused: list[str]  # settings that the network cannot use
    measures: RunMeasures

    @property
    def id(self) -> RunId:
        return self.set, self.recipe, self.seed


class AddedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `added.json`."""

    format: Literal["ripe-study-added"] = "ripe-study-added"
    version: Literal[1] = 1
    runs: list[RunRecord]


class _StoredRuns(msgspec.Struct, frozen=True):
    """What is read of a results.json."""

    format: Literal["ripe-study"]
    version: Literal[1]
    runs: list[RunRecord] = []


Records = dict[RunId, RunRecord]


def id_of(run: StudyRun) -> RunId:
    return run.set, run.key, run.seed


def record_of(run: StudyRun) -> RunRecord | None:
    """Of a run's folder; None unless it has ended and was evaluated again with the same result."""
    result, measures = read_result(run.folder), read_measures(run.folder)
    if result is None or measures is None or (result.top1, result.n) != (measures.top1, measures.n):
        return None
    return _record(run, result, measures)


def _record(run: StudyRun, result: TrainingResult, measures: RunMeasures) -> RunRecord:
    return RunRecord(
        set=run.set, arm=run.arm, seed=run.seed, recipe=run.key, store=result.store, clips=result.clips,
        parameters=result.parameters, seconds=result.seconds, commit=result.commit, unused=list(result.left_out),
        measures=measures,
    )  # fmt: skip


def read_added(folder: Path) -> Records:
    """The runs that were added to the study in this folder."""
    path = folder / ADDED_FILE
    return {one.id: one for one in read_json(path, AddedRuns).runs} if path.exists() else {}


def make_results_folder(plan: StudyPlan) -> None:
    try:
        make_folder(plan.folder)
    except OSError as error:
        raise InputError.expected("out", "a folder that can be written", error, path=plan.folder) from error


def add_runs(plan: StudyPlan, paths: Sequence[Path]) -> Records:
    """Take over the runs of other results.json files, and keep them beside the study's results; returns all added.

    Of two records of a run the later one counts, unless it lacks something that the study measures and the other has.
    """
    added, study = read_added(plan.folder), plan.study

    def is_whole(record: RunRecord) -> bool:
        return is_measured(record.measures, study.measures, study.conditions)

    for path in paths:
        file = path / "results.json" if path.is_dir() else path
        runs = read_json(file, _StoredRuns).runs
        if not {one.id for one in runs} & {id_of(run) for run in plan.runs}:
            raise DataError.expected("add", f"runs of '{plan.study.name}'", f"{len(runs)} others", path=file)
        added |= {one.id: one for one in runs if one.id not in added or is_whole(one) or not is_whole(added[one.id])}
    for run in plan.runs:
        added_to(run, added, study)  # raises, before anything is kept, for runs on other data
    if paths:
        make_results_folder(plan)
        text = msgspec.json.format(msgspec.json.encode(AddedRuns(runs=list(added.values()))), indent=1) + b"\n"
        write_file(plan.folder / ADDED_FILE, text, DataError)
    return added


def added_to(run: StudyRun, added: Records, study: Study) -> RunRecord | None:
    """The added record of a run, if all that the study measures was measured; raises if it is of other data."""
    found = added.get(id_of(run))
    if found is None or not is_measured(found.measures, study.measures, study.conditions):
        return None
    here = run.recipe.data.store
    if here is not None and found.store is not None and found.store != here:
        hint = f"remove {ADDED_FILE} to run it here"
        raise DataError.expected("store", f"{found.store}, as in the added run of {run}", here, hint=hint)
    return found


def ended_records(plan: StudyPlan, runs: Iterable[StudyRun]) -> list[tuple[StudyRun, RunRecord]]:
    """The runs that have ended here or were added, each with its record."""
    added = read_added(plan.folder)
    found = ((run, record_of(run) or added_to(run, added, plan.study)) for run in runs)
    return [(run, record) for run, record in found if record is not None]
