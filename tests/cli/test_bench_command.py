"""`ripe bench`: one JSON document or tables, exit code 1 and no speed-up when results differ, 2 for bad arguments."""

import json
from dataclasses import replace

import pytest
import torch

from ripe_mambaspike.bench import infer, machine, memory
from ripe_mambaspike.bench.infer import bench_infer
from ripe_mambaspike.bench.ops import bench_ops
from ripe_mambaspike.bench.options import InferOptions, OperatorOptions, ScanOptions, TrainOptions
from ripe_mambaspike.bench.sweep import bench_scan
from ripe_mambaspike.bench.train import bench_train
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.ops import backend

SMALL = {"device": "cpu", "repeats": 1}
INFER = InferOptions(**SMALL, model="nmnist", in_size=16, time_steps=2, batches=[1, 2])
TRAIN = TrainOptions(**SMALL, in_size=16, time_steps=1, batch=2)
OPS = OperatorOptions(**SMALL, in_size=16, time_steps=2, only=["attend", "pooled_rates"])
SCAN = ScanOptions(**SMALL, model="nmnist", in_size=[16, 24, 32], time_steps=[1, 2, 3], lengths=[5])
MEASURED = {"median_ms", "p95_ms", "calls", "peak_mib", "activation_mib", "samples_per_second"}


def choose(monkeypatch, kind):
    """Let `auto` mean this backend."""
    monkeypatch.setattr(backend, "choice", lambda: kind if backend._choice.get() == "auto" else "off")


@pytest.fixture(autouse=True)
def small_machine(monkeypatch):
    """No kernels, so that both paths are one, and rates measured at sizes that take no time."""
    choose(monkeypatch, "off")
    monkeypatch.setitem(machine.SIDES, "cpu", (64,))
    monkeypatch.setitem(machine.COPY_BYTES, "cpu", 1 << 16)


@pytest.fixture
def wrong(monkeypatch):
    """The fast path returns other logits."""
    run = RipeMambaSpike.run

    def spoiled(self, *given, **more):
        out = run(self, *given, **more)
        return out._replace(logits=out.logits * 1.2 + 1) if backend._choice.get() == "auto" else out

    monkeypatch.setattr(RipeMambaSpike, "run", spoiled)


@pytest.fixture
def printed(ripe, monkeypatch):
    """What the command prints for a document, as text and as JSON, with its exit code."""
    homes = {"infer": "infer.bench_infer", "train": "train.bench_train", "ops": "ops.bench_ops"}
    homes["scan"] = "sweep.bench_scan"

    def show(document):
        kind = document["bench"]
        monkeypatch.setattr(f"ripe_mambaspike.bench.{homes[kind]}", lambda *_: document)
        in_json, in_text = ripe("bench", kind, "--json"), ripe("bench", kind)
        assert (in_json.err, in_text.err) == ("", "")
        assert json.loads(in_json.out, parse_constant=pytest.fail) == document
        assert in_json.code == in_text.code
        return in_text.code, " ".join(in_text.out.split())

    return show


@pytest.mark.parametrize("precision", ["float32", pytest.param("both", marks=pytest.mark.slow)])
def test_infer(printed, precision):
    document = bench_infer(replace(INFER, precision=precision))
    assert document["machine"]["device"] == "cpu"
    precisions = ["float32", "bfloat16"] if precision == "both" else ["float32"]
    rows = [(one, batch) for one in precisions for batch in (1, 2)]
    assert [(row["precision"], row["batch"]) for row in document["rows"]] == rows
    assert document["machine"]["matrix_flops_per_second"].keys() == set(precisions)
    for row in document["rows"]:
        assert row["agreement"]["agrees"]
        times = {path: row[path]["median_ms"] for path in ("captured", "ours", "reference", "mamba-spike")}
        assert row["speedup"] == pytest.approx(times["reference"] / times["captured"], rel=0.01)
        assert row["plain_over_captured"] == pytest.approx(times["ours"] / times["captured"], rel=0.01)
        for path, took in times.items():
            assert row[path].keys() > MEASURED
            assert row[path]["samples_per_second"] == pytest.approx(1e3 * row["batch"] / took, rel=0.01)
        work = document["flops_per_sample"] * row["batch"] / row["matrix_flops_per_second"] * 1e3  # milliseconds
        assert row["ours"]["times_its_flops"] == pytest.approx(times["ours"] / work, rel=0.01)
    one, two = document["rows"][:2]
    assert two["ours"]["activation_mib"] > one["ours"]["activation_mib"]
    code, text = printed(document)
    assert code == 0
    assert all(word in text for word in ("agrees", f"{one['speedup']:.2f} ×", "mamba-spike", "batch 2"))


def test_paths_that_are_left_out(printed):
    document = bench_infer(
        InferOptions(
            **SMALL, model="nmnist", in_size=16, time_steps=2, precision="float32", baseline="none", reference=False
        )
    )
    (row,) = document["rows"]
    assert row["agreement"]["agrees"]
    assert "reference" not in row
    assert row["speedup"] is None
    assert "mamba-spike" not in printed(document)[1]


@pytest.mark.slow
def test_train(printed):
    document = bench_train(TRAIN)
    assert (document["recipe"], document["batch"], document["passes"]) == ("nmnist", 2, 2)
    assert document["precision"] == "float32"
    assert set(document["agreement"]["checks"]) == {"relaxed loss differs by", "gradients differ by"}
    assert document["agreement"]["samples"] == 2
    assert document["ours"].keys() == MEASURED
    code, text = printed(document)
    assert code == 0
    assert document["speedup"] > 0
    assert all(word in text for word in ("nmnist", "both passes", f"{document['speedup']:.2f} ×"))
    one = bench_train(replace(TRAIN, passes=1, reference=False))
    assert one["passes"] == 1
    assert one["speedup"] is None
    assert one["ours"]["activation_mib"] < document["ours"]["activation_mib"]


