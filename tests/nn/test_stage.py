"""One stage against the specification's text, written out step by step with PyTorch's own modules."""

import pytest
import torch

from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode

T = 5


def make_stage(randomize, neuron, level, attention="ds-mpa"):
    """A stage whose six parts are all away from their start and whose neurons fire."""
    config = RipeConfig(
        time_steps=T, stage_channels=(6, 8, 8), embed_dims=(4, 4, 4), neurons=neuron, attention=attention
    )
    stage = randomize(RipeMambaSpike(config, "test").double()).stages[level]
    with torch.no_grad():
        for norm in (stage.first_norm, stage.second_norm):
            norm.weight.mul_(4)
        for name, parameter in stage.named_parameters():
            if "neuron" in name:
                parameter.add_(torch.empty_like(parameter).uniform_(-0.1, 0.1))
            if "gain" in name:
                parameter.uniform_(0.5, 2)
    return stage


def filter_step(now, before, conv):
    weight = conv.coefficient[:, None, None]
    return (1 + weight) * now - weight * before


class Neuron:
    """The recurrence of one neuron, a step a call."""

    def __init__(self, kind, module):
        self.kind, self.last, self.u = kind, 0.0, 0.0
        self.p = {name: value[:, None, None] for name, value in module.named_parameters()}

    def step(self, x, mode):
        threshold = self.p.get("threshold", 1.0)
        if self.kind == "csilif":
            rate = torch.complex(-torch.exp(self.p["log_damping"]), self.p["frequency"])
            pole = torch.exp(rate * torch.exp(self.p["log_step"]))
            self.u = pole * (self.u - 0.5 * self.last) + self.p["gain"] * x
            potential = 2 * self.u.real
        else:
            beta, gain = 0.5, 1.0
            if self.kind == "silif":
                beta = torch.exp(-torch.exp(self.p["log_rate"].clamp(min=0)) * torch.exp(self.p["log_step"]))
                gain = 1 - beta
            potential = self.u = beta * (self.u - threshold * self.last) + gain * x
        distance = potential - threshold
        self.last = torch.sigmoid(mode.sharpness * distance) if mode.relaxed else (distance >= 0).double()
        return self.last, potential


def attend(module, potential, previous, features):
    q, k = (torch.einsum("oc,bchw->bohw", f[0], potential).flatten(2) for f in (module.query, module.key))
    v = torch.einsum("oc,bchw->bohw", module.value[0], previous).flatten(2)
    q, k = (torch.where(z > 0, z + 1, z.exp()) for z in (q, k))
    weights = torch.einsum("bci,bcj->bij", q, k)
    attention = torch.einsum("bij,bcj->bci", weights / (weights.sum(-1, keepdim=True) + 1e-5), v).view_as(features)
    return features + module.gain[:, None, None] * attention * features, attention


def slow_stage(stage, kind, x, mode, twin_repconv, twin_norm):
    """TDM → RepConv → BNTT → neuron; TDM → RepConv → BNTT → DS-MPA → neuron, one step after another (evaluation)."""
    convs = [twin_repconv(conv) for conv in (stage.first_conv, stage.second_conv)]
    neurons = [Neuron(kind, stage.first_neuron), Neuron(kind, stage.second_neuron)]
    before, previous = torch.zeros_like(x[:, 0]), None
    out = []
    for t, x_t in enumerate(x.unbind(1)):
        filtered = filter_step(x_t, before, stage.first_conv)
        current = twin_norm(stage.first_norm, t)(sum(branch(filtered) for branch in convs[0]))
        inner, potential = neurons[0].step(current, mode)
        previous = torch.zeros_like(inner) if previous is None else previous
        filtered = filter_step(inner, previous, stage.second_conv)
        features = twin_norm(stage.second_norm, t)(sum(branch(filtered) for branch in convs[1]))
        modulated, attention = attend(stage.attention, potential, previous, features)
        spikes, _ = neurons[1].step(modulated, mode)
        out.append((spikes, inner, attention))
        before, previous = x_t, inner
    return [torch.stack(part, 1) for part in zip(*out, strict=True)]


MODES = pytest.mark.parametrize(
    "mode",
    [HARD, ForwardMode(relaxed=True, sharpness=3.0), ForwardMode(literal=True)],
    ids=["hard", "relaxed", "literal"],
)
KINDS = pytest.mark.parametrize("kind", ["lif", "silif", "csilif"])


@MODES
@KINDS
@pytest.mark.parametrize("level", [0, 2])
def test_wiring(randomize, twin_repconv, twin_norm, same, kind, level, mode):
    stage = make_stage(randomize, kind, level).eval()
    x = torch.randn(2, T, stage.first_conv.in_channels, 9, 7, dtype=torch.float64)
    with torch.no_grad():
        out = stage(x, mode)
        spikes, inner, attention = slow_stage(stage, kind, x, mode, twin_repconv, twin_norm)
    assert out.spikes.shape == (2, T, stage.first_conv.channels, 5, 4)
    assert (out.rates() > 0.02).all()
    same(out.inner_spikes, inner, 1e-11)
    same(out.attention, attention, 1e-11)
    same(out.spikes, spikes, 1e-11)
    torch.testing.assert_close(out.rates(), torch.stack([inner.mean(), spikes.mean()]).float())


@MODES
@pytest.mark.parametrize("attention", ["ds-mpa", "sigmoid", "gate", "none"])
@KINDS
def test_pieces_with_carried_state_equal_one_call(randomize, same, kind, attention, mode):
    stage = make_stage(randomize, kind, 1, attention).eval()
    x = (torch.rand(2, T, 6, 6, 5) < 0.5).double()
    whole = stage(x, mode)
    state, first, parts = None, 0, []
    for piece in x.split((2, 1, 2), 1):
        out = stage(piece, mode, state, first)
        state, first = out.state, first + piece.shape[1]
        parts.append(out[:3])
    for part, expected in zip(zip(*parts, strict=True), whole[:3], strict=True):
        same(torch.cat(part, 1), expected, 1e-11)


def test_the_first_stages_parameters_by_name(randomize):
    stage = make_stage(randomize, "silif", 0)
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in stage.named_children()}
    assert sizes["first_norm"] == sizes["second_norm"] == 2 * T * 6
    assert sizes["first_neuron"] == sizes["second_neuron"] == 3 * 6
