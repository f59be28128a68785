"""The neurons: stability, the discrete pole, the recurrences, the surrogate, and their size."""

import math
from collections.abc import Iterator
from itertools import chain

import torch

from ripe_mambaspike.nn.neurons import NEURONS, STEP
from ripe_mambaspike.ops.mamba_inner.scan import selective_scan
from ripe_mambaspike.ops.neurons import csilif, csilif_pole, fire_over_time, lif
from ripe_mambaspike.ops.spikes import fire
from ripe_mambaspike.studies.claims.random_network import generator, random_normal, random_uniform, relative_error
from ripe_mambaspike.studies.claims.verdict import Claim, count, exact, fact


def neuron_claims() -> Iterator[Claim]:
    return chain(_stability(), _pole(), _recurrences(), _surrogate(), _sizes(), _scan())


def _stability() -> Iterator[Claim]:
    axis = torch.linspace(-15, 8, 47, dtype=torch.float64)
    frequency = torch.tensor([-1e3, -math.pi, 0, 1, math.pi, 1e3], dtype=torch.float64)
    grid = torch.meshgrid(axis, frequency, axis, indexing="ij")
    largest = float(torch.hypot(*csilif_pole(*grid)).max())
    extreme = [torch.tensor(v) for v in (-12.0, math.pi, -8.0)]
    rounded = float(torch.hypot(*csilif_pole(*extreme)))
    yield fact("neurons.stable", f"1 − {1 - largest:.1e}", largest < 1)
    yield fact("neurons.stable.everywhere", f"{rounded:.9g}", rounded < 1)


def _pole() -> Iterator[Claim]:
    rng = generator(0)
    log_damping, log_step = random_uniform(rng, 200, low=-3, high=4), random_uniform(rng, 200, low=-8, high=0)
    frequency = random_uniform(rng, 200, low=-20, high=20)
    real, imag = csilif_pole(log_damping, frequency, log_step)
    rho = torch.complex(-log_damping.exp(), frequency)
    error = float((torch.complex(real, imag) - torch.exp(rho * log_step.exp())).abs().max())
    at_start, tuned = _peak(math.log(25), math.pi), _peak(math.log(25), 250.0)
    yield exact("neurons.pole", error)
    yield fact("neurons.band-pass", f"peak at {tuned:.2f} rad a step for ω = 250", tuned > 0.1, at_start=at_start)


def _peak(log_damping: float, frequency: float) -> float:
    """Where the response of 2 Re m to an input is largest, in radians per step, without firing."""
    impulse = torch.zeros(1, 512, 1, dtype=torch.float64)
    impulse[:, 0] = 1
    values = (log_damping, frequency, math.log(STEP), 1.0, 1e9)
    neuron = csilif(*(torch.tensor([v], dtype=torch.float64) for v in values))
    (_, potential), _ = fire_over_time(impulse, neuron)
    assert potential is not None
    response = torch.fft.rfft(potential[0, :, 0]).abs()
    return float(response.argmax() * 2 * math.pi / 512)


def _recurrences() -> Iterator[Claim]:
    rng = generator(1)
    x = 3 * random_normal(rng, 1, 12, 1)
    (spikes, charged), _ = fire_over_time(x, lif(x.shape[2]))
    assert charged is not None
    u = s = torch.zeros((), dtype=torch.float64)
    expected = []
    for value in x[0, :, 0]:
        u = 0.5 * (u - s) + value
        s = (u >= 1).double()
        expected.append(u)
    lif_error = relative_error(charged[0, :, 0], torch.stack(expected))
    values = (math.log(25), 40.0, math.log(STEP), 1.3, 0.7)
    parameters = [torch.tensor([v], dtype=torch.float64) for v in values]
    (fired, potential), _ = fire_over_time(x, csilif(*parameters))
    assert potential is not None
    alpha = torch.exp(torch.complex(-parameters[0].exp(), parameters[1]) * parameters[2].exp())[0]
    m, s = torch.zeros((), dtype=torch.complex128), torch.zeros((), dtype=torch.float64)
    expected = []
    for value in x[0, :, 0]:
        m = alpha * (m - 0.5 * s) + 1.3 * value
        s = (2 * m.real >= 0.7).double()
        expected.append(2 * m.real)
    after_reset = 0.8 - 1.0
    yield exact("neurons.lif", lif_error, spikes=int(spikes.sum()))
    csilif_error = relative_error(potential[0, :, 0], torch.stack(expected))
    yield exact("neurons.csilif", csilif_error, spikes=int(fired.sum()))
    yield fact("neurons.hard-reset", f"m = 0.8 becomes {after_reset:.1f}", abs(after_reset) < 1e-12)


def _surrogate() -> Iterator[Claim]:
    distance = torch.linspace(-3, 3, 601, dtype=torch.float64, requires_grad=True)
    worst = 0.0
    for alpha in (2.0, 3.0, 4.0):
        (slope,) = torch.autograd.grad(fire(distance, alpha).sum(), distance)
        formula = alpha / (2 * (1 + (math.pi / 2 * alpha * distance.detach()) ** 2))
        worst = max(worst, relative_error(slope, formula))
    (soft,) = torch.autograd.grad(fire(distance, 4.0, relaxed=True).sum(), distance)
    sigma = torch.sigmoid(4 * distance.detach())
    yield exact("neurons.atan", worst)
    yield exact("neurons.relaxed", relative_error(soft, 4 * sigma * (1 - sigma)))


def _sizes() -> Iterator[Claim]:
    sizes = {name: sum(p.numel() for p in make(1).parameters()) for name, make in NEURONS.items()}
    yield count("neurons.csilif-adds", sizes["csilif"] - sizes["silif"])


def _scan() -> Iterator[Claim]:
    """The discretized input weight, from one token with a zero state."""
    delta, decay, weight = 0.7, -3.0, 1.3
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    _, state = selective_scan(one, delta * one, decay * one[0], weight * one, one)
    ours = float(state.squeeze())
    exact = (math.exp(delta * decay) - 1) / decay * weight
    yield fact(
        "scan.zoh-input",
        f"{ours:.4f} (ΔB = {delta * weight:.4f})",
        abs(ours - exact) < 1e-9,
        paper=f"(ΔA)⁻¹(exp(ΔA) − I)ΔB = {exact:.4f}",
    )
