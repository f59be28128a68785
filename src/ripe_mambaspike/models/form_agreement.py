"""Verifies a converted network: both run in float64 on a probe, and every spike is compared."""

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.errors import VerificationError
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import ForwardMode

TOLERANCE = 1e-12  # in float64
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 0.05, torch.bfloat16: 0.2}  # of single layers
# Smaller outputs are compared relative to this scale: rounding residue of cancelling terms is no error.
MIN_SCALE, MIN_ROUNDED_SCALE = 1e-3, 0.1
LITERAL = ForwardMode(literal=True)
PROBE_SIDE = 18  # 18 → 9 → 5 → 3: odd sizes, many borders


class FormAgreement(NamedTuple):
    """The difference between two networks on one input."""

    error: float  # largest difference of any layer's output or logit, relative to that layer's largest value
    where: str  # the layer with that error
    flips: int  # spikes present in one and absent in the other
    spikes: int  # spikes compared that fired

    def __str__(self) -> str:
        where = f" (at {self.where})" if self.error else ""
        return f"largest relative error {self.error:.1e}{where}, {self.flips} of {self.spikes:,} spikes differ"


def probe(model: RipeMambaSpike, side: int | None = None, samples: int = 1, seed: int = 0) -> Tensor:
    """Binned events for this network [samples, T, 2, side, side], float64; wide enough for its tokens."""
    if side is None:
        side = max(PROBE_SIDE, 8 * math.ceil(math.sqrt(model.config.num_tokens or 1)))
    return synthetic_clip(model.config.time_steps, side, side, samples, seed).double()


@torch.no_grad()
def compare_forms(first: RipeMambaSpike, second: RipeMambaSpike, x: Tensor) -> FormAgreement:
    """Run copies of both on x in x's dtype; compare spikes, layer outputs and logits."""
    ours, theirs = (_trace(copy.deepcopy(model).to(x).eval(), x) for model in (first, second))
    return _agreement(ours, theirs)


def verify(first: RipeMambaSpike, second: RipeMambaSpike) -> FormAgreement:
    """Compare in float64 on the probe; raises if the two differ."""
    agreement = compare_forms(first, second, probe(first).to(next(first.parameters()).device))
    if not agreement.error <= TOLERANCE or agreement.flips:
        expected = f"the outputs of the {first.config.form} form of '{second.name}' to {TOLERANCE:.0e} and its spikes"
        raise VerificationError.expected(second.config.form, expected, str(agreement))
    return agreement


@torch.no_grad()
def verify_rounding(first: RipeMambaSpike, second: RipeMambaSpike) -> None:
    """Compare each converted layer in the networks' dtype, on its own random operand, so that flips cannot spread.

    Without the coarser TF32 products that a GPU may use for float32: they would hide a real difference.
    """
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        ours, theirs = (_trace_layers(copy.deepcopy(model).eval()) for model in (first, second))
    agreement = _agreement(ours, theirs, MIN_ROUNDED_SCALE)
    if not agreement.error <= ROUNDING[first.dtype]:
        form, bound = first.config.form, ROUNDING[first.dtype]
        expected = f"layers that round as in the {form} form of '{second.name}' to {bound:.0e}"
        raise VerificationError.expected(second.config.form, expected, str(agreement))


def _agreement(ours: dict[str, Tensor], theirs: dict[str, Tensor], least: float = MIN_SCALE) -> FormAgreement:
    worst, where, flips, fired = 0.0, "nowhere", 0, 0
    for name, expected in ours.items():
        given = theirs[name]
        if name.endswith("spikes"):
            flips += int((expected != given).sum())
            fired += int(expected.sum())
        error = float((expected - given).abs().max() / expected.abs().max().clamp(min=least))
        if not error <= worst and not math.isnan(worst):  # NaN stays the worst
            worst, where = error, name
    return FormAgreement(worst, where, flips, fired)


def _trace(model: RipeMambaSpike, x: Tensor) -> dict[str, Tensor]:
    """The output of every layer for x, and of every converted layer for its own random operand.

    The latter because a layer after silent neurons would otherwise not be tested.
    """
    trace = _trace_layers(model)
    front = model.front_end(x, LITERAL, observe=("spikes", "attention"))
    indices = model.select(front.token_scores)
    logits = model.classify(front.features, front.attention, indices)
    return trace | front.observed | {"bridge": front.features, "logits": logits}


def _trace_layers(model: RipeMambaSpike) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    steps, side = model.config.time_steps, 9
    weight = model.bridge.norm.weight

    def operand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64).lt(0.3).to(weight)

    trace: dict[str, Tensor] = {}
    stages: Any = model.stages
    for level, stage in enumerate(stages, 1):
        for which, conv, norm in (
            ("first", stage.first_conv, stage.first_norm),
            ("second", stage.second_conv, stage.second_norm),
        ):
            out, _ = conv(operand(1, steps, conv.in_channels, side, side), LITERAL)
            trace[f"stage {level} {which} convolution"] = norm(out, LITERAL)
    channels = model.config.stage_channels if model.config.bridge == "mr-s3a" else model.config.stage_channels[-1:]
    trace["bridge projections"] = model.bridge.mixture([operand(1, 2 * c, side, side) for c in channels], LITERAL)
    return trace
