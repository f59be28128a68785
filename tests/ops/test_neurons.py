"""The three neurons, hard and relaxed, against loops over time and channels; the baseline's Leaky against snntorch."""

import math

import pytest
import torch

from ripe_mambaspike.ops.neurons import (
    csilif,
    csilif_pole,
    fire_over_time,
    lif,
    recurrent_leaky_step,
    silif,
    silif_decay,
)

B, T, C, H, W = 2, 5, 3, 5, 7
SHARPNESS = 3.0


def slow_fire(potential, threshold, sharpness, relaxed):
    """The step with the paper's Eq. (atan) as its slope, by the straight-through identity; or the sigmoid."""
    distance = potential - threshold
    if relaxed:
        return 1 / (1 + torch.exp(-sharpness * distance))
    slope = sharpness / (2 * (1 + (math.pi / 2 * sharpness * distance.detach()) ** 2))
    step = torch.where(potential.detach() >= threshold, 1.0, 0.0).to(potential)
    return step + slope * (distance - distance.detach())


def by_channel(x, state, step):
    """Loop over channels and time; `step(x, state, c) → (spike, potential, state)` for one channel [B, H, W]."""
    spikes, potentials, finals = [], [], []
    for c in range(x.shape[2]):
        now = tuple(part[:, c] for part in state)
        fired = []
        for t in range(x.shape[1]):
            spike, potential, now = step(x[:, t, c], now, c)
            fired.append((spike, potential))
        spikes.append(torch.stack([s for s, _ in fired], 1))
        potentials.append(torch.stack([u for _, u in fired], 1))
        finals.append(now)
    final = [torch.stack(parts, 1) for parts in zip(*finals, strict=True)]
    return (torch.stack(spikes, 2), torch.stack(potentials, 2)), final


def slow_lif(x, relaxed, u, detached=False):
    def step(x, state, c):
        potential = 0.5 * state[0] + x
        spike = slow_fire(potential, 1.0, SHARPNESS, relaxed)
        return spike, potential, (potential - as_graph(1.0 * spike, detached),)

    return by_channel(x, (u,), step)


def as_graph(reset, detached):
    return reset.detach() if detached else reset


def slow_silif(x, a, d, v, relaxed, u, detached=False):
    def step(x, state, c):
        rate = torch.exp(a[c]) if a[c] > 0 else torch.ones_like(a[c])
        beta = torch.exp(-rate * torch.exp(d[c]))
        potential = beta * state[0] + (1 - beta) * x
        spike = slow_fire(potential, v[c], SHARPNESS, relaxed)
        return spike, potential, (potential - as_graph(v[c] * spike, detached),)

    return by_channel(x, (u,), step)


def slow_csilif(x, damping, frequency, log_step, gain, v, relaxed, re, im, detached=False, factor=0.5):
    """In complex numbers, with `m = α(m − κ s_prev) + b x` as it stands in the specification."""

    def step(x, state, c):
        pole = torch.exp(torch.complex(-torch.exp(damping[c]), frequency[c]) * torch.exp(log_step[c]))
        m = pole * torch.complex(*state) + gain[c] * x
        potential = 2 * m.real
        spike = slow_fire(potential, v[c], SHARPNESS, relaxed)
        reset = m - as_graph(factor * spike, detached)
        return spike, potential, (reset.real, reset.imag)

    return by_channel(x, (re, im), step)


def run(neuron, x, relaxed, *state, **options):
    given = None if state[0] is None else (*state, None)[:2]
    fired, final = fire_over_time(x, neuron, sharpness=SHARPNESS, relaxed=relaxed, initial_state=given, **options)
    return fired, [part for part in final if part is not None]


def run_lif(x, relaxed, u=None, **options):
    return run(lif(x.shape[2]), x, relaxed, u, **options)


def run_silif(x, a, d, v, relaxed, u=None, **options):
    return run(silif(a, d, v), x, relaxed, u, **options)


def run_csilif(x, damping, frequency, log_step, gain, v, relaxed, re=None, im=None, **options):
    return run(csilif(damping, frequency, log_step, gain, v), x, relaxed, re, im, **options)


def signal(scale):
    return scale * torch.randn(B, T, C, H, W, dtype=torch.float64)


