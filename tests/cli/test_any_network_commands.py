"""Commands on saved networks other than RIPE-MambaSpike."""

import json

import numpy as np
import pytest
from tests.toy_network import SMALL, TOY, make_small

from ripe_mambaspike import write
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.models.labels import Labels
from ripe_mambaspike.ops.mamba_inner import traced_scan

pytestmark = pytest.mark.usefixtures("toy")


@pytest.fixture(params=SMALL)
def saved_other(request, tmp_path):
    model = make_small(request.param)
    model.labels = Labels(("a", "b", "c", "d"), None, None, 3, (18, 18), "time", False, sensor_size=(18, 18))
    return model.save_pretrained(tmp_path / "net")


@pytest.fixture
def recording(tmp_path):
    random = np.random.default_rng(0)
    times = np.sort(random.integers(0, 300_000, 900))
    events = make_events(*random.integers(0, 18, (2, 900)), times, random.integers(0, 2, 900))
    return write(Recording(events, (18, 18)), tmp_path / "clip.npz")


def asked(ripe, *words):
    result = ripe(*words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["safetensors", "onnx"])
def test_an_export_is_checked_and_predicts_the_same(ripe, saved_other, recording, tmp_path, monkeypatch, to):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(traced_scan, "CHUNK", 4)
    out = tmp_path / "out"
    found = asked(ripe, "export", saved_other, "--to", to, "--out", out, "--check", "--recordings", recording)
    (way,) = found["check"]["ways"].values()
    assert (way["clips"], way["labels"], way["beyond"]) == (1, 1, 0)
    first, second = (asked(ripe, "predict", folder, recording)["recordings"][0] for folder in (saved_other, out))
    assert first["label"] == second["label"]
    assert first["probability"] == pytest.approx(second["probability"], rel=1e-5)


def test_nothing_to_fuse(refused, saved_other):
    name = json.loads((saved_other / "config.json").read_text())["name"]
    refused(("fuse", saved_other), name, "nothing to fuse")
    refused(("eval", saved_other, "--fused"), name, "nothing to fuse")
    assert not (saved_other.parent / "fused").exists()


def test_a_stream_of_whole_windows(ripe, refused, saved_other, recording):
    words = ("stream", saved_other, "--source", recording, "--pace", "fast")
    result = ripe(*words, "--window", "90", "--hop", "45", "--json")
    assert result.code == 0, result.err
    lines = [json.loads(line) for line in result.out.splitlines()]
    predictions = [line for line in lines if "label" in line]
    assert len(predictions) >= 4
    assert all(line["step"] == line["time_steps"] == 3 for line in predictions)
    refused((*words, "--early"), "early", "whole windows")


def test_the_benchmark_by_name(ripe, monkeypatch):
    from ripe_mambaspike.bench import machine

    monkeypatch.setitem(machine.SIDES, "cpu", (64,))
    monkeypatch.setitem(machine.COPY_BYTES, "cpu", 1 << 16)
    words = ("--models", TOY, "event-mlp", "--device", "cpu", "--repeats", "1", "--in-size", "18", "--time-steps", "2")
    document = asked(ripe, "bench", "infer", *words, "--precision", "float32")
    assert [row["model"] for row in document["rows"]] == [TOY, "event-mlp"]
    result = ripe("bench", "train", *words, "--batch", "2")
    assert result.code == 0, result.err
    assert all(part in result.out for part in (TOY, "event-mlp", "the hard pass alone", "2 of 2 agree"))
