"""Two ways to mix the samples of a batch, and the soft targets both need."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.data.augment.checks import check_clips, check_generator, check_number, check_whole
from ripe_mambaspike.data.augment.draws import draw_integer, symmetric_beta, uniform_draws
from ripe_mambaspike.errors import InputError

MAX_ALPHA = 1000.0  # above this, λ is practically 1/2
LABEL_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
Mixing = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # clips, targets, partners → mixed clips and targets


def soft_targets(targets: Tensor, classes: int | None = None, smoothing: float = 0.0) -> Tensor:
    """Labels as probabilities: 1 − s for the class and s / classes for every class, itself included.

    Whole-number labels [B], or probabilities [B, classes], which are smoothed likewise → [B, classes]. Labels need
    `classes` and give float32. A label outside the classes is an error: here on the CPU, a device assertion on a GPU.
    """
    check_number("label_smoothing", smoothing)
    if targets.is_floating_point():
        if targets.ndim != 2 or classes not in (None, targets.shape[1]):
            wanted = "(B, classes)" if classes is None else f"(B, {classes})"
            raise InputError.expected("targets", wanted, tuple(targets.shape))
        classes, sure = targets.shape[1], targets
    else:
        classes, sure = _one_hot(targets, classes)
    return sure if smoothing == 0 else sure * (1 - smoothing) + smoothing / classes


def _one_hot(labels: Tensor, classes: int | None) -> tuple[int, Tensor]:
    if labels.dtype not in LABEL_TYPES or labels.ndim != 1:
        given = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise InputError.expected("targets", "integer labels (B,) or probabilities (B, classes)", given)
    if classes is None:
        raise InputError.expected("classes", "the number of classes with labels", classes)
    check_whole("classes", classes, 1)
    labels = labels.long()
    if labels.device.type == "cpu" and len(labels) and not bool(((labels >= 0) & (labels < classes)).all()):
        low, high = int(labels.min()), int(labels.max())
        raise InputError.expected("targets", f"labels from 0 to {classes - 1}", f"{low} to {high}")
    sure = torch.zeros(len(labels), classes, device=labels.device)
    return classes, sure.scatter_(1, labels[:, None], 1.0)


class Box(NamedTuple):
    """Rows top … bottom − 1 and columns left … right − 1, inside the frame."""

    top: int
    bottom: int
    left: int
    right: int

    def area(self) -> int:
        return (self.bottom - self.top) * (self.right - self.left)


def mixup(x: Tensor, targets: Tensor, partners: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """`weight·sample + (1 − weight)·partner`, for the clips and for the soft targets.

    x [B, T, 2, H, W], targets [B, classes], partners [B] indices into the batch. A weight of 1 changes nothing.
    """
    _check_pair(x, targets)
    return torch.lerp(x, _pick(x, partners), 1 - weight), torch.lerp(targets, _pick(targets, partners), 1 - weight)


def cutmix(x: Tensor, targets: Tensor, partners: Tensor, box: Box) -> tuple[Tensor, Tensor]:
    """Paste the partner's counts inside the box, at all steps; its target weight is the box's share of the frame.

    x [B, T, 2, H, W], targets [B, classes], partners [B] indices into the batch. An empty box changes nothing.
    """
    _check_pair(x, targets)
    rows, columns = slice(box.top, box.bottom), slice(box.left, box.right)
    out = x.clone()
    out[..., rows, columns] = _pick(x[..., rows, columns], partners)
    return out, torch.lerp(targets, _pick(targets, partners), box.area() / (x.shape[-2] * x.shape[-1]))


@dataclass(frozen=True)
class BatchMixer:
    """Mixes a whole batch with a probability: one λ ~ Beta(α, α), partners by permutation. An α of 0 is off."""

    name: ClassVar[str]  # prefix of its fields in the settings
    alpha: float = 0.2
    probability: float = 0.5

    def __post_init__(self) -> None:
        check_number(f"{self.name}_alpha", self.alpha, MAX_ALPHA)
        check_number(f"{self.name}_probability", self.probability)

    def __call__(
        self, x: Tensor, targets: Tensor, generator: torch.Generator, classes: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """x [B, T, 2, H, W] and labels [B] (with `classes`) or soft targets [B, classes] → both mixed."""
        check_generator(generator)
        targets = soft_targets(targets, classes)
        _check_pair(x, targets)
        if self.alpha == 0 or self.probability == 0:
            return x, targets
        # All is drawn whether the batch is hit or not, so later draws do not depend on the outcome.
        hit = bool(uniform_draws(1, generator=generator) < self.probability)
        partners = torch.randperm(len(x), generator=generator)
        mixed = self.draw(x, symmetric_beta(self.alpha, generator), generator)
        return mixed(x, targets, partners) if hit else (x, targets)

    def draw(self, x: Tensor, weight: float, generator: torch.Generator) -> Mixing:
        """The function that mixes clips, targets and partners, for this λ."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mixup(BatchMixer):
    """`mixup` of a whole batch with a probability."""

    name = "mixup"
    probability: float = 0.3

    def draw(self, x: Tensor, weight: float, generator: torch.Generator) -> Mixing:
        return partial(mixup, weight=weight)


@dataclass(frozen=True)
class EventCutMix(BatchMixer):
    """`cutmix` of a whole batch with a probability: one box of about the share 1 − λ.

    The box has the frame's shape and its centre anywhere; the border may clip it, and the targets go by what is left.
    The paper's table gives α and no probability: 0.5 is our choice.
    """

    name = "cutmix"

    def draw(self, x: Tensor, weight: float, generator: torch.Generator) -> Mixing:
        box = draw_box(weight, x.shape[-2], x.shape[-1], generator)
        return partial(cutmix, box=box) if box.area() else lambda x, targets, partners: (x, targets)


def draw_box(kept: float, height: int, width: int, generator: torch.Generator) -> Box:
    """A box that leaves the share `kept` of the frame, centred on a random pixel and clipped at the border."""
    scale = math.sqrt(1 - kept)
    tall, wide = round(height * scale), round(width * scale)
    chance = uniform_draws(2, generator=generator)
    top = int(draw_integer(chance[0], height - 1)) - tall // 2
    left = int(draw_integer(chance[1], width - 1)) - wide // 2
    return Box(max(top, 0), min(top + tall, height), max(left, 0), min(left + wide, width))


def _check_pair(x: Tensor, targets: Tensor) -> None:
    check_clips(x)
    if len(targets) != len(x):
        raise InputError.expected("targets", f"one for each of the {len(x)} clips", len(targets))


def _pick(values: Tensor, partners: Tensor) -> Tensor:
    return values.index_select(0, partners.to(values.device, non_blocking=True))
