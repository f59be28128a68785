"""The motions: the positions of the joints at every time, as small float64 numpy arrays.

A motion gives both hands as (outward, down, towards the camera) from the shoulder, in arm lengths; the elbows follow by
inverse kinematics. Shapes: B clips, n times, 2 arms (right, left), 3 axes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.events.simulate.gestures.clip import LEFT, RIGHT, GestureClip

Array = NDArray[np.float64]
TURN = 2 * np.pi
CAMERA_DISTANCE = 1.6  # its distance from the person, in units
ACTIVE_ARMS: tuple[tuple[int, ...], ...] = (
    (RIGHT, LEFT),
    *((RIGHT,), (LEFT,)),
    *((RIGHT,), (RIGHT,), (LEFT,), (LEFT,)),
    *((RIGHT, LEFT),) * 4,
)  # for each class: the arms that move


@dataclass(frozen=True)
class Pose:
    """Joints in the image: x, y in units and how much nearer than the body makes things look, [B, n, 2, 3]."""

    shoulder: Array
    elbow: Array
    wrist: Array
    fingers: Array  # the tip of the hand
    flat: Array  # [B, n, 2]: 1 shows the palm, 0 the edge of the hand
    body: Array  # [B, n, 3]: shift of the shoulders in x and y, and of the head in x
    near: Array  # [B, n, 2]: depth of the hands, to say which arm is in front


@dataclass(frozen=True)
class HandTargets:
    """The output of a motion: wrists and finger directions, [B, n, 2, 3], and where the elbows point."""

    wrist: Array
    fingers: Array
    elbow: Array
    flat: float | Array = 1.0


class ClipColumns:
    """A field of many clips as a column [B, 1] against the times."""

    def __init__(self, clips: Sequence[GestureClip]) -> None:
        self.clips = clips

    def __getattr__(self, name: str) -> Array:
        return np.array([getattr(clip, name) for clip in self.clips], np.float64)[:, None]

    @property
    def reach(self) -> Array:
        return self.upper_arm + self.forearm

    @property
    def facing(self) -> Array:
        """The trunk's width in the image as a share of the shoulders': a turned one is narrower."""
        return np.abs(np.cos(self.yaw)) + 0.55 * np.abs(np.sin(self.yaw))

    @property
    def middle(self) -> Array:
        """The outward coordinate of the body's middle, from the shoulder, in arm lengths."""
        return -self.shoulder / self.reach


def scene_seconds(clip: GestureClip, times_us: Array) -> Array:
    """Scene time [n] of the clip."""
    return (clip.duration_us - times_us if clip.backwards else times_us) * 1e-6


def beat(c: ClipColumns, seconds: Array) -> tuple[Array, Array]:
    """Phase and amplitude of the motion, [B, n]; both are constant at speed 0."""
    even = TURN * c.speed * seconds
    slow = c.drift + 0.31 * even
    return c.phase + even + c.warp * np.sin(slow), c.amplitude * (1 + c.swell * np.sin(1.7 * slow))


def pose(clips: Sequence[GestureClip], seconds: Array) -> Pose:
    """The joints of clips of any classes; seconds [B, n] in scene time."""
    shape = (len(clips), seconds.shape[1])
    wrist, fingers, elbow = (np.empty((*shape, 2, 3)) for _ in range(3))
    flat = np.empty((*shape, 2))
    for label in sorted({clip.label for clip in clips}):
        rows = [i for i, clip in enumerate(clips) if clip.label == label]
        c = ClipColumns([clips[i] for i in rows])
        phase, size = beat(c, seconds[rows])
        hands = MOTIONS[label](c, phase, size)
        wrist[rows], fingers[rows], elbow[rows], flat[rows] = hands.wrist, hands.fingers, hands.elbow, hands.flat
    return _joints(ClipColumns(clips), seconds, wrist, fingers, elbow, flat)


