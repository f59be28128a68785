"""Event frames as bytes for a viewer: a header of 32 bytes, then one shade (an index into the palette) per pixel."""

import struct
from dataclasses import dataclass

import numpy as np

from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.view.frames import event_frame, robust_scale, shade

MAX_FRAME_SIDE = 320  # pixels; larger sensors are scaled down
MAX_DRAWN_EVENTS = 100_000  # of a frame, the latest ones
MIN_SPAN_US = 20_000  # of a frame, however slowly it is played
HEADER = struct.Struct("<HHIddII")  # width, height, round, position (s), span (s), events, frames skipped
NUM_SAMPLED_FRAMES = 48  # frames used to find how many events are shown in full color


@dataclass(frozen=True)
class RenderedFrame:
    """The part of a frame that is the same for all viewers."""

    width: int
    height: int
    events: int
    shades: bytes


def shrink_factor(sensor_size: tuple[int, int]) -> int:
    """How many pixels a side become one."""
    return -(-max(sensor_size) // MAX_FRAME_SIDE)


def render_frame(events: Events, sensor_size: tuple[int, int], scale: int) -> RenderedFrame:
    """The events as shades [H', W'] of at most `MAX_FRAME_SIDE` a side."""
    counts = event_frame(events[-MAX_DRAWN_EVENTS:], sensor_size, shrink_factor(sensor_size))
    return RenderedFrame(counts.shape[2], counts.shape[1], len(events), shade(counts, scale).tobytes())


def pack_frame(frame: RenderedFrame, round_number: int, position_s: float, span_s: float, skipped: int) -> bytes:
    """Header and shades as one message."""
    events, skipped = min(frame.events, 2**32 - 1), min(skipped, 2**32 - 1)
    size = frame.width, frame.height
    return HEADER.pack(*size, round_number % 2**32, position_s, span_s, events, skipped) + frame.shades


def full_color_count(pieces: list[Events], sensor_size: tuple[int, int]) -> int:
    """How many events of a pixel are shown in full color, by a few frames; at least 1."""
    shrink = shrink_factor(sensor_size)
    return max(
        1, robust_scale(event_frame(piece[-MAX_DRAWN_EVENTS:], sensor_size, shrink) for piece in pieces if len(piece))
    )


def sample_spans(first_us: int, last_us: int, span_us: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Start and stop of a few frames spread over the recording [N, 2]."""
    starts = np.linspace(first_us, max(first_us, last_us + 1 - span_us), NUM_SAMPLED_FRAMES).astype(np.int64)
    return np.stack([starts, starts + span_us], axis=1)
