"""Numbers that are not finite: the run stops and names their source, and what was saved before stays valid."""

import math

import pytest
import torch
from torch import nn

from raising import raises
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.train import trainer as loop
from ripe_mambaspike.train.checkpoint import last_checkpoint
from ripe_mambaspike.train.nonfinite import find_nonfinite
from ripe_mambaspike.train.step import StepSettings, make_optimizer, training_step, update_weights
from ripe_mambaspike.train.trainer import NotFiniteError
from scaled_gradient import ScaledGradient

KERNEL = "stages.1.first_conv.branches.0.convs.0.weight"


@pytest.fixture
def network(make_network):
    return make_network(drop_path_rate=0.0)


@pytest.fixture
def batch():
    return torch.poisson(torch.full((4, 4, 2, 16, 16), 0.5)), torch.arange(4)


@pytest.fixture
def poison(monkeypatch):
    """The given batches of a run, counted from 1, hold a number that is not finite."""

    def arm(*numbers, value=math.inf):
        real, seen = loop.mix, []

        def nan_where_not_finite(*words):
            x, y = real(*words)
            seen.append(1)
            if len(seen) in numbers:
                x = x.clone()
                x[0, 1, 0, 3, 3] = value
            return x, y

        monkeypatch.setattr(loop, "mix", nan_where_not_finite)

    return arm


@pytest.mark.parametrize(
    ("value", "minutes", "saved"),
    [(math.nan, 0, 4), pytest.param(math.inf, 10, 3, marks=pytest.mark.slow)],
    ids=["NaN, checkpoints of steps", "Inf, checkpoints of epochs"],
)
def test_an_input_that_is_not_finite(tiny, go, poison, finished, outcome, monkeypatch, tmp_path, value, minutes, saved):
    """Stops in the second epoch; without the bad clip it resumes there and ends with the same bits."""
    poison(5, value=value)
    with raises(NotFiniteError, field="the input") as caught:
        go(tiny(f"run.checkpoint_minutes={minutes}"), tmp_path / "run")
    assert "epoch 2, batch 2" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "result.json").exists()
    last = last_checkpoint(tmp_path / "run" / "checkpoints")
    assert last.document.state.global_step == saved
    assert [name for name, value in last.tensors.items() if not torch.isfinite(value).all()] == []
    monkeypatch.undo()
    go(tiny(), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(finished)


def test_an_input_that_is_not_finite_in_the_second_batch_of_a_step(tiny, go, poison, tmp_path):
    poison(2)
    with raises(NotFiniteError, field="the input"):
        go(tiny("schedule.grad_accum_steps=2"), tmp_path / "run")


def test_a_weight_that_is_not_finite(tiny, go, watching, tmp_path):
    def spoil(trainer):
        if trainer.state.global_step == 4:
            with torch.no_grad():
                trainer.model.get_parameter(KERNEL)[0, 0, 0, 0] = math.nan

    with raises(NotFiniteError, field=f"the weight {KERNEL}", mentions="epoch 2, batch 2"):
        go(tiny(), tmp_path / "run", watching(on_step=spoil))
    last = last_checkpoint(tmp_path / "run" / "checkpoints")
    assert torch.isfinite(last.tensors[f"model.{KERNEL}"]).all()


def test_the_command_reports_nonfinite_numbers_in_one_line(tiny_words, poison, capsys, tmp_path):
    poison(2)
    code = main([*tiny_words("run.checkpoint_minutes=0"), "--out", str(tmp_path / "run")])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.splitlines()[-1].startswith("ripe: the input: expected finite numbers in epoch 1, batch 2")
    assert sum(line.startswith("ripe:") for line in err.splitlines()) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("spoil", "source"),
    [
        (lambda model: model.head.weight.copy_(3e38 * model.head.weight.sign()), "head"),
        (lambda model: model.head.weight.fill_(math.inf), "the weight head.weight"),
        (lambda model: model.hierarchy.transitions[1].widen.weight.fill_(3e38), "hierarchy.transitions.1.widen"),
        (lambda model: model.stages[0].first_norm.weight.fill_(math.nan), "the weight stages.0.first_norm.weight"),
    ],
    ids=["overflow in the head", "the head's weight", "overflow in a transition", "a norm's weight"],
)
def test_the_first_bad_module(network, batch, spoil, source):
    with torch.no_grad():
        spoil(network)
    assert find_nonfinite(network, *batch, StepSettings()) == source


