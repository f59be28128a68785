"""`ripe bench`: one JSON document or tables, exit code 1 and no speed-up when results differ, 2 for bad words."""

import json

import pytest
import torch

from ripe_mambaspike.bench import infer, machine, memory
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.ops import backend

INFER = ("bench", "infer", "--device", "cpu", "--side", "16", "--time-steps", "3", "--repeats", "2", "--model", "nmnist")
TRAIN = ("bench", "train", "--device", "cpu", "--side", "16", "--time-steps", "1", "--batch", "2", "--repeats", "1")
OPS = ("bench", "ops", "--device", "cpu", "--side", "16", "--time-steps", "2", "--repeats", "1")
SCAN = ("bench", "scan", "--device", "cpu", "--repeats", "1", "--model", "nmnist", "--sides", "16", "24", "32")
SCAN += ("--time-steps", "1", "2", "3", "--lengths", "5")
MEASURED = {"median_ms", "p95_ms", "calls", "peak_mib", "activation_mib", "samples_per_second"}


def choose(monkeypatch, kind):
    """Let `auto` mean this."""
    monkeypatch.setattr(backend, "choice", lambda: kind if backend._choice.get() == "auto" else "off")


@pytest.fixture(autouse=True)
def small_machine(monkeypatch):
    """No kernels, so that both paths are one, and rates measured at sizes that take no time."""
    choose(monkeypatch, "off")
    monkeypatch.setitem(machine.SIDES, "cpu", (64,))
    monkeypatch.setitem(machine.COPIED, "cpu", 1 << 16)


def words_of(said):
    """What was printed, without the breaks that the width of the page makes."""
    return " ".join(said.out.split())


@pytest.fixture
def wrong(monkeypatch):
    """The fast path gives other logits."""
    run = RipeMambaSpike.run

    def spoiled(self, *given, **more):
        out = run(self, *given, **more)
        return out._replace(logits=out.logits * 1.2 + 1) if backend._choice.get() == "auto" else out

    monkeypatch.setattr(RipeMambaSpike, "run", spoiled)


def read(said, code=0):
    assert said.code == code, said
    assert said.err == ""
    return json.loads(said.out, parse_constant=pytest.fail)


def test_infer(ripe):
    document = read(ripe(*INFER, "--batches", "1", "2", "--json"))
    assert [(row["precision"], row["batch"]) for row in document["rows"]] == [
        ("float32", 1), ("float32", 2), ("bfloat16", 1), ("bfloat16", 2),
    ]  # fmt: skip
    assert document["machine"]["device"] == "cpu"
    assert document["machine"]["matrix_flops_per_second"].keys() == {"float32", "bfloat16"}
    for row in document["rows"]:
        assert row["agreement"]["agrees"]
        assert row["speedup"] == pytest.approx(row["reference"]["median_ms"] / row["captured"]["median_ms"], rel=0.01)
        for path in ("captured", "ours", "reference", "mamba-spike"):
            assert row[path].keys() > MEASURED
            rate = row["matrix_flops_per_second"]
            assert row[path]["samples_per_second"] == pytest.approx(
                1e3 * row["batch"] / row[path]["median_ms"], rel=0.01
            )
        work = document["flops_per_sample"] * row["batch"] / rate * 1e3  # milliseconds
        assert row["ours"]["times_its_flops"] == pytest.approx(row["ours"]["median_ms"] / work, rel=0.01)
    one, two = document["rows"][:2]
    assert two["ours"]["activation_mib"] > one["ours"]["activation_mib"]


def test_infer_for_people(ripe):
    said = ripe(*INFER, "--precision", "float32", "--baseline", "none")
    assert said.code == 0
    assert "agrees" in words_of(said)
    assert "the reference path's speed" in words_of(said)
    assert "mamba-spike" not in words_of(said)


