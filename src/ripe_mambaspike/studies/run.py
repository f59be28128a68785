"""`run_study`: the function behind `ripe study`."""

import base64
import time
from collections.abc import Sequence
from pathlib import Path

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.files import write_file
from ripe_mambaspike.studies.adopt import adopt_runs
from ripe_mambaspike.studies.estimate import known_speeds, longest_first, run_weights
from ripe_mambaspike.studies.measures import is_measured, read_measures
from ripe_mambaspike.studies.plan import StudyPlan, StudyRun, check_data, plan_study
from ripe_mambaspike.studies.records import add_runs, added_to, make_results_folder, read_added
from ripe_mambaspike.studies.requests import StudyRequest, requested_plan
from ripe_mambaspike.studies.results import StudyResults, collect_results, read_latencies, write_results
from ripe_mambaspike.studies.runner import Outcome, StudyProgress, Watch, run_on_slurm, run_workers
from ripe_mambaspike.studies.study import Study, load_study
from ripe_mambaspike.studies.study_figures import draw_study, write_figures
from ripe_mambaspike.studies.study_tables import NOTE, set_tables, study_csv, study_facts, study_markdown
from ripe_mambaspike.templating import render_page
from ripe_mambaspike.train.seeds import MAX_JOBS

WRITE_SECONDS = 30.0  # between two results.json while a study runs; tables and figures are made at its end
DEFAULT_OUT = Path("runs") / "studies"
PAGE_FILE, SHEET_FILE, CSV_FILE = "index.html", "table.md", "table.csv"
CAPTIONS = {
    "accuracy": "Accuracy of every arm: mean, 95 % interval, and each seed. Red: the reference.",
    "effects": "The difference from the reference with its 95 % interval, and the one that the paper prints. "
    "Gray: the paper has none for the dataset that this set stands for, and prints this one for another.",
    "curve": "Mean ± standard deviation over the seeds.",
    "conditions": "Accuracy under conditions at test; mean ± standard deviation over the seeds.",
    "parameters": "Accuracy against deployed parameters.",
    "latency": "Accuracy against the latency of one clip.",
    "rates": "Accuracy against the mean firing rate on test clips.",
    "energy": "Accuracy against the energy of one clip, at the measured rates.",
}


def run_study(
    name: str | Path | Study,
    on: Sequence[str] = (),
    seeds: str | Sequence[int] | None = None,
    *,
    root: str | Path | None = None,
    out: str | Path | None = None,
    num_jobs: int | None = None,
    slurm: Sequence[str] = (),
    limit_s: float | None = None,
    whole_runs: bool = False,
    settings: Sequence[str] = (),
    arms: Sequence[str] = (),
    every_arm: bool = False,
    latency: str | Path | None = None,
    reuse: Sequence[str | Path] = (),
    add: Sequence[str | Path] = (),
    report_only: bool = False,
    watch: Watch = lambda progress, outcome: None,
) -> StudyResults:
    """Train every arm of a study on every set with every seed, measure the networks, and write tables and figures.

    Runs that have ended are not repeated, and stopped ones are resumed. The results, also of a study that is stopped,
    are in OUT/NAME. They cover all calls with these settings, so sets and seeds may be run one after the other.

    Args:
        name: a study of the catalog (see `list_studies`), a .yaml file, or a `Study`
        on: the sets, as names of recipes or .yaml files; the study's own by default
        seeds: "0-4", "0,2,7", or ints; the study's own by default
        root: the folder of the datasets, each in a folder of its name; data/ by default
        out: the folder of runs and results, shared by all studies; runs/studies by default
        num_jobs: runs at a time on this machine
        slurm: instead, a partition and "key=value" options of submitit
        limit_s: stop after so many seconds; calling again continues
        whole_runs: with a limit, begin no run that is not expected to end by then, as for a machine that is lost then
        settings: fields of every recipe, "schedule.epochs=3"
        arms: only these and the reference; `every_arm` adds those that are extra
        latency: a JSON file with milliseconds by device and arm, or by set, device and arm, for the tables
        reuse: folders with finished runs of `ripe train`, which are copied where the study needs the same ones
        add: results.json files of other machines, or folders with one: their runs count as ended, also in later calls
        report_only: run nothing, and write the results of what has ended
        watch: is called with the progress, and with every run that has ended
    """
    study = name if isinstance(name, Study) else load_study(name)
    _check_options(num_jobs, slurm, limit_s, whole_runs)
    plan = plan_study(
        study, on, seeds, out=Path(out or DEFAULT_OUT), root=None if root is None else Path(root), settings=settings,
        arms=arms, every_arm=every_arm,
    )  # fmt: skip
    latencies = None if latency is None else read_latencies(Path(latency))
    adopt_runs(plan, [Path(folder) for folder in reuse])
    add_runs(plan, [Path(file) for file in add])
    todo = [] if report_only else missing_runs(plan)
    if todo:
        check_data(plan)
    make_results_folder(plan)
    asked = StudyRequest(
        sets=tuple(on), seeds=plan.seeds, arms=tuple(arms), every_arm=every_arm, settings=tuple(settings)
    )
    narrow = report_only and not (on or seeds or arms or every_arm or settings)
    everything = requested_plan(plan, None if narrow else asked)
    written = time.monotonic()

    def watch_and_write(progress: StudyProgress, outcome: Outcome | None) -> None:
        nonlocal written
        if outcome is not None and outcome.ended and time.monotonic() - written > WRITE_SECONDS:
            write_results(plan.folder, collect_results(everything, latencies))
            written = time.monotonic()
        watch(progress, outcome)

    try:
        if todo:
            _run_missing(plan, todo, num_jobs or 1, slurm, limit_s, whole_runs, watch_and_write)
    finally:
        results = collect_results(everything, latencies)
        write_outputs(plan.folder, results)
    return results


