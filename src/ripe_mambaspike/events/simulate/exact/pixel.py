"""The pixel of `simulate.pixel` in whole numbers.

The logarithm of the light is counted in units of 1/16384. Within a step the level goes straight to its new value, and
an event's time is where it crosses the threshold, in whole µs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events, pack_events
from ripe_mambaspike.events.simulate.exact.draws import draw_bell, draw_words
from ripe_mambaspike.events.simulate.fitted import Variation
from ripe_mambaspike.events.simulate.pixel import Pixel

UNITS = 1 << 14  # levels a unit of the natural logarithm
SHARE_BITS = 12  # of the share of a change that the pixel's bandwidth lets through in one step
MAX_LEVEL = 1 << 18  # 16 units of the logarithm: products with a share stay within 32 bits
Levels = Callable[[int], Tensor]  # step → int32 [B, H·W], the light at the step's end; step −1 is before the first


@dataclass(frozen=True)
class ExactRecordings:
    """What is simulated together: a seed and factors of the ON and OFF thresholds [B, 2] for each recording."""

    size: tuple[int, int]  # (width, height)
    step_us: int
    steps: int  # of the recording
    warm_steps: int  # before it, whose events are left out
    seeds: Sequence[int]
    factors: NDArray[np.float64]
    cuts: tuple[int, ...] = ()  # steps at which another scene begins, as if the camera had been covered in between

    @property
    def pixels(self) -> int:
        return self.size[0] * self.size[1]

    @property
    def duration_us(self) -> int:
        return self.steps * self.step_us


def simulate_exact_events(levels: Levels, pixel: Pixel, recordings: ExactRecordings) -> list[Events]:
    """The events of each recording, by time. A recording depends on its own levels, seed and factors alone."""
    noise = [_noise(pixel, recordings, seed) for seed in recordings.seeds]
    found = list(_run(levels, pixel, recordings))
    columns = [torch.cat(column).cpu().numpy() for column in zip(*found, strict=True)] if found else [np.empty(0)] * 4
    recording, where, time, polarity = (
        np.concatenate([column, *(extra[index] for extra in _numbered(noise))]).astype(np.int64)
        for index, column in enumerate(columns)
    )
    order = np.lexsort([polarity, where, time, recording])
    y, x = np.divmod(where[order], recordings.size[0])
    events = pack_events(x, y, time[order], polarity[order])
    return np.split(events, np.searchsorted(recording[order], np.arange(1, len(recordings.seeds))))


def _numbered(noise: Sequence[tuple[NDArray[np.int64], ...]]) -> list[tuple[NDArray[np.int64], ...]]:
    return [(np.full(len(columns[0]), number), *columns) for number, columns in enumerate(noise)]


def _run(levels: Levels, pixel: Pixel, recordings: ExactRecordings) -> Iterator[tuple[Tensor, ...]]:
    """Recording, pixel, time and polarity of the events of each step."""
    step_us = recordings.step_us
    light = levels(-1)
    if light.dtype != torch.int32 or light.shape != (len(recordings.seeds), recordings.pixels):
        wanted = f"int32 ({len(recordings.seeds)}, {recordings.pixels})"
        raise InputError.expected("levels", wanted, f"{light.dtype} {tuple(light.shape)}")
    level = light.flatten().clone()
    on, off = (part.to(level.device) for part in _thresholds(pixel, recordings))
    starts = np.concatenate([draw_words(seed, "start", recordings.pixels) for seed in recordings.seeds])
    # Under constant light a pixel has leaked part of the way to its next ON event; how far is random.
    remembered = level - (on * torch.from_numpy((starts >> 20).astype(np.int32)).to(level.device) >> 12)
    awake = torch.full_like(level, -(1 << 30))
    share = 1.0 if pixel.cutoff_hz == 0 else -math.expm1(-2 * math.pi * pixel.cutoff_hz * step_us * 1e-6)
    weight, leak = round(share * (1 << SHARE_BITS)), pixel.threshold_on * UNITS * pixel.leak_hz * step_us * 1e-6
    leaked, fall = 0, -off
    for step in range(recordings.warm_steps + recordings.steps):
        if step - recordings.warm_steps in recordings.cuts:
            light = levels(step).flatten()
            remembered += light - level
            level = light.clone()
            continue
        before = level
        level = (levels(step).flatten() - before).mul_(weight).bitwise_right_shift_(SHARE_BITS).add_(before)
        if (total := math.floor(leak * (step + 1) + 0.5)) != leaked:
            remembered -= total - leaked
            leaked = total
        change = level - remembered
        candidates = torch.nonzero((change >= on) | (change <= fall)).squeeze(1)
        begin = (step - recordings.warm_steps) * step_us
        earliest = torch.full_like(candidates, begin)
        while len(candidates):
            here, past = level[candidates].long(), remembered[candidates].long()
            up = here - past >= on[candidates]
            fires = up | (here - past <= fall[candidates])
            target = past + torch.where(up, on[candidates], fall[candidates])
            start = before[candidates].long()
            moved = here - start
            # Where the line from `start` to `here` reaches the target; all signs agree unless the leak fired.
            part = ((target - start) * step_us * moved.sign()).div(moved.abs().clamp(min=1), rounding_mode="floor")
            time = torch.maximum(begin + part.clamp(0, step_us), torch.maximum(earliest, awake[candidates].long()))
            kept = fires & (time < begin + step_us)  # pixels that are still refractory are looked at in the next step
            candidates, time, up, target = candidates[kept], time[kept], up[kept], target[kept]
            remembered[candidates] = target.int()
            awake[candidates] = (time + round(pixel.refractory_us)).int()
            earliest = time
            if begin >= 0 and len(candidates):
                yield candidates // recordings.pixels, candidates % recordings.pixels, time, up.long()


def threshold_factors(by: Variation, variation: float, seeds: Sequence[int]) -> NDArray[np.float64]:
    """Factors of the ON and OFF thresholds [B, 2] that vary from recording to recording."""
    drawn = variation * np.stack([draw_bell(seed, "threshold factors", 2).clip(-3, 3) for seed in seeds])
    common, tilt = by.threshold * drawn[:, 0], by.balance / 2 * drawn[:, 1]
    return np.exp(np.stack([common + tilt, common - tilt], 1))


def _thresholds(pixel: Pixel, recordings: ExactRecordings) -> tuple[Tensor, Tensor]:
    """Each pixel's ON and OFF threshold in each recording, int32 [B·H·W], at least 1."""
    spread = 1 + pixel.mismatch * draw_bell(pixel.sensor, "thresholds", 2 * recordings.pixels).clip(-3, 3)
    made = []
    for pattern, threshold, factor in zip(
        np.split(spread, 2), (pixel.threshold_on, pixel.threshold_off), recordings.factors.T, strict=True
    ):
        exact = np.rint(factor[:, None] * (threshold * UNITS * pattern.clip(0.1)))
        made.append(torch.from_numpy(exact.clip(1, MAX_LEVEL).astype(np.int32).ravel()))
    return made[0], made[1]


def _noise(pixel: Pixel, recordings: ExactRecordings, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Pixel, time and polarity of a recording's shot noise; its number is binomial, a quarter of as many chances."""
    chances = round(4 * pixel.shot_hz * recordings.duration_us * 1e-6 * recordings.pixels)
    count = int((draw_words(seed, "number of noise events", chances) < 1 << 30).sum())
    words = draw_words(seed, "noise events", 3 * count).astype(np.int64).reshape(3, count)
    return words[0] % recordings.pixels, words[1] % recordings.duration_us, words[2] & 1
