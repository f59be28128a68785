"""`ripe seeds`: one recipe with several seeds, and what they have in common."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.markup import escape

from ripe_mambaspike.cli.data.recordings import printable
from ripe_mambaspike.cli.output import console, print_json, print_table
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.files import atomic_write

if TYPE_CHECKING:
    from ripe_mambaspike.train.recipe import Recipe
    from ripe_mambaspike.train.seeds import Outcome, SeedRun

SUMMARY = "summary.json"
SHEET = "summary.md"
FORMAT = "ripe-seeds"
VERSION = 1
MAX_JOBS = 256
DASH = "–"


@dataclass
class SeedsCommand:
    """Train one recipe with several seeds; report mean, spread and best, and compare with another group.

    Runs that have ended are not run again, and those that were cut off go on.
    """

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """A shipped recipe (see ripe recipes) or a .yaml file."""
    seeds: Annotated[str, tyro.conf.arg(metavar="0-4")]
    """A range such as 0-4, a list such as 0,2,7, or one seed."""
    folds: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Cross-validate every seed in so many parts, as the recipe says when not given; a seed's accuracy is over all."""
    set: Annotated[list[str], tyro.conf.arg(metavar="FIELD=VALUE")] = field(default_factory=list)
    """Fields of the recipe, for example: --set schedule.epochs=3 data.by=count."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the runs and the summary go; runs/NAME-seeds when not given."""
    jobs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Runs at a time on this machine; one when not given."""
    slurm: Annotated[list[str], tyro.conf.arg(metavar="PARTITION|KEY=VALUE")] = field(default_factory=list)
    """Run on Slurm instead: a partition, then what submitit takes, such as timeout_min=600 gpus_per_node=1."""
    against: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Another group's folder, to test for a difference by Welch's t."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.train import seeds as running
        from ripe_mambaspike.train.recipes import load_recipe, with_settings

        seeds = running.parse_seeds(self.seeds)
        running.check_settings(self.set)
        if self.jobs is not None and not 1 <= self.jobs <= MAX_JOBS:
            raise ConfigError(f"--jobs is {self.jobs}; a whole number from 1 to {MAX_JOBS} is wanted")
        if self.jobs is not None and self.slurm:
            raise ConfigError("--jobs and --slurm were both given; one of them is wanted")
        recipe = load_recipe(self.recipe)
        out = self.out or Path("runs") / f"{recipe.name}-seeds"
        other = None if self.against is None else read_summary(self.against)
        folds = self.folds if self.folds is not None else recipe.data.folds or None
        runs = running.plan_runs(seeds, folds, out)
        wanted = {run: running.run_settings(run, folds, self.set) for run in runs}
        recipes = {run: with_settings(recipe, settings) for run, settings in wanted.items()}
        pinned = running.pinned_store(recipes[runs[0]])
        recipes = {run: with_settings(each, pinned) for run, each in recipes.items()}
        ended = {run: running.finished(run, recipes[run]) for run in runs}
        commands = [
            (run, running.train_command(self.recipe, run, [*wanted[run], *pinned]))
            for run in runs
            if ended[run] is None
        ]
        executor = (
            running.slurm_executor(out, running.slurm_parameters(self.slurm)) if self.slurm and commands else None
        )
        _make(out / "logs")
        said = _Said(len(commands))
        if executor is None:
            made = running.run_local(commands, self.jobs or 1, said)
        else:
            made = running.run_slurm(commands, executor, said)
        outcomes = {outcome.run: outcome for outcome in made}
        for run, result in ended.items():
            outcomes.setdefault(run, running.Outcome(run, result, reused=True))
        document = summarize(recipes[runs[0]], self.set, folds, [outcomes[run] for run in runs])
        if other is not None:
            document["against"] = compare(document, other, printable(self.against or Path()))
        _write(out, document)
        print_json(document) if self.json else _show(document, out)
        for failure in document["failed"]:
            print(f"ripe: {failure['run']} failed ({failure['error']})", file=sys.stderr)
        return 1 if document["failed"] else 0


class _Said:
    """A line a run for whoever waits, on standard error."""

    def __init__(self, count: int) -> None:
        self.count, self.done = count, 0

    def __call__(self, outcome: "Outcome") -> None:
        self.done += 1
        if not sys.stderr.isatty():
            return
        how = "failed" if outcome.result is None else f"top-1 {100 * outcome.result['top1']:.2f} %"
        print(f"[{self.done}/{self.count}] {outcome.run.name}: {how}", file=sys.stderr, flush=True)


def summarize(
    recipe: "Recipe", settings: Sequence[str], folds: int | None, outcomes: "Sequence[Outcome]"
) -> dict[str, Any]:
    """What `summary.json` says; accuracies in percent. A seed with a failed run has no accuracy."""
    from ripe_mambaspike.train.statistics import group, pool

    of_seed: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        of_seed.setdefault(outcome.run.seed, []).append(outcome)
    rows = []
    for seed, its in of_seed.items():
        results = [outcome.result for outcome in its if outcome.result is not None]
        if len(results) == len(its):
            folders = [outcome.run.name for outcome in its]
            row = {"seed": seed, **pool(results), "picked_on": results[0].get("picked_on"), "runs": folders}
            if folds is not None:
                row["folds"] = [pool([result])["top1"] for result in results]
            rows.append(row)
    top5 = [row["top5"] for row in rows]
    groups = {"top1": group([row["top1"] for row in rows]), "top5": None if None in top5 else group(top5)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "recipe": recipe.name,
        "settings": list(settings),
        "set": recipe.data.dataset,
        "protocol": recipe.run.protocol,
        "folds": folds,
        "unit": "percent",
        **{name: None if made is None else asdict(made) for name, made in groups.items()},
        "seeds": rows,
        "reused": [outcome.run.name for outcome in outcomes if outcome.reused],
        "failed": [_failure(outcome.run, outcome.error) for outcome in outcomes if outcome.result is None],
        "against": None,
    }


def compare(document: dict[str, Any], other: dict[str, Any], name: str) -> dict[str, Any]:
    """Welch's test on the seeds' top-1; without numbers where it cannot be made."""
    from ripe_mambaspike.train.statistics import welch

    mine, theirs = document["top1"], other["top1"]
    test = welch(mine["values"] if mine else (), theirs["values"])
    return {
        "folder": name,
        "recipe": other.get("recipe"),
        "top1": theirs,
        "welch": None if test is None else asdict(test),
    }


def read_summary(folder: Path) -> dict[str, Any]:
    """Another group's summary, as this command wrote it."""
    from ripe_mambaspike.train.statistics import group

    path = folder / SUMMARY
    wanted = "a folder that ripe seeds has written is wanted"
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"--against: {path} cannot be read ({error.strerror or error}); {wanted}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"--against: {path} is not valid JSON ({error}); {wanted}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("version") != VERSION:
        raise InputError(f"--against: {path} is not a {FORMAT} file of version {VERSION}; {wanted}")
    top1 = document.get("top1")
    values = top1.get("values") if isinstance(top1, dict) else None
    numbers = isinstance(values, list) and all(isinstance(v, int | float) and 0 <= v <= 100 for v in values)
    if not isinstance(values, list) or not values or not numbers:
        raise InputError(f"--against: {path} has no top-1 values; a group with runs that ended is wanted")
    made = group(values)
    return {**document, "top1": None if made is None else asdict(made)}


