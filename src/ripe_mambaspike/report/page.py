"""A run as one self-contained HTML page."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ripe_mambaspike.data.samples import sample_clips
from ripe_mambaspike.data.settings import read_data_settings
from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.files import write_file
from ripe_mambaspike.report.curves import filter_charts, log_charts, log_table, rate_charts
from ripe_mambaspike.report.formatting import report_templates
from ripe_mambaspike.report.observe import Clip, Observed, cost, observe
from ripe_mambaspike.report.results import NO_CLIPS, confusion, headline, samples
from ripe_mambaspike.report.run_data import RunData, read_run
from ripe_mambaspike.templating import render_page

LOG = logging.getLogger("ripe_mambaspike")
REPORT_FILE = "report.html"
SECTIONS = {
    "curves": "Curves",
    "firing": "Firing rates",
    "filters": "Temporal filters",
    "confusion": "Confusion",
    "classes": "Classes",
    "samples": "Samples",
    "account": "Cost",
    "recipe": "Recipe",
    "log": "Log",
}


def write_report(
    folder: str | Path,
    *,
    clips: Sequence[Clip] | None = None,
    root: str | Path | None = None,
    samples: int = 4,
) -> Path:
    """Write `report.html` into a run folder and return its path; a warning names what is missing in the page.

    Args:
        clips: held-out clips (events [T, 2, H, W], label, name), of which `samples` are shown, evenly chosen;
            by default test clips of the dataset in the run's recipe, if it is there
        root: the folder of that dataset; by default as in the recipe
    """
    if samples < 0:
        raise InputError(f"samples: expected 0 or more, got {samples}", field="samples")
    run = read_run(Path(folder))
    clips = _test_clips(run, root, samples) if clips is None else clips
    page = make_page(run, None if clips is None else _pick_evenly(clips, samples))
    path = write_file(run.folder / REPORT_FILE, page)
    missing = [*run.notes.values()]
    if run.model is not None and clips is None and samples:
        missing.append(NO_CLIPS)
    if missing:  # an earlier page, which this one replaced, may have been complete
        LOG.warning(f"{path} is incomplete: {' '.join(missing)}")
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
        account=document,
        account_missing=reason,
        **headline(run, {} if document is None else document["parameters"]),
        **log_charts(run),
        **rate_charts(run, observed or Observed()),
        **filter_charts(run, run.model),
        **samples(run, observed),
    )


def _test_clips(run: RunData, root: str | Path | None, count: int) -> Sequence[Clip] | None:
    """Test clips of the dataset that the run was trained on; None if it is not there."""
    try:
        settings = read_data_settings(run.folder / "recipe.yaml")
    except RipeError:
        return None
    store = run.result.get("store")
    store = store if isinstance(store, str) else settings.store
    return sample_clips(replace(settings, store=store, root=settings.root if root is None else str(root)), count)


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
        reason = f"The account could not be made: {error}."
        LOG.warning(f"{run.folder / REPORT_FILE} is incomplete: {reason}")
        return None, reason
