"""Draw clip parameters: person, motion, place, clothes and light. Splits share no person, speed or seed."""

import math
from typing import Any

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.gesture_classes import CLASSES, DURATION_US
from ripe_mambaspike.events.recording import check_int
from ripe_mambaspike.events.simulate.gestures.clip import GestureClip

PARTS = ("train", "val", "test")
PEOPLE = {"train": range(0, 40), "val": range(40, 48), "test": range(48, 60)}
# The speed range of every class is divided into ten bands; each split has its own bands.
SPEED_BANDS = {"train": (0, 1, 3, 4, 6, 7, 9), "val": (2,), "test": (5, 8)}
SPEEDS = (  # repeats a second: slowest and fastest
    (2.0, 3.6),
    *((1.8, 3.4),) * 2,
    *((0.7, 1.5),) * 4,
    (1.0, 2.4),
    (1.4, 3.0),
    (1.8, 3.8),
    (0.6, 2.0),
)
COUNTER_CLOCKWISE = (4, 6)
SEED_OFFSET = 0x9E57  # separates these random streams from those of the pixels and the saccades
CLIP, PERSON = 0, 1


def draw_clip(label: int, seed: int, part: str) -> GestureClip:
    """The clip for this label, seed and split; deterministic.

    A counter-clockwise clip is a reversed clockwise one, so that only the order in time distinguishes the two.
    """
    label, seed = check_int("label", label, 0, len(CLASSES) - 1), check_int("seed", seed, 0, 2**63 - 1)
    if not isinstance(part, str) or part not in PARTS:
        raise InputError.expected("part", f"one of {', '.join(PARTS)}", repr(part))
    sequence = np.random.SeedSequence((SEED_OFFSET, CLIP, PARTS.index(part), label, seed))
    draw = np.random.Generator(np.random.PCG64(sequence))
    person = int(draw.choice(PEOPLE[part]))
    body, clothes, motion = person_body(person), _clothes(draw), _motion(draw, label, part)
    return GestureClip(
        label=label,
        part=part,
        seed=seed,
        stream=int(sequence.generate_state(1, np.uint64)[0]),
        duration_us=DURATION_US,
        backwards=label in COUNTER_CLOCKWISE,
        person=person,
        **body,
        **clothes,
        **_place(draw, body["skin"], clothes["sleeve"]),
        **motion,
        **_sway(draw, label, motion["speed"]),
        **_light(draw),
    )


def person_body(number: int) -> dict[str, Any]:
    """Body and skin of a person; the same in all of that person's clips."""
    draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((SEED_OFFSET, PERSON, number))))
    build = draw.normal(0, 1)  # from slight to heavy
    length = 1 + 0.05 * draw.normal()
    radius = 1 + 0.1 * build + 0.06 * draw.normal()
    head = 1 + 0.05 * draw.normal()
    return {
        "shoulder": _clip(0.163 * (1 + 0.06 * build + 0.04 * draw.normal()), 0.13, 0.2),
        "waist": _clip(0.135 * (1 + 0.12 * build), 0.1, 0.18),
        "torso": _clip(0.40 * (1 + 0.05 * draw.normal()), 0.34, 0.46),
        "head_width": _clip(0.074 * head, 0.06, 0.09),
        "head_height": _clip(0.115 * head * (1 + 0.04 * draw.normal()), 0.095, 0.135),
        "upper_arm": _clip(0.19 * length * (1 + 0.03 * draw.normal()), 0.16, 0.22),
        "forearm": _clip(0.17 * length * (1 + 0.03 * draw.normal()), 0.145, 0.2),
        "hand": _clip(0.098 * length * (1 + 0.06 * draw.normal()), 0.08, 0.12),
        "shoulder_radius": _clip(0.05 * radius, 0.038, 0.065),
        "elbow_radius": _clip(0.039 * radius, 0.03, 0.05),
        "wrist_radius": _clip(0.026 * radius, 0.021, 0.033),
        "handed": 1 if draw.random() < 0.85 else -1,
        "skin": _clip(math.exp(draw.uniform(math.log(0.14), math.log(0.55))), 0.1, 0.6),
        "hair": math.exp(draw.uniform(math.log(0.03), math.log(0.25))),
    }


def _clothes(draw: np.random.Generator) -> dict[str, Any]:
    shirt = math.exp(draw.uniform(math.log(0.05), math.log(0.8)))
    kind = draw.choice(3, p=(0.5, 0.15, 0.35))  # short, rolled up, long
    low, high = ((0.55, 0.95), (1.05, 1.5), (1.88, 2.0))[kind]
    striped = draw.random() < 0.25
    return {
        "shirt": shirt,
        # Sometimes the sleeves have another colour, like a shirt under a vest.
        "sleeve": shirt * (draw.uniform(0.85, 1.1) if draw.random() < 0.85 else draw.uniform(0.4, 1.2)),
        "trousers": math.exp(draw.uniform(math.log(0.04), math.log(0.4))),
        "sleeve_length": draw.uniform(low, high),
        "stripe_waves": draw.uniform(9, 20),
        "stripe_angle": float(draw.choice((0.0, math.pi / 2))) + draw.normal(0, 0.05),
        "stripe_depth": draw.uniform(0.15, 0.5) if striped else draw.uniform(0, 0.05),
        "fold_waves": draw.uniform(10, 18),
        "fold_angle": draw.uniform(-0.9, 0.9),
        "fold_phase": draw.uniform(0, 2 * math.pi),
        "fold_depth": draw.uniform(0.06, 0.3),
    }


