"""`ripe seeds`: one recipe with several seeds, and their mean, spread and best."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape

from ripe_mambaspike.cli.data.recordings import printable
from ripe_mambaspike.cli.output import console, print_json, print_table

if TYPE_CHECKING:
    from ripe_mambaspike.train.jobs import RunOutcome
    from ripe_mambaspike.train.seed_summary import SeedSummary


@dataclass
class SeedsCommand:
    """Train one recipe with several seeds; report mean, spread and best, and compare with another group.

    Runs that have ended are not run again, and those that were stopped are resumed.
    """

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """A shipped recipe (see ripe recipes) or a .yaml file."""
    seeds: Annotated[str, tyro.conf.arg(metavar="0-4")]
    """A range such as 0-4, a list such as 0,2,7, or one seed."""
    folds: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Cross-validate every seed in so many parts, by default as the recipe says; a seed's accuracy is over all."""
    set: Annotated[list[str], tyro.conf.arg(metavar="FIELD=VALUE")] = field(default_factory=list)
    """Fields of the recipe, for example: --set schedule.epochs=3 data.by=count."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the runs and the summary; by default runs/NAME-seeds."""
    jobs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Runs at a time on this machine; one by default."""
    slurm: Annotated[list[str], tyro.conf.arg(metavar="PARTITION|KEY=VALUE")] = field(default_factory=list)
    """Run on Slurm instead: a partition, then options of submitit, such as timeout_min=600 gpus_per_node=1."""
    against: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Another group's folder, to test for a difference by Welch's t-test."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike import train_seeds
        from ripe_mambaspike.train.recipes import load_recipe

        out = self.out or Path("runs") / f"{load_recipe(self.recipe).name}-seeds"
        summary = train_seeds(
            self.recipe,
            self.seeds,
            folds=self.folds,
            settings=self.set,
            out=out,
            num_jobs=self.jobs,
            slurm=self.slurm,
            against=self.against,
            report=_report,
        )
        print_json(summary.to_dict()) if self.json else _show(summary, out)
        for failure in summary.failed:
            print(f"ripe: {failure.run} failed ({failure.error})", file=sys.stderr)
        return 1 if summary.failed else 0


def _report(outcome: "RunOutcome") -> None:
    """One line per run, on a terminal."""
    if sys.stderr.isatty():
        how = "failed" if outcome.result is None else f"top-1 {100 * outcome.result.top1:.2f} %"
        print(f"{outcome.run.name}: {how}", file=sys.stderr, flush=True)


def _show(summary: "SeedSummary", out: Path) -> None:
    from ripe_mambaspike.train.seed_summary import SUMMARY_FILE, SUMMARY_SHEET, summary_lines, summary_table

    screen = console()
    print_table(
        screen, escape(f"{summary.recipe}: {len(summary.seeds)} seeds on {summary.set}"), *summary_table(summary)
    )
    for line in summary_lines(summary):
        screen.print(escape(line), soft_wrap=True)
    if summary.reused:
        screen.print(f"{len(summary.reused)} runs had ended before and were not run again.", soft_wrap=True)
    screen.print(escape(f"Written: {printable(out / SUMMARY_FILE)}, {printable(out / SUMMARY_SHEET)}"), soft_wrap=True)
