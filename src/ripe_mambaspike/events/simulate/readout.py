"""What a sensor's readout adds to the events of its pixels.

A DVS128 sends many ON events twice, at most 1 µs apart, and after some ON events the pixel overshoots: an OFF event
follows within a millisecond, although the light did not fall. Its background events are mostly of one polarity.
"""

import math
from dataclasses import dataclass, fields

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events, pack_events

STREAM = 0x7EAD  # separates these random numbers from those of pixels and scenes
ECHO_US = 1  # at most, between an event and its echo


@dataclass(frozen=True)
class Readout:
    """Shares from 0 to 1; with zeros nothing is added."""

    echo: float = 0.0  # of the ON events that are sent twice
    overshoot: float = 0.0  # of the ON events that an OFF event follows
    overshoot_us: float = 450.0  # median time until it does
    overshoot_spread: float = 0.4  # standard deviation of that time's logarithm
    noise_hz: float = 0.0  # background events a pixel and second
    noise_on: float = 0.5  # share of them that is ON
    hot_share: float = 0.0  # of the pixels that send background events much more often
    hot_hz: float = 5.0  # how often

    def __post_init__(self) -> None:
        for each in fields(self):
            value, most = getattr(self, each.name), math.inf if each.name.endswith(("_us", "_hz")) else 1.0
            if not isinstance(value, int | float) or not 0 <= value <= most:
                raise InputError.expected(each.name, f"a number from 0 to {most:g}", repr(value))


def add_readout(events: Events, readout: Readout, size: tuple[int, int], duration_us: int, seed: int) -> Events:
    """The events with what the readout adds, by time. The same seed adds the same."""
    draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((STREAM, seed))))
    on = events[events["p"] == 1]
    after = on[draw.random(len(on)) < readout.overshoot]
    delay = readout.overshoot_us * np.exp(readout.overshoot_spread * draw.standard_normal(len(after)))
    twice = on[draw.random(len(on)) < readout.echo]
    noise = _noise(readout, size, duration_us, draw)
    parts = [
        events,
        pack_events(after["x"], after["y"], after["t"] + np.rint(delay).astype(np.int64), np.zeros(len(after), bool)),
        pack_events(twice["x"], twice["y"], twice["t"] + draw.integers(0, ECHO_US + 1, len(twice)), twice["p"]),
        noise,
    ]
    joined = np.concatenate(parts)
    joined = joined[joined["t"] < duration_us]
    return joined[np.lexsort([joined[name] for name in ("p", "x", "y", "t")])]


def _noise(readout: Readout, size: tuple[int, int], duration_us: int, draw: np.random.Generator) -> Events:
    width, height = size
    rate = np.full(width * height, readout.noise_hz)
    rate[draw.random(len(rate)) < readout.hot_share] += readout.hot_hz
    counts = draw.poisson(rate * duration_us * 1e-6)
    y, x = np.divmod(np.repeat(np.arange(len(rate)), counts), width)
    times = draw.integers(0, duration_us, len(x))
    return pack_events(x, y, times, draw.random(len(x)) < readout.noise_on)
