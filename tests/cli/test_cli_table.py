"""`ripe table`, `ripe figure` and `ripe paper`: the public functions' results, on the terminal and in files."""

import csv
import io
import json

import pytest
from tests.studies.stored_results import arm, effect, store_costs, store_study

from ripe_mambaspike.studies.tables.make import paper_table


@pytest.fixture
def results(tmp_path):
    long = effect(-2.0, 0.00031, "***", 2.5)
    for name in ("components", "sequence-modules"):
        arms = [arm("full", (70.0, 71.0)), arm("no-tdm", (68.0, 69.0), effect=long, verdict="same direction")]
        store_study(tmp_path, name, {"sim-cifar10": arms, "sim-caltech101": arms, "gestures-hard": arms})
    return tmp_path


def test_json_is_the_table(ripe):
    result = ripe("table", 6, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out) == json.loads(json.dumps(paper_table(6).to_dict()))


def test_csv_and_markdown(ripe):
    lines = list(csv.DictReader(io.StringIO(ripe("table", 10, "--csv").out)))
    assert [line["text"] for line in lines if line["column"] == "tokens" and line["by"] == "ours"] == [
        "256",
        "128",
        "64",
    ]
    assert ripe("table", 10, "--markdown").out.startswith("### Table 10.")


def test_the_terminal_shows_whole_cells(ripe, results):
    """Columns that do not fit beside each other follow below; nothing is cut short."""
    shown = ripe("table", 2, "--results", results).out
    assert "…" not in shown
    table = paper_table(2, results=results)
    for row in table.rows:
        for cell in row.cells:
            assert cell is None or cell.text in shown
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize("number", [1, 2, 6, 17])
def test_no_table_is_cut_off_at_the_right(ripe, results, number):
    store_costs(results)
    lines = [line for line in ripe("table", number, "--results", results).out.splitlines() if line[:1] in "┏┃┡│├└┗"]
    assert lines
    assert {line[-1] for line in lines if line} <= set("┓┃┩│┤┘┛")


def test_results_are_added_by_repeating_the_option(ripe, results, tmp_path):
    shown = ripe("table", 2, "--results", "stored", "--results", results, "--json")
    assert json.loads(shown.out) == json.loads(json.dumps(paper_table(2, results=results).to_dict()))
    drawn = ripe("figure", "pareto", "--out", tmp_path / "x.svg", "--results", "stored", "--results", results)
    assert results.resolve().name in drawn.out.splitlines()[-1]
    assert ripe("table", 2, "--results", "stored", "--results", tmp_path / "none").code == 2


def test_what_differs_is_marked_without_colours(ripe):
    shown = ripe("table", 14).out
    assert shown.count("≠") == 5
    assert "0 agree as printed and 5 differ" in shown


def test_printed_values_and_ours_share_a_cell_in_a_wide_table(ripe):
    shown = ripe("table", 9).out
    assert "…" not in shown
    assert "148 agree" in shown
    assert "ours" not in shown.split("Of 148")[0]


def test_one_format_at_a_time(ripe):
    assert ripe("table", 6, "--json", "--csv").code == 2
    assert ripe("table", 21).code == 2


@pytest.mark.slow
def test_the_list_of_tables(ripe):
    shown = ripe("table").out
    assert "Operations against tokens" in shown
    assert "ripe study" in shown


def test_figures_are_listed_and_drawn(ripe, tmp_path):
    listed = ripe("figure", "list").out
    assert "interface" in listed
    assert "firing-rates" in listed
    assert ripe("figure", "interface").code == 2
    assert ripe("figure", "interface", "--out", tmp_path / "x.svg").code == 0
    assert (tmp_path / "x.svg").read_bytes().startswith(b"<?xml")
    assert ripe("figure", "filters", "--out", tmp_path / "y.svg").code == 2


@pytest.mark.slow
def test_the_paper(ripe, tmp_path):
    result = ripe("paper", "--out", tmp_path / "paper", "--results", tmp_path)
    assert result.code == 0, result.err
    page = (tmp_path / "paper" / "paper.html").read_text()
    assert page.count("<section") == 20 + 10
    assert page.count("<img") == 4
    assert "869,593" in page or "0.86959" in page