def _place(draw: np.random.Generator, skin: float, sleeve: float) -> dict[str, Any]:
    for _ in range(20):  # the arms should contrast with the wall
        wall = draw.uniform(0.4, 0.85) if draw.random() < 0.75 else draw.uniform(0.06, 0.35)
        if abs(math.log(wall / skin)) + abs(math.log(wall / sleeve)) > 1.4:
            break
    waves = tuple(
        (draw.normal(0, 3), draw.normal(0, 3), draw.uniform(0, 2 * math.pi), draw.uniform(0, 0.07)) for _ in range(3)
    )
    boxes = []
    for _ in range(int(draw.integers(0, 3))):
        left, top = draw.uniform(-0.1, 0.9), draw.uniform(-0.1, 0.7)
        boxes.append((left, top, left + draw.uniform(0.1, 0.5), top + draw.uniform(0.1, 0.6), draw.uniform(0.6, 1.3)))
    return {
        "x": 0.5 + draw.uniform(-0.09, 0.09),
        "y": 0.54 + draw.uniform(-0.06, 0.05),
        "scale": draw.uniform(0.85, 1.12),
        "wall": wall,
        "wall_waves": waves,
        "wall_boxes": tuple(boxes),
    }


def _motion(draw: np.random.Generator, label: int, part: str) -> dict[str, Any]:
    slowest, fastest = SPEEDS[label]
    band = (int(draw.choice(SPEED_BANDS[part])) + draw.uniform(0.02, 0.98)) / 10
    return {
        "speed": slowest + (fastest - slowest) * band,
        "phase": draw.uniform(0, 2 * math.pi),
        "amplitude": draw.uniform(0.8, 1.2),
        "center": (draw.normal(0, 0.04), draw.normal(0, 0.05), draw.normal(0, 0.04)),
        "tilt": _clip(draw.normal(0, 1), -2, 2),
        "turn": 1 if draw.random() < 0.5 else -1,
        "offbeat": draw.normal(0, 0.25),
        "share": draw.uniform(0.2, 0.8),
        "warp": draw.uniform(0, 0.3),
        "swell": draw.uniform(0, 0.15),
        "drift": draw.uniform(0, 2 * math.pi),
        "free": _free(draw) if label == len(CLASSES) - 1 else (),
    }


def _free(draw: np.random.Generator) -> tuple[float, ...]:
    """Both hands: where, and three uneven waves for each way; see `motions.free_hands`."""
    numbers: list[float] = []
    idle = draw.choice(3, p=(0.2, 0.2, 0.6))  # right, left, neither
    for arm in range(2):
        size = 0.06 if arm == idle else 1.0
        for low, high, reach in ((-0.35, 0.65, 0.34), (-0.5, 0.6, 0.38), (0.2, 0.7, 0.25)):
            numbers.append(draw.uniform(low, high))
            for rate, height in ((1.0, 1.0), (1.62, 0.6), (2.41, 0.35)):
                sign = 1 if draw.random() < 0.5 else -1
                numbers += [
                    sign * rate * draw.uniform(0.75, 1.3),
                    size * reach * height * draw.uniform(0.3, 1),
                    draw.uniform(0, 2 * math.pi),
                ]
    return tuple(numbers)


def _sway(draw: np.random.Generator, label: int, speed: float) -> dict[str, Any]:
    lively = 1.6 if CLASSES[label] == "air_guitar" else 1.0
    return {
        "sway": lively * draw.uniform(0.0003, 0.003),
        "sway_hz": draw.uniform(0.3, 1.0),
        "sway_phase": draw.uniform(0, 2 * math.pi),
        "lean": lively * draw.uniform(0.001, 0.009) / max(1.0, speed),  # the heavy body follows slow arms
        "nod": draw.uniform(0.0, 1.5),
    }


def _light(draw: np.random.Generator) -> dict[str, Any]:
    daylight = draw.random() < 0.4
    return {
        "light": math.exp(draw.uniform(math.log(0.3), math.log(3.0))),
        "light_x": draw.uniform(-0.35, 0.35),
        "light_y": draw.uniform(-0.3, 0.15),
        "flicker_hz": float(draw.choice((100.0, 120.0))),
        "flicker_depth": 0.0 if daylight else draw.uniform(0.01, 0.06),
        "flicker_phase": draw.uniform(0, 2 * math.pi),
    }


def _clip(value: float, low: float, high: float) -> float:
    return float(min(max(value, low), high))