def state():
    return torch.randn(B, C, H, W, dtype=torch.float64)


def lif_inputs():
    return {"x": signal(1.5), "u": state()}


def silif_inputs():
    """One rate is below zero, where it is held at one and its gradient vanishes."""
    a, v = torch.tensor([3.0, -0.5, 5.0]).double(), torch.tensor([0.6, 1.0, 1.3]).double()
    return {"x": signal(4.0), "a": a, "d": torch.log(torch.tensor([0.02, 0.4, 0.005])).double(), "v": v, "u": state()}


def csilif_inputs():
    parameters = {
        "damping": torch.log(torch.tensor([25.0, 5.0, 60.0])),
        "frequency": torch.tensor([math.pi, 40.0, -9.0]),
        "log_step": torch.log(torch.tensor([0.004, 0.02, 0.01])),
        "gain": torch.tensor([1.0, 0.7, -1.2]),
        "v": torch.tensor([1.0, 0.8, 1.5]),
    }
    return {"x": signal(1.0)} | {k: p.double() for k, p in parameters.items()} | {"re": state(), "im": state()}


NEURONS = [
    pytest.param(run_lif, slow_lif, lif_inputs, id="lif"),
    pytest.param(run_silif, slow_silif, silif_inputs, id="silif"),
    pytest.param(run_csilif, slow_csilif, csilif_inputs, id="csilif"),
]
neurons = pytest.mark.parametrize(("fn", "slow", "inputs"), NEURONS)
modes = pytest.mark.parametrize("relaxed", [False, True], ids=["hard", "relaxed"])
STATES = ("u", "re", "im")


def in_mode(fn, relaxed):
    return lambda **inputs: fn(**inputs, relaxed=relaxed)


def without_state(inputs):
    return {name: tensor for name, tensor in inputs.items() if name not in STATES}


@neurons
@modes
def test_equals_the_slow_reference(agree, fn, slow, inputs, relaxed):
    given = inputs()
    (spikes, _), _ = fn(**given, relaxed=relaxed)
    assert 0.1 < spikes.mean() < 0.9
    agree(in_mode(fn, relaxed), in_mode(slow, relaxed), given)


@neurons
@modes
def test_a_detached_reset_has_no_gradient(agree, evaluate, fn, slow, inputs, relaxed):
    given = inputs()

    def detached(**leaves):
        return fn(**leaves, relaxed=relaxed, detach_reset=True)

    agree(detached, lambda **leaves: slow(**leaves, relaxed=relaxed, detached=True), given)
    (outputs, gradients), (attached, others) = evaluate(detached, given), evaluate(in_mode(fn, relaxed), given)
    assert all(torch.equal(one, other) for one, other in zip(outputs, attached, strict=True))
    assert not torch.allclose(gradients["x"], others["x"])


@modes
@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0])
def test_the_reset_factor_of_the_resonating_neuron(agree, factor, relaxed):
    given = csilif_inputs()

    def fast(**leaves):
        return run_csilif(**leaves, relaxed=relaxed, reset=factor)

    agree(fast, lambda **leaves: slow_csilif(**leaves, relaxed=relaxed, factor=factor), given)
    (_, potential), _ = fast(**given)
    assert not torch.allclose(potential, run_csilif(**given, relaxed=relaxed)[0][1])


@neurons
@modes
def test_starts_from_rest_without_a_state(agree, fn, slow, inputs, relaxed):
    given = inputs()
    rest = {name: torch.zeros(B, C, H, W, dtype=torch.float64) for name in given if name in STATES}
    agree(in_mode(fn, relaxed), lambda **free: slow(**free, **rest, relaxed=relaxed), without_state(given))


@neurons
@modes
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3)])
def test_pieces_with_carried_state_equal_one_call(agree_in_float32, over_time, fn, slow, inputs, relaxed, sizes):
    def in_pieces(x, **others):
        parameters = without_state(others)
        names = [name for name in others if name in STATES]

        def piece(x, state):
            return fn(x, **parameters, relaxed=relaxed, **dict(zip(names, state, strict=True)))

        return over_time(piece, [x], sizes, tuple(others[name] for name in names))

    agree_in_float32(in_pieces, in_mode(fn, relaxed), inputs())


