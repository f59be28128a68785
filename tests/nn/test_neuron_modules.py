"""The neurons' modules: how many parameters, where they start, and that the pass reaches the operator."""

import math

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.neurons import NEURONS, SiLIF, make_neuron

CHANNELS = 64
KINDS = pytest.mark.parametrize("kind", ["lif", "silif", "csilif"])


def slow_neuron(kind, neuron, x, mode):
    """The specification's recurrences, step by step; spikes and the potential before reset."""
    p = {name: value[:, None, None] for name, value in neuron.named_parameters()}
    u = torch.zeros_like(x[:, 0], dtype=torch.complex128 if kind == "csilif" else x.dtype)
    spike, spikes, potentials = torch.zeros_like(x[:, 0]), [], []
    threshold = p.get("threshold", torch.ones(()))
    for x_t in x.unbind(1):
        if kind == "lif":
            potential = u = 0.5 * u + x_t
        elif kind == "silif":
            beta = torch.exp(-torch.exp(p["log_rate"].clamp(min=0)) * torch.exp(p["log_step"]))
            potential = u = beta * u + (1 - beta) * x_t
        else:
            pole = torch.exp(torch.complex(-torch.exp(p["log_damping"]), p["frequency"]) * torch.exp(p["log_step"]))
            u = pole * (u - neuron.reset_factor * spike) + p["gain"] * x_t
            potential = 2 * u.real
        distance = potential - threshold
        spike = torch.sigmoid(mode.sharpness * distance) if mode.relaxed else (distance >= 0).to(x.dtype)
        if kind != "csilif":
            u = potential - threshold * spike
        spikes.append(spike)
        potentials.append(potential)
    return torch.stack(spikes, 1), torch.stack(potentials, 1)


@pytest.mark.parametrize(("kind", "each"), [("lif", 0), ("silif", 3), ("csilif", 5)])
def test_parameters_a_channel(kind, each):
    parameters = list(NEURONS[kind](CHANNELS).parameters())
    assert [p.shape for p in parameters] == [(CHANNELS,)] * each
    assert all(p.requires_grad for p in parameters)


def test_silif_starts_as_the_specification_says():
    neuron = NEURONS["silif"](4096)
    rate = neuron.log_rate.detach()
    low, high = math.log(10), math.log(250)
    assert low <= rate.min() < low + 0.01
    assert high - 0.01 < rate.max() <= high
    assert rate.mean().item() == pytest.approx((low + high) / 2, abs=0.05)
    torch.testing.assert_close(neuron.log_step.detach(), torch.full((4096,), math.log(0.004)))
    assert (neuron.threshold == 1).all()


def test_csilif_starts_as_the_specification_says():
    neuron = NEURONS["csilif"](CHANNELS)
    for name, value in {"log_damping": math.log(25), "frequency": math.pi, "log_step": math.log(0.004)}.items():
        torch.testing.assert_close(getattr(neuron, name).detach(), torch.full((CHANNELS,), value))
    assert (neuron.gain == 1).all()
    assert (neuron.threshold == 1).all()


def drawn(kind, channels=5):
    """A neuron with every parameter away from its start, and an input that makes it fire."""
    neuron = NEURONS[kind](channels).double()
    with torch.no_grad():
        for parameter in neuron.parameters():
            parameter.add_(torch.empty_like(parameter).uniform_(-0.2, 0.2))
    return neuron, 2 * torch.randn(2, 6, channels, 3, 4, dtype=torch.float64) + 0.5


@KINDS
@pytest.mark.parametrize("mode", [HARD, ForwardMode(relaxed=True, sharpness=3.5), ForwardMode(sharpness=5.0)])
def test_equals_the_recurrence(same, kind, mode):
    neuron, x = drawn(kind)
    (spikes, potential), _ = neuron(x, mode)
    expected = slow_neuron(kind, neuron, x, mode)
    assert 0.02 < spikes.mean() < 0.98
    same(spikes, expected[0])
    same(potential, expected[1])


@pytest.mark.parametrize("factor", [0.0, 0.2, 1.0])
def test_the_resonating_neuron_resets_by_the_configs_factor(same, factor):
    neuron, x = make_neuron("csilif", 5, csilif_reset=factor).double(), drawn("csilif")[1]
    (spikes, potential), _ = neuron(x)
    expected = slow_neuron("csilif", neuron, x, HARD)
    same(spikes, expected[0])
    same(potential, expected[1])
    assert make_neuron("silif", 5, csilif_reset=factor).reset_factor == 0.5


@KINDS
def test_a_detached_reset_leaves_out_its_part_of_the_gradient(kind):
    """At the second step the first spike is known: the gradient goes through the decay alone."""
    neuron = make_neuron(kind, 5, detach_reset=True).double()
    x = drawn(kind)[1][:, :2].requires_grad_()
    (_, potential), _ = neuron(x)
    (found,) = torch.autograd.grad(potential[:, 1].sum(), x)
    constants = neuron.constants(x.device)
    slope = (2 if kind == "csilif" else 1) * constants.decay * constants.gain
    torch.testing.assert_close(found[:, 0], slope.detach()[:, None, None].expand_as(found[:, 0]).double())


def test_a_neuron_with_a_reset_of_its_own_cannot_detach_it(monkeypatch):
    class OwnReset(SiLIF):
        def forward(self, *given, **options):
            return super().forward(*given, **options)

    monkeypatch.setitem(NEURONS, "own-reset", OwnReset)
    assert not make_neuron("own-reset", 3).detach_reset
    with raises(ConfigError, field="detach_reset"):
        make_neuron("own-reset", 3, detach_reset=True)


@KINDS
@pytest.mark.parametrize("sharpness", [2.0, 6.0])
def test_the_passs_sharpness_is_the_surrogates(kind, sharpness):
    neuron, x = drawn(kind)
    x = x[:, :1].requires_grad_()
    (spikes, potential), _ = neuron(x, ForwardMode(sharpness=sharpness))
    (actual,) = torch.autograd.grad(spikes.sum(), x, retain_graph=True)
    (inner,) = torch.autograd.grad(potential.sum(), x)
    distance = potential.detach() - getattr(neuron, "threshold", torch.ones(1)).detach()[:, None, None]
    expected = sharpness / (2 * (1 + (math.pi / 2 * sharpness * distance) ** 2)) * inner
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


@KINDS
def test_pieces_with_carried_state_equal_one_call(same, kind):
    neuron, x = drawn(kind)
    state, spikes, potentials = None, [], []
    for piece in x.split((1, 2, 3), 1):
        (spike, potential), state = neuron(piece, HARD, state)
        spikes.append(spike)
        potentials.append(potential)
    (expected, expected_potential), final = neuron(x)
    same(torch.cat(spikes, 1), expected)
    same(torch.cat(potentials, 1), expected_potential)
    same(state, final)


@KINDS
def test_the_spikes_do_not_depend_on_whether_the_potential_is_kept(same, kind):
    neuron, x = drawn(kind)
    (spikes, _), state = neuron(x, keep_potential=False)
    (expected, _), final = neuron(x)
    assert torch.equal(spikes, expected)
    same(state, final)
