"""Arms and hands: capsules painted over frames, each only inside the box it moves in.

Lengths are in pixels here. A capsule is (x, y, radius) at either end: six numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.events.simulate.gestures.motions import ClipColumns, Pose

EDGE = 1.0  # width of a soft edge


class Ground(NamedTuple):
    """What frames are made on: a device, and the type of their numbers."""

    device: torch.device
    dtype: torch.dtype = torch.float32

    def put(self, values: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, self.dtype)


class Canvas(NamedTuple):
    """The sensor in image units: the shorter side is one unit, the middle is at (0.5, 0.5)."""

    width: int
    height: int

    @property
    def unit(self) -> int:
        """Pixels a unit."""
        return min(self.width, self.height)

    def pixels(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points [..., 2] in units as pixels, where the first pixel's middle is at 0.5."""
        return (points - 0.5) * self.unit + np.array(self) / 2


def seen_depth(depth: NDArray[np.float64], radians: NDArray[np.float64]) -> NDArray[np.float64]:
    """The remaining amplitude of a wave after averaging over pixels that are this many radians wide."""
    return depth * np.exp(-(radians**2) / 24)


@dataclass(frozen=True)
class LimbTexture:
    """The appearance of a limb, per clip [G]: two reflectances, where the second begins, folds and shading."""

    first: Tensor
    second: Tensor
    cut: Tensor | None  # as a share of the limb's length; None is all of the first
    folds: tuple[NDArray[np.float64], ...]  # radians a pixel along and across the limb, and phase
    depth: Tensor
    rim: float = 0.45  # how much darker the sides are


@dataclass(frozen=True)
class Limb:
    """Capsules over time that share one texture."""

    capsules: NDArray[np.float32]  # [G, n, P, 6]
    ink: LimbTexture

    def strokes(self, ground: Ground) -> Tensor:
        """What `paint` needs of each capsule, [P, G, n, STROKE, 1, 1], computed once for all pixels.

        Place along it is x·along_x + y·along_y + along_0, across it y·along_x − x·along_y + across_0.
        """
        x0, y0, r0, x1, y1, r1 = np.moveaxis(self.capsules.astype(np.float64), (3, 2), (0, 1))  # each [P, G, n]
        length = np.maximum(np.hypot(x1 - x0, y1 - y0), 1e-2)
        along_x, along_y = (x1 - x0) / length, (y1 - y0) / length
        along_0, across_0 = -(x0 * along_x + y0 * along_y), x0 * along_y - y0 * along_x
        down, aside, phase = (values[:, None] for values in self.ink.folds)
        columns = (
            *(along_x, along_y, along_0, across_0, length, (r1 - r0) / length, r0 + 0.5 * EDGE),
            *(along_x * down - along_y * aside, along_y * down + along_x * aside),
            *(along_0 * down + across_0 * aside + phase, 1 / r0**2),
        )
        return ground.put(np.stack(columns, -1))[..., None, None]

    def boxes(self, starts: Sequence[int], canvas: Canvas) -> list[tuple[slice, slice]]:
        """Rows and columns the capsules touch, for the times from each start to the next."""
        ends = self.capsules.reshape(*self.capsules.shape[:2], -1, 3)
        middle, radius = ends[..., :2], ends[..., 2:] + EDGE
        low = np.minimum.reduceat((middle - radius).min((0, 2)), starts, axis=0)  # [chunks, 2]
        high = np.maximum.reduceat((middle + radius).max((0, 2)), starts, axis=0)
        low = np.clip(np.floor(low), 0, canvas).astype(int)
        high = np.clip(np.ceil(high), low, canvas).astype(int)
        return [(slice(y0, y1), slice(x0, x1)) for (x0, y0), (x1, y1) in zip(low.tolist(), high.tolist(), strict=True)]


