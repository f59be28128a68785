"""Events as frames, shades and rates. Pure functions of arrays; nothing here draws.

A frame counts the events of a span of time, half-open in µs, OFF before ON: [2, H, W]. A shade is an index into
`PALETTE`: orange light for ON, blue light for OFF, which add up to white where a pixel had both. The two colours are
distinguishable with all common kinds of colour blindness.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events, Recording

GROUND, ON, OFF = (14, 17, 24), (255, 158, 60), (62, 166, 255)  # background, ON and OFF colours
LEVELS = 11  # zero and ten shades: 121 colours for the pair, which leaves seven of a GIF's 128 for text
MIN_SHADE = 0.35  # of the full colour, so that one event is seen
TARGET_DENSITY = 0.15  # events a pixel that make a frame easy to read

Counts = NDArray[np.int64]


def equal_spans(first_us: int, last_us: int, frames: int) -> Counts:
    """Equal parts of [first, last + 1 µs): start and stop of each [N, 2]. Every event is in exactly one."""
    whole = last_us + 1 - first_us
    edges = [first_us + -(-index * whole // frames) for index in range(frames + 1)]
    return np.array([edges[:-1], edges[1:]], np.int64).T


def window_spans(first_us: int, last_us: int, window_us: int, frames: int | None = None) -> Counts:
    """Windows of one length [N, 2]: consecutive, or a given number, evenly spread with overlaps or gaps."""
    whole = last_us + 1 - first_us
    if frames is None:
        starts = [index * window_us for index in range(-(-whole // window_us))]
    else:
        room = max(whole - window_us, 0)
        starts = [index * room // max(frames - 1, 1) for index in range(frames)]
    begin = np.array(starts, np.int64) + first_us
    return np.stack([begin, begin + window_us], axis=1)


def spans(recording: Recording, frames: int | None, window_us: int | None, most: int) -> Counts:
    """The spans that `frames`, `window_us` or both ask for [N, 2]; one of them is given."""
    first, last = recording.first_us, recording.last_us
    if window_us is not None and frames is None:
        made = -(-(last + 1 - first) // window_us)
        if made > most:
            raise InputError.expected("window_us", f"at most {most:,} frames", f"{window_us}, which makes {made:,}")
    if frames is not None and frames > most:
        raise InputError.expected("frames", f"at most {most:,}", frames)
    if window_us is not None:
        return window_spans(first, last, window_us, frames)
    return equal_spans(first, last, frames or 1)


def comfortable_window(recording: Recording) -> int:
    """A window in µs with a readable density of events at the mean rate; at most an eighth of the recording."""
    width, height = recording.sensor_size
    whole = recording.duration_us + 1
    wanted = TARGET_DENSITY * width * height / len(recording) * whole
    return max(1, min(int(wanted), whole // 8))


def event_frame(events: Events, sensor_size: tuple[int, int], shrink: int = 1) -> Counts:
    """Counts [2, ⌈H/shrink⌉, ⌈W/shrink⌉]; a cell adds up shrink × shrink pixels, so no event is lost."""
    width, height = (-(-side // shrink) for side in sensor_size)
    cell = events["y"].astype(np.int64) // shrink * width
    cell += events["x"].astype(np.int64) // shrink
    cell += events["p"].astype(np.int64) * (width * height)
    return np.bincount(cell, minlength=2 * width * height).reshape(2, height, width)


def event_frames(recording: Recording, spans: Counts, shrink: int = 1) -> Iterator[Counts]:
    """The frame of each span, one at a time, of events in order."""
    bounds = np.searchsorted(recording["t"], spans)
    for start, stop in bounds:
        yield event_frame(recording.events[start:stop], recording.sensor_size, shrink)


def robust_scale(frames: Iterable[Counts]) -> int:
    """The 99th percentile of the non-zero counts over all frames, which is shown in full colour."""
    seen = np.zeros(1, np.int64)  # how many cells have each count
    for frame in frames:
        counted = np.bincount(frame.ravel())
        if len(counted) > len(seen):
            seen, counted = counted, seen
        seen[: len(counted)] += counted
    seen[0] = 0
    total = int(seen.sum())
    return int(np.searchsorted(seen.cumsum(), 0.99 * total)) if total else 1


def shade(frame: Counts, scale: int) -> NDArray[np.uint8]:
    """Indices into `PALETTE` [H, W] of a frame [2, H, W]."""
    level = np.ceil(np.minimum(frame, scale) * ((LEVELS - 1) / scale)).astype(np.uint8)
    return level[1] * np.uint8(LEVELS) + level[0]


def palette() -> NDArray[np.uint8]:
    """The colour of each pair of levels [LEVELS², 3]: ON's level × LEVELS + OFF's."""
    light = np.linspace(MIN_SHADE, 1, LEVELS - 1)
    light = np.concatenate([[0], light])[:, None]
    ground = np.array(GROUND)
    on, off = light * (np.array(ON) - ground), light * (np.array(OFF) - ground)
    return np.clip(ground + on[:, None] + off[None], 0, 255).round().astype(np.uint8).reshape(-1, 3)


PALETTE = palette()


def rate(recording: Recording, parts: int = 200) -> tuple[Counts, Counts]:
    """Edges in µs [N + 1] and events between them [2, N]; at most `parts`, none shorter than 1 µs. None is lost."""
    parts = min(parts, recording.duration_us + 1)
    parted = equal_spans(recording.first_us, recording.last_us, parts)
    edges = np.append(parted[:, 0], parted[-1, 1])
    bounds = np.searchsorted(recording["t"], edges)
    on_before = np.concatenate([[0], np.cumsum(recording["p"], dtype=np.int64)])[bounds]
    on = np.diff(on_before)
    return edges, np.stack([np.diff(bounds) - on, on])
