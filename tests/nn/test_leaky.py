"""The published neuron: numbers computed by hand, snntorch's Leaky where both coincide, and its state."""

import math

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.nn.leaky import LeakyNeuron


def test_the_published_step_by_hand():
    """SpikingJelly's LIFNode(tau=2): H = V + (X − V)/2, fire at 1, to zero."""
    x = torch.tensor([1.0, 1.5, 2.5, 0.5, -2.0, 4.0])
    potentials = [0.5, 1.0, 1.25, 0.25, -0.875, 1.5625]  # 0.5·(V + X), V is 0 after the spikes at steps 2, 3 and 6
    spikes, state = LeakyNeuron()(x.view(1, -1, 1))
    assert spikes.flatten().tolist() == [float(u >= 1) for u in potentials]
    assert state["membrane"].item() == 0
    _, state = LeakyNeuron()(x[:5].view(1, -1, 1))
    assert state["membrane"].item() == -0.875


def test_other_steps_by_hand():
    """τ = 4 without the input's decay: H = 0.75 V + X; the soft reset leaves what is above the threshold."""
    x = torch.tensor([1.0, 2.0, 0.0]).view(1, -1, 1)
    soft = LeakyNeuron(tau=4.0, threshold=1.5, decay_input=False, hard_reset=False)
    spikes, state = soft(x)  # H = 1, 2.75, 0.9375
    assert spikes.flatten().tolist() == [0, 1, 0]
    assert state["membrane"].item() == 0.9375
    spikes, state = LeakyNeuron(tau=4.0, decay_input=True)(x)  # H = 0.25, 0.6875, 0.515625
    assert spikes.sum() == 0
    assert state["membrane"].item() == 0.515625


def test_without_leak_it_counts():
    spikes, state = LeakyNeuron(tau=math.inf, decay_input=False, hard_reset=False)(torch.full((1, 5, 2), 0.5))
    assert spikes[0, :, 0].tolist() == [0, 1, 0, 1, 0]
    assert state["membrane"].tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("learn_tau", [False, True])
def test_the_gradient_by_hand(learn_tau):
    """One step of τ = 2: the slope at u − 1 = −0.5 with α = 2 is 1 / (1 + (π/2)²), and du/dx = 1/2."""
    neuron, x = LeakyNeuron(learn_tau=learn_tau), torch.ones(1, 1, 1, requires_grad=True)
    spikes, _ = neuron(x)
    slope = 1 / (1 + (math.pi / 2) ** 2)
    spikes.sum().backward()
    assert x.grad.item() == pytest.approx(0.5 * slope, rel=1e-6)
    if learn_tau:  # dσ/dw = 1/4 at w = 0, times x − v = 1
        assert neuron.w.item() == 0
        assert neuron.w.grad.item() == pytest.approx(0.25 * slope, rel=1e-6)


@pytest.mark.parametrize("decay_input", [True, False])
@pytest.mark.parametrize("tau", [1.1, 2.0, 7.5])
def test_a_learned_tau_starts_as_the_fixed_one(tau, decay_input):
    x = 2 * torch.randn(2, 8, 5) + 0.5
    learned, fixed = (LeakyNeuron(tau, decay_input=decay_input, learn_tau=learn) for learn in (True, False))
    for one, wanted in zip(learned.constants(x), fixed.constants(x), strict=True):
        assert one.item() == pytest.approx(wanted.item(), abs=1e-6)
    assert [name for name, _ in learned.named_parameters()] == ["w"]
    assert not list(fixed.parameters())
    assert not fixed.state_dict()


@pytest.mark.parametrize("mechanism", ["subtract", "zero"])
def test_equals_snntorch(mechanism):
    """With its reset within the step, in the graph; no membrane is left above the threshold, which it resets again."""
    snntorch = pytest.importorskip("snntorch")
    surrogate = pytest.importorskip("snntorch.surrogate")
    leaky = snntorch.Leaky(
        beta=0.75, reset_mechanism=mechanism, reset_delay=False, spike_grad=surrogate.atan(alpha=2.0)
    ).double()
    x = 1.5 * torch.rand(2, 12, 3, 5, dtype=torch.float64) - 0.5
    weights = torch.randn_like(x)
    neuron = LeakyNeuron(tau=4.0, decay_input=False, hard_reset=mechanism == "zero", detach_reset=False)
    found = []

    def unroll(x):
        membrane, spikes = torch.zeros_like(x[:, 0]), []
        for now in x.unbind(1):
            spike, membrane = leaky(now, membrane)
            spikes.append(spike)
        return torch.stack(spikes, 1), membrane

    def whole(x):
        spikes, state = neuron(x)
        return spikes, state["membrane"]

    for run in (whole, unroll):
        leaf = x.clone().requires_grad_()
        spikes, membrane = run(leaf)
        found.append((spikes.double(), membrane, *torch.autograd.grad((spikes * weights).sum(), leaf)))
    assert 0.05 < found[0][0].mean() < 0.6
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[0][2], found[1][2], rtol=1e-5, atol=1e-6)  # its slope is float32


@pytest.mark.parametrize("learn_tau", [False, True])
@pytest.mark.parametrize("shape", [(3, 7), (3, 7, 2), (2, 7, 4, 5, 3)], ids=str)
def test_pieces_with_carried_state_equal_one_call(shape, learn_tau):
    neuron, x, state, parts = LeakyNeuron(tau=3.0, learn_tau=learn_tau), 3 * torch.randn(shape) + 1, None, []
    for piece in x.split((1, 4, 2), 1):
        spikes, state = neuron(piece, state)
        parts.append(spikes)
    whole, final = neuron(x)
    assert 0.05 < whole.mean() < 0.9
    assert torch.equal(torch.cat(parts, 1), whole)
    assert torch.equal(state["membrane"], final["membrane"])
    assert final["membrane"].shape == (shape[0], *shape[2:])


@pytest.mark.parametrize(
    ("field", "given"),
    [("tau", 1.0), ("tau", math.inf), ("tau", math.nan), ("surrogate", "relu"), ("sharpness", 0.0)],
)
def test_what_cannot_be_used_is_refused(field, given):
    with raises(ConfigError, field=field):
        LeakyNeuron(**{field: given})
