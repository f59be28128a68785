"""Frames, shades and rates against slow loops."""

import numpy as np
import pytest

from ripe_mambaspike.events.view import frames as f


@pytest.mark.parametrize("parts", [1, 2, 7, 12, 400])
@pytest.mark.parametrize("duration", [0, 5, 100_000])
def test_equal_spans_hold_every_event_once(make, parts, duration):
    recording = make(duration=duration)
    spans = f.equal_spans(recording.first_us, recording.last_us, parts)
    assert spans.shape == (parts, 2)
    for time in recording["t"].tolist():
        assert sum(start <= time < stop for start, stop in spans.tolist()) == 1
    lengths = spans[:, 1] - spans[:, 0]
    assert lengths.sum() == duration + 1
    assert lengths.max() - lengths.min() <= 1


def test_windows_follow_each_other_or_are_spread(make):
    recording = make(duration=100_000, start=50)
    row = f.window_spans(50, 100_050, 30_000)
    assert row.tolist() == [[50, 30_050], [30_050, 60_050], [60_050, 90_050], [90_050, 120_050]]
    assert sum(int(frame.sum()) for frame in f.event_frames(recording, row)) == len(recording)
    spread = f.window_spans(50, 100_050, 40_001, 4)
    assert spread.tolist() == [[50, 40_051], [20_050, 60_051], [40_050, 80_051], [60_050, 100_051]]
    assert f.window_spans(50, 60, 1000, 3).tolist() == [[50, 1050]] * 3


@pytest.mark.parametrize("shrink", [1, 3])
def test_frames_are_what_a_loop_counts(make, shrink):
    recording = make(width=20, height=13)
    spans = f.equal_spans(recording.first_us, recording.last_us, 7)
    wanted = np.zeros((7, 2, -(-13 // shrink), -(-20 // shrink)), int)
    for x, y, t, p in recording.events.tolist():
        for index, (start, stop) in enumerate(spans.tolist()):
            wanted[index, p, y // shrink, x // shrink] += start <= t < stop
    counted = np.stack(list(f.event_frames(recording, spans, shrink)))
    assert (counted == wanted).all()
    assert counted.sum() == len(recording)


def test_the_scale_is_the_99th_percentile_of_what_is_not_zero():
    random = np.random.default_rng(0)
    frames = [random.poisson(lam, (2, 30, 40)) for lam in (0.2, 9, 0.5, 2)]
    values = np.concatenate([frame[frame > 0] for frame in frames])
    assert f.robust_scale(frames) == np.percentile(values, 99, method="inverted_cdf")
    assert f.robust_scale([np.zeros((2, 3, 3), int)]) == 1
    assert f.robust_scale([np.ones((2, 3, 3), int)]) == 1


def test_colours_of_on_off_both_and_none():
    counts = np.array([[[0, 0, 6, 6, 1, 900]], [[0, 6, 0, 6, 0, 0]]])  # OFF, then ON
    none, on, off, both, faint, beyond = f.PALETTE[f.shade(counts, 6)][0].astype(int)
    assert tuple(none) == f.GROUND
    assert tuple(on) == f.ON
    assert tuple(off) == tuple(beyond) == f.OFF
    assert on[0] > on[2] + 100
    assert off[2] > off[0] + 100
    assert both.min() > 220
    assert 40 < np.abs(faint - none).max() < np.abs(off - none).max()  # one event is seen, and is less than six


def test_more_events_are_never_darker():
    counts = np.stack([np.zeros((1, 50), int), np.arange(50)[None]])
    brightness = f.PALETTE[f.shade(counts, 23)][0].astype(int).sum(axis=1)
    assert (np.diff(brightness) >= 0).all()
    assert brightness[1] > brightness[0]
    assert f.shade(counts, 23).max() < len(f.PALETTE)


@pytest.mark.parametrize("duration", [0, 3, 100_000])
def test_the_rate_is_what_a_loop_counts(make, duration):
    recording = make(duration=duration)
    edges, counts = f.rate(recording, 50)
    assert counts.shape == (2, min(50, duration + 1))
    assert (np.diff(edges) >= 1).all()
    wanted = np.zeros_like(counts)
    for t, p in zip(recording["t"].tolist(), recording["p"].tolist(), strict=True):
        wanted[p, sum(edge <= t for edge in edges.tolist()) - 1] += 1
    assert (counts == wanted).all()
    assert counts.sum() == len(recording)
    assert counts[1].sum() == recording["p"].sum()


def test_a_comfortable_window_follows_the_event_rate(make):
    assert f.comfortable_window(make(count=500, duration=0)) == 1
    assert f.comfortable_window(make(count=3, duration=8_000)) == 8_001 // 8
    busy = make(count=20_000, duration=1_000_000)
    assert f.comfortable_window(busy) == pytest.approx(0.15 * 20 * 13 / 20_000 * 1e6, rel=0.02)
