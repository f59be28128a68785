"""Each kind of wrong result on the fast path is found by its own check."""

import pytest
import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.bench.agreement import (
    Agreement,
    Check,
    compare_inference,
    compare_training,
    relative,
    share_of_flips,
)
from ripe_mambaspike.bench.network import captured, clips, deployed_network, ripe_config
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.ops import backend
from ripe_mambaspike.ops.operator import OPERATORS
from ripe_mambaspike.train.step import StepSettings
from scaled_gradient import ScaledGradient

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def deployed():
    with backend.kernels("off"):
        return deployed_network("nmnist", ripe_config("nmnist", 3, 16), CPU)


@pytest.fixture(scope="module")
def clip(deployed):
    return clips(deployed.config, 2, CPU)


def spoil(monkeypatch, name, change):
    """On the fast path alone, let the network's method give something else."""
    method = getattr(RipeMambaSpike, name)

    def wrong(self, x, *rest, **more):
        out = method(self, x, *rest, **more)
        return change(out, *rest) if backend._choice.get() == "auto" else out

    monkeypatch.setattr(RipeMambaSpike, name, wrong)


def failed(agreement):
    return {check.what for check in agreement.checks if not check.holds}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_equal_paths_agree(deployed, clip, precision):
    agreement = compare_inference(deployed, clip, precision, graph=captured(deployed, clip, precision)[0])
    assert agreement.agrees, agreement
    assert agreement.samples == 2
    assert agreement.sentence.startswith("agrees")
    assert deployed.run(clip).rates.max().item() > 0.01  # there were spikes to compare


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda out, mode: out._replace(logits=out.logits * 1.1), "relaxed logits differ by"),
        (lambda out, mode: out._replace(logits=out.logits * torch.nan), "relaxed logits differ by"),
        (lambda out, mode: out._replace(logits=out.logits[:, 1:]), "relaxed logits differ by"),
    ],
    ids=["scaled", "not a number", "a step short"],
)
def test_wrong_relaxed_logits(monkeypatch, deployed, clip, precision, change, what):
    spoil(monkeypatch, "run", lambda out, mode=None: change(out, mode) if mode else out)
    agreement = compare_inference(deployed, clip, precision)
    assert failed(agreement) == {what}
    assert agreement.sentence.startswith("does not agree")
    assert agreement.to_dict()["agrees"] is False


def test_wrong_hard_logits_and_rates(monkeypatch, deployed, clip):
    spoil(monkeypatch, "run", lambda out, mode=None: out if mode else out._replace(logits=out.logits + 1))
    assert failed(compare_inference(deployed, clip, "float32")) == {"logits differ by"}
    spoil(monkeypatch, "run", lambda out, mode=None: out if mode else out._replace(rates=out.rates + 0.002))
    assert "rates differ by" in failed(compare_inference(deployed, clip, "float32"))


def test_spikes_of_all_layers_are_compared(deployed, clip):
    spikes = {}
    for choice in ("off", "auto"):
        with backend.kernels(choice), torch.no_grad():
            spikes[choice] = deployed.run(clip, observe=("spikes",)).observed
    assert len(spikes["auto"]) == len(spikes["off"]) == 6
    assert share_of_flips(spikes["auto"], spikes["off"]) < 5e-4
    assert sum(int(one.sum()) for one in spikes["off"].values()) > 100


def test_share_of_flips():
    expected = {"first": torch.tensor([True, False, False, True]), "second": torch.zeros(4, dtype=torch.bool)}
    given = {**expected, "second": torch.tensor([False, True, False, False])}
    assert share_of_flips(expected, expected) == 0
    assert share_of_flips(given, expected) == 1 / 8
    turned, fewer = {**given, "first": given["first"][None]}, {"first": given["first"]}
    assert all(share != share for share in (share_of_flips(turned, expected), share_of_flips(fewer, expected)))


def test_flipped_spikes(monkeypatch, deployed, clip):
    fire = OPERATORS["attend_fire"].forward

    def flip(i):
        spikes, *rest = fire(i)
        if not i.firing.relaxed:
            spikes = spikes.clone()
            spikes[:, 0, 0] = 1 - spikes[:, 0, 0]
        return spikes, *rest

    monkeypatch.setattr(OPERATORS["attend_fire"], "forward", flip)
    assert "share of spikes flipped" in failed(compare_inference(deployed, clip, "float32"))


def test_a_graph_that_gives_something_else(deployed, clip):
    agreement = compare_inference(deployed, clip, "float32", graph=lambda x: deployed(x).flip(1))
    assert failed(agreement) == {"captured logits differ by"}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training(monkeypatch, precision):
    model = create_model("nmnist", seed=0, time_steps=3, in_size=16).train()  # with drop-path
    x, y = synthetic_clip(3, 16, 16, samples=2), torch.tensor([0, 1])
    before = [p.detach().clone() for p in (*model.parameters(), *model.buffers())]
    assert compare_training(model, x, y, StepSettings(), precision).agrees
    assert all(map(torch.equal, before, (*model.parameters(), *model.buffers())))
    assert all(p.grad is None for p in model.parameters())

    spoil(monkeypatch, "run", lambda out, *rest: out._replace(logits=ScaledGradient.apply(out.logits, 1.1)))
    expected = {"gradients differ by"} if precision == "float32" else set()
    assert failed(compare_training(model, x, y, StepSettings(), precision)) == expected
    spoil(monkeypatch, "run", lambda out, *rest: out._replace(logits=out.logits + torch.arange(10) / 10))
    assert "relaxed loss differs by" in failed(compare_training(model, x, y, StepSettings(), precision))


def test_nan_never_agrees():
    assert not Agreement((Check("it differs by", float("nan"), 1.0),), 1).agrees
    assert relative(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])) == 0.5
    assert relative(torch.zeros(2), torch.zeros(3)) != relative(torch.zeros(2), torch.zeros(3))