@neurons
@modes
def test_same_bits_whatever_the_memory_held(reproducible, fn, slow, inputs, relaxed):
    reproducible(in_mode(fn, relaxed), inputs())


@neurons
@modes
def test_bfloat16_fires_as_float32_and_keeps_its_state_in_float32(close_in_bfloat16, fn, slow, inputs, relaxed):
    given = inputs()
    states = sum(name in STATES for name in given)

    def with_float32_state(**leaves):
        return fn(**{k: v.float() if k in STATES else v for k, v in leaves.items()}, relaxed=relaxed)

    close_in_bfloat16(with_float32_state, given, 1e-2, states=states)
    rounded = {name: tensor.bfloat16() for name, tensor in without_state(given).items()}
    (spikes, _), final = fn(**rounded, relaxed=relaxed)
    (wanted, _), wanted_final = fn(**{name: tensor.float() for name, tensor in rounded.items()}, relaxed=relaxed)
    torch.testing.assert_close(final, wanted_final, rtol=0, atol=0)
    assert torch.equal(spikes, wanted.bfloat16())


@neurons
def test_vectors_without_positions(fn, slow, inputs):
    given = inputs()
    narrow = {k: v[..., 2, 3] if k == "x" or k in STATES else v for k, v in given.items()}
    (spikes, potential), _ = fn(**narrow, relaxed=False)
    (wide_spikes, wide_potential), _ = fn(**given, relaxed=False)
    torch.testing.assert_close(spikes, wide_spikes[..., 2, 3], rtol=0, atol=0)
    torch.testing.assert_close(potential, wide_potential[..., 2, 3], rtol=1e-12, atol=1e-12)


def test_fires_at_the_threshold_exactly():
    (spikes, potential), (left, _) = fire_over_time(torch.tensor([[[1.0], [1.0], [0.5]]]), lif(1))
    assert spikes.flatten().tolist() == [1, 1, 0]
    assert potential.flatten().tolist() == [1, 1, 0.5]
    assert left.item() == 0.5


def test_decays_at_the_initial_values():
    beta = silif_decay(torch.log(torch.tensor([10.0, 250.0])), torch.log(torch.tensor([0.004, 0.004])))
    torch.testing.assert_close(beta, torch.exp(torch.tensor([-0.04, -1.0])), rtol=1e-6, atol=0)
    values = (torch.tensor([math.log(25)]), torch.tensor([math.pi]), torch.tensor([math.log(0.004)]))
    pole = csilif_pole(*values)
    expected = [math.exp(-0.1) * math.cos(0.004 * math.pi), math.exp(-0.1) * math.sin(0.004 * math.pi)]
    torch.testing.assert_close(torch.cat(pole), torch.tensor(expected), rtol=1e-6, atol=0)


def test_the_baseline_neuron_equals_snntorch():
    snntorch = pytest.importorskip("snntorch")
    surrogate = pytest.importorskip("snntorch.surrogate")
    leaky = snntorch.Leaky(beta=0.97, reset_mechanism="subtract", spike_grad=surrogate.fast_sigmoid(slope=25))
    currents = torch.randn(12, 2, 3, 5, 7)
    weights = torch.randn(2, 12, 2, 3, 5, 7)

    def unroll(step):
        drive = currents.clone().requires_grad_()
        potential, spikes, potentials = torch.zeros(2, 3, 5, 7), [], []
        for now in drive:
            spike, potential = step(now, potential)
            spikes.append(spike)
            potentials.append(potential)
        spikes, potentials = torch.stack(spikes), torch.stack(potentials)
        (grad,) = torch.autograd.grad((torch.stack((spikes, potentials)) * weights).sum(), drive)
        return spikes.detach(), potentials.detach(), grad

    spikes, potentials, grad = unroll(lambda now, before: recurrent_leaky_step(now, before, 0.97))
    expected_spikes, expected_potentials, expected_grad = unroll(leaky)
    assert 0.05 < spikes.mean() < 0.6
    assert torch.equal(spikes, expected_spikes)
    torch.testing.assert_close(potentials, expected_potentials, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-5, atol=1e-5)
