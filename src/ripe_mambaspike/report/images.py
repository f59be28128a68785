"""Event frames and attention maps as small PNG files inside the page."""

import base64
import io

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.events.view.frames import PALETTE, robust_scale, shade

ATTENTION_COLOR = (150, 255, 130)  # differs from both event colours
MAX_OPACITY = 0.55  # opacity of the highest attention
MAX_FRAME_SIDE = 128  # pixels; larger frames are downsampled by summing
LEVELS = 255


def png(image: NDArray[np.uint8]) -> bytes:
    """An image [H, W, 3 or 4] as a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG", optimize=True)
    return file.getvalue()


def data_uri(image: NDArray[np.uint8]) -> str:
    return "data:image/png;base64," + base64.b64encode(png(image)).decode()


def event_images(frames: NDArray[np.float32]) -> list[NDArray[np.uint8]]:
    """Counts [T, 2, H, W], OFF before ON → colours [H', W', 3] each, on one scale for the whole clip."""
    counts = np.nan_to_num(frames, posinf=0, neginf=0).clip(min=0)
    shrink = -(-max(counts.shape[2:]) // MAX_FRAME_SIDE)
    if shrink > 1:
        pads = [(0, 0), (0, 0), *((0, -side % shrink) for side in counts.shape[2:])]
        counts = np.pad(counts, pads)
        steps, signs, height, width = counts.shape
        counts = counts.reshape(steps, signs, height // shrink, shrink, width // shrink, shrink).sum((3, 5))
    largest = float(counts.max(initial=0))
    if largest > 0:  # whole numbers in a bounded range, also where counts are scaled to fractions or huge
        counts = np.ceil(counts * (LEVELS / largest)) if largest > LEVELS or (counts % 1).any() else counts
    whole = counts.astype(np.int64)
    scale = max(1, robust_scale(whole))
    return [PALETTE[shade(frame, scale)] for frame in whole]


def attention_images(attention: NDArray[np.float32]) -> list[NDArray[np.uint8]] | None:
    """Non-negative maps [T, h, w] → RGBA images [h, w, 4], on one scale for the clip; zero is transparent. None if
    all values are zero."""
    maps = finite_maps(attention)
    most = float(maps.max(initial=0))
    if most <= 0:
        return None
    alpha = (maps / most * MAX_OPACITY * 255).round().astype(np.uint8)
    color = np.broadcast_to(np.array(ATTENTION_COLOR, np.uint8), (*alpha.shape, 3))
    return list(np.concatenate([color, alpha[..., None]], axis=-1))


def finite_maps(attention: NDArray[np.float32]) -> NDArray[np.float64]:
    """The maps with values that cannot be drawn set to zero."""
    return np.nan_to_num(attention.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0).clip(min=0)
