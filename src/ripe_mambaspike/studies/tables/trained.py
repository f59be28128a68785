"""The tables of trained accuracies (1, 2, 3, 7, 11 to 15 and 18), from stored studies or a run."""

from collections.abc import Callable, Mapping
from pathlib import Path

from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.models.accuracy import read_result
from ripe_mambaspike.models.peers.published import PublishedResult, published_results
from ripe_mambaspike.models.registry import list_models, model_config
from ripe_mambaspike.studies.claims.compute import as_counted, config
from ripe_mambaspike.studies.claims.variants import counted
from ripe_mambaspike.studies.tables.counts import COUNTED, attention_parameters
from ripe_mambaspike.studies.tables.outcomes import ArmOutcome, StudyOutcome, read_outcome
from ripe_mambaspike.studies.tables.printed import PrintedTable, printed_table
from ripe_mambaspike.studies.tables.stored import ResultFolders
from ripe_mambaspike.studies.tables.table import (
    NOT_IN_PAPER,
    Ours,
    PaperTable,
    TableCell,
    TableColumn,
    TableRow,
    beside,
    compare,
)

OTHER_DATA = (
    "Ours were trained on other data than the paper's: compare directions and sizes of effects, not accuracies."
)
MARKS = {"published": "*", "own protocol": "‡", "our protocol": "†", "ours": ""}
Rows = dict[str, dict[str, Ours]]
Columns = Mapping[str, Callable[[ArmOutcome], TableCell | None]]  # of an arm, by name


def accuracy_cell(arm: ArmOutcome) -> TableCell | None:
    """Mean ± sd and the number of seeds; without a spread for a single one."""
    if arm.mean is None:
        return None
    spread = "" if arm.sd is None else f" ± {arm.sd:.2f}"
    return TableCell(f"{arm.mean:.2f}{spread} (n {arm.n})", numbers=arm.numbers())


def effect_cell(arm: ArmOutcome) -> TableCell | None:
    """The difference from the reference with its 95 % interval and p; neither for a single seed."""
    if arm.delta is None:
        return None
    text = f"{arm.delta:+.2f}".replace("-", "−")
    if arm.p is not None:
        interval = "" if arm.delta_low is None else f" [{arm.delta_low:+.2f}, {arm.delta_high:+.2f}]".replace("-", "−")
        text += f"{interval} {arm.stars or 'n.s.'}, p {arm.p:.2g}"
    return TableCell(text, numbers=arm.numbers())


def verdict_cell(arm: ArmOutcome) -> TableCell | None:
    return None if arm.verdict is None else TableCell(arm.verdict)


def _sigma_cell(arm: ArmOutcome) -> TableCell | None:
    """|Δ| in standard deviations of the full network over its seeds."""
    if arm.sigmas is None:
        return None
    return TableCell(f"{arm.sigmas:.1f} σ", numbers={"value": arm.sigmas})


def _rate_cell(arm: ArmOutcome) -> TableCell | None:
    """SR-var: how the mean rate varied over the last epochs, mean over the seeds."""
    return None if arm.rate_sd is None else TableCell(f"{arm.rate_sd:.4f}", numbers={"value": arm.rate_sd})


ACCURACY: Columns = {"top-1 on {set}": accuracy_cell}
EFFECTS: Columns = {**ACCURACY, "Δ on {set}": effect_cell, "verdict on {set}": verdict_cell}


def _with_study(
    number: int, folders: ResultFolders, columns: Columns, ours: Rows | None = None, notes: tuple[str, ...] = ()
) -> PaperTable:
    """A printed table with columns of its study for every set that was run, and rows for arms of ours alone."""
    printed = printed_table(number)
    rows: Rows = {key: dict(values) for key, values in (ours or {}).items()}
    outcome = read_outcome(folders, str(printed.study))
    extra: dict[str, str] = {}
    more: list[str] = []
    for name in outcome.sets if outcome else ():
        for column, cell_of in columns.items():
            more.append(column.format(set=name))
            for arm in outcome.arms(name) if outcome else ():
                cell = cell_of(arm)
                if cell is not None:
                    rows.setdefault(arm.name, {})[more[-1]] = cell
                    if arm.name not in printed.rows:
                        extra[arm.name] = arm.title
    texts = study_texts(printed, outcome)
    sources = ([*COUNTED] if ours else []) + texts["sources"]
    return beside(
        number, printed, rows, more=more, extra=extra, sources=sources, missing=texts["missing"],
        notes=(*notes, *texts["notes"]),
    )  # fmt: skip


