"""`ripe bench paper`: the document that Tables 16, 17 and 19 are read from."""

import json

import pytest
import torch

from ripe_mambaspike.bench import paper_costs
from ripe_mambaspike.bench.options import PaperCostOptions
from ripe_mambaspike.bench.paper_costs import bench_paper
from ripe_mambaspike.bench.tables import agrees, tables_of
from ripe_mambaspike.studies.tables.make import paper_table

TINY = PaperCostOptions(device="cpu", repeats=1, batch=1, time_steps=2, in_size=16, in_sizes=[16, 24])


@pytest.mark.slow
def test_the_document_of_the_three_tables(monkeypatch, tmp_path):
    monkeypatch.setattr(paper_costs, "RATIO_BATCHES", (1, 2))
    document = bench_paper(TINY)
    assert agrees(document)
    rows = {row["kind"]: row for row in document["attention"]["rows"]}
    assert {kind: row["parameters"] for kind, row in rows.items()} == {"ds-mpa": 64_736, "gate": 21_728, "none": 0}
    assert [row["parameters"] for row in document["attention"]["widths"]] == [64_736, 258_496, 1_033_088]
    assert rows["ds-mpa"]["activation_mib"] > rows["gate"]["activation_mib"] > rows["none"]["activation_mib"] > 0
    weights = {row["path"]: row["weights_mib"] for row in document["deployment"]}
    assert weights["training"] > weights["deployed"] == weights["deployed-captured"]
    assert [row["side"] for row in document["resolution"]] == [16, 24]
    assert document["resolution"][1]["training"]["peak_mib"] > document["resolution"][0]["training"]["peak_mib"]
    assert [len(table.rows) for table in tables_of(document)] == [6, 5, 2]
    (tmp_path / "x-paper.json").write_text(json.dumps(document | {"time_steps": 16, "in_size": 128, "batch": 4}))
    for number in (16, 17, 19):
        assert paper_table(number, results=tmp_path).missing == ()


def test_an_operators_inputs_have_the_sizes_of_the_stages(monkeypatch):
    """Three stages, halved three times, at their widths; forward and backward are those of the module."""
    seen = []

    class Spy(torch.nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(channels))

        def forward(self, potential, spikes, features):
            seen.append(tuple(features.shape))
            return (features * self.weight.view(-1, 1, 1), features), {}

    monkeypatch.setattr(paper_costs, "make_attention", lambda kind, channels: Spy(channels))
    runner = paper_costs._Runner(TINY, torch.device("cpu"), 1, lambda text: None)
    made = runner._operator("ds-mpa", 1, (4, 8, 16))
    assert set(seen) == {(1, 2, 4, 8, 8), (1, 2, 8, 4, 4), (1, 2, 16, 2, 2)}
    assert made["parameters"] == 28
    assert made["backward_ms"] > 0
