"""A run as one page: no other file, no connection, nothing run that a name or a recipe could bring."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.files import atomic_write
from ripe_mambaspike.report.closing import costs, log_contents, recipe
from ripe_mambaspike.report.curves import curves, firing, modulation
from ripe_mambaspike.report.formatting import escaped
from ripe_mambaspike.report.headline import bar_at_top, headline, picked, run_name, score_text
from ripe_mambaspike.report.observe import Clip, Observed, cost, observe
from ripe_mambaspike.report.outcome import confusion, per_class, samples
from ripe_mambaspike.report.run_data import RunData, read_run
from ripe_mambaspike.report.style import SCRIPT, STYLE

REPORT_FILE = "report.html"


def write_report(folder: Path, *, clips: Sequence[Clip] | None = None, samples: int = 4) -> Path:
    """Write `report.html` into a run folder and return its path.

    `clips` are held-out clips ([T, 2, H, W], label, name); so many of them as `samples` says are shown, evenly chosen.
    Without them the page has no sample panels.
    """
    if samples < 0:
        raise InputError(f"samples is {samples}; a number from 0 up is wanted")
    run = read_run(Path(folder))
    page = make_page(run, None if clips is None else _chosen(clips, samples))
    path = run.folder / REPORT_FILE
    try:
        with atomic_write(path) as file:
            file.write(page)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); a folder with room is wanted"
        ) from error
    return path


def make_page(run: RunData, clips: list[Clip] | None) -> bytes:
    """The HTML."""
    observed = observe(run.model, clips) if run.model is not None and clips is not None else None
    document, unavailable_reason = _cost(run, clips if observed is not None and observed.samples else None)
    seen = observed or Observed()
    sections = [
        ("curves", "Curves", curves(run)),
        ("firing", "Firing rates", firing(run, seen)),
        ("filters", "Temporal filters", modulation(run, run.model)),
        ("confusion", "Confusion", confusion(run)),
        ("classes", "Classes", per_class(run)),
        ("samples", "Samples", samples(run, observed)),
        ("account", "Account", costs(run, document, unavailable_reason)),
        ("recipe", "Recipe", recipe(run)),
        ("log", "Log", log_contents(run)),
    ]
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in sections)
    body = "".join(f'<section id="{key}"><h2>{title}</h2>{content}</section>' for key, title, content in sections)
    policy = f"default-src 'none'; img-src data:; style-src '{_digest(STYLE)}'; script-src '{_digest(SCRIPT)}'"
    title = f"{run_name(run)}: {score_text(run)}, {picked(run.result)[0]}"
    parameters = document["parameters"] if document is not None else {}
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="data:,">\n<title>{escaped(title, 200)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n"
        f"{bar_at_top(run)}<main>{headline(run, parameters)}<nav>{links}</nav>{body}</main>\n"
        f'<div id="tip" hidden></div>\n<script>{SCRIPT}</script>\n</body>\n</html>\n'
    ).encode("utf-8", "replace")


def _chosen(clips: Sequence[Clip], wanted: int) -> list[Clip]:
    """So many, evenly from all; only these are read."""
    count = min(wanted, len(clips))
    return [clips[index * len(clips) // count] for index in range(count)]


def _cost(run: RunData, clips: list[Clip] | None) -> tuple[dict[str, Any] | None, str]:
    if run.model is None:
        return None, f"Nothing was counted. {run.notes.get('best', 'The picked network is not there.')}"
    try:
        return cost(run.model, clips or []), ""
    except (RipeError, RuntimeError) as error:
        return None, f"The account could not be made: {error}."


def _digest(text: str) -> str:
    """The one text that a browser takes here."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
