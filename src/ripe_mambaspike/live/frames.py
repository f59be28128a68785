"""Event frames as bytes for a viewer: a header of 32 bytes, then one shade (an index into the palette) a pixel."""

import struct
from dataclasses import dataclass

import numpy as np

from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.view.frames import event_frame, robust_scale, shade

MAX_FRAME_SIDE = 320  # pixels a side; larger sensors are added up
MAX_DRAWN_EVENTS = 100_000  # events a frame that are drawn at most, the latest ones
MIN_SPAN_US = 20_000  # that a frame shows, however slowly it is played
HEADER = struct.Struct("<HHIddII")  # width, height, round, place (s), span (s), events, frames skipped
SAMPLES = 48  # frames looked at to find how many events are shown in full colour


@dataclass(frozen=True)
class RenderedFrame:
    """A frame without what differs from viewer to viewer."""

    width: int
    height: int
    events: int
    shades: bytes


def shrink_factor(sensor_size: tuple[int, int]) -> int:
    """How many pixels a side are added up to one."""
    return -(-max(sensor_size) // MAX_FRAME_SIDE)


def draw(events: Events, sensor_size: tuple[int, int], scale: int) -> RenderedFrame:
    """The events as shades [H', W'] of at most `FINEST` a side."""
    counts = event_frame(events[-MAX_DRAWN_EVENTS:], sensor_size, shrink_factor(sensor_size))
    return RenderedFrame(counts.shape[2], counts.shape[1], len(events), shade(counts, scale).tobytes())


def pack(drawn: RenderedFrame, turn: int, place_s: float, span_s: float, skipped: int) -> bytes:
    """Header and shades as one message."""
    events, skipped = min(drawn.events, 2**32 - 1), min(skipped, 2**32 - 1)
    return HEADER.pack(drawn.width, drawn.height, turn % 2**32, place_s, span_s, events, skipped) + drawn.shades


def full_color_count(pieces: list[Events], sensor_size: tuple[int, int]) -> int:
    """Events a pixel that are shown in full colour, by a few frames; at least 1."""
    shrink = shrink_factor(sensor_size)
    return max(
        1, robust_scale(event_frame(piece[-MAX_DRAWN_EVENTS:], sensor_size, shrink) for piece in pieces if len(piece))
    )


def sample_spans(first_us: int, last_us: int, span_us: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Start and stop of a few frames spread over the recording [N, 2]."""
    starts = np.linspace(first_us, max(first_us, last_us + 1 - span_us), SAMPLES).astype(np.int64)
    return np.stack([starts, starts + span_us], axis=1)
