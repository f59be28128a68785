"""`ripe study`: the paper's experiments, run and compared."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape

from ripe_mambaspike.cli.output import console, print_json, print_message, print_table, printable
from ripe_mambaspike.cli.progress import ProgressUpdate, progress_bar
from ripe_mambaspike.cli.train import clock
from ripe_mambaspike.command_options import Flag, Float, Folder, Jobs, Json, Settings, Slurm, option
from ripe_mambaspike.errors import ConfigError

if TYPE_CHECKING:
    from ripe_mambaspike.studies.plan import StudyPlan
    from ripe_mambaspike.studies.results import StudyResults
    from ripe_mambaspike.studies.runner import Outcome, StudyProgress, Watch


@dataclass
class StudyCommand:
    """Run one of the paper's studies and print every number beside the paper's; ripe study list names them.

    Runs that have ended are not run again, also if another study ran them, and those that were stopped are resumed.
    Results, tables, figures and a page are in DIR/NAME, the runs in DIR/runs.
    """

    name: Annotated[str, tyro.conf.Positional, option("NAME")]
    """A study of the list or a .yaml file; "list" prints them."""
    on: Annotated[list[str], option("SET")] = field(default_factory=list)
    """The sets: names of recipes (see ripe recipes) or .yaml files. Default: the study's own."""
    seeds: Annotated[str | None, option("0-4")] = None
    """A range such as 0-4, a list such as 0,2,7, or one seed. Default: the study's own."""
    arms: Annotated[list[str], option("ARM")] = field(default_factory=list)
    """Only these arms and the one they are compared with."""
    all: Flag = False
    """Also the arms that are extra, such as all 27 mixes of neurons."""
    root: Folder = None
    """The folder of the datasets, each in a folder of its name. Default: data."""
    out: Folder = None
    """The folder of runs and results, for all studies. Default: runs/studies."""
    jobs: Jobs = None
    slurm: Slurm = None
    limit: Float = None
    """Stop after so many seconds; the same command continues."""
    whole_runs: Flag = False
    """With --limit, begin no run that is not expected to end by then: for a machine that is lost afterwards."""
    set: Settings = field(default_factory=list)
    """Fields of every recipe, for example: --set schedule.epochs=3."""
    reuse: Annotated[list[Path], option("DIR")] = field(default_factory=list)
    """Folders with finished runs of ripe train or ripe seeds, to copy those that the study needs."""
    add: Annotated[list[Path], option("FILE")] = field(default_factory=list)
    """results.json files of other machines: their runs count as ended, also in later calls, and are in the tables."""
    latency: Annotated[Path | None, option("FILE")] = None
    """A JSON file with milliseconds of a clip, {"cuda": {"ours": 1.2}}, or such a document by set, for the tables."""
    plan: Flag = False
    """Print runs, clips and an estimate of the time, and start nothing."""
    measure: Flag = False
    """With --plan, estimate by a few steps of every arm that has no finished run."""
    report: Flag = False
    """Run nothing: write the results of what has ended."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import run_study
        from ripe_mambaspike.studies.run import DEFAULT_OUT
        from ripe_mambaspike.train.jobs import slurm_parameters

        if self.measure and not self.plan:
            raise ConfigError.expected("--measure", "--plan with it", "none")
        if self.plan and self.report:
            raise ConfigError.expected("--report", "either --plan or --report", "both")
        if self.name == "list":
            return self._list()
        if self.plan:
            return self._plan()
        if self.slurm is not None:
            slurm_parameters(self.slurm)  # without a partition it would be no option at all
        out = self.out or DEFAULT_OUT
        with progress_bar() as update:
            try:
                results = run_study(
                    self.name, self.on, self.seeds, root=self.root, out=out, num_jobs=self.jobs,
                    slurm=self.slurm or (), limit_s=self.limit, whole_runs=self.whole_runs, settings=self.set,
                    arms=self.arms, every_arm=self.all, latency=self.latency, reuse=self.reuse, add=self.add,
                    report_only=self.report, watch=_watcher(update, self.json),
                )  # fmt: skip
            except KeyboardInterrupt:
                print_message(f"stopped; the runs are saved in {printable(out)}, and the same command continues")
                raise
        print_json(results.to_dict()) if self.json else _show(results, out)
        return 1 if results.failed else 0

    def _list(self) -> int:
        from ripe_mambaspike import list_studies

        studies = list_studies()
        if self.json:
            print_json([{"name": one.name, "title": one.title, "question": one.question, "answers": list(one.answers),
                         "arms": [arm.name for arm in one.arms], "sets": list(one.sets), "seeds": one.seeds}
                        for one in studies])  # fmt: skip
            return 0
        rows = [
            (one.name, one.title, ", ".join(one.answers).replace("none", "–"), str(len(one.chosen_arms())),
             " ".join(one.sets), one.seeds)
            for one in studies
        ]  # fmt: skip
        print_table(console(), "Studies", ("study", "title", "in the paper", "arms", "sets", "seeds"), rows, left=3)
        return 0

    def _plan(self) -> int:
        from ripe_mambaspike.studies.estimate import estimate_study
        from ripe_mambaspike.studies.plan import missing_data, plan_study
        from ripe_mambaspike.studies.records import add_runs
        from ripe_mambaspike.studies.run import DEFAULT_OUT, missing_runs
        from ripe_mambaspike.studies.study import load_study

        plan = plan_study(
            load_study(self.name), self.on, self.seeds, out=self.out or DEFAULT_OUT, root=self.root, settings=self.set,
            arms=self.arms, every_arm=self.all,
        )  # fmt: skip
        add_runs(plan, self.add)
        todo = missing_runs(plan)
        estimate = estimate_study(plan, todo, measure=self.measure)
        seconds = None if estimate.seconds is None else estimate.seconds / (self.jobs or 1)
        if self.json:
            left = {"runs": estimate.runs, "clips": estimate.clips, "seconds": seconds, "source": estimate.source}
            print_json({**plan.to_dict({run.folder for run in todo}), "left": left})
            return 0
        _show_plan(plan, {run.folder for run in todo})
        for problem in missing_data(plan):
            print(f"not there: {problem}")
        clips = "an unknown number of" if estimate.clips is None else f"{estimate.clips:,}"
        time = "unknown" if seconds is None else f"about {clock(seconds)} with {self.jobs or 1} at a time"
        print(f"{len(plan.distinct)} runs, {estimate.runs} left to do: {clips} training clips")
        print(f"time: {time} ({estimate.source})")
        return 0


def _watcher(update: ProgressUpdate, quiet: bool) -> "Watch":
    """A bar over the runs on a terminal, and a line for every run that has ended or failed."""

    def watch(progress: "StudyProgress", outcome: "Outcome | None") -> None:
        left = "" if progress.seconds_left is None else f", {clock(progress.seconds_left)} left"
        failed = f", {progress.failed} failed" if progress.failed else ""
        update(f"{progress.running} running{failed}{left}", progress.ended, progress.total)
        if outcome is not None and not quiet:
            line = f"{progress.ended}/{progress.total} {outcome.run}: {_ended_as(outcome)}{failed}{left}"
            print(line, file=sys.stderr, flush=True)

    return watch


def _ended_as(outcome: "Outcome") -> str:
    from ripe_mambaspike.models.accuracy import read_result

    if outcome.error is not None:
        return f"failed: {outcome.error}"
    result = read_result(outcome.run.folder) if outcome.ended else None
    return "stopped" if result is None else f"top-1 {100 * result.tested_top1:.2f} %"


def _show_plan(plan: "StudyPlan", todo: "set[Path]") -> None:
    rows = []
    for name in plan.sets:
        for arm in plan.arms:
            mine = [run for run in plan.runs if (run.set, run.arm) == (name, arm)]
            if mine:
                left = sum(run.folder in todo for run in mine)
                rows.append((name, arm, str(len(mine)), str(len(mine) - left), mine[0].key))
    print_table(console(), escape(plan.study.title), ("set", "arm", "runs", "ended", "recipe"), rows, left=2)
    for one in plan.left_out:
        print(f"left out: {one.set} {one.arm}: {one.reason}")


def _show(results: "StudyResults", out: Path) -> None:
    from ripe_mambaspike.studies.run import PAGE_FILE
    from ripe_mambaspike.studies.study_tables import brief_table, set_tables, study_facts

    screen = console()
    for one in results.sets:
        first, *others = set_tables(results, one)
        for table in (brief_table(first), *others):
            print_table(
                screen, escape(table.title), [*map(escape, table.head)], [[*map(escape, r)] for r in table.rows]
            )
    for line in study_facts(results):
        screen.print(escape(line), soft_wrap=True)
    screen.print(escape(f"Written: {printable(out / results.study / PAGE_FILE)}"), soft_wrap=True)
