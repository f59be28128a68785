"""Binning against a loop over the events that counts in fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from makers import random_events

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events import EVENT, Recording, bin_events, make_events
from ripe_mambaspike.events.binning import bin_batch, count_on_device

QUICK = settings(max_examples=80, deadline=None, derandomize=True)
GRIDS = [(180, 240), (90, 120), (128, 128), (7, 5), (1, 1), (181, 239), (400, 300), (180, 120)]


def recording_of(count=500, size=(240, 180), seed=0, span=10_000, start=0, ordered=True):
    events = random_events(count, size, span, seed, start)
    return Recording(events if ordered else np.random.default_rng(seed).permutation(events), size)


def centre_cell(pixel, pixels, cells):
    """Cells are equal parts of the sensor; the pixel's centre lies in one of them."""
    center = Fraction(2 * pixel + 1, 2) / pixels
    return next(cell for cell in range(cells) if Fraction(cell, cells) <= center < Fraction(cell + 1, cells))


def slow_steps(recording, time_steps, start=None, stop=None):
    """The step of each event: [start + k·span/T, start + (k + 1)·span/T)."""
    times = recording["t"].tolist()
    start = min(times) if start is None else start
    span = (max(times) + 1 if stop is None else stop) - start
    edges = [start + Fraction(k * span, time_steps) for k in range(time_steps + 1)]
    return [next(k for k in range(time_steps) if edges[k] <= time < edges[k + 1]) for time in times]


def slow_counts(recording, step_of, time_steps, grid):
    width, height = recording.sensor_size
    counts = np.zeros((time_steps, 2, *grid), np.float32)
    columns = [centre_cell(x, width, grid[1]) for x in range(width)]
    rows = [centre_cell(y, height, grid[0]) for y in range(height)]
    for (x, y, _, p), step in zip(recording.events.tolist(), step_of, strict=True):
        counts[step, p, rows[y], columns[x]] += 1
    return torch.from_numpy(counts)


@pytest.mark.parametrize("time_steps", [1, 2, 3, 7, 10, 16])
@pytest.mark.parametrize("span", [1, 5, 100, 9973])
@pytest.mark.parametrize("ordered", [True, False])
def test_by_time_at_every_edge(time_steps, span, ordered):
    recording = recording_of(300, (34, 34), span=span, start=1_605_537_493_718_345, ordered=ordered)
    expected = slow_counts(recording, slow_steps(recording, time_steps), time_steps, (34, 34))
    assert torch.equal(bin_events(recording, time_steps), expected)


def test_an_event_on_the_edge_belongs_to_the_later_step():
    recording = Recording(make_events([0] * 8, [0] * 8, range(8), [1] * 8), (1, 1))
    assert bin_events(recording, 3)[:, 1, 0, 0].tolist() == [3, 3, 2]  # edges at 8/3 and 16/3
    assert bin_events(recording, 4)[:, 1, 0, 0].tolist() == [2, 2, 2, 2]
    assert bin_events(recording, 16)[:, 1, 0, 0].tolist() == [1, 0] * 8


def test_a_given_span():
    recording = recording_of(200, (34, 34), span=1000, start=500)
    expected = slow_counts(recording, slow_steps(recording, 7, 0, 2000), 7, (34, 34))
    assert torch.equal(bin_events(recording, 7, start_us=0, stop_us=2000), expected)


@pytest.mark.parametrize("grid", GRIDS)
def test_every_grid(grid):
    recording = recording_of()
    expected = slow_counts(recording, slow_steps(recording, 4), 4, grid)
    assert torch.equal(bin_events(recording, 4, grid=grid), expected)
    assert torch.equal(bin_events(recording, 4, grid=grid, binary=True), (expected > 0).float())


def test_a_grid_of_one_side_is_square():
    recording = recording_of()
    assert torch.equal(bin_events(recording, 2, grid=17), bin_events(recording, 2, grid=(17, 17)))
    assert bin_events(recording, 2).shape == (2, 2, 180, 240)


