"""Temporal decoupled modulation: its spectrum, its identity at zero, its gradient path, its output values."""

import math
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from ripe_mambaspike.models.registry import create_model, meta_model, model_config
from ripe_mambaspike.nn.repconv import FusedConv, RepConv
from ripe_mambaspike.ops.spikes import fire
from ripe_mambaspike.ops.tdm import tdm
from ripe_mambaspike.studies.claims.random_network import generator, random_normal, relative_error
from ripe_mambaspike.studies.claims.verdict import Claim, count, exact, fact, number

LENGTH = 64


def tdm_claims() -> Iterator[Claim]:
    return chain(_spectrum(), _identity(), _gradient(), _size())


def power(coefficient: Tensor) -> Tensor:
    """|H(e^{jω})|² of the operator itself at ω in [0, π], from its impulse response. [C] → [C, LENGTH/2 + 1]."""
    impulse = torch.zeros(1, LENGTH, len(coefficient), dtype=torch.float64)
    impulse[:, 0] = 1
    response, _ = tdm(impulse, coefficient)
    return torch.fft.rfft(response[0], dim=0).abs().square().T


def _spectrum() -> Iterator[Claim]:
    coefficient = torch.cat((torch.linspace(-3, 3, 121, dtype=torch.float64), torch.tensor([-1.0, 0.0]).double()))
    frequency = torch.arange(LENGTH // 2 + 1, dtype=torch.float64) * 2 * math.pi / LENGTH
    scale = 2 * coefficient * (1 + coefficient)
    formula = 1 + scale[:, None] * (1 - torch.cos(frequency))
    measured = power(coefficient)
    slope = measured.diff(dim=1)
    flat = (coefficient * (1 + coefficient)).abs() < 1e-12
    rising = (coefficient * (1 + coefficient) > 0) & ~flat
    falling = ~rising & ~flat

    def shape(id: str, which: Tensor, good: Tensor) -> Claim:
        passed, total = int(good.all(1).sum()), int(which.sum())
        return fact(id, f"{passed} of {total} values of λ", passed == total > 0)

    yield exact("tdm.spectrum", relative_error(measured, formula))
    yield shape("tdm.high-pass", rising, slope[rising] > 0)
    yield shape("tdm.low-pass", falling, slope[falling] < 0)
    yield shape("tdm.flat", flat, slope[flat].abs() < 1e-12)


def _identity() -> Iterator[Claim]:
    x = random_normal(generator(0), 2, 5, 3, 4, 4)
    same = bool((tdm(x, torch.zeros(3, dtype=torch.float64))[0] == x).all())
    fresh = create_model("dvsgesture", seed=0)
    coefficients = [part.coefficient for part in fresh.modules() if isinstance(part, RepConv)]
    started = [c for c in coefficients if c is not None and bool((c == 0).all())]
    coefficient = torch.tensor([0.72], dtype=torch.float64)
    pairs = torch.tensor([[0, 0], [0, 1], [1, 1], [1, 0]], dtype=torch.float64)[..., None]  # x_{t−1}, x_t
    emitted = tdm(pairs, coefficient)[0][:, 1, 0]
    expected = torch.tensor([0, 1.72, 1, -0.72], dtype=torch.float64)
    yield fact("tdm.identity", "equal" if same else "not equal", same)
    yield fact(
        "tdm.zero-init",
        f"λ = 0 in {len(started)} of {len(coefficients)} convolutions",
        len(started) == len(coefficients) == 6,
    )
    yield exact("tdm.emits", relative_error(emitted, expected))


def _gradient() -> Iterator[Claim]:
    direct, sharpness = {}, (2.0, 4.0, 50.0)
    for alpha in sharpness:
        direct[alpha] = _gradient_parts(alpha)
    error = max(abs(parts[0] - parts[1]) for parts in direct.values())
    spread = max(p[0] for p in direct.values()) - min(p[0] for p in direct.values())
    spikes = [p[2] for p in direct.values()]
    moves = max(spikes) - min(spikes)
    far_direct, _, far_spike = _gradient_parts(4.0, threshold=1e6)
    yield exact("tdm.gradient.value", error)
    yield fact(
        "tdm.gradient.surrogate-free",
        f"changes by {spread:.1e} over α = 2, 4, 50 (the spike path by {moves:.1e})",
        spread == 0 and moves > 0,
    )
    yield fact(
        "tdm.gradient.survives",
        f"{abs(far_direct):.3f}, where the spike path has {abs(far_spike):.1e}",
        abs(far_direct) > 1e-3 and abs(far_spike) < 1e-9,
    )


def _gradient_parts(alpha: float, threshold: float = 0.25) -> tuple[float, float, float]:
    """The direct term by autograd, −λ f'(x̃), and the term through a spiking chain x_t = fire(x_{t−1}) for f = tanh."""
    coefficient = torch.tensor([0.7], dtype=torch.float64)

    def filtered(previous: Tensor, current: Tensor) -> Tensor:
        return tdm(torch.stack((previous, current)).reshape(1, 2, 1), coefficient)[0][0, 1, 0]

    previous = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    current = fire(previous - threshold, alpha)
    (direct,) = torch.autograd.grad(torch.tanh(filtered(previous, current.detach())), previous)
    (whole,) = torch.autograd.grad(torch.tanh(filtered(previous, current)), previous)
    slope = 1 - torch.tanh(filtered(previous, current)).detach() ** 2
    return float(direct), float(-coefficient * slope), float(whole - direct)


def _size() -> Iterator[Claim]:
    model = meta_model(model_config("dvsgesture"), "deployed")
    parts = [part for part in model.modules() if isinstance(part, FusedConv)]
    scalars = sum(part.coefficient.numel() for part in parts if part.coefficient is not None)
    share = 100 * scalars / model.parameter_count()
    yield count("tdm.scalars", scalars)
    yield number("tdm.share", share)
