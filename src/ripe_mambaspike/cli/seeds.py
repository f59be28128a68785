"""`ripe seeds`: one recipe with several seeds, and their mean, spread and best."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape

from ripe_mambaspike.cli.output import console, print_json, print_message, print_table, printable
from ripe_mambaspike.command_options import (
    BatchSize,
    Count,
    Epochs,
    Folder,
    GridSide,
    Jobs,
    Json,
    Protocol,
    Settings,
    Slurm,
    option,
    short_settings,
)

if TYPE_CHECKING:
    from ripe_mambaspike.train.jobs import RunOutcome
    from ripe_mambaspike.train.seed_summary import SeedSummary


@dataclass
class SeedsCommand:
    """Train one recipe with several seeds; report mean, spread and best, and compare with another group.

    Runs that have ended are not run again, and those that were stopped are resumed.
    """

    recipe: Annotated[str, tyro.conf.Positional, option("RECIPE")]
    """A shipped recipe (see ripe recipes) or a .yaml file."""
    seeds: Annotated[str, option("0-4")]
    """A range such as 0-4, a list such as 0,2,7, or one seed."""
    folds: Count = None
    """Cross-validate every seed with this many folds; its accuracy is over all folds. Default: as the recipe says."""
    set: Settings = field(default_factory=list)
    """Fields of the recipe, for example: --set schedule.epochs=3 data.by=count."""
    epochs: Epochs = None
    batch_size: BatchSize = None
    grid: GridSide = None
    protocol: Protocol = None
    out: Folder = None
    """Folder of the runs and the summary. Default: runs/NAME-seeds."""
    jobs: Jobs = None
    slurm: Slurm = None
    against: Folder = None
    """Another group's folder, of the same dataset and protocol, to test for a difference by Welch's t-test."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import train_seeds
        from ripe_mambaspike.train.jobs import slurm_parameters
        from ripe_mambaspike.train.recipes import load_recipe

        if self.slurm is not None:
            slurm_parameters(self.slurm)  # without a partition it would be no option at all
        out = self.out or Path("runs") / f"{load_recipe(self.recipe).name}-seeds"
        summary = train_seeds(
            self.recipe,
            self.seeds,
            folds=self.folds,
            settings=[*self.set, *short_settings(self)],
            out=out,
            num_jobs=self.jobs,
            slurm=self.slurm or (),
            against=self.against,
            report=_report,
        )
        print_json(summary.to_dict()) if self.json else _show(summary, out)
        for failure in summary.failed:
            print_message(f"{failure.run} failed ({failure.error})")
        return 1 if summary.failed else 0


def _report(outcome: "RunOutcome") -> None:
    """One line per run, on a terminal."""
    if sys.stderr.isatty():
        found = outcome.result
        how = "failed" if found is None else "not tested" if found.top1 is None else f"top-1 {100 * found.top1:.2f} %"
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
