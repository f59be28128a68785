"""The pixel of an event camera, many at a time.

A pixel follows the logarithm of the light with a limited bandwidth, and remembers the level of its last event. When it
has risen by `threshold_on` or fallen by `threshold_off` since, it sends an event and remembers the new level, and is
refractory for `refractory_us`. Thresholds differ from pixel to pixel. The remembered level leaks, which causes
occasional ON events, and shot noise causes events of either polarity.

Within a step the level changes linearly, and an event's time is where the line crosses the threshold.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events, pack_events

# Light over time: times in µs [n] → intensity [B, n, H, W], above 0.
Scene = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pixel:
    """Parameters of a sensor's pixels."""

    threshold_on: float = 0.2  # of the logarithm of the light
    threshold_off: float = 0.2
    mismatch: float = 0.03  # standard deviation of a pixel's thresholds, as a share of them
    refractory_us: float = 300.0
    leak_hz: float = 0.1  # ON events a pixel and second without any change of light
    shot_hz: float = 0.1  # events a pixel and second, half of them ON, from noise alone
    cutoff_hz: float = 100.0  # bandwidth; 0 for no limit
    sensor: int = 0  # which sensor: its pattern of thresholds

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            low = 1e-6 if each.name.startswith("threshold") else 0
            if not isinstance(value, int | float) or not math.isfinite(value) or value < low:
                raise InputError.expected(each.name, f"a number of at least {low:g}", repr(value))
        if self.mismatch > 0.5:
            raise InputError.expected("mismatch", "at most 0.5", self.mismatch)


@dataclass(frozen=True)
class PixelEvents:
    """Events of some steps, not yet in order: which recording, pixel (y·W + x), time in µs, polarity."""

    recording: Tensor
    pixel: Tensor
    time: Tensor
    polarity: Tensor


class SimulationOptions(TypedDict, total=False):
    """Options of a simulation."""

    step_us: int  # in which the level changes linearly; 1000 by default
    factors: Tensor | None  # [B, 2], multiply the ON and OFF thresholds
    frames: int  # rendered at a time, which affects only speed and memory
    warm_us: int  # how long the pixels watch the scene before time 0, so that they have settled when it begins
    device: Any


def simulate_events(
    scene: Scene,
    pixel: Pixel,
    size: tuple[int, int],
    duration_us: int,
    seeds: Sequence[int],
    **options: Unpack[SimulationOptions],
) -> list[Events]:
    """The events of each recording of a batch, by time; `size` is (width, height).

    A recording depends only on its own scene, seed and factors, not on the rest of the batch.
    """
    parts = list(_run(scene, pixel, size, duration_us, seeds, **options))
    whole = PixelEvents(
        *(torch.cat([getattr(part, each.name) for part in parts]).cpu() for each in fields(PixelEvents))
    )
    # By recording, time, pixel and polarity: the same order on every device.
    key = np.lexsort([getattr(whole, name).numpy() for name in ("polarity", "pixel", "time", "recording")])
    recording = whole.recording.numpy()[key]
    y, x = np.divmod(whole.pixel.numpy()[key], size[0])
    events = pack_events(x, y, whole.time.numpy()[key], whole.polarity.numpy()[key])
    return np.split(events, np.searchsorted(recording, np.arange(1, len(seeds))))


def simulate_bins(
    scene: Scene,
    pixel: Pixel,
    size: tuple[int, int],
    duration_us: int,
    seeds: Sequence[int],
    *,
    time_steps: int,
    **options: Unpack[SimulationOptions],
) -> Tensor:
    """Counts [B, T, 2, H, W] over equal parts of the duration, without building the events."""
    width, height = size
    counts = torch.zeros(len(seeds) * time_steps * 2 * height * width, device=options.get("device"))
    for part in _run(scene, pixel, size, duration_us, seeds, **options):
        step = part.time * time_steps // duration_us
        cell = ((part.recording * time_steps + step) * 2 + part.polarity) * (height * width) + part.pixel
        counts.scatter_add_(0, cell, torch.ones((), device=counts.device).expand(len(cell)))
    return counts.view(len(seeds), time_steps, 2, height, width)


