"""Frames of clips at any times and size, in linear light.

Clips are painted in groups that share their times and number of moving arms: one by one on a CPU, where part of a clip
then stays in the cache, and many at a time on a GPU. Results do not depend on the grouping.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import is_size
from ripe_mambaspike.events.simulate.gestures.body import body, light, wall
from ripe_mambaspike.events.simulate.gestures.clip import GestureClip
from ripe_mambaspike.events.simulate.gestures.limbs import Canvas, Ground, arm_limbs, paint
from ripe_mambaspike.events.simulate.gestures.motions import (
    ACTIVE_ARMS,
    TURN,
    Array,
    ClipColumns,
    Pose,
    pose,
    scene_seconds,
)
from ripe_mambaspike.events.simulate.gestures.things import moving_limbs

KEY_S = 0.04  # between two key times of the body
CPU_PIXELS = 1 << 18  # pixels painted at a time, so that they stay in the cache
GPU_PIXELS = 1 << 25
MIN_LIGHT = 1e-4
MAX_RENDER_SIDE = 4096


def render(
    clips: Sequence[GestureClip],
    times_us: Tensor,
    size: tuple[int, int],
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Light intensities [B, n, H, W], above 0, of the clips at the times [n]; size is (width, height).

    In float64 frames differ so little between machines that `gestures.hard` can round the difference away.
    """
    canvas, times = _check(clips, times_us, size)
    where = torch.device("cpu" if device is None else device)
    frames = torch.empty(len(clips), len(times), canvas.height, canvas.width, device=where, dtype=dtype)
    if not frames.numel():
        return frames
    pixels = canvas.width * canvas.height
    budget = CPU_PIXELS if where.type == "cpu" else GPU_PIXELS
    for rows in _groups(clips, 1 if where.type == "cpu" else max(1, budget // (pixels * len(times)))):
        step = max(1, budget // (pixels * len(rows)))
        if len(rows) == 1:
            _paint_group([clips[rows[0]]], times, canvas, step, frames[rows[0] : rows[0] + 1])
        else:
            group = torch.empty(len(rows), *frames.shape[1:], device=where, dtype=dtype)
            _paint_group([clips[row] for row in rows], times, canvas, step, group)
            frames[rows] = group
    return frames


def _groups(clips: Sequence[GestureClip], most: int) -> Iterator[list[int]]:
    alike: dict[tuple[bool, int, int], list[int]] = {}
    for row, clip in enumerate(clips):
        alike.setdefault((clip.backwards, clip.duration_us, len(ACTIVE_ARMS[clip.label])), []).append(row)
    for rows in alike.values():
        for start in range(0, len(rows), most):
            yield rows[start : start + most]


def _paint_group(clips: list[GestureClip], times: Array, canvas: Canvas, step: int, frames: Tensor) -> None:
    """Paint clips with a common scene time into frames [G, n, H, W], some frames at a time."""
    ground = Ground(frames.device, frames.dtype)
    c = ClipColumns(clips)
    seconds = scene_seconds(clips[0], times)
    busy = np.array([ACTIVE_ARMS[clip.label] for clip in clips])  # [G, arms]
    keys, before, share = _body_keys(clips, seconds, busy, canvas, ground)
    joints = pose(clips, np.broadcast_to(seconds, (len(clips), len(seconds))))
    starts = list(range(0, len(seconds), step))
    arms = [limb for arm in _far_to_near(busy, joints) for limb in arm_limbs(c, joints, arm, canvas, ground)]
    behind, before_all = (moving_limbs(clips, seconds, canvas, ground, in_front) for in_front in (False, True))
    limbs = [*behind, *arms, *before_all]
    strokes = [limb.strokes(ground) for limb in limbs]
    boxes = [limb.boxes(starts, canvas) for limb in limbs]
    lit = light(clips, canvas, ground)[:, None]
    glow = ground.put(_flicker(c, seconds))[..., None, None]
    for number, start in enumerate(starts):
        part = slice(start, min(start + step, len(seconds)))
        out = frames[:, part]
        _mix(keys, before[part], share[part], out)
        for limb, stroke, box in zip(limbs, strokes, boxes, strict=True):
            paint(out, stroke[:, :, part], limb.ink, box[number])
        out.mul_(lit).mul_(glow[:, part]).clamp_(min=MIN_LIGHT)


def _mix(keys: Tensor, before: NDArray[np.int64], share: Tensor, out: Tensor) -> None:
    """Interpolate key frames [G, K, H, W] to frames [G, n, H, W]."""
    edges = [0, *(np.flatnonzero(np.diff(before)) + 1).tolist(), len(before)]
    for start, stop in pairwise(edges):
        key = int(before[start])
        torch.lerp(keys[:, key : key + 1], keys[:, key + 1 : key + 2], share[start:stop], out=out[:, start:stop])


def _body_keys(
    clips: list[GestureClip], seconds: Array, busy: NDArray[np.int64], canvas: Canvas, ground: Ground
) -> tuple[Tensor, NDArray[np.int64], Tensor]:
    """The body with its idle arms at key times, [G, K, H, W]; of every frame, the key before it and how far past it.

    Key times are multiples of KEY_S in scene time, so a frame does not depend on which other frames are rendered.
    """
    c = ClipColumns(clips)
    position = seconds / KEY_S
    first = np.floor(position)
    wanted = np.unique(np.concatenate([first, first + 1]))
    at = np.broadcast_to(wanted * KEY_S, (len(clips), len(wanted)))
    joints = pose(clips, at)
    keys = body(c, joints.body, wall(clips, canvas, ground), canvas)
    if busy.shape[1] == 1:
        idle = np.broadcast_to(1 - busy, at.shape)
        for limb in arm_limbs(c, joints, idle, canvas, ground):
            paint(keys, limb.strokes(ground), limb.ink, limb.boxes([0], canvas)[0])
    share = ground.put(position - first)[:, None, None]
    return keys, np.searchsorted(wanted, first), share


def _far_to_near(busy: NDArray[np.int64], joints: Pose) -> list[NDArray[np.int64]]:
    """The busy arms in the order they are painted in: which one, [G, n]."""
    shape = joints.near.shape[:2]
    if busy.shape[1] == 1:
        return [np.broadcast_to(busy, shape)]
    nearer = joints.near.argmax(-1)
    return [1 - nearer, nearer]


def _flicker(c: ClipColumns, seconds: Array) -> Array:
    return 1 + c.flicker_depth * np.cos(TURN * c.flicker_hz * seconds + c.flicker_phase)


def _check(clips: Sequence[GestureClip], times_us: Tensor, size: tuple[int, int]) -> tuple[Canvas, Array]:
    for clip in clips:
        if not isinstance(clip, GestureClip):
            raise InputError.expected("clips", "GestureClip objects", clip)
    if not isinstance(times_us, Tensor) or times_us.ndim != 1 or times_us.is_complex():
        got = f"shape {tuple(times_us.shape)}" if isinstance(times_us, Tensor) else repr(times_us)
        raise InputError.expected("times_us", "a tensor of shape [n]", got)
    times = times_us.detach().cpu().to(torch.float64).numpy()
    if not np.isfinite(times).all():
        raise InputError.expected("times_us", "finite values", "NaN or infinity")
    if not is_size(size, MAX_RENDER_SIDE):
        raise InputError.expected("size", f"a width and a height from 1 to {MAX_RENDER_SIDE}", repr(size))
    return Canvas(int(size[0]), int(size[1])), times
