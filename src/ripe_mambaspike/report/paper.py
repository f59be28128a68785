"""The paper's tables and figures as one page: ours beside the paper's, what was run, and what is missing."""

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ripe_mambaspike import __version__
from ripe_mambaspike.commit import commit
from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.files import make_folder, write_file
from ripe_mambaspike.models.shipped import shipped_folder
from ripe_mambaspike.report.figures.canvas import image_bytes
from ripe_mambaspike.report.figures.draw import FIGURES, FigureInputs, FigureKind
from ripe_mambaspike.report.formatting import report_templates
from ripe_mambaspike.studies.tables.make import NUMBERS, paper_table
from ripe_mambaspike.studies.tables.overview import other_studies
from ripe_mambaspike.studies.tables.stored import ResultFolders, folder_name, result_folders
from ripe_mambaspike.studies.tables.table import PaperTable
from ripe_mambaspike.studies.tables.text import to_csv, to_markdown
from ripe_mambaspike.templating import render_page

PAGE = "paper.html"
NETWORK = "gestures-simulated"  # filters and attention where no network is given


@dataclass(frozen=True)
class DrawnFigure:
    """A figure of the page, or the reason why it is not there."""

    name: str
    kind: FigureKind
    uri: str | None
    source: str
    missing: str = ""


def write_paper(
    out: str | Path,
    *,
    results: str | Path | Sequence[str | Path] | None = None,
    run: str | Path | None = None,
    network: str | Path | None = None,
    recording: str | Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write paper.html (one self-contained page), tables/ (CSV, Markdown) and figures/ (SVG, PDF) into a folder.

    Needs no GPU and no download: it counts parameters and operations, and reads what is stored. The page says what is
    missing.

    Args:
        results: folders of stored results as for `paper_table`, by default benchmarks/results of this checkout
        run: the folder of a run, for firing rates and accuracy by class
        network: for filters and attention; by default the shipped gesture network
        recording: for the attention; by default a simulated hand clap
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError.expected("out", "a folder", f"the file {folder}")
    stored = result_folders(results)
    tables = []
    for number in NUMBERS:
        progress(f"table {number} …")
        tables.append(paper_table(number, results=stored, run=run if number == 15 else None))
    others = other_studies(stored)
    try:
        for part in (folder, folder / "tables", folder / "figures"):
            make_folder(part)
    except OSError as error:
        raise InputError.expected("out", "a folder that can be written", error, path=folder) from error
    for table in (*tables, *others):
        name = f"table-{table.number:02d}" if table.number else table.label
        write_file(folder / "tables" / f"{name}.csv", to_csv(table).encode())
        write_file(folder / "tables" / f"{name}.md", to_markdown(table).encode())
    inputs = FigureInputs(
        run=None if run is None else Path(run),
        network=shipped_folder(NETWORK) if network is None else Path(network),
        recording=None if recording is None else Path(recording),
        results=stored,
    )
    drawn = list(_figures(folder / "figures", inputs, progress))
    return write_file(folder / PAGE, make_paper(tables, others, drawn, stored))


def make_paper(
    tables: list[PaperTable], others: list[PaperTable], figures: list[DrawnFigure], results: ResultFolders
) -> bytes:
    """The HTML."""
    report_templates()  # its filters
    missing = [(f"Table {table.number}", text) for table in tables for text in table.missing]
    missing += [(f"Figure {figure.name}", figure.missing) for figure in figures if figure.missing]
    return render_page(
        "ripe_mambaspike.report",
        "paper.html",
        style="paper.css",
        script="paper.js",
        images="data:",
        tables=tables,
        others=others,
        figures=figures,
        missing=missing,
        same=sum(table.count("same") for table in tables),
        differs=sum(table.count("differs") for table in tables),
        facts=[
            ("made", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
            ("package", f"ripe-mambaspike {__version__}"),
            ("commit", commit() or "not in a checkout"),
            ("stored results", ", ".join(map(folder_name, results)) or "none"),
        ],
    )


def _figures(folder: Path, inputs: FigureInputs, progress: Callable[[str], None]) -> Iterator[DrawnFigure]:
    for name, kind in FIGURES.items():
        progress(f"figure {name} …")
        try:
            figure = kind.draw(inputs)
        except RipeError as error:
            yield DrawnFigure(name, kind, None, "", str(error))
            continue
        images = {ending: image_bytes(figure, ending) for ending in ("svg", "pdf")}
        for ending, image in images.items():
            write_file(folder / f"{name}.{ending}", image)
        uri = "data:image/svg+xml;base64," + base64.b64encode(images["svg"]).decode()
        yield DrawnFigure(name, kind, uri, _source(kind, inputs))


def _source(kind: FigureKind, inputs: FigureInputs) -> str:
    """What a figure was drawn from."""
    used = [(field, getattr(inputs, field)) for field in kind.uses if field not in ("steps", "results")]
    named = [f"{field} {path.resolve().name}" for field, path in used if path is not None]
    if "recording" in kind.uses and inputs.recording is None:
        named.append("a simulated recording")
    return ", ".join(named)
