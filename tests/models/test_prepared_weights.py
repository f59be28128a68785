"""Weights prepared for the kernels are kept between calls, and every change of a weight is noticed."""

import copy
import pickle

import pytest
import torch
from torch import nn

from ripe_mambaspike.models import fused
from ripe_mambaspike.ops.backend import backend, kernels

FORMS = pytest.mark.parametrize("form", ["training", "deployed"])


@pytest.fixture
def count(monkeypatch):
    """How many plans were made."""
    made = []
    real = fused.plan_network

    def plan(model, x):
        made.append(model)
        return real(model, x)

    monkeypatch.setattr(fused, "plan_network", plan)
    return made


@torch.no_grad()
def expected(model, x):
    """By a copy, which has prepared nothing."""
    return copy.deepcopy(model)(x)


@FORMS
@torch.no_grad()
def test_weights_are_prepared_once(small, events, count, form):
    model, x = small(form=form).eval(), events()
    with kernels("plain"):
        first = model(x)
        assert torch.equal(model(x), first)
        model.run(x)
        model.front_end(x[:, :2])
        assert len(count) == 1
    with kernels("auto"):
        for _ in range(2):
            model(x)
            with torch.autocast("cpu", torch.bfloat16):
                model(x)
    with kernels("plain"):
        assert torch.equal(model(x), first)
    assert len(count) <= 3  # one for each precision and kind of kernels


def in_place(model):
    with torch.no_grad():
        model.head.weight.add_(1)


def loaded(model):
    model.load_state_dict({name: value + 0.1 for name, value in model.state_dict().items()})


def stepped(model):
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def replaced(model):
    model.head = nn.Linear(24, 7)


def new_parameter(model):
    model.bridge.norm.weight = nn.Parameter(torch.full_like(model.bridge.norm.weight, 0.3))


def new_data(model):
    model.hierarchy.norm.weight.data = torch.full_like(model.hierarchy.norm.weight, 0.2)


def buffers(model):
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.fill_(0.4)


def by_data_and_eval(model):
    model.head.bias.data.add_(3)
    model.eval()


def reset(model):
    model.reset_classifier(5)


CHANGES = [in_place, loaded, stepped, replaced, new_parameter, new_data, buffers, by_data_and_eval, reset]


def scaled(model):
    for parameter in model.parameters():
        parameter.data.mul_(2)


def negated(model):
    model.hierarchy.blocks[0].merge.weight.data.neg_()


def swapped(model):
    weight = model.head.weight.data
    weight[0, 0], weight[0, 1] = weight[0, 1].clone(), weight[0, 0].clone()


def one_number(model):
    model.hierarchy.norm.bias.data[-1] += 0.1


def buffer_data(model):
    model.entry.running_mean.data[0, 0] += 1


def by_numpy(model):
    model.head.bias.detach().numpy()[0] = 3


CONTENTS = [scaled, negated, swapped, one_number, buffer_data, by_numpy]


@pytest.mark.parametrize("change", CONTENTS, ids=lambda change: change.__name__)
@torch.no_grad()
def test_on_a_cpu_changes_without_a_version_are_noticed(small, events, louder, count, monkeypatch, change):
    model, x = louder(small()).eval(), events()
    if backend(x) != "native":
        pytest.skip("no C++ operators here")
    if change not in (scaled, negated):  # with small inputs only changes of whole tensors
        monkeypatch.setattr(fused, "MIN_FULL_CHECK", 0)
    before = model(x)
    assert torch.equal(model(x), before)
    assert len(count) == 1
    change(model)
    after = model(x)
    assert len(count) == 2
    assert torch.equal(after, expected(model, x))
    assert not torch.equal(after, before)


@FORMS
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_change_is_noticed(small, events, louder, form, change):
    model, x = louder(small(form=form)).eval(), events()
    with torch.no_grad(), kernels("plain"):
        before = model(x)
    change(model)
    with torch.no_grad(), kernels("plain"):
        after = model(x)
        assert torch.equal(after, expected(model, x))
        if not (change is buffers and form == "deployed"):  # which has none
            assert not torch.equal(after, before)


def test_a_copy_has_weights_of_its_own(small, events):
    model, x = small().eval(), events()
    with torch.no_grad(), kernels("plain"):
        before = model(x)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other.head.weight.zero_()
            assert not torch.equal(other(x), before)
            assert torch.equal(model(x), before)


def test_training_prepares_the_weights_for_each_pass(small, events, count):
    model, x = small().train(), events()
    with kernels("plain"):
        for _ in range(2):
            model(x).sum().backward()
        model.eval()
        model(x).sum().backward()  # gradients flow through the weights
        assert len(count) == 3
        with torch.no_grad():
            assert torch.equal(model(x), model(x))
    assert len(count) == 4


def test_inference_mode_and_functional_calls(small, events):
    model, x = small().eval(), events()
    with kernels("plain"):
        with torch.inference_mode():
            first = model(x)
        with torch.no_grad():
            assert torch.equal(model(x), first)
            other = {name: value + 0.2 for name, value in model.state_dict().items()}
            assert not torch.equal(torch.func.functional_call(model, other, (x,)), first)
            assert torch.equal(model(x), first)


@torch.inference_mode()
def test_a_network_made_in_inference_mode(small, events, count):
    """Its weights have no version counter; with the operators of a CPU their memory shows every change."""
    model, x = small().eval(), events()
    if backend(x, x.dtype) != "native":
        pytest.skip("needs the CPU operators")
    first = model(x)
    assert torch.equal(model(x), first)
    assert len(count) == 1
    model.head.weight.view(-1)[3] += 1
    assert not torch.equal(model(x), first)
    assert len(count) == 2


def test_logits_are_not_inference_tensors(small, events):
    """Though they are computed in inference mode: gradients may flow through what is made of them."""
    model, x = small().eval(), events()
    with torch.no_grad():
        logits = model(x)
    assert not logits.is_inference()
    scale = torch.ones((), requires_grad=True)
    (logits * scale).sum().backward()
    assert scale.grad is not None