def _joints(c: ClipColumns, seconds: Array, target: Array, fingers: Array, pole: Array, flat: Array) -> Pose:
    phase, _ = beat(c, seconds)
    wave = TURN * c.sway_hz * seconds + c.sway_phase
    body = np.stack(
        [
            c.sway * (np.sin(wave) + 0.4 * np.sin(1.7 * wave)) + c.lean * np.sin(phase + c.drift),
            0.4 * c.sway * np.sin(1.3 * wave) + 0.3 * c.lean * np.sin(phase + 2 * c.drift),
            c.nod * c.sway * np.sin(1.9 * wave + c.drift),
        ],
        -1,
    )
    side = np.array((-1.0, 1.0))
    outward = np.stack([side, np.ones(2), np.ones(2)], -1)  # [2, 3]
    upper, lower = (length[..., None] for length in (c.upper_arm, c.forearm))  # [B, 1, 1]
    shoulder = np.zeros(target.shape)
    shoulder[..., 0] = side * c.shoulder[..., None] + body[..., None, 0]
    shoulder[..., 1] = 0.05 + body[..., None, 1]
    away = target * outward * c.reach[..., None, None]
    distance = np.linalg.norm(away, axis=-1)
    far = np.maximum(_within(distance, 0.99 * (upper + lower)), abs(upper - lower) + 0.02)
    axis = away / np.maximum(distance, 1e-6)[..., None]
    along = (upper**2 - lower**2 + far**2) / (2 * far)
    across = np.sqrt(np.maximum(upper**2 - along**2, 0))
    pole = pole * outward
    pole = pole - (pole * axis).sum(-1, keepdims=True) * axis
    pole = pole / np.maximum(np.linalg.norm(pole, axis=-1, keepdims=True), 1e-6)
    elbow = shoulder + along[..., None] * axis + across[..., None] * pole
    wrist = shoulder + far[..., None] * axis
    way = (wrist - elbow) / lower[..., None] + fingers * outward
    tip = wrist + way / np.linalg.norm(way, axis=-1, keepdims=True) * c.hand[..., None, None]
    shoulder, elbow, wrist, tip = (_turned(c, joint) for joint in (shoulder, elbow, wrist, tip))
    seen = (_seen(c, shoulder), _seen(c, elbow), _seen(c, wrist), _seen(c, tip))
    return Pose(*seen, flat, body, wrist[..., 2])


def _turned(c: ClipColumns, point: Array) -> Array:
    """The point after the person has turned by `yaw` about the upright axis."""
    along, aside = np.cos(c.yaw)[..., None], np.sin(c.yaw)[..., None]
    x, y, z = (point[..., i] for i in range(3))
    return np.stack([x * along + z * aside, y, z * along - x * aside], -1)


def _within(distance: Array, most: Array) -> Array:
    """The distance, smoothly limited to the maximum, so that the elbow does not jerk when it straightens."""
    return distance / (1 + (distance / most) ** 10) ** 0.1


def _seen(c: ClipColumns, point: Array) -> Array:
    """From the person's own units into the image."""
    near = 1 / (1 - np.minimum(point[..., 2], 0.6) / CAMERA_DISTANCE)
    scale = c.scale[..., None]
    x = 0.5 + (c.x[..., None] - 0.5 + scale * point[..., 0]) * near
    y = 0.5 + (c.y[..., None] - 0.5 + scale * point[..., 1]) * near
    return np.stack([x, y, near], -1)


def _ways(*arms: tuple[Array | float, Array | float, Array | float], like: Array) -> Array:
    """Right and left, or one for both, as [B, n, 2, 3]."""
    pair = arms if len(arms) == 2 else arms * 2
    return np.stack([np.stack([np.broadcast_to(way, like.shape) for way in arm], -1) for arm in pair], -2)


def _center(c: ClipColumns) -> Array:
    return c.center[:, :, None, :]


