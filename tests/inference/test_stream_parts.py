"""The parts between a source and the network: packets, sorting, queue, rate and latency."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packets import SENSOR, make, same

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.inference.stream.buffering import EventQueue, EventSorter, QueuedPacket, RateLimiter
from ripe_mambaspike.inference.stream.packets import (
    DATAGRAM_EVENTS,
    EventPacket,
    InvalidPacket,
    PacketReader,
    read_packet,
    write_packet,
)
from ripe_mambaspike.inference.stream.summary import LatencyHistogram, StreamLimits

# Frames


def test_a_frame_holds_its_events():
    events = make([-5, 7, 2**40])
    data = write_packet(events, SENSOR)
    assert len(data) == 16 + 3 * 13
    assert data[:4] == b"REVT"
    frame = read_packet(data)
    assert frame.sensor_size == SENSOR
    assert same(frame.events, events)
    assert len(write_packet(make(np.zeros(DATAGRAM_EVENTS, int)), SENSOR)) <= 65507


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d[:10], "10 bytes are shorter than a header"),
        (lambda d: b"EVNT" + d[4:], "the magic is b'EVNT'"),
        (lambda d: d[:4] + b"\x03" + d[5:], "the version is 3"),
        (lambda d: d[:6] + b"\0\0" + d[8:], "the sensor is 0×18"),
        (lambda d: d[:12] + b"\xff\xff\xff\xff" + d[16:], "the count is 4,294,967,295"),
        (lambda d: d[:-1], "a packet of 29 bytes came as 28"),
        (lambda d: d[:-1] + b"\x07", "a polarity is 7"),
        (lambda d: d[:-3] + b"\x12\0" + d[-1:], "an event lies outside the 20×18 sensor"),
        (lambda d: d[:16] + b"\xff" * 7 + b"\x7f" + d[24:], "a time is out of range"),
    ],
    ids=["short", "magic", "version", "sensor", "count", "length", "polarity", "outside", "time"],
)
def test_damage_is_named(change, said):
    assert read_packet(change(write_packet(make([3]), SENSOR))) == InvalidPacket(said)


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(
        st.one_of(
            st.integers(0, 5),
            st.binary(min_size=1, max_size=40),
            st.integers(4, 60).map(lambda cut: write_packet(make(range(4)), SENSOR)[:cut]),
            st.integers(0, 2**21).map(lambda count: counted(write_packet(make(range(3)), SENSOR), count)),
        ),
        max_size=8,
    ),
    cuts=st.lists(st.integers(0, 600), max_size=10),
)
def test_a_pipe_gives_the_same_frames_however_it_is_cut(parts, cuts):
    data = b"".join(part if isinstance(part, bytes) else write_packet(make(range(part)), SENSOR) for part in parts)

    def found(cuts):
        reader = PacketReader()
        bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        pieces = [data[a:b] for a, b in itertools.pairwise(bounds)]
        frames = [one for piece in pieces for one in reader.feed(piece)] + list(reader.end())
        return [one if isinstance(one, InvalidPacket) else (one.sensor_size, one.events.tolist()) for one in frames]

    assert found(cuts) == found([])


def counted(frame, count):
    """The frame with another count in its header."""
    return frame[:12] + count.to_bytes(4, "little") + frame[16:]


@pytest.mark.parametrize("count", [2**20, 4, 5, 12], ids=str)
@pytest.mark.parametrize("sizes", [(1000,), (7, 1)], ids=["whole", "pieces"])
def test_a_wrong_count_loses_one_frame(count, sizes):
    frames = [write_packet(make(range(10 * index, 10 * index + 3), index), SENSOR) for index in range(6)]
    frames[2] = counted(frames[2], count)
    assert read_back(frames, sizes) == ([0, 10, 30, 40, 50], 1)


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(1, 54), min_size=2, max_size=2), size=st.integers(1, 80))
def test_frames_that_were_cut_take_no_neighbour_with_them(cuts, size):
    frames = [write_packet(make(range(10 * index, 10 * index + 3), index), SENSOR) for index in range(6)]
    frames[1], frames[4] = frames[1][: cuts[0]], frames[4][: cuts[1]]
    assert read_back(frames, (size,)) == ([0, 20, 30, 50], 2)


def test_a_count_that_hid_frames_until_the_end():
    """Another sensor's frames look like records for long; nothing that came whole is lost for it."""
    frames = [counted(write_packet(make([5]), (60000, 60000)), 40), write_packet(make([7]), SENSOR)]
    assert read_back(frames, (1000,)) == ([7], 1)


def read_back(frames, sizes):
    """The first times of the frames that came through, and how many damages were told."""
    data, reader, found, first = b"".join(frames), PacketReader(), [], 0
    for size in itertools.cycle(sizes):
        found += reader.feed(data[first : first + size])
        first += size
        if first >= len(data):
            break
    found += reader.end()
    good = [one for one in found if isinstance(one, EventPacket)]
    return [int(one.events["t"][0]) for one in good], len(found) - len(good)


def test_after_garbage_the_next_frame_is_found():
    good = [write_packet(make(range(count)), SENSOR) for count in (3, 2)]
    reader = PacketReader()
    frames = list(reader.feed(good[0] + b"RRE" + b"x" * 100 + good[1]))
    assert [type(one) for one in frames] == [EventPacket, InvalidPacket, EventPacket]
    assert [len(one.events) for one in frames if isinstance(one, EventPacket)] == [3, 2]
    assert list(reader.feed(good[0][:30])) == []
    assert list(reader.end()) == [InvalidPacket("the stream ended inside a packet, after 30 of its bytes")]


