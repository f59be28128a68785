"""What moves in a scene besides the person: rods that drift and swing, painted like limbs."""

from collections.abc import Sequence

import numpy as np

from ripe_mambaspike.events.simulate.gestures.clip import GestureClip, MovingThing
from ripe_mambaspike.events.simulate.gestures.limbs import Canvas, Ground, Limb, LimbTexture
from ripe_mambaspike.events.simulate.gestures.motions import TURN, Array

AWAY = MovingThing(-9, -9, 0, 0, 0, 0, 0, 0, 0, 0, 0.1, 0.1, 0.5, 0, True)  # where another clip of a group has more


def moving_limbs(
    clips: Sequence[GestureClip], seconds: Array, canvas: Canvas, ground: Ground, in_front: bool
) -> list[Limb]:
    """The things of all clips that are in front of the arms, or behind them, at the times [n]."""
    every = [[thing for thing in clip.things if thing.in_front == in_front] for clip in clips]
    limbs = []
    for number in range(max(map(len, every), default=0)):
        row = [things[number] if number < len(things) else AWAY for things in every]
        table = np.array(row, np.float64)[..., None]  # [G, fields, 1]
        t = dict(zip(MovingThing._fields, table.swapaxes(0, 1), strict=True))
        beat = np.sin(TURN * t["swing_hz"] * seconds + t["phase"])
        x = t["x"] + t["drift_x"] * seconds + t["swing_x"] * beat
        y = t["y"] + t["drift_y"] * seconds + t["swing_y"] * np.sin(1.31 * TURN * t["swing_hz"] * seconds)
        angle = t["angle"] + t["swing_angle"] * beat
        reach = np.stack([np.sin(angle), np.cos(angle)], -1) * t["length"][..., None]
        ends = [canvas.pixels(np.stack([x, y], -1) + sign * reach) for sign in (-1, 1)]
        radius = np.broadcast_to(t["radius"] * canvas.unit, x.shape)[..., None]
        capsules = np.concatenate([ends[0], radius, ends[1], radius], -1)[:, :, None].astype(np.float32)
        color = ground.put(t["reflectance"][:, 0])
        waves = TURN * t["stripes"][:, 0] / canvas.unit
        texture = LimbTexture(color, color, None, (waves, 0 * waves, t["phase"][:, 0]), 0 * color + 0.25, rim=0.3)
        limbs.append(Limb(capsules, texture))
    return limbs