def arm_limbs(c: ClipColumns, pose: Pose, arm: NDArray[np.int64], canvas: Canvas, ground: Ground) -> list[Limb]:
    """Upper arm, forearm and hand of one arm of every clip and time; arm [G, n] says which."""

    def of_arm(points: NDArray[np.float64]) -> NDArray[np.float64]:
        index = arm[..., None, None] if points.ndim == 4 else arm[..., None]
        return np.take_along_axis(points, index, 2)[:, :, 0]

    def end(point: NDArray[np.float64], radius: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([canvas.pixels(point[..., :2]), (radius * c.scale * point[..., 2])[..., None] * unit], -1)

    def capsule(*ends: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate(ends, -1)

    unit = canvas.unit
    shoulder, elbow, wrist, tip = (of_arm(joint) for joint in (pose.shoulder, pose.elbow, pose.wrist, pose.fingers))
    flat = of_arm(pose.flat)
    long = c.sleeve_length > 1.5
    cuff = np.where(c.sleeve_length > 1, 1.12, 0.92)  # cloth is wider than the arm in it
    joints = [
        end(shoulder, c.shoulder_radius),
        end(elbow, c.elbow_radius * np.where(long, 1.08, 1)),
        end(wrist, c.wrist_radius * cuff),
    ]
    # The hand: a palm, two groups of fingers a little apart, and a thumb on the inner side.
    way = tip[..., :2] - wrist[..., :2]
    across = np.stack([-way[..., 1], way[..., 0]], -1) * (1 - 2 * arm[..., None]) * flat[..., None]
    near = wrist[..., 2:]

    def spot(along: float, aside: float) -> NDArray[np.float64]:
        return np.concatenate([wrist[..., :2] + along * way + aside * across, near], -1)

    broad = c.hand * (0.17 + 0.13 * flat)
    slim = c.hand * (0.125 + 0.04 * flat)
    hand = [
        capsule(end(spot(0.1, 0), broad), end(spot(0.5, 0), broad)),
        capsule(end(spot(0.55, 0.14), slim), end(spot(0.9, 0.19), 0.85 * slim)),
        capsule(end(spot(0.55, -0.14), slim), end(spot(0.86, -0.19), 0.85 * slim)),
        capsule(end(spot(0.2, 0.2), slim), end(spot(0.55, 0.46), 0.6 * slim)),
    ]

    def column(values: NDArray[np.float64]) -> Tensor:
        return ground.put(values[:, 0])

    sleeve, skin = column(c.sleeve), column(c.skin)
    waves = 2 * np.pi * c.fold_waves[:, 0] / (c.scale[:, 0] * unit)
    angle, phase = c.fold_angle[:, 0], c.fold_phase[:, 0]
    folds = (waves * np.cos(angle), waves * np.sin(angle), phase)
    lines = (0.5 * waves, 1.6 * waves, phase)
    depth = column(seen_depth(c.fold_depth, 1.4 * waves[:, None]))
    creases = column(seen_depth(0.3 + 0 * c.skin, 1.4 * 1.67 * waves[:, None]))
    # A sleeve ends on one of the two, away from the other's round tip, so that the tip has one colour.
    upper_cut = np.where(c.sleeve_length < 1, c.sleeve_length, 9.0)
    lower_cut = np.where(c.sleeve_length > 1, c.sleeve_length - 1, -9.0)
    upper = LimbTexture(sleeve, skin, column(upper_cut), folds, depth)
    lower = LimbTexture(sleeve, skin, column(lower_cut), folds, depth * column(np.where(lower_cut > 0, 1, 0.6)))
    palm = LimbTexture(skin, skin, None, lines, creases, rim=0)
    return [
        Limb(_float(np.concatenate(joints[:2], -1)[:, :, None]), upper),
        Limb(_float(np.concatenate(joints[1:], -1)[:, :, None]), lower),
        Limb(_float(np.stack(hand, 2)), palm),
    ]


def paint(frames: Tensor, strokes: Tensor, ink: LimbTexture, box: tuple[slice, slice]) -> None:
    """Paint the strokes [P, G, n, STROKE, 1, 1] of a limb over frames [G, n, H, W], inside the box only. In place."""
    rows, columns = box
    if rows.start >= rows.stop or columns.start >= columns.stop:
        return
    x = torch.arange(columns.start, columns.stop, device=frames.device, dtype=frames.dtype).add_(0.5)
    y = torch.arange(rows.start, rows.stop, device=frames.device, dtype=frames.dtype).add_(0.5)[:, None]
    along_x, along_y, along_0, across_0, length, growth, radius, fold_x, fold_y, fold_0, rim = strokes.unbind(3)
    along = torch.add(x * along_x, y * along_y + along_0)
    across = torch.add(y * along_x, across_0 - x * along_y)
    inside = torch.minimum(along.clamp(min=0), length)
    distance = torch.sub(along, inside).square_().addcmul_(across, across).sqrt_()
    cover = inside.mul_(growth).add_(radius).sub_(distance).clamp_(0, 1)
    cover = cover[0] if len(cover) == 1 else cover.amax(0)
    # Folds and shading follow the first capsule; folds are not evenly apart.
    shade = torch.add(x * fold_x[0], y * fold_y[0] + fold_0[0])
    shade.add_(torch.mul(shade, 0.43).sin_(), alpha=1.6).sin_().mul_(_pixels(ink.depth)).add_(1)
    if ink.rim:
        shade.addcmul_(across[0].square_(), rim[0], value=-ink.rim).clamp_(min=0.3)
    first = _pixels(ink.first)
    if ink.cut is None:
        color = shade.mul_(first)
    else:
        bare = along[0].sub_(_pixels(ink.cut) * length[0] - 0.5).clamp_(0, 1)
        color = shade.mul_(bare.mul_(_pixels(ink.second) - first).add_(first))
    frames[..., rows, columns].lerp_(color, cover)


def _pixels(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _float(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.ascontiguousarray(values, np.float32)
