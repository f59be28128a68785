"""What was asked of a study in earlier calls, so that its results cover all of them: `requests.json` in its folder."""

from dataclasses import replace
from typing import Literal

import msgspec

from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import write_file
from ripe_mambaspike.schema import Document, read_json
from ripe_mambaspike.studies.plan import StudyPlan, plan_study

REQUESTS_FILE = "requests.json"


class StudyRequest(Document, frozen=True):
    """The options of a call that decide which runs there are."""

    seeds: tuple[int, ...]
    sets: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    every_arm: bool = False
    settings: tuple[str, ...] = ()


class StudyRequests(Document, frozen=True):
    """The content of `requests.json`: all calls with the same settings."""

    format: Literal["ripe-study-requests"] = "ripe-study-requests"
    version: Literal[1] = 1
    requests: tuple[StudyRequest, ...] = ()


def requested_plan(plan: StudyPlan, asked: StudyRequest | None) -> StudyPlan:
    """The plan together with those of earlier calls; `asked` is written down, and None asks for nothing new.

    Calls with other settings are forgotten: their runs answer another question.
    """
    path = plan.folder / REQUESTS_FILE
    earlier = read_json(path, StudyRequests).requests if path.exists() else ()
    if asked is None:
        return merge_plans([_plan_of(plan, one) for one in earlier]) if earlier else plan
    kept = [one for one in earlier if one.settings == asked.settings and one != asked]
    document = StudyRequests(requests=(*kept, asked))
    write_file(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n", DataError)
    return merge_plans([*(_plan_of(plan, one) for one in kept), plan])


def _plan_of(plan: StudyPlan, request: StudyRequest) -> StudyPlan:
    return plan_study(
        plan.study, request.sets, request.seeds, out=plan.out, settings=request.settings, arms=request.arms,
        every_arm=request.every_arm,
    )  # fmt: skip


def merge_plans(plans: list[StudyPlan]) -> StudyPlan:
    """All runs of several plans of one study; sets are in the order of the plans, arms in that of the study."""
    runs = {(run.set, run.arm, run.seed): run for plan in plans for run in plan.runs}
    arms = {name for plan in plans for name in plan.arms}
    return replace(
        plans[-1],
        sets=tuple(dict.fromkeys(name for plan in plans for name in plan.sets)),
        seeds=tuple(sorted({seed for plan in plans for seed in plan.seeds})),
        arms=tuple(arm.name for arm in plans[-1].study.arms if arm.name in arms),
        runs=tuple(runs.values()),
        left_out=tuple(dict.fromkeys(one for plan in plans for one in plan.left_out)),
    )
