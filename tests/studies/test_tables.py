"""The paper's tables: as printed, beside what is counted, measured and trained."""

import csv
import io
import json
from dataclasses import replace

import pytest
from tests.raising import raises
from tests.studies.stored_results import arm, effect, store_costs, store_study, summary

from ripe_mambaspike.account.sweeps import sweep
from ripe_mambaspike.errors import ConfigError, DataError, InputError
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.studies.claims.printed import (
    ABLATION,
    CIFAR,
    MIXES,
    SEEDS,
    SEQUENCE,
    hyperparameter,
    printed_row,
)
from ripe_mambaspike.studies.tables import hyperparameters
from ripe_mambaspike.studies.tables.make import NUMBERS, paper_table
from ripe_mambaspike.studies.tables.printed import printed_table
from ripe_mambaspike.studies.tables.table import compare
from ripe_mambaspike.studies.tables.text import to_csv, to_markdown

LABELS = [  # of the table environments in the LaTeX source, in order
    "sota-all", "ablation-main", "seq-ablation", "vs_mambaspike", "param-fusion", "resolution-scaling", "swap",
    "footprint", "hyper", "mamba-spec", "sigma", "neuron-mix", "pruning-sweep", "T-sweep", "perclass", "dsmpa-cost",
    "efficiency", "q6-lowrank", "q7-resolution-cost", "flops",
]  # fmt: skip


@pytest.fixture
def empty(tmp_path):
    return tmp_path


def cell(table, row, column, by="ours"):
    """The cell of a row (by the beginning of its name) and a column."""
    place = next(i for i, one in enumerate(table.columns) if (one.name, one.by) == (column, by))
    (found,) = (one for one in table.rows if one.name.startswith(row))
    return found.cells[place]


def value(table, row, column):
    return cell(table, row, column).numbers["value"]


@pytest.fixture(scope="module")
def without_results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty")
    return {number: paper_table(number, results=folder) for number in NUMBERS}


def test_all_tables_in_the_papers_order(without_results):
    assert [without_results[number].label for number in range(1, 21)] == LABELS
    for table in without_results.values():
        assert all(len(row.cells) == len(table.columns) for row in table.rows)


@pytest.mark.parametrize(
    ("number", "same", "differs"),
    [(1, 23, 12), (4, 12, 0), (5, 4, 2), (6, 19, 0), (7, 6, 0), (8, 8, 4), (9, 148, 0), (10, 12, 0), (12, 5, 3),
     (13, 4, 0), (14, 0, 5), (16, 6, 0), (17, 2, 1), (18, 14, 0), (19, 4, 0), (20, 22, 14)],
)  # fmt: skip
def test_what_agrees_with_the_print(without_results, number, same, differs):
    table = without_results[number]
    assert (table.count("same"), table.count("differs")) == (same, differs)


def test_counted_values(without_results):
    assert value(without_results[5], "Full", "inference, M") == 0.875122
    assert value(without_results[6], "224", "Mamba-Spike, M") == pytest.approx(105.455818)
    assert value(without_results[8], "RIPE-MambaSpike (Daily", "FP16, MB") == pytest.approx(2 * 8.038359)
    assert cell(without_results[18], "grouped", "deployed total").text == "826,738"
    assert value(without_results[20], "deployed", "GFLOPs with the scan") == pytest.approx(9.2149, abs=1e-4)
    assert value(without_results[17], "Mamba-Spike", "weights, MiB") == pytest.approx(138.283, abs=1e-3)
    assert value(without_results[1], "SpikMamba", "parameters, M") == pytest.approx(0.1814, abs=1e-4)


def test_rows_that_were_counted_with_64_tokens(without_results):
    """Where all tokens differ from the print, 64 a step agree."""
    table = without_results[20]
    for row in ("T 4", "T 8", "T 32", "[64", "[128", "224"):
        assert cell(table, row, "GFLOPs").agreement == "differs"
        printed = cell(table, row, "GFLOPs", "paper").text
        few = value(table, row, "GFLOPs, 64 tokens a step")
        assert compare(few, printed).agreement == "same"
    for row in ("32 tokens", "128 tokens", "256 tokens"):  # these have a number of their own
        assert cell(table, row, "GFLOPs, 64 tokens a step") is None


def test_what_is_missing_is_named(without_results):
    assert "ripe study components" in without_results[2].missing[0]
    assert "ripe bench paper" in without_results[16].missing[0]
    assert "--run" in without_results[15].missing[0]
    assert without_results[20].missing == ()


