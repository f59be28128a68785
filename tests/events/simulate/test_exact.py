"""The camera in whole numbers: it does what the other one does, and the same on every machine."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.simulate.exact.draws import draw_bell, draw_uniform, draw_words
from ripe_mambaspike.events.simulate.exact.pictures import (
    PHASES,
    PictureDifficulty,
    ShownPicture,
    picture_clip_us,
    place_picture,
    simulate_exact_pictures,
    view_picture,
)
from ripe_mambaspike.events.simulate.exact.pixel import UNITS, ExactRecordings, simulate_exact_events
from ripe_mambaspike.events.simulate.fitted import Variation, fitted_to, load_calibration, simulate_pictures
from ripe_mambaspike.events.simulate.pixel import Pixel, simulate_events
from ripe_mambaspike.events.simulate.saccades import Saccades, seen_pictures

SIZE = (6, 5)
PIXELS = 30
QUIET = {"mismatch": 0.0, "leak_hz": 0.0, "shot_hz": 0.0, "cutoff_hz": 0.0, "refractory_us": 0.0}


def run(levels, steps, seeds=(3,), cuts=(), warm=0, size=SIZE, **pixel):
    factors = np.ones((len(seeds), 2))
    recordings = ExactRecordings(size, 1000, steps, warm, seeds, factors, cuts)
    return simulate_exact_events(levels, Pixel(**{**QUIET, **pixel}), recordings)


def ramp(total, steps, batch=1, pixels=PIXELS):
    """Light whose logarithm rises by `total` over the steps, everywhere."""
    return lambda step: torch.full((batch, pixels), round(UNITS * total * (step + 1) / steps), dtype=torch.int32)


def noise_pictures(count, side=20):
    draw = np.random.default_rng(0)
    coarse = draw.integers(0, 256, (count, side // 4, side // 4))
    return [ShownPicture(picture.repeat(4, 0).repeat(4, 1).astype(np.uint8), side) for picture in coarse]


def clip_hash(events):
    return hashlib.sha256(b"".join(one.tobytes() for one in events)).hexdigest()[:16]


# Random numbers


def test_words_are_the_hash():
    data = hashlib.shake_256(b"noise/7").digest(12)
    assert draw_words(7, "noise", 3).tolist() == [int.from_bytes(data[n : n + 4], "little") for n in (0, 4, 8)]
    assert draw_words(7, "noise", 5)[:3].tolist() == draw_words(7, "noise", 3).tolist()
    assert draw_words(8, "noise", 3).tolist() != draw_words(7, "noise", 3).tolist()


def test_uniform_and_bell():
    uniform, bell = draw_uniform(1, "a", 20_000), draw_bell(1, "b", 20_000)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=0.01)
    assert (bell.mean(), bell.std()) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))
    assert abs(bell).max() <= 6


# The pixel


@pytest.mark.parametrize("total", [1.0, -1.0, 2.5])
@pytest.mark.parametrize("threshold", [0.05, 0.25])
def test_a_ramp_gives_one_event_a_threshold(total, threshold):
    (events,) = run(ramp(total, 200), 200, threshold_on=threshold, threshold_off=threshold)
    counts = np.bincount(events["y"].astype(int) * SIZE[0] + events["x"], minlength=PIXELS)
    assert set(events["p"]) == {int(total > 0)}
    wanted = abs(total) / threshold
    low, high = (-1, 1) if total > 0 else (-2, 1)
    assert ((counts >= wanted + low) & (counts <= wanted + high)).all()
    assert (np.diff(events["t"]) >= 0).all()


def test_times_are_where_the_line_crosses():
    """A rise of 0.4 in the third step of four, from a pixel that has just fired: at its quarters."""
    levels = [0, 0, 0, round(0.4 * UNITS), round(0.4 * UNITS)]
    (events,) = run(lambda step: torch.full((1, PIXELS), levels[step + 1], dtype=torch.int32), 4, threshold_on=0.1)
    first = events["t"][(events["x"] == 2) & (events["y"] == 1)]
    assert len(first) in (4, 5)
    assert ((first >= 2000) & (first < 3000)).all()
    assert (abs(np.diff(first) - 250) <= 1).all()


def test_the_same_number_of_events_as_the_other_pixel():
    """Slow and quick waves, a limited bandwidth, a leak and dead time: within a hundredth."""
    size, steps, draw = (16, 16), 400, np.random.default_rng(0)
    phase, speed, depth = draw.uniform(0, 6, (3, 1, 256))
    pixel = {"leak_hz": 0.5, "cutoff_hz": 60.0, "refractory_us": 700.0, "threshold_on": 0.07, "threshold_off": 0.06}

    def light(step):
        wave = np.sin(phase + (2 + 3 * speed) * (step + 1) / 100) * (0.1 + 0.05 * depth)
        return np.rint(UNITS * wave).astype(np.int32)

    def scene(times):
        frames = [np.exp(light(int(time) // 1000 - 1) / UNITS) for time in times]
        return torch.from_numpy(np.stack(frames, 1).reshape(1, -1, 16, 16)).float()

    exact = run(lambda step: torch.from_numpy(light(step)), steps, size=size, **pixel)[0]
    other = simulate_events(scene, Pixel(**{**QUIET, **pixel}), size, 400_000, [3], step_us=1000)[0]
    assert len(exact) == pytest.approx(len(other), rel=0.01)
    assert exact["p"].mean() == pytest.approx(other["p"].mean(), abs=0.01)
    assert np.median(exact["t"]) == pytest.approx(np.median(other["t"]), rel=0.02)


def test_dead_time_and_leak():
    (events,) = run(ramp(3.0, 100), 100, threshold_on=0.02, refractory_us=5000.0)
    own = events["t"][(events["x"] == 0) & (events["y"] == 0)]
    assert np.diff(own).min() >= 5000
    (still,) = run(ramp(0.0, 2000), 2000, leak_hz=10.0)
    assert set(still["p"]) == {1}
    assert len(still) / PIXELS / 2.0 == pytest.approx(10.0, rel=0.05)


def test_noise_has_its_rate():
    (events,) = run(ramp(0.0, 3000), 3000, shot_hz=20.0)
    assert len(events) / PIXELS / 3.0 == pytest.approx(20.0, rel=0.1)
    assert events["p"].mean() == pytest.approx(0.5, abs=0.06)


def test_a_cut_gives_no_events_and_a_warm_up_leaves_none():
    jump = round(2.0 * UNITS)

    def levels(step):
        return torch.full((1, PIXELS), jump if step >= 5 else 0, dtype=torch.int32)

    assert len(run(levels, 10, threshold_on=0.1)[0]) > 15 * PIXELS
    assert len(run(levels, 10, cuts=(5,), threshold_on=0.1)[0]) == 0
    assert len(run(levels, 4, warm=6, threshold_on=0.1)[0]) == 0


def test_a_recording_does_not_depend_on_its_batch():
    levels = ramp(1.0, 50, 3)
    noisy = {"shot_hz": 5.0, "mismatch": 0.05}
    together = run(levels, 50, seeds=(4, 5, 6), **noisy)
    alone = run(ramp(1.0, 50), 50, seeds=(5,), **noisy)[0]
    np.testing.assert_array_equal(together[1], alone)
    assert clip_hash([together[0]]) != clip_hash([together[1]])


def test_levels_of_another_shape_or_type_are_refused():
    for levels in (lambda step: torch.zeros(1, 7, dtype=torch.int32), lambda step: torch.zeros(1, PIXELS)):
        with raises(InputError, "levels", mentions=("int32",)):
            run(levels, 2)


# Pictures


def test_frames_are_those_of_the_other_camera():
    """At every eighth of a pixel; within a twentieth of a threshold."""
    side, (shown,) = 24, noise_pictures(1)
    saccades = fitted_to(load_calibration().saccades, side, 20)
    planes = place_picture(shown.square, saccades, (side, side), 6)
    pictures = torch.from_numpy(shown.square / 255.0).float()[None]
    for middle in ((0, 0), (3, -5), (-17, 22), (8, 16)):
        frame = view_picture(planes, np.array(middle), (side, side), 6)
        at = torch.tensor(middle, dtype=torch.float64)[None, None] / PHASES
        seen = seen_pictures(pictures, at, (side, side), saccades.scale, saccades.blur)[0, 0].clamp(0, 1)
        wanted = -UNITS * (1 + saccades.contrast * seen).log()
        assert (frame - wanted).abs().max() < 0.05 * 0.054 * UNITS


def test_about_as_many_events_as_the_other_camera():
    camera = replace(load_calibration(), variation=Variation())
    shown = noise_pictures(8)
    quiet = replace(camera, pixel=replace(camera.pixel, shot_hz=0.0))
    exact = simulate_exact_pictures([[one] for one in shown], camera, PictureDifficulty(), 24, range(8))
    squares = torch.from_numpy(np.stack([one.square for one in shown]) / 255.0)
    fitted = replace(quiet, saccades=fitted_to(camera.saccades, 24, 20))
    other = simulate_pictures(squares, fitted, range(8), size=(24, 24), variation=0)
    assert sum(map(len, exact)) == pytest.approx(sum(map(len, other)), rel=0.02)
    assert max(events["t"].max() for events in exact) < camera.saccades.duration_us


def test_each_saccade_shows_the_next_picture():
    """A dark picture has no edges: where it is shown, there are no events."""
    camera = replace(load_calibration(), variation=Variation())
    still = replace(camera, pixel=replace(camera.pixel, leak_hz=0.0))
    bright, dark = noise_pictures(1)[0], ShownPicture(np.zeros((20, 20), np.uint8), 20)
    how = PictureDifficulty(pictures=4, contrast=3.0)
    (events,) = simulate_exact_pictures([[dark, bright, dark, bright]], still, how, 24, [0])
    length = picture_clip_us(camera.saccades, how)
    assert length == 2 * camera.saccades.duration_us
    ends = [*camera.saccades.rests_us, 315_000, *(315_000 + rest for rest in camera.saccades.rests_us), length]
    counts = np.histogram(events["t"], [0, *ends])[0]
    assert (counts[[1, 3, 5]] > 200).all()
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]


def test_what_the_fields_do():
    camera = load_calibration()
    shown = [[one] for one in noise_pictures(6)]

    def made(**fields):
        return simulate_exact_pictures(shown, camera, PictureDifficulty(**fields), 24, range(6))

    plain = made()
    assert sum(map(len, made(contrast=3.0))) > 1.5 * sum(map(len, plain))
    noisy = sum(map(len, made(noise_hz=10.0))) - sum(map(len, plain))
    assert noisy == pytest.approx(10 * 0.315 * 24 * 24 * 6, rel=0.05)
    spread = [np.std([events["x"].mean() for events in each]) for each in (plain, made(shift=0.2))]
    assert spread[1] > 1.5 * spread[0]
    # A mirrored path and a mirrored picture make a mirrored recording, but for the noise of the pixels.
    flipped = [[ShownPicture(one.square[:, ::-1], one.cells)] for (one,) in shown]
    turned = simulate_exact_pictures(flipped, camera, PictureDifficulty(mirror=True), 24, range(6))
    images = [np.bincount(23 - e["x"].astype(int), minlength=24) for e in turned]
    alike = [
        np.corrcoef(image, np.bincount(e["x"], minlength=24))[0, 1] for image, e in zip(images, plain, strict=True)
    ]
    mirrored = [draw_uniform(seed, "place", 3)[2] < 0.5 for seed in range(6)]
    assert 0 < sum(mirrored) < 6
    assert min(one for one, path in zip(alike, mirrored, strict=True) if path) > 0.97


def test_any_calibration():
    """One saccade without rests, and a path that varies."""
    camera = replace(
        load_calibration(),
        saccades=Saccades(((-2.0, 0.0), (2.0, 1.0), (0.0, -1.0)), 10_000, 20_000),
        variation=Variation(threshold=0.1, shift=0.5, stretch=0.2),
    )
    shown = [[one] * 2 for one in noise_pictures(3)]
    events = simulate_exact_pictures(shown, camera, PictureDifficulty(pictures=2), 16, range(3), variation=10.0)
    assert min(map(len, events)) > 20
    assert max(one["t"].max() for one in events) < 40_000


SAME = "09b7ec51981d9931"  # of four short clips, on every machine
GOLDEN = """
import sys
import torch
sys.path.insert(0, {folder!r})
from test_exact import PictureDifficulty, clip_hash, load_calibration, noise_pictures, simulate_exact_pictures
torch.set_num_threads({threads})
how = PictureDifficulty(pictures=3, contrast=2.0, noise_hz=1.0, shift=0.1, mirror=True)
print(clip_hash(simulate_exact_pictures([noise_pictures(3)] * 4, load_calibration(), how, 26, range(4))))
"""


def test_the_same_bits_as_everywhere():
    how = PictureDifficulty(pictures=3, contrast=2.0, noise_hz=1.0, shift=0.1, mirror=True)
    events = simulate_exact_pictures([noise_pictures(3)] * 4, load_calibration(), how, 26, range(4))
    assert clip_hash(events) == SAME


@pytest.mark.slow
@pytest.mark.parametrize("level", ["default", "avx2"])
def test_the_same_bits_with_other_instructions(level):
    """As on a processor without wide vectors, and with libraries that may not use them."""
    features = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX2 FMA3"
    environment = {
        **os.environ,
        "ATEN_CPU_CAPABILITY": level,
        "MKL_CBWR": "COMPATIBLE",
        "NPY_DISABLE_CPU_FEATURES": features,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    code = GOLDEN.format(folder=str(Path(__file__).parent), threads=2)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == SAME
