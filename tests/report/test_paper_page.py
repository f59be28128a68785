"""The page of all tables and figures: every value is on it, nothing is loaded, and what is missing is named."""

import re

import pytest
from tests.studies.stored_results import arm, effect, store_costs, store_study, summary

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.report import paper
from ripe_mambaspike.report.figures.canvas import image_bytes
from ripe_mambaspike.report.figures.draw import FIGURES
from ripe_mambaspike.report.figures.pareto import draw_pareto
from ripe_mambaspike.report.paper import DrawnFigure, make_paper, write_paper
from ripe_mambaspike.studies.tables.make import paper_table
from ripe_mambaspike.studies.tables.overview import other_studies


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    store_costs(folder)
    arms = [arm("full", (70.0, 71.0)), arm("no-tdm", (68.0, 69.0), effect=effect(-2.0, 0.03, "*"))]
    store_study(folder, "components", {"sim-cifar10": arms})
    shaken = [arm("ripe", (70.0, 71.0), conditions={"noise=0.5": summary(43.25)})]
    store_study(folder, "robustness", {"gestures-hard": shaken})
    return folder


def test_every_cell_is_on_the_page(results, tmp_path, reader):
    tables = [paper_table(number, results=results) for number in (2, 6, 20)]
    missing = DrawnFigure("rate-loss", FIGURES["rate-loss"], None, "", "not run <yet>")
    path = tmp_path / "page.html"
    path.write_bytes(make_paper(tables, other_studies((results,)), [missing], (results,)))
    page = reader(path)
    for table in tables:
        section = page.section(f"table-{table.number}")
        cells = [cell for row in table.rows for cell in row.cells if cell is not None]
        assert all(cell.text in section for cell in cells)
        assert section.count("≠") == table.count("differs")
    assert "43.25" in page.section("study-robustness")
    assert "not run <yet>" in page.section("figure-rate-loss")
    same, differs = (sum(table.count(kind) for table in tables) for kind in ("same", "differs"))
    assert f"{same} agree" in page.text["main"][0]
    assert f"{differs} differ" in page.text["main"][0]


def test_the_page_loads_nothing(results, tmp_path, reader):
    uri = "data:image/svg+xml;base64,AAAA"
    drawn = DrawnFigure("pareto", FIGURES["pareto"], uri, "")
    path = tmp_path / "page.html"
    path.write_bytes(make_paper([paper_table(10)], [], [drawn], ()))
    page = reader(path)
    loaded = [attributes[key] for _, attributes in page.tags for key in ("src", "href") if attributes.get(key)]
    assert all(link.startswith(("data:", "#")) for link in loaded)
    assert uri in loaded
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "Security" in (a.get("http-equiv") or ""))
    assert "default-src 'none'" in policy


def test_svg_figures_load_nothing():
    links = re.findall(rb'(?:href|src)="([^"]*)"', image_bytes(draw_pareto(), "svg"))
    assert all(link.startswith(b"#") for link in links)


@pytest.mark.slow
def test_the_folder(results, tmp_path, make_run, reader, monkeypatch):
    run = make_run()
    numbers = (2, 10, 15, 16)
    monkeypatch.setattr(paper, "NUMBERS", numbers)
    monkeypatch.setattr(
        paper, "FIGURES", {name: FIGURES[name] for name in ("classes", "filters", "rate-loss", "latency")}
    )
    out = tmp_path / "paper"
    page = reader(write_paper(out, results=results, run=run, network=run))
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    tables = [f"table-{number:02d}" for number in numbers] + ["robustness"]
    figures = ["classes", "filters", "latency"]
    expected = {f"tables/{name}.{ending}" for name in tables for ending in ("csv", "md")}
    expected |= {f"figures/{name}.{ending}" for name in figures for ending in ("svg", "pdf")}
    assert names == {"paper.html", *expected}
    images = [a["src"] for tag, a in page.tags if tag == "img"]
    assert len(images) == 3
    assert all(source.startswith("data:image/svg+xml;base64,") for source in images)
    assert "88.89" in page.section("table-15")  # 8 of 9 clips of each class
    assert "ripe study rate-loss" in page.section("figure-rate-loss")


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        write_paper(tmp_path / "file")
    assert caught.value.field == "out"
    with pytest.raises(InputError) as caught:
        write_paper(tmp_path / "file" / "below")
    assert caught.value.field == "out"
