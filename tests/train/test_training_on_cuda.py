"""Runs on a CUDA device: captured or not, stopped or not, from any cache, with the same result."""

import json

import pytest
import torch
from safetensors.torch import load_file

from ripe_mambaspike.train.callback import TrainingStopped

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
ON_CUDA = ("run.device=cuda", "data.cache=device", "schedule.epochs=3")
# A CPU and a GPU draw other numbers from one seed.
NOTHING_DRAWN = "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8], drop_path_rate: 0.0}"


def largest_difference(folder, other):
    """Of any weight or statistic, relative to the largest of its tensor."""
    first, second = (load_file(each / "best" / "model.safetensors") for each in (folder, other))
    assert first.keys() == second.keys()
    return max(float((first[k] - second[k]).abs().max() / first[k].abs().max().clamp(min=1e-3)) for k in first)


def losses(folder, read_log):
    return [float(row["loss"]) for row in read_log(folder)]


@pytest.fixture(scope="module")
def recorded(tiny, go, tmp_path_factory):
    """A run whose steps are recorded, in bfloat16 as by default."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    go(tiny(*ON_CUDA), folder)
    return folder


def test_the_same_run_twice_gives_the_same_bits(recorded, tiny, go, tmp_path, outcome):
    go(tiny(*ON_CUDA), tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(recorded)


def test_a_captured_step_equals_the_uncaptured_one(recorded, tiny, go, tmp_path, read_log):
    go(tiny(*ON_CUDA, "run.cuda_graph=off"), tmp_path / "run")
    assert losses(tmp_path / "run", read_log) == pytest.approx(losses(recorded, read_log), rel=1e-3)
    assert largest_difference(tmp_path / "run", recorded) < 1e-2


def test_a_network_without_a_relaxed_pass_is_captured_once(tiny, go, tmp_path, read_log, monkeypatch):
    """Over three epochs, whose sharpness and weights differ; its steps equal those without a graph."""
    peer = ("model.name=cnn-gru", "model.fields={}", *ON_CUDA)
    captured = []
    graph = torch.cuda.CUDAGraph

    def counted(*args, **kwargs):
        captured.append(1)
        return graph(*args, **kwargs)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", counted)
    go(tiny(*peer, "run.validate_every=3"), tmp_path / "captured")
    assert 1 <= len(captured) <= 3  # the step's, and those of validation and test
    monkeypatch.undo()
    go(tiny(*peer, "run.validate_every=3", "run.cuda_graph=off"), tmp_path / "plain")
    logs = [losses(tmp_path / name, read_log) for name in ("captured", "plain")]
    assert logs[0] == pytest.approx(logs[1], rel=1e-2)


def test_clips_kept_on_the_device_are_the_clips(recorded, tiny, go, tmp_path, outcome):
    go(tiny(*ON_CUDA[::2], "data.cache=off"), tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(recorded)


@pytest.mark.parametrize("steps", [2, 4])
def test_a_resumed_run_equals_an_unstopped_one(steps, recorded, tiny, go, tmp_path, outcome):
    with pytest.raises(TrainingStopped):
        go(tiny(*ON_CUDA), tmp_path / "run", stop_requested=_after(steps))
    go(tiny(*ON_CUDA), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(recorded)


def test_accumulated_and_averaged(tiny, go, tmp_path, read_log):
    """Two batches a step, averaged weights, drop-path and mixing: recorded as one by one."""
    rich = (
        "schedule.grad_accum_steps=2",
        "run.ema_decay=0.5",
        "augmentation.mixup_alpha=0.4",
        "augmentation.mixup_probability=1",
    )
    for graph in ("auto", "off"):
        go(tiny(*ON_CUDA, *rich, f"run.cuda_graph={graph}"), tmp_path / graph)
    assert losses(tmp_path / "auto", read_log) == pytest.approx(losses(tmp_path / "off", read_log), rel=1e-3)


def test_learning_begins_as_on_a_cpu(tiny, go, tmp_path, read_log):
    go(tiny(*ON_CUDA, NOTHING_DRAWN, "run.precision=float32"), tmp_path / "cuda")
    go(tiny("run.device=cpu", "schedule.epochs=3", NOTHING_DRAWN), tmp_path / "cpu")
    assert losses(tmp_path / "cuda", read_log)[0] == pytest.approx(losses(tmp_path / "cpu", read_log)[0], rel=1e-3)


def test_the_saved_network_gives_the_reported_number(recorded, tiny):
    from ripe_mambaspike.data.clips import EvalBatches
    from ripe_mambaspike.data.training_data import open_data
    from ripe_mambaspike.models.accuracy import evaluate_batches
    from ripe_mambaspike.models.pretrained import from_pretrained

    device = torch.device("cuda")
    data = open_data(tiny(*ON_CUDA).data)
    network = from_pretrained(recorded / "best").to(device)
    found = evaluate_batches(network, EvalBatches(data.test, 32, device), len(data.classes))
    assert found.to_dict(data.classes)["confusion"] == json.loads((recorded / "result.json").read_text())["confusion"]


def _after(steps):
    """Says yes when it has been asked so often."""
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == steps

    return stop
