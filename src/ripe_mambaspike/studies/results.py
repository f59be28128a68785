"""The results of a study as one document, `results.json`: what was run, every arm with its statistics, the paper's."""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from ripe_mambaspike.commit import commit
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import write_file
from ripe_mambaspike.schema import convert, read_json
from ripe_mambaspike.studies.comparison import (
    Effect,
    PaperComparison,
    Summary,
    compare_with_paper,
    effect_of,
    summarize_values,
)
from ripe_mambaspike.studies.conditions import parse_condition
from ripe_mambaspike.studies.measures import RunCost
from ripe_mambaspike.studies.plan import StudyPlan, StudyRun
from ripe_mambaspike.studies.records import RunRecord, ended_records
from ripe_mambaspike.studies.study import COUNTERPARTS, Arm, Study
from ripe_mambaspike.train.statistics import holm_adjusted

RESULTS_FILE = "results.json"
Latencies = Mapping[str, Mapping[str, Mapping[str, float]]]  # milliseconds of one clip, by set, device and arm
EVERY_SET = "*"


class ArmResult(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on one set; accuracies in percent."""

    arm: str
    title: str
    settings: list[str]
    x: float | None
    seeds: list[int]
    top1: Summary | None
    effect: Effect | None = None  # against the reference
    paper: PaperComparison | None = None
    parameters: dict[str, int] = {}
    seconds: float = 0.0  # of training, all seeds together
    clips_per_second: Summary | None = None
    rate: Summary | None = None  # mean firing rate on the test clips
    rate_by_layer: list[float] = []
    rate_sd: Summary | None = None  # SR-var: of the mean rate over the last epochs
    rate_epochs: int | None = None  # how many
    cost: RunCost | None = None
    latency_ms: dict[str, float] = {}  # by device
    conditions: dict[str, Summary] = {}  # top-1 under each
    missing: list[int] = []  # seeds
    failed: dict[str, str] = {}  # reasons by seed
    unused: list[str] = []  # settings that the network cannot use


class SetResult(msgspec.Struct, frozen=True, kw_only=True):
    """All arms on one set."""

    set: str
    dataset: str
    counterpart: str | None  # the paper's dataset that it stands for
    protocol: str
    epochs: int
    clips: dict[str, int]
    store: str | None
    arms: list[ArmResult]
    left_out: dict[str, str] = {}  # arms that it cannot be run with, and why

    def arm(self, name: str) -> ArmResult:
        return next(arm for arm in self.arms if arm.arm == name)


class StudyResults(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `results.json`."""

    format: Literal["ripe-study"] = "ripe-study"
    version: Literal[1] = 1
    study: str
    title: str
    question: str
    answers: list[str]
    reference: str
    axis: str | None = None
    log_axis: bool = False
    settings: list[str] = []
    written: str  # date and time, UTC
    commit: str | None
    trained_at: list[str] = []  # commits
    devices: list[str] = []
    planned: int  # runs
    ended: int
    failed: int
    hours: float  # of training, all runs together
    sets: list[SetResult]
    runs: list[RunRecord] = []

    def to_dict(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)


Ended = tuple[StudyRun, RunRecord]


def collect_results(plan: StudyPlan, latencies: Latencies | None = None) -> StudyResults:
    """Of all runs that have ended and were evaluated again with the same result."""
    study = plan.study
    ended = ended_records(plan, plan.runs)
    distinct = {run.folder: record for run, record in ended}
    failed = [run for run in plan.distinct if run.error_file.exists() and run.folder not in distinct]
    devices = {one.measures.device for one in distinct.values()}
    commits = {one.commit for one in distinct.values() if one.commit}
    return StudyResults(
        study=study.name,
        title=study.title,
        question=study.question,
        answers=list(study.answers),
        reference=study.reference,
        axis=study.axis,
        log_axis=study.log_axis,
        settings=list(plan.settings),
        written=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        commit=commit(),
        trained_at=sorted(commits),
        devices=sorted(devices),
        planned=len(plan.distinct),
        ended=len(distinct),
        failed=len(failed),
        hours=sum(one.seconds for one in distinct.values()) / 3600,
        sets=[_set_result(plan, name, ended, _of_set(latencies or {}, name)) for name in plan.sets],
        runs=list(distinct.values()),
    )


def _of_set(latencies: Latencies, name: str) -> Mapping[str, Mapping[str, float]]:
    return latencies.get(name, latencies.get(EVERY_SET, {}))


def _set_result(
    plan: StudyPlan, name: str, ended: Sequence[Ended], latencies: Mapping[str, Mapping[str, float]]
) -> SetResult:
    study = plan.study
    here = [one for one in ended if one[0].set == name]
    runs = [run for run in plan.runs if run.set == name]
    first = next((run for run in runs if run.arm == study.reference), runs[0])
    dataset = first.recipe.data.dataset
    left_out = {one.arm: one.reason for one in plan.left_out if one.set == name}
    arms = [
        _arm_result(study, study.arm(arm), [run for run in runs if run.arm == arm], here, dataset, latencies)
        for arm in plan.arms
        if arm in {run.arm for run in runs}
    ]
    adjusted = holm_adjusted([arm.effect.p if arm.effect else None for arm in arms])
    arms = [
        arm if arm.effect is None else _replace(arm, effect=_replace(arm.effect, p_holm=p))
        for arm, p in zip(arms, adjusted, strict=True)
    ]
    record = next((record for run, record in here if run.arm == study.reference), None)
    return SetResult(
        set=name, dataset=dataset, counterpart=COUNTERPARTS.get(dataset), protocol=first.recipe.run.protocol,
        epochs=first.recipe.schedule.epochs, clips=record.clips if record else {},
        store=record.store if record else None, arms=arms, left_out=left_out,
    )  # fmt: skip


def _arm_result(
    study: Study,
    arm: Arm,
    runs: Sequence[StudyRun],
    here: Sequence[Ended],
    dataset: str,
    latencies: Mapping[str, Mapping[str, float]],
) -> ArmResult:
    mine = sorted((one for one in here if one[0].arm == arm.name), key=lambda one: one[0].seed)
    records = [record for _, record in mine]
    ours = summarize_values([100 * one.measures.top1 for one in records])
    reference = summarize_values([100 * record.measures.top1 for run, record in here if run.arm == study.reference])
    effect = None
    if arm.name != study.reference:
        effect = effect_of(ours.values if ours else (), reference.values if reference else ())
    measured = [one.measures for one in records]
    wanted = study.measures  # another study that shares these runs may have measured more
    rates = [one.rates for one in measured if one.rates is not None and "rates" in wanted]
    costs = [one.cost for one in measured if one.cost is not None and "cost" in wanted]
    speeds = [one.clips_per_second for one in measured if one.clips_per_second is not None and "speed" in wanted]
    layers = [one.layers for one in rates]
    done = {run.seed for run, _ in mine}
    left = [run for run in runs if run.seed not in done]
    failed = {str(run.seed): run.error_file.read_text("utf-8", "replace") for run in left if run.error_file.exists()}
    names = [str(parse_condition(text)) for text in study.conditions]
    return ArmResult(
        arm=arm.name,
        title=arm.title,
        settings=list(arm.settings),
        x=arm.x,
        seeds=sorted(done),
        top1=ours,
        effect=effect,
        paper=compare_with_paper(study, arm, dataset, ours, reference, effect),
        parameters=records[0].parameters if records else {},
        seconds=sum(one.seconds for one in records),
        clips_per_second=summarize_values(speeds),
        rate=summarize_values([one.mean for one in rates if one.mean is not None]),
        rate_by_layer=[statistics.fmean(column) for column in zip(*layers, strict=True)],
        rate_sd=summarize_values([one.sd_over_epochs for one in rates if one.sd_over_epochs is not None]),
        rate_epochs=rates[0].epochs if rates else None,
        cost=_mean_cost(costs),
        latency_ms={device: times[arm.name] for device, times in latencies.items() if arm.name in times},
        conditions={
            name: found
            for name in names
            if (found := summarize_values([100 * one.conditions[name] for one in measured if name in one.conditions]))
        },
        missing=[run.seed for run in left if str(run.seed) not in failed],
        failed=failed,
        unused=sorted({text for one in records for text in one.unused}),
    )


def _mean_cost(costs: Sequence[RunCost]) -> RunCost | None:
    if not costs:
        return None
    fields = RunCost.__struct_fields__
    return RunCost(**{name: statistics.fmean(getattr(cost, name) for cost in costs) for name in fields})


def _replace(struct: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(struct, **changes)


def write_results(folder: Path, results: StudyResults) -> Path:
    text = json.dumps(results.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return write_file(folder / RESULTS_FILE, text.encode(), DataError)


def read_results(path: Path) -> StudyResults:
    """Of a study's folder, or of the file itself."""
    return read_json(path / RESULTS_FILE if path.is_dir() else path, StudyResults)


def read_latencies(path: Path) -> Latencies:
    """Milliseconds from a JSON file, {"cuda": {"ours": 1.2}} for every set, or one such document by each set's name."""
    found = read_json(path, dict[str, dict[str, float | dict[str, float]]])
    by_set = {name for name, values in found.items() if any(isinstance(value, dict) for value in values.values())}
    document = found if by_set else {EVERY_SET: found}
    return convert(document, dict[str, dict[str, dict[str, float]]], origin=path)