def study_texts(printed: PrintedTable, outcome: StudyOutcome | None) -> dict[str, list[str]]:
    """What was run, or the command that runs it."""
    if outcome is None:
        missing = [f"no stored results: run ripe study {printed.study}, then add --results stored --results runs"]
        return {"notes": [], "sources": [], "missing": missing}
    return {"notes": [OTHER_DATA], "sources": [outcome.source], "missing": outcome.missing}


def component_table(folders: ResultFolders) -> PaperTable:
    """Table 2."""
    return _with_study(2, folders, EFFECTS)


def sequence_table(folders: ResultFolders) -> PaperTable:
    """Table 3."""
    return _with_study(3, folders, EFFECTS)


def sigma_table(folders: ResultFolders) -> PaperTable:
    """Table 11. The full network itself has no effect."""
    note = "σ is that of the full network over its seeds on the same set; Welch's p is in Table 2."
    return _with_study(11, folders, {"{set}": _sigma_cell}, notes=(note,))


def neuron_table(folders: ResultFolders) -> PaperTable:
    """Table 12; our parameters are those of the DVS-Gesture network."""
    ours: Rows = {}
    for mix in printed_table(12).rows:
        ours[mix] = {"parameters, M": counted(neurons=tuple(mix.split("-"))).deployed / 1e6}
    return _with_study(12, folders, {**EFFECTS, "SR-var on {set}": _rate_cell}, ours)