def _run_missing(
    plan: StudyPlan,
    todo: list[StudyRun],
    num_jobs: int,
    slurm: Sequence[str],
    limit_s: float | None,
    whole_runs: bool,
    watch: Watch,
) -> None:
    study = plan.study
    already = len(plan.distinct) - len(todo)
    if slurm:
        run_on_slurm(
            todo, plan.folder, slurm, measures=study.measures, conditions=study.conditions, already=already, watch=watch
        )
        return
    todo, weights = longest_first(todo, run_weights(plan, todo))
    run_workers(
        todo, num_jobs, measures=study.measures, conditions=study.conditions, limit_s=limit_s, weights=weights,
        whole_runs=whole_runs, seconds_per_weight=1.0 if any(known_speeds(plan).values()) else None, already=already,
        watch=watch,
    )  # fmt: skip


def missing_runs(plan: StudyPlan) -> list[StudyRun]:
    """The runs that have not ended here and were not added, or of which something is not measured yet."""
    ended, study, added = plan.finished(), plan.study, read_added(plan.folder)

    def is_missing(run: StudyRun) -> bool:
        if run.folder in ended:
            return not is_measured(read_measures(run.folder), study.measures, study.conditions)
        return added_to(run, added, study) is None

    return [run for run in plan.distinct if is_missing(run)]


def write_outputs(folder: Path, results: StudyResults) -> list[Path]:
    """results.json first, of which the rest can be made again; table.md, table.csv, the figures and the page."""
    document = write_results(folder, results)
    figures = draw_study(results)
    page = render_page(
        "ripe_mambaspike.studies",
        "study.html",
        style="study.css",
        script="study.js",
        images="data:",
        results=results,
        facts=study_facts(results),
        note=NOTE,
        captions=CAPTIONS,
        figures={name: base64.b64encode(images["svg"]).decode() for name, images in figures.items()},
        tables=[table for one in results.sets for table in set_tables(results, one)],
    )
    return [
        document,
        write_file(folder / SHEET_FILE, study_markdown(results).encode()),
        write_file(folder / CSV_FILE, study_csv(results).encode()),
        *write_figures(folder, figures),
        write_file(folder / PAGE_FILE, page),
    ]


def _check_options(num_jobs: int | None, slurm: Sequence[str], limit_s: float | None, whole_runs: bool) -> None:
    if num_jobs is not None and not 1 <= num_jobs <= MAX_JOBS:
        raise ConfigError.expected("jobs", f"an int from 1 to {MAX_JOBS}", num_jobs)
    if slurm and (num_jobs is not None or limit_s is not None):
        given = "jobs" if num_jobs is not None else "limit"
        raise ConfigError.expected(given, f"either --{given} or --slurm", "both")
    if limit_s is not None and not limit_s > 0:
        raise ConfigError.expected("limit", "seconds above 0", limit_s)
    if whole_runs and limit_s is None:
        raise ConfigError.expected("whole_runs", "a limit with it", "none")
