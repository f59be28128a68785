"""Smaller weights for a deployed network: float16, or int8 calibrated on clips.

Matrices and kernels that multiply activations become int8 with a scale per row. Other parameters with two dimensions
(per-step norms, Mamba's decays and depthwise taps) become float16, and so do the first stage's convolutions: every
later spike depends on them, and they are a hundredth of the network. Vectors stay float32: spikes depend on thresholds,
time constants and biases, and they are few. The temporal filter before an int8 convolution is rounded to multiples of
1/128: then what the convolution reads, filtered spikes, are multiples too, and a runtime may compute it in integers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.deploy.forms import require_form
from ripe_mambaspike.deploy.quantize.moments import input_moments
from ripe_mambaspike.deploy.quantize.rounding import ROUNDINGS, Rounded, damped, output_error, round_nearest
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.input_checks import check_input
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.stored import Stored, check_stored, restore, scale_shape
from ripe_mambaspike.nn.eval_mode import eval_mode
from ripe_mambaspike.ops.integer_conv import FILTER_GRID, is_on_filter_grid

Rounding = Literal["plain", "searched", "compensated"]
MIN_CLIPS = 8
CLIPS_PER_PASS = 4
SCALE_BYTES = 4
FORMS = ("deployed", "dual-kernel")
FILTER_NAME = re.compile(r"stages\.(\d+)\.(?:first|second)_conv\.coefficient")
COUNTS_FILTER = "stages.0.first_conv.coefficient"  # of event counts, not of spikes


class LayerError(NamedTuple):
    """The change of a layer's outputs on the calibration clips, relative to their root mean square."""

    name: str
    error: float
    round_nearest: float  # the same with round-to-nearest multiples of largest / 127


@dataclass(frozen=True)
class CalibrationReport:
    """How int8 weights were calibrated."""

    clips: int
    rounding: Rounding
    layers: tuple[LayerError, ...]
    numbers: dict[str, int]  # parameters stored as int8, float16 and float32

    @property
    def worst(self) -> LayerError:
        return max(self.layers, key=lambda layer: layer.error)


class AccuracyChange(NamedTuple):
    """Two networks on the same labelled clips."""

    clips: int
    correct: int  # of the first
    correct_stored: int
    agreeing: int  # clips with the same predicted label

    @property
    def top1(self) -> float:
        return self.correct / self.clips

    @property
    def top1_stored(self) -> float:
        return self.correct_stored / self.clips

    @property
    def points(self) -> float:
        """The change in percentage points; negative if accuracy was lost."""
        return 100 * (self.correct_stored - self.correct) / self.clips

    @property
    def agreement(self) -> float:
        return self.agreeing / self.clips

    def __str__(self) -> str:
        return (
            f"{100 * self.top1:.2f} % → {100 * self.top1_stored:.2f} % ({self.points:+.2f} points), "
            f"{self.agreeing} of {self.clips} labels agree"
        )


@torch.no_grad()
def to_float16(model: Model) -> dict[str, Stored]:
    """Parameters of two or more dimensions as float16; those out of its range are left out and stay float32."""
    _check_model(model, "to_float16")
    return {name: one for name, tensor in model.named_parameters() if (one := _to_float16(tensor)) is not None}


@torch.no_grad()
def to_int8(
    model: Model,
    clips: Tensor | Iterable[Tensor],
    *,
    rounding: Rounding = "compensated",
    float16_stages: int = 1,
) -> tuple[dict[str, Stored], CalibrationReport]:
    """Weights calibrated on clips [N, T, 2, H, W], or on several of them [T, 2, H, W], of any sizes; at least 8.

    See `deploy.quantize.rounding` for the rounding methods. The convolutions of the first `float16_stages` stages are
    stored as float16; with two of them the 0.87 M networks still are below 1.05 MB.
    """
    network = _check_model(model, "to_int8")
    if rounding not in ROUNDINGS:
        raise ConfigError.expected("rounding", f"one of {', '.join(ROUNDINGS)}", rounding)
    if float16_stages not in range(len(network.stages) + 1):
        raise ConfigError.expected("float16_stages", "an int from 0 to 3", float16_stages)
    network = deepcopy(network).float().cpu()
    batches, count = _calibration_batches(clips, network)
    filters = _round_filters(network, float16_stages)
    moments = input_moments(network, batches)
    halves = tuple(f"stages.{level}.{which}_conv." for level in range(float16_stages) for which in ("first", "second"))
    stored: dict[str, Stored] = {}
    layers: list[LayerError] = []
    for name, parameter in network.named_parameters():
        if name in moments and _int8_is_smaller(parameter) and not name.startswith(halves):
            stored[name], error = _round_to_int8(name, parameter, moments[name], rounding)
            layers.append(error)
        elif name in filters:
            stored[name] = Stored(parameter.detach().half(), None)
        elif (half := _to_float16(parameter)) is not None:
            stored[name] = half
    return stored, CalibrationReport(count, rounding, tuple(layers), _count_by_dtype(network, stored))


