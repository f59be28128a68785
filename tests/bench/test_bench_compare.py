"""Networks of any kind beside each other: one size for all, checked before they are timed, one row for each."""

from dataclasses import replace

import pytest
import torch
from tests.raising import raises
from tests.toy_network import TOY

from ripe_mambaspike.bench import compare_infer, compare_train, machine
from ripe_mambaspike.bench.infer import bench_infer
from ripe_mambaspike.bench.options import InferOptions, TrainOptions
from ripe_mambaspike.bench.tables import agrees, tables_of
from ripe_mambaspike.bench.train import bench_train
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.inference.capture import Captured
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.train.objective import LossTerms

NAMES = [TOY, "event-mlp", "mamba-spike-pooled"]
SMALL = {"device": "cpu", "repeats": 1, "in_size": 20, "time_steps": 2}
INFER = InferOptions(**SMALL, models=[TOY, "event-mlp"], batches=[1, 2], precision="float32")
TRAIN = TrainOptions(**SMALL, models=NAMES, batch=2)
pytestmark = pytest.mark.usefixtures("toy")


@pytest.fixture(autouse=True)
def small_machine(monkeypatch):
    monkeypatch.setitem(machine.SIDES, "cpu", (64,))
    monkeypatch.setitem(machine.COPY_BYTES, "cpu", 1 << 16)


def cells(document):
    (table,) = tables_of(document)
    return [row[: table.labels] for row in table.rows], "\n".join(table.notes)


def test_infer():
    document = bench_infer(INFER)
    assert (document["time_steps"], document["in_size"], document["num_classes"]) == (2, [20, 20], 11)
    rows = document["rows"]
    assert [(row["model"], row["batch"]) for row in rows] == [(TOY, 1), (TOY, 2), ("event-mlp", 1), ("event-mlp", 2)]
    for row in rows:
        config = model_config(row["model"], in_size=20, time_steps=2)
        assert row["flops_per_sample"] == count_flops(config).without_scan
        assert row["agreement"] == {
            "agrees": True, "samples": row["batch"],
            "checks": {"captured logits differ by": {"found": 0.0, "allowed": 1e-3}},
        }  # fmt: skip
        for path in ("captured", "plain"):
            cell = row[path]
            assert cell["samples_per_second"] == pytest.approx(1e3 * row["batch"] / cell["median_ms"], rel=0.01)
            assert cell["p95_ms"] >= cell["median_ms"] > 0
            assert cell["peak_mib"] > cell["activation_mib"] > 0
        assert row["plain_over_captured"] == pytest.approx(
            row["plain"]["median_ms"] / row["captured"]["median_ms"], rel=0.01
        )
    # The toy's first convolution alone has outputs of 2 steps, 6 channels and 10×10 for each clip.
    assert rows[1]["plain"]["activation_mib"] > rows[0]["plain"]["activation_mib"] >= 2 * 6 * 10 * 10 * 4 / 2**20
    assert agrees(document)
    labels, notes = cells(document)
    assert labels[:2] == [[TOY, "captured"], [TOY, "plain"]]
    assert "4 of 4 agree" in notes


@pytest.mark.slow
def test_all_kinds_of_networks_in_both_precisions():
    options = replace(INFER, models=["nmnist", *NAMES], batches=[1], precision="both", in_size=None)
    document = bench_infer(options)
    assert (document["in_size"], document["num_classes"]) == ([34, 34], 10)  # the first one's
    assert {row["model"]: row["form"] for row in document["rows"]} == {
        "nmnist": "deployed", **dict.fromkeys(NAMES, "training"),
    }  # fmt: skip
    assert [row["precision"] for row in document["rows"]] == ["float32", "bfloat16"] * 4
    assert agrees(document)


def test_a_captured_network_with_other_logits(monkeypatch):
    run = Captured.run
    monkeypatch.setattr(Captured, "run", lambda self, x: run(self, x)._replace(logits=run(self, x).logits * 1.2 + 1))
    document = bench_infer(replace(INFER, models=["event-mlp"]))
    assert not agrees(document)
    assert [row["plain_over_captured"] for row in document["rows"]] == [None, None]
    assert "batch 2: does not agree" in cells(document)[1]


