"""The parts that hardly move: the wall, and in front of it trunk, neck and head, which sway by about a pixel.

They are painted at key times only; frames in between are interpolated.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.events.simulate.gestures.clip import GestureClip
from ripe_mambaspike.events.simulate.gestures.limbs import Canvas, Ground, seen_depth
from ripe_mambaspike.events.simulate.gestures.motions import TURN, ClipColumns

NECK = 0.042  # half its width
COLLAR = -0.035  # where the shoulders' line meets the middle


def wall(clips: Sequence[GestureClip], canvas: Canvas, ground: Ground) -> Tensor:
    """Reflectance of the wall behind the person, [G, H, W]."""
    x, y = _grid(canvas, ground)
    walls = []
    for clip in clips:
        image = torch.ones(canvas.height, canvas.width, device=ground.device, dtype=ground.dtype)
        for across, down, phase, depth in clip.wall_waves:
            image += depth * torch.sin(TURN * (across * x + down * y) + phase)
        for left, top, right, bottom, reflectance in clip.wall_boxes:
            inside_x = torch.minimum(x - left, right - x).mul_(canvas.unit).add_(0.5).clamp_(0, 1)
            inside_y = torch.minimum(y - top, bottom - y).mul_(canvas.unit).add_(0.5).clamp_(0, 1)
            image *= 1 + (reflectance - 1) * inside_x * inside_y
        walls.append(image * clip.wall)
    return torch.stack(walls)


def light(clips: Sequence[GestureClip], canvas: Canvas, ground: Ground) -> Tensor:
    """Illumination of each pixel, [G, H, W]."""
    x, y = _grid(canvas, ground)
    return torch.stack(
        [
            clip.light
            * (1 + clip.light_x * (x - 0.5) + clip.light_y * (y - 0.5)).clamp_(min=0.2).expand(y.shape[0], -1)
            for clip in clips
        ]
    )


def body(c: ClipColumns, sway: NDArray[np.float64], behind: Tensor, canvas: Canvas) -> Tensor:
    """Trunk, neck and head before the wall [G, H, W], swayed by [G, K, 3], as frames [G, K, H, W]."""
    ground = Ground(behind.device, behind.dtype)
    frames = behind[:, None].repeat(1, sway.shape[1], 1, 1)

    def column(values: NDArray[np.float64]) -> Tensor:
        """[G, 1] or [G, K] against pixels."""
        return ground.put(values)[..., None, None]

    pixels = column(c.scale * canvas.unit)
    shift_x, shift_y, nod = (column(sway[..., i]) for i in range(3))

    # The trunk, in a box that holds it in every clip.
    half = 1.05 * np.maximum(c.shoulder, c.waist) * c.facing + 0.03
    rows, columns = _box(canvas, c, (-half, 0 * half + COLLAR - 0.05, half, 0 * half + 9))
    x, y = _local(canvas, c, rows, columns, ground)
    y = y - shift_y
    x = x - shift_x * (1 - 1.2 * y)
    trunk = column(c.torso)
    waist, shoulder = c.waist * c.facing, c.shoulder * c.facing
    width = column(waist) + column(1.02 * shoulder - waist) * (1 - y / trunk).clamp_(0, 1)
    shoulders = COLLAR + 0.24 * x.abs() - y
    cover = torch.maximum(x.abs() - width, shoulders).mul_(-pixels).add_(0.5).clamp_(0, 1)
    stripes = TURN * c.stripe_waves
    cloth = _waves(x, y, column(stripes * np.sin(c.stripe_angle)), column(stripes * np.cos(c.stripe_angle)), 0.0)
    cloth = cloth.mul_(column(seen_depth(c.stripe_depth, stripes / (c.scale * canvas.unit)))).add_(1)
    folds = 0.6 * TURN * c.fold_waves
    crease = _waves(
        x + 0.03 * torch.sin(11 * y) + 0.05 * torch.sin(17 * x + 5 * y),  # folds are unevenly spaced
        y,
        column(folds * np.cos(c.fold_angle)),
        column(folds * np.sin(c.fold_angle)),
        0.5,
    )
    cloth.mul_(crease.mul_(column(seen_depth(0.7 * c.fold_depth, 1.4 * folds / (c.scale * canvas.unit)))).add_(1)).mul_(
        column(c.shirt)
    )
    cloth.mul_(1 - 0.3 * (x / width).square_().clamp_(max=1))
    belt = ((y - trunk) * pixels + 0.5).clamp_(0, 1)
    cloth.lerp_(column(c.trousers).expand_as(cloth), belt.expand_as(cloth))
    frames[..., rows, columns].lerp_(cloth, cover)

    # Neck, hair and face, the face a little lower than the hair around it.
    wide, tall = c.head_width, c.head_height
    rows, columns = _box(canvas, c, (-1.5 * wide - 0.02, -2.6 * tall, 1.5 * wide + 0.02, 0 * wide + 0.06))
    x, y = _local(canvas, c, rows, columns, ground)
    y = y - shift_y
    x = x - shift_x * (1 - 1.2 * y) - nod * (-6 * y).clamp_(0, 1)
    head = frames[..., rows, columns]
    skin, hair = column(c.skin), column(c.hair)
    neck = (
        torch.maximum(x.abs() - NECK, (y + 0.03).abs_().sub_(0.06))
        .add_(0.5 * x.abs())
        .mul_(-pixels)
        .add_(0.5)
        .clamp_(0, 1)
    )
    head.lerp_((0.8 * skin).expand_as(neck), neck)
    middle = column(-0.045 - tall)
    head.lerp_(hair.expand_as(neck), _ellipse(x, y - middle, column(1.04 * wide), column(tall), pixels))
    face = _ellipse(x, y - middle - column(0.2 * tall), column(0.9 * wide), column(0.84 * tall), pixels)
    u, v = x.abs() / column(wide), (y - middle) / column(tall)
    eyes = torch.exp(-30 * (u - 0.4).square() - 120 * (v - 0.05).square())
    mouth = torch.exp(-14 * u.square() - 250 * (v - 0.58).square())
    nose = torch.exp(-80 * u.square() - 25 * (v - 0.28).square())
    head.lerp_(skin * (1 - 0.5 * eyes - 0.3 * mouth + 0.12 * nose - 0.2 * u.square()).clamp_(min=0.3), face)
    return frames


def _ellipse(x: Tensor, y: Tensor, wide: Tensor, tall: Tensor, pixels: Tensor) -> Tensor:
    u, v = x / wide, y / tall
    radius = torch.sqrt(u * u + v * v).clamp_(min=1e-3)
    slope = torch.sqrt((u / wide).square_() + (v / tall).square_()) / radius
    return ((1 - radius) / slope.clamp_(min=1.0) * pixels + 0.5).clamp_(0, 1)


def _waves(x: Tensor, y: Tensor, across: Tensor, down: Tensor, phase: float) -> Tensor:
    return (x * across).add_(y * down).add_(phase).sin_()


def _grid(canvas: Canvas, ground: Ground) -> tuple[Tensor, Tensor]:
    """Middles of the pixels in units: x [W], y [H, 1]."""
    x = torch.arange(canvas.width, device=ground.device, dtype=ground.dtype)
    y = torch.arange(canvas.height, device=ground.device, dtype=ground.dtype)[:, None]
    return (x + 0.5 - canvas.width / 2) / canvas.unit + 0.5, (y + 0.5 - canvas.height / 2) / canvas.unit + 0.5


def _local(canvas: Canvas, c: ClipColumns, rows: slice, columns: slice, ground: Ground) -> tuple[Tensor, Tensor]:
    """Pixels of a box in the person's units: x [G, 1, 1, w], y [G, 1, h, 1]."""
    x, y = _grid(canvas, ground)
    middle_x, middle_y, scale = (ground.put(values)[..., None, None] for values in (c.x, c.y, c.scale))
    return (x[columns] - middle_x) / scale, (y[rows] - middle_y) / scale


def _box(canvas: Canvas, c: ClipColumns, sides: tuple[NDArray[np.float64], ...]) -> tuple[slice, slice]:
    """Rows and columns that hold left, top, right and bottom, in the person's units, of every clip."""
    left, top, right, bottom = sides
    margin = 2 / canvas.unit + 0.02
    low = np.stack([c.x + c.scale * left, c.y + c.scale * top], -1).min((0, 1)) - margin
    high = np.stack([c.x + c.scale * right, c.y + c.scale * bottom], -1).max((0, 1)) + margin
    x0, y0 = np.clip(np.floor(canvas.pixels(low)), 0, canvas).astype(int).tolist()
    x1, y1 = np.clip(np.ceil(canvas.pixels(high)), (x0, y0), canvas).astype(int).tolist()
    return slice(y0, y1), slice(x0, x1)