def test_printed_values_of_sweeps_are_those_of_the_tables():
    printed, settings = printed_table(20), {"34×34": "side-34", "48×48": "side-48", "224×224": "side-224"}
    for row in sweep("in_size", model_config("dvsgesture")).rows:
        key = settings.get(row.setting, "deployed")
        assert row.paper["gflops"] == float(printed.cell(key, "GFLOPs"))
        side = row.setting.partition("×")[0]
        assert row.paper["mamba_spike"] == float(printed_table(6).cell(side, "Mamba-Spike, M"))
    for row in sweep("time_steps", model_config("dvsgesture")).rows:
        steps = int(row.position)
        if row.paper["gmacs"] is not None:
            assert 1e3 * row.paper["gmacs"] == pytest.approx(float(printed_table(14).cell(f"t-{steps}", "MACs, M")))


def test_claims_read_the_same_print():
    assert ABLATION["TDM"] == ([0.07, 1.4, 2.43], ["0.2", "12.8", "13.4"])
    assert MIXES[0] == (("csilif", "silif", "silif"), 98.48)
    assert len(MIXES) == 8
    assert SEEDS["cifar10dvs"] == [81.1, 81.3, 81.3, 81.3, 81.4]
    assert SEQUENCE["mamba"] == [(98.18, 0.31), (85.49, 0.18)]
    assert SEQUENCE["gru"] == [(97.73, None), (82.48, None)]
    assert hyperparameter("batch_size", "nmnist") == 64
    assert hyperparameter("weight_decay", "dailydvs200") == 0.02
    assert printed_row(CIFAR, "SpikePool small") == ("SpikePool small", 0.55, 80.2)
    assert printed_row(CIFAR, "Mamba-Spike").accuracy == 65.3
    assert printed_row(CIFAR, "Mamba-Spike released").accuracy == 48.9


@pytest.mark.parametrize(
    ("ours", "paper", "agreement"),
    [(0.8696, "0.870", "same"), (0.8694, "0.870", "differs"), (64_736, "64,736", "same"), (64_737, "64,736", "differs"),
     (True, "yes", "same"), (False, "yes", "differs"), (-3.686, "−3.7", "same"), (1.0, None, "")],
)  # fmt: skip
def test_a_value_agrees_if_it_rounds_to_the_printed_one(ours, paper, agreement):
    assert compare(ours, paper).agreement == agreement


def test_a_recipe_that_departs_from_the_print(monkeypatch):
    load = hyperparameters.load_recipe

    def changed(name):
        recipe = load(name)
        if name != "nmnist":
            return recipe
        augmentation = replace(recipe.augmentation, horizontal_flip=0.0)
        return replace(recipe, optimizer=replace(recipe.optimizer, weight_decay=0.06), augmentation=augmentation)

    monkeypatch.setattr(hyperparameters, "load_recipe", changed)
    table = paper_table(9)
    assert cell(table, "Weight decay", "N-MNIST").text == "0.06"
    assert cell(table, "Horizontal flip", "N-MNIST").text == "none"
    assert table.count("differs") == 2


@pytest.fixture
def components(empty):
    arms = [
        arm("full", (70.0, 71.0)),
        arm("no-attention", (68.0, 69.0), effect=effect(-2.0, 0.03, "*", 2.83), verdict="same direction"),
        arm("no-tdm", (70.0,), effect=effect(-0.5)),
        arm("of-ours", (60.0, 61.0), effect=effect(-10.0, 0.0001, "***", 14.1)),
    ]
    store_study(empty, "components", {"sim-cifar10": arms}, planned=12)
    return empty


def test_a_study_beside_the_print(components):
    table = paper_table(2, results=components)
    found = cell(table, "A1", "top-1 on sim-cifar10")
    assert found.numbers["mean"] == 68.5
    assert found.numbers["n"] == 2
    assert cell(table, "A1", "Δ on sim-cifar10").numbers["p"] == 0.03
    assert "*" in cell(table, "A1", "Δ on sim-cifar10").text
    assert cell(table, "A1", "verdict on sim-cifar10").text == "same direction"
    assert cell(table, "A1", "Δ N-Caltech101", "paper").text == "−3.16"
    assert cell(table, "Of-Ours", "top-1 on sim-cifar10").numbers["mean"] == 60.5
    assert table.rows[-1].section == "Not in the paper"
    assert table.missing == ("2 of 12 runs of ripe study components",)
    assert "NVIDIA H200" in table.sources[0]
    assert "bbbbbbb" in table.sources[0]


def test_a_single_seed_has_neither_spread_nor_p(components):
    table = paper_table(2, results=components)
    single, difference = (cell(table, "A3", f"{name} on sim-cifar10") for name in ("top-1", "Δ"))
    assert "sd" not in single.numbers
    assert "±" not in single.text
    assert "p" not in difference.numbers
    assert difference.text == "−0.50"


