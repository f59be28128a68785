"""The published results against the paper, the claims and the networks themselves."""

import os
import re
from pathlib import Path

import msgspec
import pytest
from tests.raising import raises

from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.models.peers.published import PublishedResult, published_results
from ripe_mambaspike.models.registry import meta_model, model_config
from ripe_mambaspike.schema import convert
from ripe_mambaspike.studies.claims import printed

ROOT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("RIPE_SHARED_DATA") or ROOT.parent / "shared" / "data")
PAPER = SHARED.parent / "paper" / "ripe-mambaspike.tex"
DATASETS = {
    "DVS-Gesture": "dvsgesture",
    "CIFAR10-DVS": "cifar10dvs",
    "N-Caltech101": "ncaltech101",
    "DailyDVS-200": "dailydvs200",
    "N-MNIST": "nmnist",
}
MARKS = {r"\ast": "published", r"\ddagger": "own protocol", r"\dagger": "our protocol"}
OURS = "RIPE-MambaSpike"


def paper_rows():
    """Rows of Table 1, read from the paper's source."""
    table = PAPER.read_text().split(r"\label{tab:sota-all}")[1].split(r"\end{table}")[0]
    dataset = None
    for line in table.splitlines():
        if title := re.search(r"\\multicolumn.*\\emph\{(.*?)\}", line):
            dataset = DATASETS[title[1]]
        elif dataset and line.count("&") == 3 and not line.startswith("Method"):
            yield paper_row(dataset, line)


def paper_row(dataset, line):
    marks = [name for name in MARKS if f"^{name}$" in line]
    source = re.search(r"\\cite\{(.*?)\}", line)
    ours = source is None
    text = re.sub(r"\\cite\{.*?\}|\$\^\\\w+\$|\\(?:textbf|underline|emph|quad)|\\[,\\]|[{}~]", "", line)
    method, steps, millions, accuracy = (cell.strip() for cell in text.split("&"))
    return PublishedResult(
        dataset=dataset,
        method=f"{OURS} lite" if method == "lite" else OURS if ours else method,
        time_steps=None if steps == "--" else int(steps),
        millions=None if millions == "---" else float(millions.removesuffix("M")),
        accuracy=float(accuracy),
        mark="ours" if ours else MARKS[marks[0]],
        source=None if ours else source[1],
    )


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not there: set RIPE_SHARED_DATA to shared/data")
def test_every_row_is_the_papers():
    rows = list(paper_rows())
    assert len(rows) == 11 + 14 + 7 + 12 + 6
    assert [msgspec.structs.replace(row, model=None) for row in published_results()] == rows


def test_claims_are_computed_from_the_same_numbers():
    tables = {
        "dvsgesture": printed.GESTURE,
        "cifar10dvs": printed.CIFAR,
        "ncaltech101": printed.CALTECH,
        "dailydvs200": printed.DAILY,
        "nmnist": printed.MNIST,
    }
    for dataset, rows in tables.items():
        assert [(row.millions, row.accuracy) for row in published_results(dataset)] == [row[1:] for row in rows]


NOT_REACHED = {"tet-vggsnn"}  # see the file of the network: the count that is printed is not its own


def test_counts_that_are_not_reached_are_not_claimed():
    for name in NOT_REACHED:
        config = model_config(name)
        printed = [row.millions for row in published_results() if row.model == name]
        assert all(abs(meta_model(config).parameter_count() / 1e6 / millions - 1) > 0.01 for millions in printed)


@pytest.mark.parametrize(
    "row",
    [row for row in published_results() if row.model and row.millions and row.model not in NOT_REACHED],
    ids=lambda row: row.model,
)
def test_networks_of_this_package_have_the_printed_size(row):
    """Within 1 % or half of the last printed digit; TSM is printed for 400 classes."""
    config = model_config(row.model)
    count = meta_model(config, config.deployed().form).parameter_count() / 1e6
    tolerance = 0.016 if row.model == "tsm" else 0.01
    assert abs(count - row.millions) < max(tolerance * row.millions, 0.005)


def test_a_few_rows():
    assert [row.accuracy for row in published_results("dailydvs200") if row.method == "Swin-T"] == [48.06]
    protocols = {row.mark: row.accuracy for row in published_results("cifar10dvs") if row.method == "Mamba-Spike"}
    assert protocols == {"published": 92.5, "own protocol": 48.9, "our protocol": 65.3}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accuracy", 101.0),
        ("mark", "ran it"),
        ("time_steps", 0),
        ("millions", -1.0),
        ("source", None),
        ("dataset", "imagenet"),
    ],
)
def test_rows_are_checked(field, value):
    row = {"method": "TET", "time_steps": 16, "millions": 3.66, "accuracy": 97.92, "mark": "published"}
    row |= {"dataset": "dvsgesture", "source": "deng2022tet"}
    assert convert(row, PublishedResult).accuracy == 97.92
    with raises(DataError, field=field):
        convert({**row, field: value}, PublishedResult)


def test_an_unknown_dataset_is_refused():
    with raises(ConfigError, field="dataset", mentions="ncaltech101"):
        published_results("imagenet")