def _with_hanging(c: ClipColumns, arm: int, hands: HandTargets) -> HandTargets:
    """The other arm hangs."""
    like = hands.wrist[..., 0, 0]
    down = np.stack([0.1 + 0.1 * c.share, 0.97 + 0 * c.share, 0.12 + 0 * c.share], -1)[:, :, None]
    wrist, fingers, elbow = hands.wrist.copy(), hands.fingers.copy(), hands.elbow.copy()
    flat = np.broadcast_to(np.asarray(hands.flat), wrist.shape[:-1]).copy()
    wrist[..., 1 - arm, :], fingers[..., 1 - arm, :] = down[:, :, 0], 0
    elbow[..., 1 - arm, :] = _ways((0.6, 0.0, -1.0), like=like)[..., 0, :]
    flat[..., 1 - arm] = 0.3
    return HandTargets(wrist, fingers, elbow, flat)


def clap(c: ClipColumns, phase: Array, size: Array) -> HandTargets:
    """The hands meet before the chest, on a line that may be tilted up to upright."""
    open_ = 0.5 - 0.5 * np.cos(phase)
    gap = 0.75 * size * open_
    tilt = np.clip(0.5 * c.tilt, -1.2, 1.2)
    x, y = np.cos(tilt), np.sin(tilt)
    palm = 0.05
    right, left = c.share * gap + palm, (1 - c.share) * gap + palm
    z = 0.62 - 0.12 * open_
    wrist = _ways((c.middle + right * x, 0.5 - right * y, z), (c.middle + left * x, 0.5 + left * y, z), like=phase)
    fingers = _ways((-0.2, -0.7, 0.1), like=phase)
    return HandTargets(wrist + _center(c), fingers, _ways((0.7, 1.0, -0.3), like=phase), 0.35)


def wave(arm: int) -> Callable[[ClipColumns, Array, Array], HandTargets]:
    """The forearm stands up and swings about the elbow, the hand a little behind it."""

    def move(c: ClipColumns, phase: Array, size: Array) -> HandTargets:
        shift = c.center[:, :, :]
        elbow = np.stack([0.55 + shift[..., 0] * 3, 0.25 + shift[..., 1] * 3, 0.7 + shift[..., 2] * 3], -1)
        elbow = elbow / np.linalg.norm(elbow, axis=-1, keepdims=True) * (c.upper_arm / c.reach)[..., None]
        angle = 0.08 + 0.15 * c.tilt + 0.34 * size * np.sin(phase)
        bend = 0.25 * size * np.sin(phase - 0.5)
        length = c.forearm / c.reach
        x, y, z = (elbow[..., i] for i in range(3))
        wrist = _ways(
            (x + length * 0.96 * np.sin(angle), y - length * 0.96 * np.cos(angle), z + 0.28 * length), like=phase
        )
        fingers = _ways((bend * np.cos(angle), bend * np.sin(angle), -0.25), like=phase)
        return _with_hanging(c, arm, HandTargets(wrist, fingers, _ways((x, y, z), like=phase)))

    return move


def circle(arm: int) -> Callable[[ClipColumns, Array, Array], HandTargets]:
    """A large circle of the almost stretched arm, clockwise to the person; it passes before the body."""

    def move(c: ClipColumns, phase: Array, size: Array) -> HandTargets:
        tilt = 0.15 * c.tilt
        side = 1 if arm == LEFT else -1
        across, up = np.cos(phase), np.sin(phase)  # in the image, counter-clockwise
        x = side * (across * np.cos(tilt) - 0.2 * up * np.sin(tilt))
        outward = 0.36 + 0.68 * size * x
        down = 0.0 - 0.95 * size * (up + 0.2 * across * np.sin(tilt))
        rest = 0.96**2 - outward**2 - down**2
        forward = 0.12 + np.sqrt(0.5 * (rest + np.sqrt(rest**2 + 0.02)))
        wrist = _ways((outward, down, forward), like=phase) + _center(c)
        pole = _ways((0.8, 1.0, -0.3), like=phase)
        return _with_hanging(c, arm, HandTargets(wrist, 0 * wrist, pole, 0.75))

    return move