def _run(
    scene: Scene,
    pixel: Pixel,
    size: tuple[int, int],
    duration_us: int,
    seeds: Sequence[int],
    step_us: int = 1000,
    factors: Tensor | None = None,
    frames: int = 16,
    warm_us: int = 0,
    device: Any = None,
) -> Iterator[PixelEvents]:
    if duration_us < 1 or step_us < 1 or not len(seeds):
        got = f"duration_us {duration_us}, step_us {step_us}, {len(seeds)} seeds"
        raise InputError.expected("duration_us", "duration_us, step_us and seeds of at least 1", got)
    where = torch.device("cpu" if device is None else device)
    start, noise = _draws(pixel, size, duration_us, seeds, where)
    yield noise
    times = torch.arange(-(warm_us // step_us) * step_us, duration_us + step_us, step_us, device=where)
    times = times.clamp(max=duration_us).double()
    level = _light(scene, times[:1], len(seeds), size).flatten()
    sensor = _Sensor(pixel, level, start, factors)
    for first in range(1, len(times), frames):
        chunk = times[first : first + frames]
        light = _light(scene, chunk, len(seeds), size).transpose(0, 1).flatten(1)  # [n, B·H·W]
        begins = times[first - 1 : first - 1 + len(chunk)].tolist()
        for frame, begin, end in zip(light, begins, chunk.tolist(), strict=True):
            for fired in sensor.step(frame, begin, end):
                if end > 0:
                    yield fired


def _light(scene: Scene, times: Tensor, batch: int, size: tuple[int, int]) -> Tensor:
    light, expected = scene(times), (batch, len(times), size[1], size[0])
    if light.shape != expected:
        raise InputError.expected("scene", f"light of shape {expected}", tuple(light.shape))
    return light.to(torch.float32).log()


class _Sensor:
    """The state of all pixels of a batch, flattened."""

    def __init__(self, pixel: Pixel, level: Tensor, start: Tensor, factors: Tensor | None) -> None:
        device, pixels = level.device, start.shape[1]
        self.pixel, self.pixels = pixel, pixels
        each = torch.ones(len(level) // pixels, 2) if factors is None else factors.float()
        on_off = zip(_thresholds(pixel, pixels), each.to(device).unbind(1), strict=True)
        self.on, self.off = ((factor[:, None] * pattern.to(device)).flatten() for pattern, factor in on_off)
        self.level = level.clone()
        # Under constant light a pixel has leaked part of the way to its next ON event; how far is random.
        self.remembered = level - start.flatten() * self.on
        self.awake = torch.full((len(level),), -math.inf, dtype=torch.float64, device=device)

    def step(self, light: Tensor, begin: float, end: float) -> Iterator[PixelEvents]:
        """Advance to the end of the step and yield its events; each round yields at most one event per pixel."""
        pixel, span = self.pixel, end - begin
        share = 1.0 if pixel.cutoff_hz == 0 else -math.expm1(-2 * math.pi * pixel.cutoff_hz * span * 1e-6)
        before = self.level
        self.level = torch.lerp(before, light, share)
        if pixel.leak_hz:
            self.remembered -= self.on * (pixel.leak_hz * span * 1e-6)
        change = self.level - self.remembered
        candidates = torch.nonzero((change >= self.on) | (change <= -self.off)).squeeze(1)
        earliest = torch.full((len(candidates),), begin, dtype=torch.float64, device=light.device)
        while len(candidates):
            change = self.level[candidates] - self.remembered[candidates]
            up = change >= self.on[candidates]
            fires = up | (change <= -self.off[candidates])
            target = self.remembered[candidates] + torch.where(up, self.on[candidates], -self.off[candidates])
            moved = self.level[candidates] - before[candidates]
            part = ((target - before[candidates]) / moved).double().clamp(0, 1).nan_to_num(0)
            time = torch.maximum(begin + span * part, torch.maximum(earliest, self.awake[candidates]))
            kept = fires & (time < end)  # pixels that are still refractory are checked again in the next step
            candidates, time, up, target = candidates[kept], time[kept], up[kept], target[kept]
            if not len(candidates):
                return
            self.remembered[candidates] = target
            self.awake[candidates] = time + pixel.refractory_us
            earliest = time
            where = candidates % self.pixels
            yield PixelEvents(candidates // self.pixels, where, time.long(), up.long())


def _thresholds(pixel: Pixel, pixels: int) -> tuple[Tensor, Tensor]:
    """Each pixel's two thresholds, the same for every recording of a sensor."""
    generator = torch.Generator().manual_seed(pixel.sensor)
    spread = 1 + pixel.mismatch * torch.randn(2, pixels, generator=generator).clamp(-3, 3)
    return pixel.threshold_on * spread[0].clamp(min=0.1), pixel.threshold_off * spread[1].clamp(min=0.1)


def _draws(
    pixel: Pixel, size: tuple[int, int], duration_us: int, seeds: Sequence[int], device: Any
) -> tuple[Tensor, PixelEvents]:
    """Each recording's random state: the initial level of its pixels [B, H·W], and its shot noise."""
    pixels = size[0] * size[1]
    starts, noise = [], []
    expected = torch.tensor(pixel.shot_hz * duration_us * 1e-6 * pixels)
    for index, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        starts.append(torch.rand(pixels, generator=generator))
        count = int(torch.poisson(expected, generator=generator))
        where = torch.randint(pixels, (count,), generator=generator)
        time = torch.randint(duration_us, (count,), generator=generator)
        noise.append((torch.full_like(where, index), where, time, torch.randint(2, (count,), generator=generator)))
    joined = (torch.cat(column).to(device) for column in zip(*noise, strict=True))
    return torch.stack(starts).to(device), PixelEvents(*joined)