def test_effects_in_sigmas(components):
    table = paper_table(11, results=components)
    assert value(table, "DS-MPA", "sim-cifar10") == 2.83
    assert cell(table, "TDM", "sim-cifar10") is None


def test_neurons_have_their_rate_variation(empty):
    arms = [arm("lif-lif-lif", (60.0, 62.0), rate_sd=summary(0.0007), effect=effect(-1.0, 0.5, "n.s."))]
    store_study(empty, "neuron-mixes", {"gestures-hard": arms})
    table = paper_table(12, results=empty)
    assert value(table, "LIF, LIF", "SR-var on gestures-hard") == 0.0007
    assert value(table, "LIF, LIF", "parameters, M") == pytest.approx(0.8737, abs=1e-4)


def test_peers_stand_beside_the_dataset_their_set_stands_for(empty):
    arms = [arm("ours", (70.0, 71.0)), arm("spikformer", (60.0, 61.0)), arm("frame-cnn", (50.0, 51.0))]
    store_study(empty, "peers", {"sim-cifar10": arms})
    table = paper_table(1, results=empty)
    place = len(table.columns) - 1
    found = {(row.section, row.name): row.cells[place] for row in table.rows if row.cells[place] is not None}
    assert {key: one.numbers["mean"] for key, one in found.items()} == {
        ("cifar10dvs", "SpikFormer*"): 60.5,
        ("cifar10dvs", "RIPE-MambaSpike"): 70.5,
        ("Not in the paper", "Frame-Cnn"): 50.5,
    }


def test_no_trained_network_is_left_out_of_table_1(empty):
    """SpikFormer is in the paper on CIFAR10-DVS, and not on N-Caltech101: that set's accuracy has a row of its own."""
    first, second = [arm("ours", (70.0,)), arm("spikformer", (60.0,))], [arm("spikformer", (55.0,))]
    store_study(empty, "peers", {"sim-cifar10": first, "other": second})
    path = empty / "studies" / "peers" / "results.json"
    document = json.loads(path.read_text())
    document["sets"][1]["counterpart"] = "ncaltech101"
    path.write_text(json.dumps(document))
    table = paper_table(1, results=empty)
    found = {
        (row.section, row.name): [one.numbers["mean"] for one in row.cells[-2:] if one is not None]
        for row in table.rows
        if any(row.cells[-2:])
    }
    assert found == {
        ("cifar10dvs", "SpikFormer*"): [60.0],
        ("cifar10dvs", "RIPE-MambaSpike"): [70.0],
        ("Not in the paper", "Spikformer"): [55.0],
    }


def test_a_damaged_study_is_refused(empty):
    path = store_study(empty, "tokens", {"gestures-hard": []}, version=2)
    with raises(DataError, path=path):
        paper_table(13, results=empty)
    path.write_text("{")
    with raises(DataError, path=path):
        paper_table(13, results=empty)


def test_measured_costs(empty):
    store_costs(empty)
    table = paper_table(16, results=empty)
    assert value(table, "DS-MPA", "forward, ms, NVIDIA H200") == 2.0
    assert value(table, "[128", "with backward, ms, NVIDIA H200") == 12.0
    assert cell(table, "DS-MPA", "forward, ms, NVIDIA H200").agreement == ""
    assert any("is 10.0 % of that" in note and "saves 10.0 %" in note for note in table.notes)
    table = paper_table(17, results=empty)
    assert value(table, "RIPE-MambaSpike, training", "B 8, ms, NVIDIA H200") == 12
    assert any("1.50× faster" in note and "3.00×" in note and "0.50×" in note for note in table.notes)
    table = paper_table(19, results=empty)
    assert value(table, "224", "peak, GiB, NVIDIA H200") == pytest.approx(224 / 34)
    assert value(table, "34", "inference, clips/s, NVIDIA H200") == 500


def test_the_newest_benchmark_of_a_device_counts(empty):
    store_costs(empty, "a-paper.json", date="2026-11-19 01:00 UTC", scale=2.0)
    store_costs(empty, "b-paper.json", date="2026-11-18 01:00 UTC", scale=1.0)
    store_costs(empty, "c-paper.json", device="RTX 3050", scale=5.0)
    table = paper_table(17, results=empty)
    assert value(table, "Mamba-Spike", "B 1, ms, NVIDIA H200") == 8.0
    assert value(table, "Mamba-Spike", "B 1, ms, RTX 3050") == 20.0