def apply_stored(model: Model, stored: Mapping[str, Stored]) -> RipeMambaSpike:
    """A float32 copy with the restored weights, which every runtime computes with."""
    copied = deepcopy(_check_model(model, "apply_stored")).float()
    check_stored(copied, stored)
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            if name in stored:
                parameter.copy_(restore(stored[name]))
    return copied.eval()


@torch.no_grad()
def compare_accuracy(
    model: Model, stored: Mapping[str, Stored], batches: Iterable[tuple[Tensor, Tensor]]
) -> AccuracyChange:
    """Compare the float32 network with its stored weights on batches of clips [B, T, 2, H, W] and labels [B]."""
    ours, theirs = deepcopy(_check_model(model, "compare_accuracy")).float(), apply_stored(model, stored)
    clips = correct = correct_stored = agreeing = 0
    with eval_mode(ours):
        for x, y in batches:
            first, second = ours.predict(x.float()), theirs.predict(x.float())
            clips += len(y)
            correct += int((first == y).sum())
            correct_stored += int((second == y).sum())
            agreeing += int((first == second).sum())
    if not clips:
        raise InputError.expected("clips", "at least one clip with a label", "none")
    return AccuracyChange(clips, correct, correct_stored, agreeing)


def _check_model(model: Any, what: str) -> RipeMambaSpike:
    model = require_form(model, what, *FORMS)
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise ConfigError.expected(name, f"finite weights for {what}", "NaN or infinity")
    return model


def _calibration_batches(clips: Any, model: RipeMambaSpike) -> tuple[list[Tensor], int]:
    """Batches of the clips with events, and the number of those clips."""
    batches: list[Tensor] = []
    for part in _parts(clips):
        check_input(part, model.config.max_time_steps, torch.float32)
        seen = part[part.flatten(1).any(1)]
        batches.extend(piece for piece in seen.split(CLIPS_PER_PASS) if len(piece))
    count = sum(map(len, batches))
    if count < MIN_CLIPS:
        hint = "with fewer the scales would depend on single recordings"
        raise InputError.expected("clips", f"at least {MIN_CLIPS} calibration clips with events", count, hint=hint)
    return batches, count


def _parts(clips: Any) -> Iterator[Tensor]:
    for part in [clips] if isinstance(clips, Tensor) else clips:
        if not isinstance(part, Tensor):
            raise InputError.expected("clips", "tensors of binned events", f"a {type(part).__name__}")
        yield (part[None] if part.ndim == 4 else part).detach().cpu().float()


def _round_filters(network: RipeMambaSpike, first_stage: int) -> set[str]:
    """Round the filters of later stages' convolutions, where they are small enough; the names of those rounded."""
    rounded = set()
    for name, parameter in network.named_parameters():
        found = FILTER_NAME.fullmatch(name)
        if found is None or name == COUNTS_FILTER or network.config.form != "deployed":
            continue
        if int(found[1]) >= first_stage:
            grid = (parameter * FILTER_GRID).round() / FILTER_GRID
            if is_on_filter_grid(grid):
                parameter.copy_(grid)
                rounded.add(name)
    return rounded


def _int8_is_smaller(parameter: Tensor) -> bool:
    """Whether int8 with scales is smaller than float16; false for rows of up to four elements."""
    return parameter.numel() + SCALE_BYTES * len(parameter) < 2 * parameter.numel()


def _round_to_int8(name: str, parameter: Tensor, moments: Tensor, rounding: str) -> tuple[Stored, LayerError]:
    shared = len(moments) > 1  # [groups, out, in]: one scale per group
    weight = parameter.detach().double().reshape(len(moments), -1, moments.shape[-1])
    moments = damped(moments)
    rounded = ROUNDINGS[rounding](weight, moments, shared)
    values = rounded.values.to(torch.int8).reshape(parameter.shape)
    scale = rounded.scale.float().reshape(scale_shape(parameter.shape))
    size = output_error(weight, moments).sum().clamp(min=torch.finfo(torch.float64).tiny)

    def relative(one: Rounded) -> float:
        return float((output_error(weight - one.restored(), moments).sum() / size).sqrt())

    nearest = rounded if rounding == "plain" else round_nearest(weight, moments, shared)
    return Stored(values, scale), LayerError(name, relative(rounded), relative(nearest))


def _to_float16(parameter: Tensor) -> Stored | None:
    half = parameter.detach().half()
    return Stored(half, None) if parameter.ndim > 1 and bool(half.isfinite().all()) else None


def _count_by_dtype(model: RipeMambaSpike, stored: Mapping[str, Stored]) -> dict[str, int]:
    counts = {"int8": 0, "float16": 0, "float32": 0}
    for name, parameter in model.named_parameters():
        kind = "float32" if name not in stored else "float16" if stored[name].scale is None else "int8"
        counts[kind] += parameter.numel()
    return counts
