"""Fitting the simulated camera to real recordings of known pictures.

First the path and the polarity's sign are estimated without a model. Then path, optics, thresholds and bandwidth are
fitted with a smooth model of the average pixel, and the thresholds are refined by simulation. The differences between
recordings and their simulated twins give the variation from recording to recording.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.recording import Events, Recording
from ripe_mambaspike.events.simulate.fitted import CameraCalibration, Variation, simulate_picture_bins
from ripe_mambaspike.events.simulate.pixel import Pixel
from ripe_mambaspike.events.simulate.saccades import Saccades, interpolate
from ripe_mambaspike.events.simulate.smooth import KNOT_US, FitOptions, SmoothSaccades, fit
from ripe_mambaspike.events.simulate.start import find_path

Report = Callable[[str, int, int], None]  # (what is being done, done, of)
BORDER_PIXELS = 3  # pixels at the corners, which the picture never reaches
NUM_PATH_RECORDINGS = 150  # recordings used to estimate the path
NUM_MATCH_ROUNDS = 5  # rounds of threshold matching


def fit_camera(
    real: Sequence[Events],
    pictures: Tensor,
    size: tuple[int, int] = (34, 34),
    how: FitOptions | None = None,
    report: Report | None = None,
) -> CameraCalibration:
    """The camera that made these recordings of these pictures [N, h, w], values 0 to 1."""
    how = how or FitOptions()
    progress = report or (lambda what, done, of: None)
    if len(real) != len(pictures) or len(real) < 2:
        got = f"{len(real)} and {len(pictures)}"
        raise InputError.expected("real", "as many recordings as pictures, at least 2", got)
    ends = [int(events["t"].max()) for events in real]
    duration = int(np.ceil(np.quantile(ends, 0.9) / KNOT_US)) * KNOT_US
    counts = count_events(real, size, duration, duration // KNOT_US)
    path, inverted = find_path(pictures[:NUM_PATH_RECORDINGS], counts[:NUM_PATH_RECORDINGS])
    corners = [counts[..., rows, columns] for rows in (_FIRST, _LAST) for columns in (_FIRST, _LAST)]
    noise = torch.cat(corners, -1).mean((0, 1, 3, 4)) / (KNOT_US * 1e-6)
    model = SmoothSaccades(path, duration, size, inverted, noise)
    fit(model, pictures, counts, how, lambda done, of, loss: progress("fitting", done, of))
    made = CameraCalibration(model.pixel(), replace(model.saccades(), rests_us=find_rests(counts)), Variation())
    for _ in range(2):
        made = match_thresholds(made, pictures, counts, size, progress)
        late = measure_delays(made, pictures, counts, size).mean(0)
        made = replace(made, saccades=retimed(made.saccades, late.tolist()))
    varied = replace(made, variation=measure_variation(made, pictures, counts, size))
    return _rounded(match_thresholds(varied, pictures, counts, size, progress))


_FIRST, _LAST = slice(None, BORDER_PIXELS), slice(-BORDER_PIXELS, None)


def count_events(real: Sequence[Events], size: tuple[int, int], duration_us: int, time_steps: int) -> Tensor:
    """Counts [N, T, 2, H, W] over equal parts of the duration; later events are left out."""
    recordings = (Recording(events[events["t"] < duration_us], size) for events in real)
    return torch.stack([bin_events(each, time_steps, start_us=0, stop_us=duration_us) for each in recordings])


def match_thresholds(
    made: CameraCalibration, pictures: Tensor, counts: Tensor, size: tuple[int, int], progress: Report
) -> CameraCalibration:
    """Scale the thresholds until the mean numbers of ON and OFF events match the recordings."""
    target = counts.sum((0, 1, 3, 4))
    for turn in range(NUM_MATCH_ROUNDS):
        simulated = _simulate(made, pictures, size).sum((0, 1, 3, 4))
        ratio = (simulated / target).tolist()
        pixel = made.pixel
        # The number of events is not exactly proportional to 1 / threshold, so the step is damped.
        on, off = pixel.threshold_on * ratio[1] ** 0.9, pixel.threshold_off * ratio[0] ** 0.9
        made = replace(made, pixel=replace(pixel, threshold_on=on, threshold_off=off))
        progress("matching", turn + 1, NUM_MATCH_ROUNDS)
    return made


def find_rests(counts: Tensor) -> tuple[float, ...]:
    """Times in µs of the two pauses between the three saccades: the event minimum in the middle of each half."""
    rate = torch.nn.functional.avg_pool1d(counts.sum((0, 2, 3, 4))[None], 3, 1, 1)[0]
    steps = len(rate)
    spans = ((steps // 5, steps // 2), (steps // 2, 4 * steps // 5))
    return tuple(float(first + int(rate[first:last].argmin()) + 0.5) * KNOT_US for first, last in spans)


def retimed(saccades: Saccades, late: Sequence[float]) -> Saccades:
    """The saccades, each delayed by the given µs."""
    path = torch.tensor(saccades.path, dtype=torch.float64)
    times = torch.arange(len(path), dtype=torch.float64) * saccades.knot_us
    which = torch.bucketize(times, torch.tensor(saccades.rests_us, dtype=torch.float64))
    moved = interpolate(path, (times - torch.tensor(late, dtype=torch.float64)[which]) / saccades.knot_us)
    return replace(saccades, path=tuple((round(x, 3), round(y, 3)) for x, y in moved.tolist()))


def measure_delays(made: CameraCalibration, pictures: Tensor, counts: Tensor, size: tuple[int, int]) -> Tensor:
    """How much later than its twin's each saccade of each recording is [N, saccades], in µs."""
    twins = _simulate(made, pictures, size, variation=0.0)
    times = torch.arange(counts.shape[1]) * KNOT_US + KNOT_US / 2
    which = torch.bucketize(times, torch.tensor(made.saccades.rests_us))
    late = []
    for saccade in range(len(made.saccades.rests_us) + 1):
        # A saccade's time is the mean time of its events.
        there = which == saccade
        real, twin = (
            (part.sum((2, 3, 4))[:, there] @ times[there]) / part[:, there].sum((1, 2, 3, 4))
            for part in (counts, twins)
        )
        late.append(real - twin)
    return torch.stack(late, 1)