def sheet(document: dict[str, Any]) -> str:
    """What `summary.md` says."""
    folds = f", {document['folds']} folds each, all clips together" if document["folds"] else ""
    lines = [f"# {document['recipe']}: {len(document['seeds'])} seeds on {document['set']}{folds}", ""]
    if document["settings"]:
        lines += ["Settings: " + ", ".join(f"`{setting}`" for setting in document["settings"]), ""]
    head = _head(document)
    rule = ["---"] * len(head)
    lines += ["| " + " | ".join(row) + " |" for row in (head, rule, *_rows(document))]
    lines += ["", *(f"- {line}" for line in _sentences(document))]
    lines += [f"- {one['run']} failed: {one['error']}" for one in document["failed"]]
    return "\n".join(lines) + "\n"


def _show(document: dict[str, Any], out: Path) -> None:
    screen = console()
    title = f"{document['recipe']}: {len(document['seeds'])} seeds on {document['set']}"
    print_table(screen, escape(title), _head(document), _rows(document))
    for line in _sentences(document):
        screen.print(escape(line), soft_wrap=True)
    if document["reused"]:
        screen.print(f"{len(document['reused'])} runs had ended before and were not run again.", soft_wrap=True)
    screen.print(escape(f"Written: {printable(out / SUMMARY)}, {printable(out / SHEET)}"), soft_wrap=True)


ACCURACIES = {"top1": "top-1", "top5": "top-5"}


def _accuracies(document: dict[str, Any]) -> dict[str, str]:
    """Those to show: top-5 only where the group has one."""
    return {name: label for name, label in ACCURACIES.items() if name == "top1" or document[name] is not None}


def _head(document: dict[str, Any]) -> list[str]:
    return ["seed", *(f"{label} %" for label in _accuracies(document).values()), "clips", "picked on"]


def _rows(document: dict[str, Any]) -> list[list[str]]:
    shown = _accuracies(document)
    return [
        [str(row["seed"]), *(_number(row[name]) for name in shown), f"{row['n']:,}", str(row["picked_on"] or DASH)]
        for row in document["seeds"]
    ]


def _sentences(document: dict[str, Any]) -> list[str]:
    """Mean, spread and best of each accuracy, and the comparison."""
    said = [f"{label}: {_spread(document[name])}" for name, label in _accuracies(document).items()]
    if (other := document["against"]) is None:
        return said
    said.append(f"against {other['folder']} ({other['recipe']}): top-1 {_spread(other['top1'])}")
    if (test := other["welch"]) is None:
        return [*said, "Welch's test needs two seeds in each group, and values that vary"]
    numbers = f"t = {test['t']:.2f}, {test['freedom']:.1f} degrees of freedom, two-sided p = {test['p']:.2g}"
    return [*said, f"difference {test['difference']:+.2f}; Welch's {numbers}"]


def _spread(values: dict[str, Any] | None) -> str:
    if values is None:
        return DASH
    std = "" if values["std"] is None else f" ± {values['std']:.2f}"
    return f"{values['mean']:.2f}{std} %, best {values['best']:.2f} % of {len(values['values'])}"


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def _failure(run: "SeedRun", error: str | None) -> dict[str, Any]:
    return {"run": run.name, "seed": run.seed, "fold": run.fold, "error": error, "log": printable(run.log)}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror or error}); another --out is wanted") from error


def _write(out: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        for name, content in ((SUMMARY, text), (SHEET, sheet(document))):
            with atomic_write(out / name) as file:
                file.write(content.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror or error}); another --out is wanted") from error
