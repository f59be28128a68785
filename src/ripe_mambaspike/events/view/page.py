"""A recording as a self-contained page with a player. File names and metadata are escaped and cannot inject script."""

import base64
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.events.recording import Events, Recording
from ripe_mambaspike.events.view.frames import (
    LEVELS,
    PALETTE,
    comfortable_window,
    event_frames,
    rate,
    robust_scale,
    window_spans,
)
from ripe_mambaspike.events.view.words import caption, clean, heading, play_factor, round_up, speed_text
from ripe_mambaspike.templating import render_page

MAX_EVENTS = 1_000_000
MAX_SIDE = 2048  # pixels per side of the frames used to find the colour scale
SAMPLED_FRAMES = 12  # of those frames, at most
SCALES = 9  # windows with their own colour scale, from the shortest to the longest
RATE_PARTS = 300
MAX_FACTS = 40
NO_BREAK_SPACE = "\u00a0"  # a space at which no line ends


def page(recording: Recording, frames: int | None, window_us: int | None, title: str | None) -> bytes:
    """The HTML page of ordered events."""
    every = -(-len(recording) // MAX_EVENTS)
    shown = replace(recording, events=recording.events[::every])
    data = _data(recording, shown, _first_window(recording, frames, window_us))
    notes = []
    if every > 1:
        notes.append(
            f"showing 1 in {every} events: {len(shown):,} of {len(recording):,}, evenly thinned; the rate is of all"
        )
    notes += [clean(warning, 300) for warning in recording.warnings]
    return render_page(
        "ripe_mambaspike.events.view",
        "player.html",
        style="player.css",
        script="player.js",
        title=heading(recording, title),
        caption=caption(recording).replace(" ", NO_BREAK_SPACE).replace(f"{NO_BREAK_SPACE}·{NO_BREAK_SPACE}", " · "),
        notes=notes,
        speeds=_speeds(play_factor(recording.duration_us)),
        facts=_facts(recording),
        data=data,
    )


def encode_events(events: Events) -> dict[str, Any]:
    """Columns as [type, base64] in the smallest integer type: time differences, x, y; polarities as bits."""
    times = events["t"].astype(np.int64)
    return {
        "gap": _column(np.diff(times, prepend=times[:1])),
        "x": _column(events["x"]),
        "y": _column(events["y"]),
        "p": _column(np.packbits(events["p"].astype(np.uint8), bitorder="little")),
    }


def _data(recording: Recording, shown: Recording, window: int) -> dict[str, Any]:
    first, last = recording.first_us, recording.last_us
    edges, counts = rate(recording, RATE_PARTS)
    least, longest = max(1, min(window, (last - first) // 1000)), max(last - first + 1, window)
    return {
        "width": recording.sensor_size[0],
        "height": recording.sensor_size[1],
        "span": last - first,
        "window": window,
        "windows": [least, longest],
        "scales": [_scale(shown, round(window)) for window in np.geomspace(least, longest, SCALES)],
        "levels": LEVELS,
        "palette": _column(PALETTE.ravel()),
        "rate": {"edges": (edges - first).tolist(), "off": counts[0].tolist(), "on": counts[1].tolist()},
        "events": encode_events(shown.events),
    }


def _scale(recording: Recording, window: int) -> int:
    """The events per pixel to show in full colour, from some frames of this window."""
    frames = min(SAMPLED_FRAMES, 2 * (recording.duration_us + 1) // window + 1)
    sample = window_spans(recording.first_us, recording.last_us, window, frames)
    return robust_scale(event_frames(recording, sample, -(-max(recording.sensor_size) // MAX_SIDE)))


def _first_window(recording: Recording, frames: int | None, window_us: int | None) -> int:
    if window_us is not None:
        return window_us
    if frames is not None:
        return -(-(recording.duration_us + 1) // frames)
    return comfortable_window(recording)


def _column(values: NDArray[Any]) -> list[str]:
    largest = int(values.max())
    kind = "u1" if largest < 1 << 8 else "u2" if largest < 1 << 16 else "u4" if largest < 1 << 32 else "f8"
    return [kind, base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()]


def _speeds(usual: float) -> list[dict[str, Any]]:
    """Speeds from 50 times slower than the default to 50 times faster, including real speed; the slowest first."""
    slower = {usual, 1.0}
    for times in (1, 2, 5, 10, 20, 50):
        slower |= {round_up(usual * times), round_up(usual / times)}
    values = sorted({float(f"{value:.6g}") for value in slower}, reverse=True)
    return [{"value": f"{value:g}", "text": speed_text(value), "usual": value == usual} for value in values]


def _facts(recording: Recording) -> list[tuple[str, str]]:
    facts = [
        (clean(str(name)).replace("_", " "), clean(str(value), 300))
        for name, value in list(recording.metadata.items())[:MAX_FACTS]
    ]
    left_out = len(recording.metadata) - MAX_FACTS
    return [*facts, ("and", f"{left_out} more")] if left_out > 0 else facts