@pytest.mark.parametrize(("pixels", "cells"), [(240, 128), (180, 128), (34, 5), (346, 128), (7, 7), (1280, 34), (5, 3)])
def test_every_cell_has_its_share_of_pixels(pixels, cells):
    """One event on every pixel: cells get as many columns as each other, to one."""
    recording = Recording(make_events(range(pixels), [0] * pixels, [0] * pixels, [0] * pixels), (pixels, 1))
    counts = bin_events(recording, 1, grid=(1, cells))[0, 0, 0]
    assert counts.sum() == pixels
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("grid", GRIDS)
def test_spread_divides_an_event_by_area(grid):
    recording = recording_of(60)
    width, height = recording.sensor_size

    def shares(pixel, pixels, cells):
        first, last = Fraction(pixel * cells, pixels), Fraction((pixel + 1) * cells, pixels)
        return {
            cell: (min(last, cell + 1) - max(first, cell)) / (last - first)
            for cell in range(math.floor(first), math.ceil(last))
        }

    expected = torch.zeros(3, 2, *grid, dtype=torch.float64)
    for (x, y, _, p), step in zip(recording.events.tolist(), slow_steps(recording, 3), strict=True):
        for row, tall in shares(y, height, grid[0]).items():
            for column, wide in shares(x, width, grid[1]).items():
                expected[step, p, row, column] += float(tall * wide)
    given = bin_events(recording, 3, grid=grid, spread=True)
    assert given.dtype == torch.float32
    torch.testing.assert_close(given.double(), expected, rtol=0, atol=1e-6)
    assert given.double().sum().item() == pytest.approx(60, rel=1e-6)


@pytest.mark.parametrize("time_steps", [1, 3, 7, 500, 600])
@pytest.mark.parametrize("ordered", [True, False])
def test_by_count(time_steps, ordered):
    """The events by time, those of one time in the order of the file, in parts that differ by one at most."""
    recording = recording_of(500, (34, 34), ordered=ordered)
    order = sorted(range(500), key=lambda index: recording["t"][index])
    counts = bin_events(recording, time_steps, by="count")
    sizes = counts.sum((1, 2, 3)).int().tolist()
    assert sum(sizes) == 500
    assert max(sizes) - min(sizes) <= 1
    step_of = dict(zip(order, (step for step, size in enumerate(sizes) for _ in range(size)), strict=True))
    expected = slow_counts(recording, [step_of[index] for index in range(500)], time_steps, (34, 34))
    assert torch.equal(counts, expected)


def test_by_count_the_later_steps_have_the_one_more():
    assert bin_events(recording_of(500), 3, by="count").sum((1, 2, 3)).tolist() == [166, 167, 167]


