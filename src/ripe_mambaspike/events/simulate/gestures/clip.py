"""The parameters of one gesture clip: everything that its frames are rendered from.

Lengths are in image units (the shorter side of the sensor is 1), y points down, z to the camera. The camera faces the
person, so the person's right arm is on the left of the image. Clockwise is as seen by the person, which is
counter-clockwise in the image, as in the recordings of DVS-Gesture. All motion depends on scene time, which runs
backwards in a reversed clip.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

RIGHT, LEFT = 0, 1  # the person's arms, by the index used everywhere
# A clip of the class on the left, played backwards, is one of the class on the right.
_REVERSED = {3: 4, 4: 3, 5: 6, 6: 5}


class MovingThing(NamedTuple):
    """A rod before the person that drifts and swings: a passer-by, a branch, a ball. Lengths in image units."""

    x: float  # of its middle at time 0
    y: float
    drift_x: float  # a second
    drift_y: float
    swing_x: float
    swing_y: float
    swing_hz: float
    phase: float
    angle: float  # of the rod; 0 stands upright
    swing_angle: float
    length: float  # half
    radius: float
    reflectance: float
    stripes: float  # a unit
    in_front: bool  # of the arms


@dataclass(frozen=True)
class GestureClip:
    """All parameters of one clip, as plain numbers."""

    label: int
    part: str
    seed: int
    stream: int  # the clip's random seed; no two clips share it
    duration_us: int
    backwards: bool  # scene time is duration − t

    # the person
    person: int
    shoulder: float  # half the distance between the shoulder joints
    waist: float  # half its width
    torso: float  # from the shoulders to the belt
    head_width: float  # half
    head_height: float  # half
    upper_arm: float
    forearm: float
    hand: float
    shoulder_radius: float
    elbow_radius: float
    wrist_radius: float
    handed: int  # +1 strums and leads with the right hand, −1 with the left

    # the clothes: reflectances from 0 to 1, depths as shares of them
    shirt: float
    sleeve: float
    skin: float
    hair: float
    trousers: float
    sleeve_length: float  # 1 ends at the elbow, 2 at the wrist
    stripe_waves: float  # a unit
    stripe_angle: float
    stripe_depth: float
    fold_waves: float  # a unit
    fold_angle: float
    fold_phase: float
    fold_depth: float

    # the place
    x: float  # of the point between the shoulders
    y: float
    scale: float
    wall: float
    wall_waves: tuple[tuple[float, float, float, float], ...]  # waves a unit in x and y, phase, depth
    wall_boxes: tuple[
        tuple[float, float, float, float, float], ...
    ]  # left, top, right, bottom, reflectance against wall

    # the motion
    speed: float  # repeats a second
    phase: float
    amplitude: float  # 1 is the usual one of the class
    center: tuple[float, float, float]  # moved outward, down and to the camera, in arm lengths
    tilt: float
    turn: int  # ±1: direction of an arm roll
    offbeat: float  # phase offset of the second arm
    share: float  # how much of a motion of two arms the right one makes; 0.5 is half
    warp: float  # variation of the speed within the motion
    swell: float  # variation of the amplitude
    drift: float  # phase of both
    free: tuple[float, ...]  # of other_gestures: see motions.free_hands

    # the body's sway
    sway: float  # of the shoulders
    sway_hz: float
    sway_phase: float
    lean: float  # how much the body follows the arms
    nod: float  # the head's sway relative to the shoulders

    # the light
    light: float
    light_x: float  # change over one unit, as a share
    light_y: float
    flicker_hz: float
    flicker_depth: float
    flicker_phase: float

    # what only harder clips have
    yaw: float = 0.0  # radians that the person is turned away from the camera
    things: tuple[MovingThing, ...] = ()


def reversed_clip(clip: GestureClip) -> GestureClip:
    """The same clip played backwards: its frame at t is the clip's at duration − t."""
    return replace(clip, label=_REVERSED.get(clip.label, clip.label), backwards=not clip.backwards)