def test_several_folders_of_results(components, tmp_path_factory):
    """What is in both counts as the last folder has it, and the table says where it was read."""
    more = tmp_path_factory.mktemp("runs")
    store_study(more, "neuron-mixes", {"gestures-hard": [arm("lif-lif-lif", (60.0, 62.0), effect=effect(-1.0))]})
    both = [components, more]
    assert cell(paper_table(2, results=both), "A1", "top-1 on sim-cifar10").numbers["mean"] == 68.5
    assert "top-1 on gestures-hard" in {column.name for column in paper_table(12, results=both).columns}
    store_study(more, "components", {"sim-cifar10": [arm("no-attention", (50.0, 51.0), effect=effect(-1.0))]})
    for folders, mean in ((both, 50.5), (both[::-1], 68.5)):
        table = paper_table(2, results=folders)
        assert cell(table, "A1", "top-1 on sim-cifar10").numbers["mean"] == mean
        assert folders[-1].name in table.sources[-1]
        assert folders[0].name not in table.sources[-1]
    store_costs(components, scale=1.0, date="2026-11-19 01:00 UTC")
    store_costs(more, scale=3.0, date="2026-11-18 01:00 UTC")
    assert value(paper_table(17, results=both), "Mamba-Spike", "B 1, ms, NVIDIA H200") == 12.0


def test_the_stored_results_and_others(components):
    """`stored` stands for the default folder; a path is never the word."""
    added, alone = paper_table(1, results=["stored", components]), paper_table(1)
    assert added.to_dict() == alone.to_dict()
    assert paper_table(2, results=("stored", str(components))).to_dict() == paper_table(2, results=components).to_dict()
    with raises(InputError, field="results"):
        paper_table(2, results=[components / "stored"])


def test_a_benchmark_at_other_sizes_is_refused(empty):
    path = store_costs(empty, time_steps=8)
    with raises(DataError, path=path):
        paper_table(19, results=empty)


def test_wrong_arguments(empty):
    with raises(ConfigError, field="number"):
        paper_table(21)
    with raises(ConfigError, field="run"):
        paper_table(2, run=empty)
    with raises(InputError, field="run"):
        paper_table(15, run=empty)
    with raises(InputError, field="results"):
        paper_table(2, results=empty / "missing")


def test_csv_and_markdown_hold_every_cell(components):
    table = paper_table(2, results=components)
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    cells = [one for row in table.rows for one in row.cells if one is not None]
    assert [line["text"] for line in lines] == [one.text for one in cells]
    (mean,) = (
        line["mean"] for line in lines if line["column"] == "top-1 on sim-cifar10" and line["row"].startswith("A1")
    )
    assert float(mean) == 68.5
    rows = [line for line in to_markdown(table).splitlines() if line.startswith("| A1")]
    assert len(rows) == 1
    assert rows[0].count("|") == len(table.columns) + 2
    assert "≠" in to_markdown(paper_table(14, results=components))


def test_results_as_a_study_writes_them(empty):
    """The reader of tables and the struct of `ripe study` mean the same document."""
    results = pytest.importorskip("ripe_mambaspike.studies.results", reason="without ripe study there is no struct")
    comparison = pytest.importorskip("ripe_mambaspike.studies.comparison")
    full, less = (comparison.summarize_values(values) for values in ((70.0, 71.0, 72.0), (66.0, 67.0, 68.0)))
    shared = {"settings": [], "x": None, "seeds": [0, 1, 2]}
    effect = comparison.effect_of(less.values, full.values)
    arms = [
        results.ArmResult(arm="full", title="full", top1=full, parameters={"deployed": 5}, **shared),
        results.ArmResult(arm="no-tdm", title="no TDM", top1=less, effect=effect, **shared),
    ]
    made = results.SetResult(
        set="sim-cifar10", dataset="sim-cifar10", counterpart="cifar10dvs", protocol="validation", epochs=1, clips={},
        store=None, arms=arms,
    )  # fmt: skip
    document = results.StudyResults(
        study="components", title="t", question="q", answers=["table-2"], reference="full", written="2026-11-18 05:00",
        commit=None, planned=6, ended=6, failed=0, hours=1.0, sets=[made],
    )  # fmt: skip
    folder = empty / "studies" / "components"
    folder.mkdir(parents=True)
    results.write_results(folder, document)
    table = paper_table(2, results=empty)
    assert cell(table, "A3", "top-1 on sim-cifar10").numbers["mean"] == 67.0
    assert cell(table, "A3", "Δ on sim-cifar10").numbers["delta"] == -4.0
    assert cell(table, "A3", "Δ on sim-cifar10").numbers["p"] == effect.p
    assert table.missing == ()
