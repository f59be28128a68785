"""Bins that close while events arrive are those of `bin_events`, however the packets are cut."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.incremental import CellCounter, IncrementalBinner, RegularBins, edge_of
from ripe_mambaspike.events.recording import Recording, make_events

SENSOR = (13, 9)


def make(times, seed=0, sensor=SENSOR):
    rng = np.random.default_rng(seed)
    count = len(times)
    columns = (rng.integers(0, side, count) for side in sensor)
    return make_events(*columns, times, rng.integers(0, 2, count))


def closed_bins(events, cuts, span, time_steps, grid, until):
    binner = IncrementalBinner(SENSOR, RegularBins(span, time_steps), grid)
    bounds = [0, *sorted(cuts), len(events)]
    bins = [one for a, b in itertools.pairwise(bounds) for one in binner.push(events[a:b])]
    return binner, bins + list(binner.advance(until))


@settings(max_examples=80, deadline=None)
@given(
    times=st.lists(st.integers(0, 400), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=12),
    span=st.integers(7, 150),
    time_steps=st.integers(1, 7),
    grid=st.sampled_from([None, 4, (9, 13), (5, 8)]),
)
def test_any_packets_make_the_bins_of_the_whole_recording(times, cuts, span, time_steps, grid):
    events = make(np.sort(times))
    cuts = [min(cut, len(events)) for cut in cuts]
    first, last = int(events["t"][0]), int(events["t"][-1])
    spans = (last - first) // span + 1
    binner, bins = closed_bins(events, cuts, span, time_steps, grid, first + spans * span)
    assert binner.late == 0
    assert len(bins) == spans * time_steps
    for index in range(spans):
        start, mine = first + index * span, bins[index * time_steps : (index + 1) * time_steps]
        inside = Recording(events, SENSOR).crop(start, start + span)
        whole = bin_events(inside, time_steps, grid=grid, start_us=start, stop_us=start + span)
        np.testing.assert_array_equal(np.stack([one.counts for one in mine]), whole.numpy())
        assert [one.events for one in mine] == whole.sum((1, 2, 3)).tolist()


def test_edges_go_on_beyond_the_span_they_divide():
    assert [edge_of(100, 10, 3, index) for index in range(8)] == [100, 104, 107, 110, 114, 117, 120, 124]


def test_an_event_on_an_edge_belongs_to_the_later_bin():
    _, bins = closed_bins(make([0, 10]), [], 10, 1, None, 20)
    assert [(one.start_us, one.stop_us, one.events) for one in bins] == [(0, 10, 1), (10, 20, 1)]


def test_late_events_are_counted_and_left_out():
    binner = IncrementalBinner(SENSOR, RegularBins(10, 1))
    assert [one.events for one in binner.push(make([5, 26]))] == [1, 1 - 1]
    assert list(binner.push(make([24, 25, 27]))) == []  # 24 lies in a bin that has closed
    assert [one.events for one in binner.advance(40)] == [3]
    assert binner.late == 1


def test_a_packet_out_of_order_is_sorted():
    _, bins = closed_bins(make([21, 0, 13, 9]), [], 10, 1, None, 30)
    assert [one.events for one in bins] == [2, 1, 1]


def test_time_that_passes_closes_bins_only_after_the_first_event():
    binner = IncrementalBinner(SENSOR, RegularBins(10, 1))
    assert list(binner.advance(1000)) == []
    assert list(binner.push(make([3]))) == []
    assert [(one.start_us, one.events) for one in binner.advance(23)] == [(3, 1), (13, 0)]


def test_restart():
    binner = IncrementalBinner(SENSOR, RegularBins(10, 1))
    assert list(binner.push(make([500, 501]))) == []
    binner.restart()
    assert list(binner.push(make([7]))) == []
    assert [(one.start_us, one.events) for one in binner.advance(17)] == [(7, 1)]


def test_many_events_are_counted_in_pieces():
    events = make(np.zeros(100_000, np.int64))
    counter = CellCounter(SENSOR, 4)
    for part in np.array_split(events, 7):
        counter.add(part)
    assert counter.events == 100_000
    np.testing.assert_array_equal(counter.take(), bin_events(events, 1, grid=4, sensor_size=SENSOR)[0].numpy())
    assert counter.events == 0
    assert counter.take().sum() == 0


@pytest.mark.parametrize(
    ("events", "values"),
    [
        (make_events([13], [0], [0], [0]), ["13×9 sensor", "(13, 0)"]),
        (np.zeros(3), ["one-dimensional array with the fields x, y, t, p"]),
    ],
    ids=["outside", "plain numbers"],
)
def test_what_is_no_event_of_this_sensor_is_refused(events, values):
    binner = IncrementalBinner(SENSOR, RegularBins(10, 1))
    with raises(InputError, field="events", mentions=values):
        list(binner.push(events))


def test_bins_shorter_than_a_microsecond_are_refused():
    with raises(InputError, field="time_steps", mentions=["5 µs", "got 6"]):
        RegularBins(5, 6)
