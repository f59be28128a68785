"""A run as one self-contained HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.files import atomic_write
from ripe_mambaspike.report.curves import filter_charts, log_charts, rate_charts
from ripe_mambaspike.report.formatting import report_templates
from ripe_mambaspike.report.observe import Clip, Observed, cost, observe
from ripe_mambaspike.report.results import confusion, headline, samples
from ripe_mambaspike.report.run_data import RunData, read_run
from ripe_mambaspike.report.tables import account_tables, log_table
from ripe_mambaspike.templating import render_page

REPORT_FILE = "report.html"
SECTIONS = {
    "curves": "Curves",
    "firing": "Firing rates",
    "filters": "Temporal filters",
    "confusion": "Confusion",
    "classes": "Classes",
    "samples": "Samples",
    "account": "Account",
    "recipe": "Recipe",
    "log": "Log",
}


def write_report(folder: Path, *, clips: Sequence[Clip] | None = None, samples: int = 4) -> Path:
    """Write `report.html` into a run folder and return its path.

    `clips` are held-out clips (events [T, 2, H, W], label, name), of which `samples` are shown, evenly chosen. Without
    them the page has no sample panels.
    """
    if samples < 0:
        raise InputError(f"samples: expected 0 or more, got {samples}", field="samples")
    run = read_run(Path(folder))
    page = make_page(run, None if clips is None else _pick_evenly(clips, samples))
    path = run.folder / REPORT_FILE
    try:
        with atomic_write(path) as file:
            file.write(page)
    except OSError as error:
        raise InputError(f"{path}: expected a writable file, got {error.strerror or error}", path=path) from error
    return path


def make_page(run: RunData, clips: list[Clip] | None) -> bytes:
    """The HTML."""
    observed = observe(run.model, clips) if run.model is not None and clips is not None else None
    document, reason = _account(run, clips if observed is not None and observed.samples else None)
    report_templates()  # its filters
    return render_page(
        "ripe_mambaspike.report",
        "report.html",
        style="report.css",
        script="report.js",
        images="data:",
        sections=SECTIONS,
        notes=run.notes,
        recipe=run.recipe,
        scores=run.scores,
        confusion=confusion(run),
        log=log_table(run),
        account=None if document is None else account_tables(document),
        account_missing=reason,
        **headline(run, {} if document is None else document["parameters"]),
        **log_charts(run),
        **rate_charts(run, observed or Observed()),
        **filter_charts(run, run.model),
        **samples(run, observed),
    )


def _pick_evenly(clips: Sequence[Clip], count: int) -> list[Clip]:
    """`count` evenly spaced clips; only these are read."""
    count = min(count, len(clips))
    return [clips[index * len(clips) // count] for index in range(count)]


def _account(run: RunData, clips: list[Clip] | None) -> tuple[dict[str, Any] | None, str]:
    """The account, or the reason why there is none."""
    if run.model is None:
        return None, f"Nothing was counted. {run.notes.get('best', '')}"
    try:
        return cost(run.model, clips or []), ""
    except (RipeError, RuntimeError) as error:
        return None, f"The account could not be made: {error}."
