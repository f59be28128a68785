"""Gradients of the whole network against finite differences: relaxed mode, float64."""

import pytest
import torch

from ripe_mambaspike.nn.forward_mode import ForwardMode

MODE = ForwardMode(relaxed=True, sharpness=2.0, track_statistics=False)
FIELDS = {"stage_channels": (4, 4, 8), "embed_dims": (4, 8, 8), "time_steps": 3, "num_classes": 3}
TRAINING = pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
STEP = 1e-4


class Problem:
    """A fixed scalar of the network's logits as a function of its parameters."""

    def __init__(self, model, x):
        self.model, self.x = model, x
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        generator = torch.Generator().manual_seed(1)
        shape = (x.shape[0], x.shape[1], model.config.num_classes)
        self.cotangent = torch.randn(shape, generator=generator, dtype=torch.float64)

    def loss(self):
        return (self.model.run(self.x, MODE).logits * self.cotangent).sum()

    def gradients(self):
        return dict(zip(self.parameters, torch.autograd.grad(self.loss(), list(self.parameters.values())), strict=True))

    @torch.no_grad()
    def slope(self, direction, size=STEP):
        """Of the loss along {name: direction}, a fourth-order difference; the network is left as it was."""
        saved = {name: self.parameters[name].clone() for name in direction}
        total = 0.0
        for weight, factor in ((-1, 2), (8, 1), (-8, -1), (1, -2)):
            for name, change in direction.items():
                self.parameters[name].copy_(saved[name] + factor * size * change)
            total += weight * self.loss().item()
        for name, value in saved.items():
            self.parameters[name].copy_(value)
        return total / (12 * size)


@pytest.fixture
def problem(small, louder, events):
    def make(training, **fields):
        model = louder(small(**{**FIELDS, **fields})).double().train(training)
        return Problem(model, events(9, 11, steps=3, dtype=torch.float64))

    return make


def along(gradients, direction):
    return sum((gradients[name] * change).sum().item() for name, change in direction.items())


def random_direction(parameters, names=None):
    direction = {name: torch.randn_like(p) for name, p in parameters.items() if names is None or name in names}
    length = sum(d.square().sum() for d in direction.values()).sqrt()
    return {name: d / length for name, d in direction.items()}


def names_by_part(case):
    owner = {id(p): part for part, module in case.model.parts().items() for p in module.parameters()}
    parts = {}
    for name, parameter in case.parameters.items():
        parts.setdefault(owner[id(parameter)], []).append(name)
    return parts


def names_of_every_part(case, count):
    """Evenly spread over the names of each part: convolutions, norms, filters, neurons, attention, …"""
    return [name for names in names_by_part(case).values() for name in names[:: max(1, len(names) // count)]]


@TRAINING
def test_random_directions(problem, training):
    case = problem(training)
    gradients = case.gradients()
    for _ in range(4):
        direction = random_direction(case.parameters)
        assert along(gradients, direction) == pytest.approx(case.slope(direction), rel=1e-7, abs=1e-7)


@TRAINING
def test_the_directions_of_every_part(problem, training):
    case = problem(training)
    gradients = case.gradients()
    for part, names in names_by_part(case).items():
        direction = random_direction(case.parameters, names)
        expected = case.slope(direction)
        assert along(gradients, direction) == pytest.approx(expected, rel=1e-7, abs=1e-7), part
        assert expected != 0


@TRAINING
@pytest.mark.parametrize("count", [4, pytest.param(9, marks=pytest.mark.slow)])
def test_single_numbers_of_every_part(problem, training, count):
    case = problem(training)
    gradients = case.gradients()
    for name in names_of_every_part(case, count):
        direction = torch.zeros_like(case.parameters[name])
        index = int(gradients[name].abs().argmax())
        direction.view(-1)[index] = 1
        actual = gradients[name].flatten()[index].item()
        assert actual == pytest.approx(case.slope({name: direction}), rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize(
    "fields",
    [
        {"neurons": ("lif", "csilif", "silif")},
        {"attention": "low-rank"},
        {"attention": "grouped"},
        {"attention": "sigmoid"},
        {"attention": "gate"},
        {"mixer": "transformer"},
        {"mixer": "gru"},
        {"mixer": "conv1d"},
        {"mixer": "flat"},
        {"bridge": "stage3"},
        {"form": "deployed"},
        {"form": "dual-kernel"},
        {"head_hidden_size": 6},
    ],
    ids=str,
)
def test_variants(problem, fields):
    case = problem(False, **fields)
    if case.model.config.form == "dual-kernel":
        kept = {"stages.0.first_conv.coefficient"}
        case.parameters = {n: p for n, p in case.parameters.items() if n in kept or not n.endswith("coefficient")}
    gradients = case.gradients()
    for _ in range(2):
        direction = random_direction(case.parameters)
        assert along(gradients, direction) == pytest.approx(case.slope(direction), rel=1e-7, abs=1e-7)


def test_the_gradient_of_the_input(problem):
    case = problem(False)
    case.x.requires_grad_()
    (gradient,) = torch.autograd.grad(case.loss(), case.x)
    case.x.requires_grad_(False)
    direction = torch.randn_like(case.x)
    case.parameters = {"x": case.x}
    assert (gradient * direction).sum().item() == pytest.approx(case.slope({"x": direction}), rel=1e-6)


def test_an_untracked_pass_moves_no_statistics(small, events):
    model = small()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.run(events(), MODE)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    model.run(events(), ForwardMode(relaxed=True))
    assert not any(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
