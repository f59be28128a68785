"""Recordings of a moving bar, and the JSON documents of commands."""

import json

import numpy as np

from ripe_mambaspike.events.recording import Recording, make_events


def make_clip(number, side=34):
    """A bar that runs to one side, on the 34×34 pixels from the corner: what a guess takes for the whole sensor."""
    rng = np.random.default_rng(number)
    times = np.sort(rng.integers(0, 80_000 + 5000 * (number % 7), 600)) + 1000
    along = (times - times[0]) * side // (times[-1] - times[0] + 1)
    x = along if number % 2 else side - 1 - along
    events = make_events(x, rng.integers(0, side, len(times)), times, rng.integers(0, 2, len(times)))
    return Recording(events, (side, side))


def asked(ripe, *words):
    result = ripe(*words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out), result.err


def differ(first, second):
    return max(abs(one - other) for one, other in zip(first, second, strict=True))
