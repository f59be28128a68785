"""Fitting the camera that watches gestures to real recordings, by their statistics alone.

What the readout adds and the noise are measured. Thresholds, their mismatch, bandwidth and refractory time are then
searched for by simulation: clips of the same classes, of many people, are simulated and compared with the recordings.
No network takes part, and neither scene nor motion is fitted.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.simulate.difficulty import SceneVariety
from ripe_mambaspike.events.simulate.gestures.lifelike import draw_lifelike_clip
from ripe_mambaspike.events.simulate.gestures.render import render
from ripe_mambaspike.events.simulate.gestures.statistics import GestureStatistics, gesture_statistics
from ripe_mambaspike.events.simulate.pixel import Pixel, simulate_events
from ripe_mambaspike.events.simulate.readout import Readout, add_readout

STEP_US, WARM_UP_US = 2000, 100_000
FIRST_SEED = 500_000  # of the simulated clips; training sets draw theirs from hashes
# What the search matches, each with the difference that counts as one: of logarithms, or of shares.
RATIOS = {"events_hz": 0.3, "busy_events": 0.5, "interval_10": 0.2, "interval_50": 0.3, "burst_events": 0.1}
SHARES = {"on_share": 0.01, "same_polarity": 0.05, "burst_single": 0.04}
START = {"threshold": 0.3, "mismatch": 0.12, "cutoff_hz": 120.0, "refractory_us": 750.0, "balance": 1.0}
SPREAD = 0.25  # of the first simplex, in logarithms
Progress = Callable[[str, int, int], None]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class GestureRecording:
    """A real recording that starts at time 0, and its class."""

    name: str
    label: int
    events: Events
    duration_us: int


def fit_gesture_camera(
    real: Sequence[GestureRecording],
    size: tuple[int, int],
    twins: int = 2,
    rounds: int = 60,
    progress: Progress | None = None,
) -> tuple[Pixel, Readout]:
    """The pixel and the readout whose simulated clips have the statistics of these recordings."""
    if not real or twins < 1 or rounds < 1:
        raise InputError.expected("real", "at least one recording, twin and round", (len(real), twins, rounds))
    target = mean_statistics([gesture_statistics(one.events, size, one.duration_us) for one in real])
    readout = measure_readout(target)
    scenes = [TwinScenes(one.label, one.duration_us, size, twins) for one in real]
    tried = 0

    def distance(logs: Array) -> float:
        nonlocal tried
        found = mean_statistics([each for one in scenes for each in one.statistics(_pixel(logs), readout)])
        tried += 1
        if progress is not None:
            progress("fitting", min(tried, rounds), rounds)
        return _distance(found, target)

    start = np.log(list(START.values()))
    simplex = np.vstack([start, start + SPREAD * np.eye(len(start))])
    best = minimize(
        distance, start, method="Nelder-Mead", options={"maxfev": rounds, "initial_simplex": simplex, "xatol": 1e-3}
    )
    return _rounded(_pixel(best.x)), readout


def measure_readout(target: GestureStatistics) -> Readout:
    """Echoes, overshoots and noise as the recordings have them.

    An echo is counted for each ON event that is not one itself. Isolated events are noise, as far as noise can be told
    from events; those of the noisiest pixels are left to the hot ones.
    """
    return Readout(
        echo=min(1.0, round(target.echo, 3)),
        overshoot=min(1.0, round(target.overshoot, 3)),
        overshoot_us=round(1e3 * target.overshoot_ms, 1),
        noise_hz=round(target.isolated_hz, 4),
        noise_on=round(target.isolated_on, 3),
    )


class TwinScenes:
    """Simulated clips of one class, rendered once and watched by any camera."""

    def __init__(self, label: int, duration_us: int, size: tuple[int, int], number: int, part: str = "train") -> None:
        self.size, self.duration_us = size, duration_us
        self.seeds = [FIRST_SEED + 100 * label + index for index in range(number)]
        clips = [draw_lifelike_clip(label, seed, part, duration_us, SceneVariety()) for seed in self.seeds]
        times = torch.arange(-WARM_UP_US, duration_us + STEP_US, STEP_US)
        self.times = times.clamp(max=duration_us).double()
        self.frames = render(clips, self.times, size)

    def events(self, pixel: Pixel, readout: Readout) -> list[Events]:
        made = simulate_events(
            self._scene, pixel, self.size, self.duration_us, self.seeds, step_us=STEP_US, warm_us=WARM_UP_US
        )
        return [
            add_readout(events, readout, self.size, self.duration_us, seed)
            for events, seed in zip(made, self.seeds, strict=True)
        ]

    def statistics(self, pixel: Pixel, readout: Readout) -> list[GestureStatistics]:
        return [gesture_statistics(each, self.size, self.duration_us) for each in self.events(pixel, readout)]

    def _scene(self, at: Tensor) -> Tensor:
        return self.frames[:, torch.searchsorted(self.times, at)]


def mean_statistics(found: Sequence[GestureStatistics]) -> GestureStatistics:
    """Rates, times and counts by their geometric mean, shares by their mean."""
    rows = [asdict(one) for one in found]
    return GestureStatistics(
        **{
            name: float(np.exp(np.mean([np.log(max(row[name], 1e-6)) for row in rows])))
            if name in RATIOS
            else float(np.mean([row[name] for row in rows]))
            for name in rows[0]
        }
    )


def _distance(found: GestureStatistics, target: GestureStatistics) -> float:
    ratios = [np.log(getattr(found, name) / getattr(target, name)) / unit for name, unit in RATIOS.items()]
    shares = [(getattr(found, name) - getattr(target, name)) / unit for name, unit in SHARES.items()]
    return float(np.sum(np.square([*ratios, *shares])))


def _pixel(logs: Array) -> Pixel:
    values = dict(zip(START, np.exp(logs).tolist(), strict=True))
    lean = values["balance"] ** 0.5
    return Pixel(
        threshold_on=values["threshold"] * lean,
        threshold_off=values["threshold"] / lean,
        mismatch=min(values["mismatch"], 0.5),
        refractory_us=values["refractory_us"],
        leak_hz=0.0,
        shot_hz=0.0,
        cutoff_hz=values["cutoff_hz"],
    )


def _rounded(pixel: Pixel) -> Pixel:
    return Pixel(**{name: type(value)(f"{value:.3g}") for name, value in vars(pixel).items()})
