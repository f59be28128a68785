"""Statistics of a recording of a gesture, which a simulated camera is fitted to and compared by.

They speak of the camera and of moving edges, not of which gesture it is: rates, polarities, times between the events of
a pixel, bursts, neighborhoods, noise. None needs a network.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from ripe_mambaspike.events.recording import Events

WINDOW_US = 10_000  # in which events are neighbors
NEAR_PIXELS = 5  # side of the neighborhood in which an isolated event is alone
BURST_US = 30_000  # at most, between the events of a burst
ECHO_US, OVERSHOOT_US = 2, (50, 1000)  # after an ON event: its echo, and an OFF event that follows

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class GestureStatistics:
    """Rates a second, times in ms, shares from 0 to 1."""

    events_hz: float  # of the whole sensor
    on_share: float
    region_balance: float  # standard deviation of the ON share over a 4×4 grid of regions, weighted by their events
    rate_spread: float  # of the number of events in windows of 10 ms: standard deviation over mean
    active_share: float  # of the pixels: more than two events
    busy_events: float  # of the busiest hundredth of the pixels: events, at least
    echo: float  # of the ON events: followed by an ON event within 2 µs
    overshoot: float  # of the ON events: followed by an OFF event within 1 ms
    overshoot_ms: float  # median time until then
    same_polarity: float  # of pairs at a pixel, 1 to 20 ms apart: both of one polarity
    interval_10: float  # times between events of one polarity at a pixel, without echoes: 10 %
    interval_50: float
    burst_events: float  # mean number of events of one polarity that follow each other at a pixel
    burst_single: float  # share of bursts of one event
    neighbors: float  # active pixels of the nine around an active one, in windows of 10 ms
    clusters: float  # connected groups of active pixels in a window
    isolated_hz: float  # events a pixel and second that have no neighbor: mostly noise
    isolated_on: float  # share of them that is ON
    hot_hz: float  # isolated events a second of the noisiest thousandth of the pixels, at least


NAMES = tuple(each.name for each in fields(GestureStatistics))


def gesture_statistics(events: Events, size: tuple[int, int], duration_us: int) -> GestureStatistics:
    """The statistics of a recording that starts at time 0."""
    width, height = size
    x, y, t, p = (events[name].astype(np.int64) for name in ("x", "y", "t", "p"))
    pixel, seconds, pixels = y * width + x, duration_us * 1e-6, width * height
    counts = np.bincount(pixel, minlength=pixels)
    volume = np.zeros((-(-duration_us // WINDOW_US), height, width), np.int32)
    window = np.minimum(t // WINDOW_US, len(volume) - 1)
    np.add.at(volume, (window, y, x), 1)
    around = (3, NEAR_PIXELS, NEAR_PIXELS)
    together = ndimage.uniform_filter(volume.astype(np.float32), around, mode="constant") * np.prod(around)
    isolated = together[window, y, x] < 1.5
    noise = np.bincount(pixel[isolated], minlength=pixels)
    active = volume > 0
    beside = ndimage.uniform_filter(active.astype(np.float32), (1, 3, 3), mode="constant") * 9
    rates = volume.sum((1, 2))
    return GestureStatistics(
        events_hz=len(events) / seconds,
        on_share=_mean(p),
        region_balance=_balance(x * 4 // width + y * 4 // height * 4, p),
        rate_spread=float(rates.std() / max(rates.mean(), 1e-9)),
        active_share=_mean(counts > 2),
        busy_events=float(np.quantile(counts, 0.99)),
        **_intervals(pixel, t, p),
        neighbors=_mean(beside[active]),
        clusters=_mean([ndimage.label(one, np.ones((3, 3)))[1] for one in active[::5]]),
        isolated_hz=float(isolated.sum() / seconds / pixels),
        isolated_on=_mean(p[isolated]),
        hot_hz=float(np.quantile(noise, 0.999) / seconds),
    )


def _intervals(pixel: Ints, t: Ints, p: Ints) -> dict[str, float]:
    """What follows what at a pixel."""
    order = np.lexsort((t, pixel))
    pixel, t, p = pixel[order], t[order], p[order]
    pair = pixel[1:] == pixel[:-1]
    between, same, first_on = np.diff(t), p[1:] == p[:-1], p[:-1] == 1
    echo = pair & same & first_on & (between <= ECHO_US)
    # an echo stands between an ON event and the OFF event that follows it
    kept = np.ones(len(t), bool)
    kept[1:] = ~echo
    pixel, t, p = pixel[kept], t[kept], p[kept]
    num_on = max(int(p.sum()), 1)
    pair = pixel[1:] == pixel[:-1]
    between, same, first_on = np.diff(t), p[1:] == p[:-1], p[:-1] == 1
    low, high = OVERSHOOT_US
    after = pair & ~same & first_on & (between >= low) & (between < high)
    spaced = between[pair & same]
    slow = pair & (between >= 1000) & (between < 20_000)
    begins = np.ones(len(t), bool)
    begins[1:] = ~(pair & same & (between < BURST_US))
    bursts = np.diff(np.append(np.flatnonzero(begins), len(t)))
    return {
        "echo": float(echo.sum() / num_on),
        "overshoot": float(after.sum() / num_on),
        "overshoot_ms": _quantile(between[after], 0.5) / 1e3,
        "same_polarity": _mean(same[slow]),
        "interval_10": _quantile(spaced, 0.1) / 1e3,
        "interval_50": _quantile(spaced, 0.5) / 1e3,
        "burst_events": _mean(bursts),
        "burst_single": _mean(bursts == 1),
    }


def _balance(region: Ints, p: Ints) -> float:
    total, on = np.bincount(region, minlength=16), np.bincount(region, p, minlength=16)
    share, weight = on / np.maximum(total, 1), total / max(total.sum(), 1)
    mean = (weight * share).sum()
    return float(np.sqrt((weight * (share - mean) ** 2).sum()))


def _mean(values: object) -> float:
    found = np.asarray(values, np.float64)
    return float(found.mean()) if found.size else 0.0


def _quantile(values: NDArray[np.int64], share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else 0.0