def test_operators(printed, monkeypatch):
    choose(monkeypatch, "plain")  # the operators by their references
    document = bench_ops(OPS)
    assert [row["operator"] for row in document["rows"]] == ["attend"] * 3 + ["pooled_rates"]
    assert all(row["backward"]["speedup"] > 0 for row in document["rows"])
    assert "+ backward" in printed(document)[1]
    choose(monkeypatch, "off")
    document = bench_ops(OPS)
    assert all("unavailable" in row for row in document["rows"])
    assert "not measured" in printed(document)[1]


@pytest.mark.slow
def test_scan(printed):
    document = bench_scan(SCAN)
    assert [row["pixels_times_steps"] for row in document["in_size"]["rows"]] == [2560, 5760, 10240]
    assert [row["pixels_times_steps"] for row in document["time_steps"]["rows"]] == [34 * 34, 2 * 34 * 34, 3 * 34 * 34]
    assert document["in_size"]["r2"] <= 1
    assert [row["length"] for row in document["scan"]["rows"]] == [5]
    code, text = printed(document)
    assert code == 0
    assert "R²" in text


@pytest.mark.parametrize(
    ("bench", "options"),
    [
        (bench_infer, replace(INFER, batches=[1], precision="float32", baseline="none")),
        (bench_train, replace(TRAIN, passes=1)),
        pytest.param(bench_infer, INFER, marks=pytest.mark.slow),
        pytest.param(bench_train, TRAIN, marks=pytest.mark.slow),
    ],
    ids=["infer", "train", "infer, all", "train, both passes"],
)
def test_no_speed_up_of_a_wrong_result(printed, wrong, bench, options):
    document = bench(options)
    for row in document.get("rows", [document]):
        assert row["agreement"]["agrees"] is False
        assert row["speedup"] is None
        assert row["ours"]["median_ms"] > 0
    code, text = printed(document)
    assert code == 1
    assert "does not agree" in text
    assert "no speed-up is given" in text
    assert "the reference path's speed" not in text


@pytest.mark.slow
def test_a_wrong_result_in_a_sweep(printed, wrong):
    document = bench_scan(SCAN)
    assert document["agreement"]["agrees"] is False
    assert printed(document)[0] == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("bench",), ["infer", "train", "ops", "scan"]),
        (("bench", "fly"), ["fly", "infer"]),
        (("bench", "infer", "--device", "tpu"), ["--device", "tpu", "cuda"]),
        (("bench", "infer", "--model", "dvsgestures"), ["dvsgestures", "dvsgesture"]),
        (("bench", "infer", "--model", "mamba-spike"), ["--model", "mamba-spike"]),
        (("bench", "infer", "--baseline", "nmnist"), ["--baseline", "nmnist"]),
        (("bench", "infer", "--in-size", "4"), ["--in-size", "4", "8"]),
        (("bench", "infer", "--in-size", "0"), ["--in-size", "0", "8"]),
        (("bench", "infer", "--time-steps", "0"), ["--time-steps", "0"]),
        (("bench", "infer", "--batches", "0"), ["--batch", "0"]),
        (("bench", "infer", "--batches", "1", "-3"), ["-3"]),
        (("bench", "infer", "--repeats", "0"), ["--repeats", "0"]),
        (("bench", "infer", "--precision", "float16"), ["--precision", "float16", "bfloat16"]),
        (("bench", "train", "--recipe", "mnist"), ["--recipe", "mnist", "nmnist"]),
        (("bench", "train", "--passes", "3"), ["--passes", "3"]),
        (("bench", "train", "--batch", "0"), ["--batch", "0"]),
        (("bench", "train", "--repeats", "many"), ["--repeats", "many"]),
        (("bench", "ops", "--only", "norm_fyre"), ["norm_fyre", "norm_fire"]),
        (("bench", "scan", "--in-size", "16", "16", "16"), ["--in-size", "3"]),
        (("bench", "scan", "--in-size", "4", "16", "32"), ["--in-size", "4"]),
        (("bench", "scan", "--lengths", "0"), ["--lengths", "0"]),
        (("bench", "scan", "--colour"), ["--colour"]),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else None,
)
def test_invalid_options_are_refused(refused, words, named):
    if "--device" not in words and len(words) > 2:
        words = (*words[:2], "--device", "cpu", *words[2:])
    refused(words, *named)


def test_cuda_without_a_gpu(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for command in ("infer", "train", "ops", "scan"):
        refused(("bench", command, "--device", "cuda"), "--device", "cuda")


def test_too_little_memory(refused, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 1 << 20)
    refused(("bench", "infer", "--device", "cpu", "--batches", "64"), "batch 64", "GiB", "1.0 MiB")
    refused(("bench", "train", "--device", "cpu", "--recipe", "dvsgesture"), "batch 32", "GiB", "1.0 MiB")

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.00 GiB. GPU 0 has …")

    monkeypatch.setattr(memory, "free_memory", lambda device: 1 << 32)
    monkeypatch.setattr(infer, "compare_inference", full)
    words = ("bench", "infer", "--device", "cpu", "--model", "nmnist", "--in-size", "16", "--time-steps", "2")
    refused(words, "batch 1", "7.00 GiB", "4.00 GiB")