def tokens_table(folders: ResultFolders) -> PaperTable:
    """Table 13: shares of the positions, of which the paper's network has 256."""
    height, width = config().grids(*config().in_size)[-1]
    shares = {"eighth": 8, "quarter": 4, "half": 2, "all": 1}
    steps = config().time_steps
    ours: Rows = {row: {"tokens a clip": steps * height * width // share} for row, share in shares.items()}
    return _with_study(13, folders, EFFECTS, ours)


def time_bins_table(folders: ResultFolders) -> PaperTable:
    """Table 14: MACs in the terms of the paper's counter, all tokens."""
    ours: Rows = {}
    for row in printed_table(14).rows:
        ours[row] = {"MACs, M": 1e3 * as_counted(config(time_steps=int(row.removeprefix("t-")))) / 2}
    note = "The paper's MACs of this table fit no part of the network; Table 20 has other values for the same T."
    return _with_study(14, folders, EFFECTS, ours, (note,))


def interface_table(folders: ResultFolders) -> PaperTable:
    """Table 7: counted as the released code is built, with a bias in the Mamba blocks' convolution."""
    ours: Rows = {}
    for row, model in (("flatten", "mamba-spike"), ("pooled", "mamba-spike-pooled")):
        found = count_parameters(model_config(model, conv_bias=True))
        joined = found.by_part["input_proj"]
        values = (found.deployed / 1e6, joined / 1e6, 100 * joined / found.deployed)
        ours[row] = dict(zip(printed_table(7).columns, values, strict=False))
    return _with_study(7, folders, EFFECTS, ours)


def attention_table(folders: ResultFolders) -> PaperTable:
    """Table 18; the paper trained none of the variants."""
    return _with_study(18, folders, EFFECTS, attention_parameters())


def class_table(run: Path | None) -> PaperTable:
    """Table 15: the classes of a run below the paper's."""
    printed = printed_table(15)
    (column,) = printed.columns
    if run is None:
        return beside(15, printed, {}, missing=("no run given: ripe table 15 --run RUN",))
    result = read_result(run)
    if result is None or not result.per_class:
        raise InputError.expected("run", "the folder of a run that has ended", str(run))
    ours: Rows = {"mean": {column: TableCell(f"{100 * result.tested_top1:.2f} (of {result.n} clips)")}}
    extra = {}
    for score in result.per_class:
        value = 100 * score.correct / max(score.n, 1)
        ours[f"class {score.name}"] = {column: TableCell(f"{value:.2f} ({score.correct} of {score.n})")}
        extra[f"class {score.name}"] = score.name
    return beside(15, printed, ours, extra=extra, sources=(f"the run {run.resolve().name}, {result.n} test clips",))


def peers_table(folders: ResultFolders) -> PaperTable:
    """Table 1: our count of every network that is in this package, and its accuracy on the sets that stand for the
    dataset."""
    outcome = read_outcome(folders, "peers")
    sets = outcome.sets if outcome else []
    columns = [
        TableColumn("T", "paper"),
        TableColumn("parameters, M", "paper"),
        TableColumn("parameters, M", "ours"),
        TableColumn("top-1, %", "paper"),
        *(TableColumn(f"top-1 on {name}", "ours") for name in sets),
    ]
    rows, used = [], set()
    for row in published_results():
        arms = [_arm_of(row, outcome, name) for name in sets]
        used |= {(name, arm.name) for name, arm in zip(sets, arms, strict=True) if arm}
        millions = None if row.millions is None else f"{row.millions:.2f}".rstrip("0").rstrip(".")
        cells = [None if row.time_steps is None else TableCell(str(row.time_steps)),
                 None if millions is None else TableCell(millions), _parameters(row, millions),
                 TableCell(f"{row.accuracy:.2f}"), *(accuracy_cell(arm) if arm else None for arm in arms)]  # fmt: skip
        rows.append(TableRow(row.method + MARKS[row.mark], tuple(cells), row.dataset))
    others = {arm.name: arm.title for name in sets for arm in (outcome.arms(name) if outcome else ())}
    for name, title in others.items():  # on the sets that stand for a dataset on which the paper has no such row
        accuracies = [
            next((accuracy_cell(arm) for arm in outcome.arms(one) if arm.name == name), None)
            if outcome is not None and (one, name) not in used
            else None
            for one in sets
        ]
        if any(accuracies) or not any((one, name) in used for one in sets):
            rows.append(TableRow(title, (None,) * 4 + tuple(accuracies), NOT_IN_PAPER))
    printed = PrintedTable(label="sota-all", title="State of the art", columns=[], rows={}, study="peers")
    texts = study_texts(printed, outcome)
    marked = (
        "* quoted from its source; ‡ the released code under its own, † under the paper's protocol. Why a count of "
        "ours differs: docs/comparison.md."
    )
    absent = ["Not in the paper: the network, or its accuracy on the dataset that a set stands for."] if others else []
    return PaperTable(
        1, printed.label, printed.title, tuple(columns), tuple(rows), (marked, *absent, *texts["notes"]),
        (*COUNTED, *texts["sources"]), tuple(texts["missing"]),
    )  # fmt: skip


def _parameters(row: PublishedResult, millions: str | None) -> TableCell | None:
    """Our count of the network at the dataset's sizes and classes."""
    if row.model is None or row.model not in list_models():
        return None
    like = model_config(row.dataset)
    sizes = {"num_classes": like.num_classes, "time_steps": row.time_steps or like.time_steps, "in_size": like.in_size}
    return compare(count_parameters(model_config(row.model, **sizes)).deployed / 1e6, millions)


def _arm_of(row: PublishedResult, outcome: StudyOutcome | None, name: str) -> ArmOutcome | None:
    """The network's arm on a set that stands for the row's dataset; of Mamba-Spike, beside the paper's own run."""
    if outcome is None or outcome.counterparts[name] != row.dataset:
        return None
    if row.model is None or row.mark == "own protocol" or "lite" in row.method:
        return None
    arm_name = "ours" if row.mark == "ours" else row.model
    return next((arm for arm in outcome.arms(name) if arm.name == arm_name), None)