def measure_variation(made: CameraCalibration, pictures: Tensor, counts: Tensor, size: tuple[int, int]) -> Variation:
    """How the recordings differ from simulated ones that do not vary."""
    twins = _simulate(made, pictures, size, variation=0.0)
    events, others = counts.sum((1, 2, 3, 4)), twins.sum((1, 2, 3, 4))
    on, other_on = counts[:, :, 1].sum((1, 2, 3)) / events, twins[:, :, 1].sum((1, 2, 3)) / others
    delays = measure_delays(made, pictures, counts, size)
    # The ON share changes by a quarter of log(ON / OFF); the number of events is proportional to 1 / threshold.
    return Variation(
        threshold=_spread((events / others).log()),
        balance=4 * _spread(on - other_on),
        delay_us=tuple(_spread(each) for each in delays.unbind(1)),
    )


def _spread(values: Tensor) -> float:
    """A standard deviation that is robust to outliers."""
    low, high = torch.quantile(values, torch.tensor([0.16, 0.84])).tolist()
    return float(high - low) / 2


def _simulate(made: CameraCalibration, pictures: Tensor, size: tuple[int, int], variation: float = 1.0) -> Tensor:
    parts = [
        simulate_picture_bins(
            pictures[first : first + 64],
            made,
            range(first, min(first + 64, len(pictures))),
            time_steps=made.saccades.duration_us // KNOT_US,
            size=size,
            variation=variation,
        )
        for first in range(0, len(pictures), 64)
    ]
    return torch.cat(parts)


def _rounded(made: CameraCalibration) -> CameraCalibration:
    """Round to four digits; the recordings do not determine more."""
    pixel = Pixel(**{name: type(value)(f"{value:.4g}") for name, value in vars(made.pixel).items()})
    by = made.variation
    late = tuple(float(f"{each:.3g}") for each in by.delay_us)
    variation = Variation(float(f"{by.threshold:.3g}"), float(f"{by.balance:.3g}"), delay_us=late)
    return CameraCalibration(pixel, made.saccades, variation)