def test_a_network_that_runs_out_of_memory_costs_its_own_row(monkeypatch):
    def full(model, batch, *rest):
        if model.name == TOY:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.00 GiB. GPU 0 has …")
        return measured(model, batch, *rest)

    measured = compare_infer._measured
    monkeypatch.setattr(compare_infer, "_measured", full)
    document = bench_infer(replace(INFER, batches=[1]))
    first, second = document["rows"]
    assert "7.00 GiB" in first["plain"]["error"]
    assert second["plain"]["median_ms"] > 0
    labels, notes = cells(document)
    assert labels == [[TOY, "plain"], ["event-mlp", "captured"], ["event-mlp", "plain"]]
    assert "1 of 2 agree" in notes
    assert "7.00 GiB" in notes

    def wrong(*_):
        raise InputError.expected("x", "another size", "this")

    monkeypatch.setattr(compare_infer, "_measured", wrong)
    with raises(InputError, "x"):
        bench_infer(INFER)


@pytest.mark.slow
def test_train():
    document = bench_train(TRAIN)
    assert (document["recipe"], document["batch"], document["precision"]) == ("nmnist", 2, "float32")
    assert document["models"] == [row["model"] for row in document["rows"]] == NAMES
    for row in document["rows"]:
        assert (row["passes"], "note" in row) == (1, True)  # the recipe's other pass is left out
        assert row["agreement"]["checks"].keys() == {"loss differs by", "gradient norm differs by"}
        assert row["plain"]["samples_per_second"] == pytest.approx(2e3 / row["plain"]["median_ms"], rel=0.01)
        # weights, two moments of each and the input
        held = 3 * 4 * row["parameters"] + 4 * 2 * 2 * 2 * 20 * 20
        assert row["plain"]["peak_mib"] - row["plain"]["activation_mib"] >= held / 2**20 - 1e-3
        assert row["plain"]["activation_mib"] > 0.9 * 4 * row["parameters"] / 2**20  # the gradients
    assert agrees(document)
    labels, notes = cells(document)
    assert labels == [[name, "hard", "plain"] for name in NAMES]
    assert f"{', '.join(NAMES)}: the hard pass alone" in notes


@pytest.mark.slow
def test_a_network_with_a_relaxed_pass_takes_both():
    (row,) = bench_train(replace(TRAIN, models=["nmnist"]))["rows"]
    assert row["passes"] == 2
    assert "note" not in row
    assert row["agreement"]["checks"].keys() == {"relaxed loss differs by", "gradients differ by"}
    (row,) = bench_train(replace(TRAIN, models=["nmnist"], passes=1))["rows"]
    assert row["passes"] == 1
    assert "note" not in row


def test_a_step_with_another_loss(monkeypatch):
    step = compare_train._take_step

    def spoiled(model, batch, choice):
        terms: LossTerms = step(model, batch, choice)
        return terms._replace(loss=terms.loss * 1.1) if choice == "auto" else terms

    monkeypatch.setattr(compare_train, "_take_step", spoiled)
    document = bench_train(replace(TRAIN, models=[TOY]))
    assert document["rows"][0]["agreement"]["agrees"] is False
    assert not agrees(document)
    assert "loss differs by 9.1e-02" in cells(document)[1]


@pytest.mark.parametrize(
    ("bench", "options", "field"),
    [
        (bench_infer, replace(INFER, models=["no-such-net"]), "--models"),
        (bench_infer, replace(INFER, model="nmnist"), "--model"),
        (bench_infer, replace(INFER, baseline="none"), "--baseline"),
        (bench_infer, replace(INFER, reference=False), "--reference"),
        (bench_infer, replace(INFER, in_size=4), "--in-size"),
        (bench_infer, replace(INFER, batches=[0]), "--batches"),
        (bench_train, replace(TRAIN, reference=False), "--reference"),
        (bench_train, replace(TRAIN, models=[TOY, "no-such-net"]), "--models"),
        (bench_train, replace(TRAIN, batch=0), "--batch"),
    ],
)
def test_invalid_options(bench, options, field):
    with raises(ConfigError, field):
        bench(options)
