"""How test clips are changed before a trained network sees them: order of time, noise, broken pixels, lost events.

A condition is written as in a study, "noise=0.5" or "shuffled". Each is a pure function of clips [B, T, 2, H, W] with
event counts. Random numbers are drawn on the CPU from a generator of the condition's own, so every network sees the
same changed clips on every device.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.inference.evaluate import shuffled_steps

Batches = Iterable[tuple[Tensor, Tensor]]


class Condition(NamedTuple):
    """What is changed and how strongly; `level` is None for what has no strength."""

    kind: str
    level: float | None

    def __str__(self) -> str:
        return self.kind if self.level is None else f"{self.kind}={self.level:g}"


def add_noise(x: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Background activity: so many noise events for each event of the clip, evenly over pixels, bins, polarities."""
    mean = x.mean((1, 2, 3, 4), keepdim=True, dtype=torch.float64).float() * level
    return x + torch.poisson(mean.expand_as(x), generator=generator)


def add_hot_pixels(x: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """A share of the pixels, others in each clip, fires ON in every bin, as often as the clip's most active pixel."""
    hot = torch.rand(len(x), *x.shape[3:], generator=generator) < level
    most = x.amax((1, 2, 3, 4))[:, None, None, None] * hot[:, None]
    changed = x.clone()
    changed[:, :, 1] = torch.maximum(x[:, :, 1], most)
    return changed


def drop_events(x: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Every event is lost with this probability."""
    return torch.binomial(x, torch.full_like(x, 1 - level), generator=generator)


def shorten(x: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Fewer events because the recording ends early: after this share of its bins the rest are empty."""
    kept = max(1, round(level * x.shape[1]))
    changed = x.clone()
    changed[:, kept:] = 0
    return changed


LEVELED: dict[str, Callable[[Tensor, float, torch.Generator], Tensor]] = {
    "noise": add_noise,
    "hot-pixels": add_hot_pixels,
    "dropped": drop_events,
    "shortened": shorten,
}
MAX_LEVEL = {"noise": 100.0}  # the others are shares
TIME_ORDERS = ("shuffled", "reversed")
LABELS = {
    "shuffled": "time steps in random order",
    "reversed": "time steps in reverse order",
    "noise": "noise events for each event of the clip",
    "hot-pixels": "share of pixels that always fire",
    "dropped": "share of events that are lost",
    "shortened": "share of the time steps that are left",
}


def parse_condition(text: str) -> Condition:
    """`noise=0.5` or `shuffled`."""
    kind, equals, value = text.partition("=")
    if kind in TIME_ORDERS and not equals:
        return Condition(kind, None)
    try:
        level = float(value) if kind in LEVELED else -1.0
    except ValueError:
        level = -1.0
    if not 0 < level <= MAX_LEVEL.get(kind, 1.0):
        known = [*TIME_ORDERS, *(f"{one}=LEVEL" for one in LEVELED)]
        raise ConfigError.expected("conditions", f"one of {', '.join(known)}", repr(text))
    return Condition(kind, level)


def changed_clips(batches: Batches, condition: Condition, binary: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches under a condition; where bins hold only 0 and 1 (`binary`), they still do."""
    if condition.kind == "shuffled":
        yield from shuffled_steps(batches)
        return
    if condition.kind == "reversed":
        yield from ((x.flip(1), y) for x, y in batches)
        return
    change, level = LEVELED[condition.kind], condition.level or 0.0
    seed = int.from_bytes(hashlib.sha256(str(condition).encode()).digest()[:4], "little")
    generator = torch.Generator().manual_seed(seed)
    for x, y in batches:
        changed = change(x.cpu(), level, generator)
        yield (changed.clamp(max=1) if binary else changed).to(x.device), y