@pytest.mark.parametrize("window", [1, 7, 100, 999, 5000])
def test_by_window(window):
    recording = recording_of(300, (34, 34), span=1000, start=123)
    first = recording.first_us
    step_of = [(time - first) // window for time in recording["t"].tolist()]
    counts = bin_events(recording, by="window", window_us=window)
    assert torch.equal(counts, slow_counts(recording, step_of, max(step_of) + 1, (34, 34)))


def test_by_window_from_a_start_and_for_more_steps_than_there_are():
    recording = recording_of(300, (34, 34), span=1000, start=123)
    step_of = [time // 100 for time in recording["t"].tolist()]
    counts = bin_events(recording, 15, by="window", window_us=100, start_us=0)
    assert torch.equal(counts, slow_counts(recording, step_of, 15, (34, 34)))


@st.composite
def anything(draw):
    width, height = draw(st.tuples(st.integers(1, 40), st.integers(1, 40)))
    count = draw(st.integers(1, 60))
    column = st.lists(st.integers(0, 10**9), min_size=count, max_size=count)
    x, y, p = (np.array(draw(column)) for _ in range(3))
    span = draw(st.sampled_from([1, 3, 50, 10**6, 2**40]))
    start = draw(st.sampled_from([0, -(10**6), 2**52, 2**61]))
    t = start + np.array(draw(st.lists(st.integers(0, span - 1), min_size=count, max_size=count)))
    return Recording(make_events(x % width, y % height, t, p % 2), (width, height))


@QUICK
@given(
    recording=anything(),
    time_steps=st.integers(1, 40),
    grid=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    by=st.sampled_from(["time", "count"]),
)
@example(recording_of(1, (1, 1)), 40, (50, 50), "time")
def test_every_event_is_counted_once(recording, time_steps, grid, by):
    counts = bin_events(recording, time_steps, by=by, grid=grid)
    assert counts.shape == (time_steps, 2, *grid)
    assert counts.dtype == torch.float32
    on = int(recording["p"].sum())
    assert counts.sum((0, 2, 3)).tolist() == [len(recording) - on, on]
    assert torch.equal(counts, counts.round())
    if by == "time":
        assert torch.equal(counts, slow_counts(recording, slow_steps(recording, time_steps), time_steps, grid))
    spread = bin_events(recording, time_steps, by=by, grid=grid, spread=True)
    torch.testing.assert_close(spread.sum((0, 2, 3)), counts.sum((0, 2, 3)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(spread.sum((1, 2, 3)), counts.sum((1, 2, 3)), rtol=1e-6, atol=1e-6)
    assert torch.equal(bin_events(recording, time_steps, by=by, grid=grid, binary=True), (counts > 0).float())


@QUICK
@given(recording=anything(), window=st.integers(1, 10**6))
def test_every_event_is_in_one_window(recording, window):
    if recording.duration_us // window < 1000:
        counts = bin_events(recording, by="window", window_us=window, grid=(1, 1))
        assert len(counts) == recording.duration_us // window + 1
        assert counts.sum() == len(recording)


@pytest.mark.parametrize("by", ["time", "count"])
@pytest.mark.parametrize("binary", [False, True])
def test_a_batch_is_its_recordings_one_by_one(by, binary):
    recordings = [recording_of(200, (34, 34), seed, ordered=seed % 2 == 0) for seed in range(4)]
    batch = bin_batch(recordings, 5, by=by, binary=binary)
    assert torch.equal(batch, torch.stack([bin_events(one, 5, by=by, binary=binary) for one in recordings]))


@pytest.mark.parametrize("by", ["time", "count"])
@pytest.mark.parametrize("grid", [(34, 34), (20, 30), (64, 50)])
def test_counts_on_a_device_are_the_same(by, grid):
    """The device's own way, on the CPU: events of several sensors, in and out of order, of any kind of numbers."""
    sizes = [(34, 34), (240, 180), (1280, 720), (40_000, 50_000)]
    recordings = [recording_of(50 * seed + 1, size, seed, ordered=by == "count") for seed, size in enumerate(sizes)]
    wide = np.dtype([("p", "<i4"), ("t", "<i8"), ("y", "<i4"), ("x", "<i4")])
    other = np.empty(len(recordings[1]), wide)
    for name in "xytp":
        other[name] = recordings[1][name]
    recordings.append(Recording(other, (240, 180)))
    given = count_on_device(recordings, 7, by, grid, torch.device("cpu"))
    assert torch.equal(given, torch.stack([bin_events(one, 7, by=by, grid=grid) for one in recordings]))


def test_a_batch_of_several_sensors_needs_a_grid():
    recordings = [recording_of(size=(34, 34)), recording_of(size=(240, 180))]
    batch = bin_batch(recordings, 5, grid=(20, 30))
    assert torch.equal(batch, torch.stack([bin_events(one, 5, grid=(20, 30)) for one in recordings]))
    with raises(InputError, field="grid", mentions=[(34, 34), (240, 180)]):
        bin_batch(recordings, 5)


def test_plain_events_with_a_size():
    recording = recording_of()
    assert torch.equal(bin_events(recording.events, 3, sensor_size=(240, 180)), bin_events(recording, 3))


def test_no_events_in_a_given_span():
    empty = Recording(make_events([], [], [], []), (4, 3))
    assert torch.equal(bin_events(empty, 5, start_us=0, stop_us=10), torch.zeros(5, 2, 3, 4))
    assert torch.equal(bin_events(empty, 5, by="count"), torch.zeros(5, 2, 3, 4))


@pytest.mark.parametrize(
    ("options", "field", "values"),
    [
        ({}, "time_steps", ["got None"]),
        ({"time_steps": 0}, "time_steps", ["from 1 to 1048576", "got 0"]),
        ({"time_steps": -3}, "time_steps", ["got -3"]),
        ({"time_steps": 2.5}, "time_steps", ["got 2.5"]),
        ({"time_steps": 2**30}, "time_steps", [2**30]),
        ({"time_steps": 4, "by": "luck"}, "by", ["'time', 'count' or 'window'", "'luck'"]),
        ({"time_steps": 4, "window_us": 5}, "window_us", ["by='time'", "got 5"]),
        ({"time_steps": 4, "by": "window"}, "window_us", ["by='window'", "got None"]),
        ({"by": "window", "window_us": 0}, "window_us", ["at least 1", "got 0"]),
        ({"by": "window", "window_us": 10, "time_steps": 3}, "stop_us", ["0 before and 4"]),
        ({"by": "window", "window_us": 10, "time_steps": 3, "stop_us": 10_000}, "time_steps", ["of 10 µs", "got 3"]),
        ({"time_steps": 4, "by": "count", "start_us": 0}, "start_us", ["by='count'", "(0, None)"]),
        ({"time_steps": 4, "start_us": 5000}, "start_us", ["from 5000 to", "and 0 after"]),
        ({"time_steps": 4, "stop_us": 5000}, "stop_us", ["to 5000 µs", "got 0 before and"]),
        ({"time_steps": 4, "start_us": 50, "stop_us": 50}, "stop_us", ["after start_us, 50", "got 50"]),
        ({"time_steps": 4, "grid": 0}, "grid", ["from 1 to 65536", "got 0"]),
        ({"time_steps": 4, "grid": (3,)}, "grid", ["(3,)"]),
        ({"time_steps": 4, "grid": 2.5}, "grid", ["2.5"]),
        ({"time_steps": 4, "grid": (3, 70000)}, "grid", ["(3, 70000)"]),
    ],
)
def test_invalid_options(options, field, values):
    with raises(InputError, field=field, mentions=values):
        bin_events(recording_of(span=10_000), **options)


@pytest.mark.parametrize(
    ("run", "field", "values"),
    [
        (lambda: bin_events(Recording(make_events([], [], [], []), (4, 3)), 5), "events", ["got none"]),
        (lambda: bin_events(recording_of().events, 5), "sensor_size", ["got None"]),
        (lambda: bin_events(np.zeros((5, 4)), 5, sensor_size=(4, 3)), "events", ["fields x, y, t, p", "(5, 4)"]),
        (lambda: bin_events(make_events([4], [0], [0], [0]), 5, sensor_size=(4, 3)), "events", ["4×3", "(4, 0)"]),
        (lambda: bin_events(make_events([0], [3], [0], [0]), 5, sensor_size=(4, 3)), "events", ["4×3", "(0, 3)"]),
        (lambda: bin_events(np.array([(0, 0, 0, 2)], EVENT), 5, sensor_size=(4, 3)), "p", ["2 to 2"]),
        (lambda: bin_batch([], 5), "recordings", ["at least one"]),
        (lambda: bin_batch([recording_of()], 5, by="window"), "by", ["'time' or 'count'", "'window'"]),
        (lambda: bin_batch([recording_of()], 0), "time_steps", ["got 0"]),
        (lambda: bin_events(recording_of(span=2**40), by="window", window_us=1), "window_us", ["1,048,576"]),
    ],
)
def test_invalid_recordings_and_batches(run, field, values):
    with raises(InputError, field=field, mentions=values):
        run()
