"""Stored studies that answer no table of the paper, as tables of their own."""

from ripe_mambaspike.studies.results import RESULTS_FILE
from ripe_mambaspike.studies.tables.outcomes import ArmOutcome, StudyOutcome, read_outcome
from ripe_mambaspike.studies.tables.printed import printed_studies
from ripe_mambaspike.studies.tables.stored import ResultFolders
from ripe_mambaspike.studies.tables.table import PaperTable, TableCell, TableColumn, TableRow
from ripe_mambaspike.studies.tables.trained import accuracy_cell, effect_cell

IN_TABLES = {"peers"}  # Table 1, which is not among the printed ones


def other_studies(folders: ResultFolders) -> list[PaperTable]:
    """One table for each: its arms, their accuracy and difference on every set, and under conditions at test."""
    found = {path.parent.name for folder in folders for path in (folder / "studies").glob(f"*/{RESULTS_FILE}")}
    outcomes = [read_outcome(folders, name) for name in sorted(found - IN_TABLES - printed_studies())]
    return [_table(outcome) for outcome in outcomes if outcome is not None]


def _table(outcome: StudyOutcome) -> PaperTable:
    columns, cells = [], []
    for name in outcome.sets:
        conditions = list(dict.fromkeys(key for arm in outcome.arms(name) for key in arm.conditions))
        columns += [f"top-1 on {name}", f"Δ on {name}", *(f"{one}, {name}" for one in conditions)]
        cells.append((name, conditions))
    titles = {arm.name: arm.title for name in outcome.sets for arm in outcome.arms(name)}
    rows = []
    for key, title in titles.items():
        row: list[TableCell | None] = []
        for name, conditions in cells:
            arm = next((one for one in outcome.arms(name) if one.name == key), None)
            row += [None] * (2 + len(conditions)) if arm is None else _cells(arm, conditions)
        rows.append(TableRow(title, tuple(row)))
    return PaperTable(
        0, outcome.name, outcome.title, tuple(TableColumn(name, "ours") for name in columns), tuple(rows),
        sources=(outcome.source,), missing=tuple(outcome.missing),
    )  # fmt: skip


def _cells(arm: ArmOutcome, conditions: list[str]) -> list[TableCell | None]:
    under = [arm.conditions.get(name) for name in conditions]
    return [accuracy_cell(arm), effect_cell(arm), *(None if x is None else TableCell(f"{x:.2f}") for x in under)]