def test_a_frame_that_cannot_be_written_is_refused():
    with raises(InputError, field="sensor_size", mentions=(65535, 65536)):
        write_packet(make([1]), (65536, 2))


# Order


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(st.integers(0, 30), min_size=1, max_size=50),
    noise=st.lists(st.integers(0, 20), min_size=50, max_size=50),
    cuts=st.lists(st.integers(0, 50), max_size=6),
)
def test_disorder_within_the_tolerance_is_undone(steps, noise, cuts):
    times = np.cumsum(steps)
    came = np.argsort(times + noise[: len(times)], kind="stable")  # delayed by up to 20
    events = make(times)[came]
    sorter = EventSorter(tolerance_us=20)
    bounds = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    parts = [events[a:b] for a, b in itertools.pairwise(bounds)]
    out = [one.events for part in parts for one in sorter.push(part)] + [sorter.flush()]
    joined = np.concatenate(out)
    assert joined["t"].tolist() == sorted(times.tolist())
    assert sorted(joined.tolist()) == sorted(events.tolist())


def test_strays_are_counted_and_left_out():
    sorter = EventSorter(max_jump_us=1000)
    assert len(sorter.push(make([10, 11, 12]))[0].events) == 3
    assert sorter.push(make([9_000_000])) == []  # doubted
    assert sorter.push(make([13, 5_000_000, 14]))[0].events["t"].tolist() == [13, 14]
    assert sorter.stray == 2


def test_a_clock_that_restarts_is_followed():
    sorter = EventSorter(tolerance_us=5, max_jump_us=1000)
    sorter.push(make([50_000, 50_010]))
    assert sorter.push(make([3])) == []
    rest, new = sorter.push(make([4, 20]))
    assert rest.events["t"].tolist() == [50_010]
    assert (new.events["t"].tolist(), new.restarted) == ([3, 4], True)
    assert sorter.flush()["t"].tolist() == [20]
    assert sorter.stray == 0


def test_a_source_that_was_quiet_has_not_leapt():
    sorter = EventSorter(max_jump_us=1000)
    sorter.push(make([10]))
    assert sorter.push(make([60_000]), waited_us=60_000)[0].events["t"].tolist() == [60_000]


# Queue, rate, latency


def test_a_full_queue_drops_its_oldest():
    queue = EventQueue(10)
    for start in (0, 100, 200):
        assert queue.put(QueuedPacket(make(range(start, start + 4)), 0.0))
    assert queue.dropped == 4
    assert queue.get(0).events["t"][0] == 100
    assert queue.put(QueuedPacket(make(range(50)), 0.0))  # larger than the queue: kept alone
    assert queue.dropped == 8
    assert len(queue.get(0).events) == 50
    assert queue.get(0) is None


def test_a_queue_that_waits_loses_nothing():
    queue = EventQueue(10)
    packets = [make(range(4 * index, 4 * index + 4)) for index in range(50)]

    def fill():
        for packet in packets:
            queue.put(QueuedPacket(packet, 0.0), wait=True)
        queue.end()

    thread = threading.Thread(target=fill)
    thread.start()
    taken = []
    while not queue.drained:
        if (packet := queue.get(5)) is not None:
            taken.append(packet.events)
    thread.join()
    assert np.concatenate(taken)["t"].tolist() == list(range(200))
    assert queue.dropped == 0
    assert queue.put(QueuedPacket(packets[0], 0.0)) is False


def test_the_rate_is_kept():
    now = [0.0]
    limiter = RateLimiter(100, clock=lambda: now[0])
    assert len(limiter.limit(make(range(150)))) == 100
    assert len(limiter.limit(make(range(10)))) == 0
    now[0] = 0.25
    assert limiter.limit(make(range(40)))["t"].tolist() == list(range(25))
    now[0] = 100.0
    assert len(limiter.limit(make(range(500)))) == 100
    assert limiter.dropped == 50 + 10 + 15 + 400


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-5, 50), min_size=1, max_size=200))
def test_percentiles_are_right_to_two_per_cent(seconds):
    latency = LatencyHistogram()
    for one in seconds:
        latency.add(one)
    ordered = sorted(seconds)
    for share in (50, 95, 99):
        true = ordered[-(-len(ordered) * share // 100) - 1]
        assert true / 1.001 <= latency.percentile(share) <= true * 1.021
    assert latency.longest == max(seconds)


def test_no_predictions_have_no_percentiles():
    assert LatencyHistogram().percentile(95) is None


@pytest.mark.parametrize(
    ("make_it", "field", "mentions"),
    [
        (lambda: EventQueue(0), "queue_events", (0, 1)),
        (lambda: RateLimiter(-1), "max_rate", (-1, "at least 1")),
        (lambda: RateLimiter(float("nan")), "max_rate", ("nan",)),
        (lambda: RateLimiter(float("inf")), "max_rate", ("inf", "at least 1")),
        (lambda: RateLimiter(0.9), "max_rate", (0.9, "at least 1")),
        (lambda: EventSorter(-1), "tolerance_us", (-1,)),
        (lambda: StreamLimits(stall_seconds=0), "stall_seconds", (0,)),
        (lambda: StreamLimits(max_predictions=0), "max_predictions", (0,)),
    ],
    ids=["queue", "rate", "no rate", "endless rate", "small rate", "tolerance", "stall", "predictions"],
)
def test_limits_out_of_range_are_refused(make_it, field, mentions):
    with raises(InputError, field=field, mentions=mentions):
        make_it()