def arm_roll(c: ClipColumns, phase: Array, size: Array) -> HandTargets:
    """The forearms lie before the chest and turn around each other."""
    arms = []
    radius = 0.24 * size
    for turn, lead in ((0.0, 0.0), (np.pi, 0.4 * c.offbeat)):
        angle = c.turn * (phase + lead) + turn
        arms.append((c.middle + 0.06 + 0.03 * c.tilt, 0.46 + radius * np.sin(angle), 0.62 + radius * np.cos(angle)))
    wrist = _ways(arms[0], arms[1], like=phase) + _center(c)
    return HandTargets(wrist, _ways((-0.3, 0.0, 0.0), like=phase), _ways((1.0, 0.3, -0.3), like=phase), 0.5)


def drums(c: ClipColumns, phase: Array, size: Array) -> HandTargets:
    """The forearms beat up and down by turns."""
    arms = []
    for lead in (0.0, np.pi + c.offbeat):
        up = np.sin(phase + lead)
        strike = up + 0.18 * np.sin(2 * (phase + lead))  # falls faster than it rises
        arms.append((-0.16 + 0.06 * c.tilt - 0.05 * up, 0.52 - 0.42 * size * strike, 0.55 - 0.08 * up))
    wrist = _ways(arms[0], arms[1], like=phase) + _center(c)
    up = np.stack([np.sin(phase - 0.5), np.sin(phase + np.pi + c.offbeat - 0.5)], -1)
    fingers = np.zeros(wrist.shape)
    fingers[..., 0], fingers[..., 1], fingers[..., 2] = -0.1, -0.5 * size[..., None] * up, 0.25
    return HandTargets(wrist, fingers, _ways((0.9, 1.0, -0.5), like=phase), 0.55)


def guitar(c: ClipColumns, phase: Array, size: Array) -> HandTargets:
    """One hand goes along the neck of the guitar, the other strums over the belly."""
    slow = 0.25 * phase + c.drift
    neck = 0.14 * size * np.sin(slow)
    grip = (0.42 + 0.06 * c.tilt + neck, 0.22 - 0.5 * neck + 0.03 * np.sin(2 * phase), 0.5 + 0 * neck)
    beat_ = np.sin(phase)
    strum = (c.middle + 0.22 - 0.06 * size * beat_, 0.68 + 0.26 * size * beat_, 0.45 + 0 * beat_)
    right = c.handed > 0
    wrist = np.where(right[..., None, None], _ways(strum, grip, like=phase), _ways(grip, strum, like=phase))
    flick = (-0.4, 0.55 * size * np.sin(phase - 0.6), 0.1)
    hold = (-0.3, -0.5, 0.1)
    fingers = np.where(right[..., None, None], _ways(flick, hold, like=phase), _ways(hold, flick, like=phase))
    return HandTargets(wrist + _center(c), fingers, _ways((1.0, 0.9, -0.4), like=phase), 0.5)


def free_hands(c: ClipColumns, phase: Array, size: Array) -> HandTargets:
    """Any smooth motion: for each arm and way a middle and three waves of (repeats a beat, height, phase)."""
    numbers = np.array([clip.free for clip in c.clips]).reshape(len(c.clips), 1, 2, 3, 10)
    wrist = numbers[..., 0] + _center(c)
    for start in (1, 4, 7):
        rate, height, lead = (numbers[..., start + i] for i in range(3))
        wrist = wrist + height * size[..., None, None] * np.sin(rate * phase[..., None, None] + lead)
    fingers = _ways((0.1, -0.3, 0.1), like=phase)
    return HandTargets(wrist, fingers, _ways((0.9, 1.0, -0.5), like=phase), 0.7)


MOTIONS: tuple[Callable[[ClipColumns, Array, Array], HandTargets], ...] = (
    clap,
    *(wave(RIGHT), wave(LEFT)),
    *(circle(RIGHT), circle(RIGHT), circle(LEFT), circle(LEFT)),
    *(arm_roll, drums, guitar, free_hands),
)
