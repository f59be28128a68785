"""Harder gestures: more people, speeds, distances and angles, things that move about, and a camera that shakes.

A clip is one of `draw_clip` with some of its parameters drawn again from a wider range, so that a counter-clockwise
turn is still a clockwise one played backwards.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.simulate.difficulty import GestureDifficulty
from ripe_mambaspike.events.simulate.exact.draws import draw_uniform
from ripe_mambaspike.events.simulate.exact.pixel import (
    UNITS,
    ExactRecordings,
    simulate_exact_events,
    threshold_factors,
)
from ripe_mambaspike.events.simulate.fitted import CameraCalibration
from ripe_mambaspike.events.simulate.gestures.clip import GestureClip, MovingThing
from ripe_mambaspike.events.simulate.gestures.motions import TURN
from ripe_mambaspike.events.simulate.gestures.people import draw_clip, person_body
from ripe_mambaspike.events.simulate.gestures.render import render

NUM_DRAWS = 256  # uniform numbers a clip; more than it can use
FIRST_PERSON = {"train": 1000, "val": 2000, "test": 3000}  # none of them is in `people.PEOPLE`
NUM_PEOPLE = {"val": 24, "test": 36}
LARGEST_SCALE = 1.15
LIGHT_STEP = 8  # levels that the logarithm of a frame's light is rounded to, far more than machines differ by


@dataclass(frozen=True)
class HardClip:
    """A clip to render, and the tremble of the camera: frequency and phase of two waves for x and for y."""

    clip: GestureClip
    shake: float  # pixels
    waves: tuple[tuple[float, float], ...]


def draw_hard_clip(label: int, seed: int, part: str, duration_us: int, how: GestureDifficulty) -> HardClip:
    """The clip for this label, seed and split. Splits share no person and no seed."""
    easy = draw_clip(label, seed, part)
    draws = iter(draw_uniform(f"{part}/{label}/{seed}", "hard gesture", NUM_DRAWS).tolist())

    def between(low: float, high: float) -> float:
        return low + (high - low) * next(draws)

    person = FIRST_PERSON[part] + int(next(draws) * NUM_PEOPLE.get(part, how.people))
    things = tuple(draw_thing(draws) for _ in range(int(next(draws) * (how.clutter + 1))))
    clip = replace(
        easy,
        **person_body(person),
        person=person,
        duration_us=duration_us,
        x=0.5 + between(-0.15, 0.15),
        y=0.54 + between(-0.08, 0.08),
        scale=LARGEST_SCALE * how.distance ** -next(draws),
        yaw=math.radians(between(-how.angle, how.angle)),
        speed=easy.speed * how.speed ** between(-1, 1),
        amplitude=easy.amplitude * between(0.7, 1.1),
        warp=between(0, 0.5),
        things=things,
    )
    waves = tuple((between(0.8, 4.0), TURN * next(draws)) for _ in range(4))
    return HardClip(clip, how.shake, waves)


def draw_thing(draws: Iterator[float]) -> MovingThing:
    """A passer-by, a swinging rod at the side, or a small ball; each is as likely."""

    def between(low: float, high: float) -> float:
        return low + (high - low) * next(draws)

    kind = int(next(draws) * 3)
    side = 1 if next(draws) < 0.5 else -1
    reflectance = math.exp(between(math.log(0.05), math.log(0.9)))
    common: dict[str, Any] = {"phase": TURN * next(draws), "reflectance": reflectance, "stripes": between(2, 9)}
    if kind == 0:
        speed = between(0.15, 0.9)
        return MovingThing(
            x=0.5 - side * between(0.2, 0.9), y=between(0.3, 0.9), drift_x=side * speed, drift_y=0.0, swing_x=0.0,
            swing_y=0.02, swing_hz=between(1, 2.5), angle=between(-0.15, 0.15), swing_angle=0.08,
            length=between(0.1, 0.35), radius=between(0.03, 0.1), in_front=next(draws) < 0.3, **common,
        )  # fmt: skip
    if kind == 1:
        return MovingThing(
            x=0.5 + side * between(0.3, 0.55), y=between(0.0, 1.0), drift_x=0.0, drift_y=0.0,
            swing_x=between(0.02, 0.12), swing_y=between(0, 0.08), swing_hz=between(0.5, 3.5),
            angle=between(-1.5, 1.5), swing_angle=between(0.1, 0.7), length=between(0.08, 0.25),
            radius=between(0.015, 0.05), in_front=next(draws) < 0.5, **common,
        )  # fmt: skip
    return MovingThing(
        x=between(0, 1), y=between(0, 0.9), drift_x=between(-0.2, 0.2), drift_y=between(-0.1, 0.1),
        swing_x=between(0.03, 0.2), swing_y=between(0.03, 0.2), swing_hz=between(0.4, 3.0), angle=0.0,
        swing_angle=0.0, length=0.01, radius=between(0.015, 0.04), in_front=next(draws) < 0.5, **common,
    )  # fmt: skip


def simulate_hard_gestures(
    drawn: Sequence[HardClip],
    camera: CameraCalibration,
    size: tuple[int, int],
    step_us: int,
    warm_us: int,
    seeds: Sequence[int],
    noise_hz: float,
    variation: float = 1.0,
) -> list[Events]:
    """The events of clips of one duration, which is rounded to whole steps."""
    steps, warm = round(drawn[0].clip.duration_us / step_us), warm_us // step_us
    times = torch.arange(-warm - 1, steps) * step_us + step_us
    light = torch.stack([hard_levels(clip, times, size) for clip in drawn], 1)  # [n, B, H·W]
    factors = threshold_factors(camera.variation, variation, seeds)
    pixel = replace(camera.pixel, shot_hz=noise_hz)
    return simulate_exact_events(
        lambda step: light[step + 1], pixel, ExactRecordings(size, step_us, steps, warm, seeds, factors)
    )


def hard_levels(hard: HardClip, times_us: Tensor, size: tuple[int, int]) -> Tensor:
    """The logarithm of the light in the clip's frames at the times, int32 [n, H·W]."""
    margin = math.ceil(1.5 * hard.shake) + 1
    wide = (size[0] + 2 * margin, size[1] + 2 * margin)
    frames = render([hard.clip], times_us, wide, dtype=torch.float64)[0].log()
    seconds = times_us.double().numpy() * 1e-6
    out = torch.empty(len(frames), size[1], size[0], dtype=torch.float64)
    across, down = _tremble(hard, seconds, 0) + margin, _tremble(hard, seconds, 2) + margin
    for seen, frame, x, y in zip(out, frames, across.tolist(), down.tolist(), strict=True):
        left, top = math.floor(x), math.floor(y)
        rows = torch.lerp(frame[top : top + size[1]], frame[top + 1 : top + 1 + size[1]], y - top)
        torch.lerp(rows[:, left : left + size[0]], rows[:, left + 1 : left + 1 + size[0]], x - left, out=seen)
    exact = (out * (UNITS // LIGHT_STEP)).round_().to(torch.int32) * LIGHT_STEP
    return exact.flatten(1)


def _tremble(hard: HardClip, seconds: NDArray[np.float64], first: int) -> NDArray[np.float64]:
    (slow, lead), (quick, late) = hard.waves[first : first + 2]
    return hard.shake * (np.sin(TURN * slow * seconds + lead) + 0.4 * np.sin(TURN * 2.3 * quick * seconds + late))