def test_the_relaxed_pass_alone(network, batch, monkeypatch):
    """A module that is bad in the relaxed pass says so, and is not looked for without that pass."""
    neuron = network.stages[1].second_neuron
    real = type(neuron).forward

    def spoiled(self, x, mode, *rest, **words):
        (spikes, potential), state = real(self, x, mode, *rest, **words)
        return (spikes * (math.nan if mode.relaxed and self is neuron else 1.0), potential), state

    monkeypatch.setattr(type(neuron), "forward", spoiled)
    # A neuron gives its spikes in a tuple, so the first to show it is the convolution that reads them.
    assert find_nonfinite(network, *batch, StepSettings()).endswith(" in the relaxed pass")
    assert find_nonfinite(network, *batch, StepSettings(passes=1)) == "not reproducible on a second pass"


def test_a_gradient_whose_norm_overflows(network, batch):
    """All its numbers are finite, and their squares are not."""
    network.head.register_forward_pre_hook(lambda module, inputs: (ScaledGradient.apply(inputs[0], 1e25),))
    with kernels("off"):
        source = find_nonfinite(network, *batch, StepSettings())
    assert source.startswith("the norm of the gradient (largest for ")


def bad_gradient(network, batch):
    """The description where the gradient is lost between the hierarchy and the head."""
    network.head.register_forward_pre_hook(lambda module, inputs: (ScaledGradient.apply(inputs[0], math.inf),))
    with kernels("off"):
        source = find_nonfinite(network, *batch, StepSettings())
    assert source.startswith("the gradient of ")
    return source.removeprefix("the gradient of ")


def test_a_gradient_alone(network, batch):
    assert bad_gradient(network, batch) in dict(network.named_parameters())


def test_the_gradient_that_is_bad_first(network, batch):
    """Backwards from the loss, as gradients come."""
    assert bad_gradient(network, batch).startswith("hierarchy.blocks.2.")


def test_find_nonfinite_leaves_the_network_unchanged(network, batch):
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert find_nonfinite(network, *batch, StepSettings()) == "not reproducible on a second pass"
    changed = [name for name, value in network.state_dict().items() if not torch.equal(value, before[name])]
    assert [name for name in changed if "running" not in name] == []
    assert not any(module._forward_hooks for module in network.modules())


def everything(model, optimizer):
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    moments = {
        (name, key): value.clone()
        for name, p in model.named_parameters()
        for key, value in optimizer.state.get(p, {}).items()
        if isinstance(value, torch.Tensor)
    }
    return weights, moments


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan], ids=str)
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_gradient_that_is_not_finite_changes_no_weight(value, kind):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = make_optimizer(model, 0.1, 0.05)
    if kind == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def gradient():
        optimizer.zero_grad(set_to_none=True)
        model(torch.ones(2, 3)).square().sum().backward()

    gradient()
    assert math.isfinite(update_weights(model, optimizer, 1.0))
    before = everything(model, optimizer)
    assert before[1]
    gradient()
    model[1].weight.grad[0, 0] = value
    assert not math.isfinite(update_weights(model, optimizer, 1.0))
    after = everything(model, optimizer)
    for old, new in zip(before, after, strict=True):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[name], new[name]) for name in old)
    gradient()
    assert math.isfinite(update_weights(model, optimizer, 1.0))  # and the next good one does
    assert not torch.equal(model[1].weight, before[0]["1.weight"])


def test_a_step_over_a_bad_clip_changes_no_weight(network, batch):
    optimizer = make_optimizer(network, 1e-3, 0.05)
    training_step(network, optimizer, *batch, StepSettings())
    before = everything(network, optimizer)
    x = batch[0].clone()
    x[0, 0, 0, 0, 0] = math.nan
    parts = training_step(network, optimizer, x, batch[1], StepSettings())
    assert not math.isfinite(parts.norm)
    for old, new in zip(before, everything(network, optimizer), strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)
