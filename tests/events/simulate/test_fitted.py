"""A camera that is known is found again from its recordings."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.simulate.calibrate import count_events, find_rests, fit_camera, match_thresholds, retimed
from ripe_mambaspike.events.simulate.fitted import (
    CameraCalibration,
    Variation,
    load_calibration,
    save_calibration,
    simulate_picture_bins,
    simulate_pictures,
)
from ripe_mambaspike.events.simulate.pixel import Pixel
from ripe_mambaspike.events.simulate.saccades import Saccades
from ripe_mambaspike.events.simulate.smooth import FitOptions
from ripe_mambaspike.events.simulate.start import find_path

SIZE = (20, 20)
CORNERS = ((-3.0, -2.0), (-1.0, 3.0), (3.0, -2.0), (-3.0, -2.0))


def make_path():
    """Three straight saccades of 60 ms with rests of 40 ms, a point every 5 ms."""
    points = []
    for (x0, y0), (x1, y1) in pairwise(CORNERS):
        points += (
            [(x0, y0)] * 4 + [(x0 + (x1 - x0) * k / 12, y0 + (y1 - y0) * k / 12) for k in range(12)] + [(x1, y1)] * 4
        )
    return (*points, points[-1])


TRUE = CameraCalibration(
    Pixel(0.15, 0.16, mismatch=0.02, leak_hz=0.5, shot_hz=0.2, cutoff_hz=40.0),
    Saccades(make_path(), 5000, 300_000, (1.0, 1.0), 0.4, 2.0, inverted=True, rests_us=(100_000.0, 200_000.0)),
    Variation(),
)


@pytest.fixture(scope="module")
def pictures():
    """Blobs that no shift maps onto themselves."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(48, 1, 4, 4, generator=generator).sub(0.35).clamp(min=0)
    fine = torch.nn.functional.interpolate(coarse, size=12, mode="bilinear")[:, 0]
    fine[:, [0, -1]], fine[:, :, [0, -1]] = 0, 0
    return fine / fine.amax((1, 2), keepdim=True)


@pytest.fixture(scope="module")
def recordings(pictures):
    return simulate_pictures(pictures, TRUE, range(48), size=SIZE)


def test_the_path_and_the_sign_are_found(pictures, recordings):
    counts = count_events(recordings, SIZE, 300_000, 60)
    path, inverted = find_path(pictures, counts)
    assert inverted
    for knot, corner in zip((0, 20, 40, 60), CORNERS, strict=True):
        assert (path[knot] - torch.tensor(corner)).abs().max() <= 1.5
    upright = replace(TRUE, saccades=replace(TRUE.saccades, inverted=False))
    swapped = count_events(simulate_pictures(pictures, upright, range(48), size=SIZE), SIZE, 300_000, 60)
    assert not find_path(pictures, swapped)[1]


def test_rests_are_where_little_happens(recordings):
    first, second = find_rests(count_events(recordings, SIZE, 300_000, 60))
    assert abs(first - 100_000) <= 20_000
    assert abs(second - 200_000) <= 20_000


@pytest.mark.slow
def test_calibration_finds_the_camera(pictures, recordings):
    made = fit_camera(recordings, pictures, SIZE, FitOptions(rounds=40, batch=16))
    again = simulate_pictures(pictures, made, range(100, 148), size=SIZE)
    counts = [np.array([len(events) for events in part]) for part in (recordings, again)]
    assert abs(counts[1].sum() / counts[0].sum() - 1) < 0.03
    shares = [np.concatenate([events["p"] for events in part]).mean() for part in (recordings, again)]
    assert abs(shares[0] - shares[1]) < 0.01
    images = [count_events(part, SIZE, 300_000, 1).flatten(1) for part in (recordings, again)]
    assert np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(*images, strict=True)]) > 0.9
    assert abs(made.pixel.leak_hz + made.pixel.shot_hz / 2 - 0.6) < 0.25
    assert made.variation.threshold < 0.05
    assert made.saccades.inverted


def test_thresholds_are_matched(pictures, recordings):
    counts = count_events(recordings, SIZE, 300_000, 60)
    wrong = replace(TRUE, pixel=replace(TRUE.pixel, threshold_on=0.3, threshold_off=0.1))
    made = match_thresholds(wrong, pictures, counts, SIZE, lambda *words: None)
    assert abs(made.pixel.threshold_on / 0.15 - 1) < 0.06
    assert abs(made.pixel.threshold_off / 0.16 - 1) < 0.06


def test_retimed():
    later = retimed(TRUE.saccades, [0.0, 5000.0, 0.0])
    for knot, before in ((0, 0), (12, 12), (26, 25), (33, 32), (45, 45), (60, 60)):
        assert later.path[knot] == pytest.approx(TRUE.saccades.path[before], abs=1e-3)


def test_events_and_bins_agree_and_variation_varies(pictures):
    varied = replace(TRUE, variation=Variation(0.2, 0.1, 0.5, 0.05, (2000.0, 3000.0, 1000.0)))
    events = simulate_pictures(pictures[:4], varied, range(4), size=SIZE)
    bins = simulate_picture_bins(pictures[:4], varied, range(4), time_steps=6, size=SIZE)
    assert torch.equal(count_events(events, SIZE, 300_000, 6), bins)
    plain = simulate_picture_bins(pictures[:4], varied, range(4), time_steps=6, size=SIZE, variation=0)
    assert torch.equal(plain, simulate_picture_bins(pictures[:4], TRUE, range(4), time_steps=6, size=SIZE))
    assert not torch.equal(plain, bins)


def test_saved_and_loaded(tmp_path):
    saccades = replace(TRUE.saccades, scale=(1.0, 0.9))
    varied = replace(TRUE, saccades=saccades, variation=Variation(0.2, 0.1, delay_us=(1.0, 2.0, 3.0)))
    assert load_calibration(save_calibration(varied, tmp_path / "a.json")) == varied
    shipped = load_calibration()
    assert shipped.saccades.inverted
    (tmp_path / "b.json").write_text('{"pixel": 3}')
    for name, field in (("b.json", "pixel"), ("c.json", None)):
        with raises(InputError, field=field, path=tmp_path / name):
            load_calibration(tmp_path / name)


def test_numbers_and_sizes_that_do_not_match(pictures, recordings):
    with raises(InputError, field="real", mentions=["48", "47"]):
        fit_camera(recordings, pictures[1:], SIZE)
    with raises(InputError, field="events", mentions=["10×10 sensor"]):
        fit_camera(recordings, pictures, (10, 10))
    with raises(InputError, field="pictures", mentions=["with 3 seeds"]):
        simulate_pictures(pictures, TRUE, range(3), size=SIZE)