def test_train(ripe):
    document = read(ripe(*TRAIN, "--recipe", "nmnist", "--json"))
    assert (document["batch"], document["passes"], document["precision"]) == (2, 2, "float32")
    assert set(document["agreement"]["checks"]) == {"relaxed loss differs by", "gradients differ by"}
    assert document["agreement"]["samples"] == 2
    assert document["speedup"] > 0
    assert document["ours"].keys() == MEASURED
    one = read(ripe(*TRAIN, "--recipe", "nmnist", "--passes", "1", "--json"))
    assert one["passes"] == 1
    assert one["ours"]["activation_mib"] < document["ours"]["activation_mib"]


def test_train_for_people(ripe):
    said = ripe(*TRAIN)
    assert said.code == 0
    assert "nmnist" in words_of(said)
    assert "both passes" in words_of(said)
    assert "the reference path's speed" in words_of(said)


def test_ops(ripe, monkeypatch):
    choose(monkeypatch, "plain")  # the operators by their references
    document = read(ripe(*OPS, "--only", "attend", "pooled_rates", "--json"))
    assert [row["operator"] for row in document["rows"]] == ["attend"] * 3 + ["pooled_rates"]
    assert all(row["backward"]["speedup"] > 0 for row in document["rows"])
    said = ripe(*OPS, "--only", "attend")
    assert said.code == 0
    assert "+ backward" in words_of(said)
    choose(monkeypatch, "off")
    said = ripe(*OPS, "--only", "attend")
    assert said.code == 0
    assert "not measured" in words_of(said)


def test_scan(ripe):
    document = read(ripe(*SCAN, "--json"))
    assert [row["pixels_times_steps"] for row in document["in_size"]["rows"]] == [2560, 5760, 10240]
    assert [row["pixels_times_steps"] for row in document["time_steps"]["rows"]] == [34 * 34, 2 * 34 * 34, 3 * 34 * 34]
    assert document["in_size"]["r2"] <= 1
    assert [row["length"] for row in document["scan"]["rows"]] == [5]
    said = ripe(*SCAN)
    assert said.code == 0
    assert "R²" in words_of(said)


@pytest.mark.parametrize("words", [INFER, TRAIN], ids=["infer", "train"])
def test_no_speed_up_of_a_wrong_result(ripe, wrong, words):
    document = read(ripe(*words, "--json"), code=1)
    for row in document.get("rows", [document]):
        assert row["agreement"]["agrees"] is False
        assert row["speedup"] is None
        assert row["ours"]["median_ms"] > 0
    said = ripe(*words)
    assert said.code == 1
    assert "does not agree" in words_of(said)
    assert "no speed-up is given" in words_of(said)
    assert "the reference path's speed" not in words_of(said)


def test_a_wrong_result_in_a_sweep(ripe, wrong):
    document = read(ripe(*SCAN, "--json"), code=1)
    assert document["agreement"]["agrees"] is False


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("bench",), ["infer", "train", "ops", "scan"]),
        (("bench", "fly"), ["fly", "infer"]),
        (("bench", "infer", "--device", "tpu"), ["--device", "tpu", "cuda"]),
        (("bench", "infer", "--model", "dvsgestures"), ["dvsgestures", "dvsgesture"]),
        (("bench", "infer", "--model", "mamba-spike"), ["--model", "mamba-spike"]),
        (("bench", "infer", "--baseline", "nmnist"), ["--baseline", "nmnist"]),
        (("bench", "infer", "--side", "4"), ["--side", "4", "8"]),
        (("bench", "infer", "--side", "0"), ["--side", "0", "8"]),
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
        (("bench", "scan", "--sides", "16", "16", "16"), ["--sides", "1"]),
        (("bench", "scan", "--sides", "4", "16", "32"), ["--side", "4"]),
        (("bench", "scan", "--lengths", "0"), ["--lengths", "0"]),
        (("bench", "scan", "--colour"), ["--colour"]),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else None,
)
def test_bad_words(refused, words, named):
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
    refused(INFER, "batch 1", "7.00 GiB", "4.00 GiB free")
