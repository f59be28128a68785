"""What people do in the class other_gestures: motions with a name of their own, as the waves of `motions.free_hands`.

A motion is, for each arm and way (outward, down, towards the camera), a middle and up to three waves of (repeats a
beat, height, phase), in arm lengths.

Four of them are held out: no clip of the class shows them, so that recordings of them are of a class that no network
was shown. Two are there to choose a score by, the other two are reported on.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ripe_mambaspike.events.gesture_classes import UNSEEN_MOTIONS
from ripe_mambaspike.events.simulate.gestures.clip import GestureClip
from ripe_mambaspike.events.simulate.gestures.people import PARTS

Draw = np.random.Generator
STREAM = 0x5EE  # separates these random numbers from all others
Wave = tuple[float, float, float]  # repeats a beat, height, phase
Way = tuple[float, Wave | None]  # a middle, and a wave around it
Arm = tuple[Way, Way, Way]
HANGING: Arm = ((0.15, None), (0.95, None), (0.12, None))


def draw_other_motion(draw: Draw, name: str | None = None) -> tuple[float, ...]:
    """The numbers of the motion with this name; without one, of one that is not held out, each as likely."""
    arms = MOTIONS[SHOWN_MOTIONS[int(draw.integers(len(SHOWN_MOTIONS)))] if name is None else name](draw)
    if draw.random() < 0.5:
        arms = arms[::-1]
    numbers: list[float] = []
    for arm in arms:
        for middle, wave in arm:
            numbers.append(middle + 0.05 * draw.normal())
            rate, height, phase = wave or (1.0, 0.0, 0.0)
            numbers += [rate, height * draw.uniform(0.7, 1.2), phase]
            # a little of everything else, so that no motion is one clean wave
            for overtone in (2.0, 3.0):
                numbers += [overtone * draw.uniform(0.8, 1.2), 0.03 * draw.normal(), draw.uniform(0, 2 * math.pi)]
    return tuple(numbers)


def with_motion(clip: GestureClip, name: str) -> GestureClip:
    """The clip of other_gestures, showing the motion with this name."""
    sequence = np.random.SeedSequence((STREAM, PARTS.index(clip.part), list(MOTIONS).index(name), clip.seed))
    return replace(clip, free=draw_other_motion(np.random.Generator(np.random.PCG64(sequence)), name))


def _by_turns(arm: Callable[[float], Arm]) -> tuple[Arm, Arm]:
    """Both arms, half a beat apart."""
    return arm(0.0), arm(math.pi)


def _raise_both(draw: Draw) -> tuple[Arm, Arm]:
    arm: Arm = ((0.35, None), (0.1, (1.0, 0.65, 0.0)), (0.35, None))
    return arm, arm


def _raise_one(draw: Draw) -> tuple[Arm, Arm]:
    return ((0.3, None), (0.1, (1.0, 0.7, 0.0)), (0.4, None)), HANGING


def _push(draw: Draw) -> tuple[Arm, Arm]:
    arm: Arm = ((-0.05, None), (0.15, None), (0.6, (1.0, 0.3, 0.0)))
    return arm, arm


def _punch(draw: Draw) -> tuple[Arm, Arm]:
    return _by_turns(lambda phase: ((-0.1, (1.0, 0.1, phase)), (0.1, None), (0.6, (1.0, 0.3, phase))))


def _wipe(draw: Draw) -> tuple[Arm, Arm]:
    """Both hands to the same side of the image."""
    height = float(draw.uniform(-0.2, 0.4))
    return _by_turns(lambda phase: ((0.1, (1.0, 0.4, phase)), (height, None), (0.55, None)))


def _flap(draw: Draw) -> tuple[Arm, Arm]:
    arm: Arm = ((0.8, None), (0.25, (1.0, 0.35, 0.0)), (0.2, None))
    return arm, arm


def _salute(draw: Draw) -> tuple[Arm, Arm]:
    return ((0.1, (1.0, 0.1, 0.0)), (0.1, (1.0, 0.45, 1.2)), (0.35, None)), HANGING


def _point(draw: Draw) -> tuple[Arm, Arm]:
    """An arm held out swings from side to side before the chest."""
    return ((0.2, (1.0, 0.5, 0.0)), (0.1, (2.0, 0.05, 0.0)), (0.6, None)), HANGING


def _walk(draw: Draw) -> tuple[Arm, Arm]:
    return _by_turns(lambda phase: ((0.15, None), (0.75, (1.0, 0.15, phase)), (0.25, (1.0, 0.35, phase))))


def _eight(draw: Draw) -> tuple[Arm, Arm]:
    return ((0.25, (1.0, 0.35, 0.0)), (0.1, (2.0, 0.25, 0.0)), (0.5, None)), HANGING


def _conduct(draw: Draw) -> tuple[Arm, Arm]:
    """Both hands down and apart, then up and together."""
    arm: Arm = ((0.25, (2.0, 0.25, 0.0)), (0.1, (1.0, 0.35, 0.0)), (0.5, None))
    return arm, arm


def _swim(draw: Draw) -> tuple[Arm, Arm]:
    """Each hand forward over the top and back below, by turns."""
    return _by_turns(lambda phase: ((0.1, None), (0.15, (1.0, 0.4, phase)), (0.4, (1.0, 0.35, phase + math.pi / 2))))


MOTIONS: Mapping[str, Callable[[Draw], tuple[Arm, Arm]]] = MappingProxyType(
    {
        "raise_both": _raise_both, "raise_one": _raise_one, "push": _push, "punch": _punch, "wipe": _wipe,
        "flap": _flap, "salute": _salute, "point": _point, "walk": _walk, "eight": _eight, "conduct": _conduct,
        "swim": _swim,
    }
)  # fmt: skip
SHOWN_MOTIONS = tuple(name for name in MOTIONS if not any(name in held for held in UNSEEN_MOTIONS.values()))
