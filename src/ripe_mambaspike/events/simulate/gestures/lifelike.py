"""Gestures as a DVS128 sees people in a room: `draw_clip` with bodies, clothes, places and habits drawn more widely.

Clothes have textures, trunk and head move with the arms, people stand near or far, off the middle and turned, sit or
stand, wave and clap in their own ways, and in some clips something else moves. Each clip is seen by a camera of its
own, drawn around the fitted one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ripe_mambaspike.events.gesture_classes import CLASSES
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.simulate.difficulty import SceneVariety
from ripe_mambaspike.events.simulate.gestures.camera import GestureCamera
from ripe_mambaspike.events.simulate.gestures.clip import GestureClip
from ripe_mambaspike.events.simulate.gestures.hard import draw_thing
from ripe_mambaspike.events.simulate.gestures.other_motions import draw_other_motion
from ripe_mambaspike.events.simulate.gestures.people import PARTS, draw_clip, person_body
from ripe_mambaspike.events.simulate.gestures.render import render
from ripe_mambaspike.events.simulate.pixel import simulate_events
from ripe_mambaspike.events.simulate.readout import add_readout

STREAM = 0x11FE  # separates these random numbers from all others
FIRST_PERSON = {"train": 10_000, "val": 20_000, "test": 30_000}  # none of them is in another set
NUM_PEOPLE = {"val": 24, "test": 36}
NEAREST_SCALE = 1.35
NUM_DRAWS = 40  # uniform numbers of a moving thing; more than it can use


@dataclass(frozen=True)
class Exposure:
    """How a clip is watched."""

    size: tuple[int, int]
    duration_us: int
    step_us: int
    warm_us: int  # that the pixels watch the scene before


def draw_lifelike_clip(label: int, seed: int, part: str, duration_us: int, how: SceneVariety) -> GestureClip:
    """The clip for this label, seed and split. Splits share no person, speed or seed."""
    easy = draw_clip(label, seed, part)
    draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((STREAM, PARTS.index(part), label, seed))))
    person = FIRST_PERSON[part] + int(draw.integers(NUM_PEOPLE.get(part, how.people)))
    striped = draw.random() < 0.5
    slower, other = how.speed ** draw.uniform(-1, 1), label == len(CLASSES) - 1
    busy = draw.random() < how.background
    return replace(
        easy,
        **person_body(person),
        person=person,
        duration_us=duration_us,
        # clothes
        stripe_depth=how.texture * (draw.uniform(0.25, 0.5) if striped else draw.uniform(0, 0.15)),
        stripe_waves=draw.uniform(12, 30),
        fold_depth=min(0.9, how.texture * draw.uniform(0.3, 0.8)),
        fold_waves=draw.uniform(14, 28),
        # place: sitting people are lower in the picture
        x=0.5 + draw.uniform(-0.12, 0.12),
        y=0.54 + draw.uniform(-0.08, 0.16),
        scale=NEAREST_SCALE * how.distance ** -draw.random(),
        yaw=math.radians(how.angle) * draw.uniform(-1, 1),
        # habits
        speed=easy.speed * slower,
        amplitude=easy.amplitude * draw.uniform(0.6, 1.15),
        warp=draw.uniform(0, 0.5),
        swell=draw.uniform(0, 0.35),
        share=draw.uniform(0, 1),
        offbeat=draw.normal(0, 0.4),
        free=draw_other_motion(draw) if other and draw.random() < 0.7 else easy.free,
        # trunk and head
        sway=how.sway * easy.sway * math.exp(draw.uniform(math.log(2), math.log(9))),
        sway_hz=easy.sway_hz * draw.uniform(1, 2),
        lean=how.sway * easy.lean * math.exp(draw.uniform(0, math.log(6))),
        things=(draw_thing(iter(draw.random(NUM_DRAWS).tolist())),) if busy else (),
    )


def simulate_lifelike_gestures(
    clips: Sequence[GestureClip], camera: GestureCamera, seen: Exposure, seeds: Sequence[int], variation: float = 1.0
) -> list[Events]:
    """The events of each clip, seen by a camera drawn around the fitted one; `variation` scales how far around."""
    times = torch.arange(-(seen.warm_us // seen.step_us) * seen.step_us, seen.duration_us + seen.step_us, seen.step_us)
    times = times.clamp(max=seen.duration_us).double()
    made = []
    for clip, seed in zip(clips, seeds, strict=True):
        frames = render([clip], times, seen.size)
        own = camera.drawn(seed, variation)

        def scene(at: Tensor, frames: Tensor = frames) -> Tensor:
            return frames[:, torch.searchsorted(times, at)]

        (events,) = simulate_events(
            scene, own.pixel, seen.size, seen.duration_us, [seed], step_us=seen.step_us, warm_us=seen.warm_us
        )
        made.append(add_readout(events, own.readout, seen.size, seen.duration_us, seed))
    return made
