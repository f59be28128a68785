"""What stands around the network: frames, order, queue, rate, latency, sources and the run that joins them."""

import itertools
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ripe_mambaspike import write
from ripe_mambaspike.deploy.stream_latency import Latency
from ripe_mambaspike.deploy.stream_order import Sorter
from ripe_mambaspike.deploy.stream_packets import (
    DATAGRAM_EVENTS,
    Damage,
    Frame,
    FrameReader,
    read_frame,
    write_frame,
)
from ripe_mambaspike.deploy.stream_queue import EventQueue, Packet, RateLimiter
from ripe_mambaspike.deploy.stream_run import Limits, StreamRun
from ripe_mambaspike.deploy.stream_sources import FileSource, PipeSource, UdpSource, open_source, split
from ripe_mambaspike.deploy.streaming import Answer
from ripe_mambaspike.errors import InputError, ReadError
from ripe_mambaspike.events.recording import Recording, make_events

SENSOR = (20, 18)


def make(times, seed=0):
    rng = np.random.default_rng(seed)
    count = len(times)
    return make_events(rng.integers(0, 20, count), rng.integers(0, 18, count), times, rng.integers(0, 2, count))


def same(first, second):
    return first.dtype == second.dtype and first.tolist() == second.tolist()


# Frames


def test_a_frame_holds_its_events():
    events = make([-5, 7, 2**40])
    data = write_frame(events, SENSOR)
    assert len(data) == 16 + 3 * 13
    assert data[:4] == b"REVT"
    frame = read_frame(data)
    assert frame.sensor_size == SENSOR
    assert same(frame.events, events)
    assert len(write_frame(make(np.zeros(DATAGRAM_EVENTS, int)), SENSOR)) <= 65507


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d[:10], "10 bytes are shorter than a header"),
        (lambda d: b"EVNT" + d[4:], "the magic is b'EVNT'"),
        (lambda d: d[:4] + b"\x02" + d[5:], "the version is 2"),
        (lambda d: d[:6] + b"\0\0" + d[8:], "the sensor is 0×18"),
        (lambda d: d[:12] + b"\xff\xff\xff\xff" + d[16:], "the count is 4,294,967,295"),
        (lambda d: d[:-1], "a frame of 29 bytes came as 28"),
        (lambda d: d[:-1] + b"\x07", "a polarity is 7"),
        (lambda d: d[:-3] + b"\x12\0" + d[-1:], "an event lies outside the 20×18 sensor"),
        (lambda d: d[:16] + b"\xff" * 7 + b"\x7f" + d[24:], "a time is out of range"),
    ],
    ids=["short", "magic", "version", "sensor", "count", "length", "polarity", "outside", "time"],
)
def test_damage_is_named(change, said):
    assert read_frame(change(write_frame(make([3]), SENSOR))) == Damage(said)


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(
        st.one_of(
            st.integers(0, 5),
            st.binary(min_size=1, max_size=40),
            st.integers(4, 60).map(lambda cut: write_frame(make(range(4)), SENSOR)[:cut]),
            st.integers(0, 2**21).map(lambda count: counted(write_frame(make(range(3)), SENSOR), count)),
        ),
        max_size=8,
    ),
    cuts=st.lists(st.integers(0, 600), max_size=10),
)
def test_a_pipe_gives_the_same_frames_however_it_is_cut(parts, cuts):
    data = b"".join(part if isinstance(part, bytes) else write_frame(make(range(part)), SENSOR) for part in parts)

    def found(cuts):
        reader = FrameReader()
        bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        pieces = [data[a:b] for a, b in itertools.pairwise(bounds)]
        frames = [one for piece in pieces for one in reader.feed(piece)] + list(reader.end())
        return [one if isinstance(one, Damage) else (one.sensor_size, one.events.tolist()) for one in frames]

    assert found(cuts) == found([])


def counted(frame, count):
    """The frame with another count in its header."""
    return frame[:12] + count.to_bytes(4, "little") + frame[16:]


@pytest.mark.parametrize("count", [2**20, 4, 5, 12], ids=str)
@pytest.mark.parametrize("sizes", [(1000,), (7, 1)], ids=["whole", "pieces"])
def test_a_wrong_count_loses_one_frame(count, sizes):
    frames = [write_frame(make(range(10 * index, 10 * index + 3), index), SENSOR) for index in range(6)]
    frames[2] = counted(frames[2], count)
    assert heard_of(frames, sizes) == ([0, 10, 30, 40, 50], 1)


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(1, 54), min_size=2, max_size=2), size=st.integers(1, 80))
def test_frames_that_were_cut_take_no_neighbour_with_them(cuts, size):
    frames = [write_frame(make(range(10 * index, 10 * index + 3), index), SENSOR) for index in range(6)]
    frames[1], frames[4] = frames[1][: cuts[0]], frames[4][: cuts[1]]
    assert heard_of(frames, (size,)) == ([0, 20, 30, 50], 2)


def test_a_count_that_hid_frames_until_the_end():
    """Another sensor's frames look like records for long; nothing that came whole is lost for it."""
    frames = [counted(write_frame(make([5]), (60000, 60000)), 40), write_frame(make([7]), SENSOR)]
    assert heard_of(frames, (1000,)) == ([7], 1)


def heard_of(frames, sizes):
    """The first times of the frames that came through, and how many damages were told."""
    data, reader, found, first = b"".join(frames), FrameReader(), [], 0
    for size in itertools.cycle(sizes):
        found += reader.feed(data[first : first + size])
        first += size
        if first >= len(data):
            break
    found += reader.end()
    good = [one for one in found if isinstance(one, Frame)]
    return [int(one.events["t"][0]) for one in good], len(found) - len(good)


def test_after_garbage_the_next_frame_is_found():
    good = [write_frame(make(range(count)), SENSOR) for count in (3, 2)]
    reader = FrameReader()
    frames = list(reader.feed(good[0] + b"RRE" + b"x" * 100 + good[1]))
    assert [type(one) for one in frames] == [Frame, Damage, Frame]
    assert [len(one.events) for one in frames if isinstance(one, Frame)] == [3, 2]
    assert list(reader.feed(good[0][:30])) == []
    assert list(reader.end()) == [Damage("the stream ended inside a frame, after 30 of its bytes")]


def test_a_frame_that_cannot_be_written_is_refused():
    with pytest.raises(InputError, match="a width and a height from 1 to 65535"):
        write_frame(make([1]), (65536, 2))


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
    sorter = Sorter(tolerance_us=20)
    bounds = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    parts = [events[a:b] for a, b in itertools.pairwise(bounds)]
    out = [one.events for part in parts for one in sorter.push(part)] + [sorter.flush()]
    joined = np.concatenate(out)
    assert joined["t"].tolist() == sorted(times.tolist())
    assert sorted(joined.tolist()) == sorted(events.tolist())


def test_strays_are_counted_and_left_out():
    sorter = Sorter(leap_us=1000)
    assert len(sorter.push(make([10, 11, 12]))[0].events) == 3
    assert sorter.push(make([9_000_000])) == []  # doubted
    assert sorter.push(make([13, 5_000_000, 14]))[0].events["t"].tolist() == [13, 14]
    assert sorter.stray == 2


def test_a_clock_that_begins_anew_is_followed():
    sorter = Sorter(tolerance_us=5, leap_us=1000)
    sorter.push(make([50_000, 50_010]))
    assert sorter.push(make([3])) == []
    rest, new = sorter.push(make([4, 20]))
    assert rest.events["t"].tolist() == [50_010]
    assert (new.events["t"].tolist(), new.anew) == ([3, 4], True)
    assert sorter.flush()["t"].tolist() == [20]
    assert sorter.stray == 0


def test_a_source_that_was_quiet_has_not_leapt():
    sorter = Sorter(leap_us=1000)
    sorter.push(make([10]))
    assert sorter.push(make([60_000]), waited_us=60_000)[0].events["t"].tolist() == [60_000]


# Queue, rate, latency


def test_a_full_queue_drops_its_oldest():
    queue = EventQueue(10)
    for start in (0, 100, 200):
        assert queue.put(Packet(make(range(start, start + 4)), 0.0))
    assert queue.dropped == 4
    assert queue.get(0).events["t"][0] == 100
    assert queue.put(Packet(make(range(50)), 0.0))  # larger than the queue: kept alone
    assert queue.dropped == 8
    assert len(queue.get(0).events) == 50
    assert queue.get(0) is None


def test_a_queue_that_waits_loses_nothing():
    queue = EventQueue(10)
    packets = [make(range(4 * index, 4 * index + 4)) for index in range(50)]

    def fill():
        for packet in packets:
            queue.put(Packet(packet, 0.0), wait=True)
        queue.end()

    thread = threading.Thread(target=fill)
    thread.start()
    taken = []
    while not queue.over:
        if (packet := queue.get(5)) is not None:
            taken.append(packet.events)
    thread.join()
    assert np.concatenate(taken)["t"].tolist() == list(range(200))
    assert queue.dropped == 0
    assert queue.put(Packet(packets[0], 0.0)) is False


def test_the_rate_is_kept():
    now = [0.0]
    limiter = RateLimiter(100, clock=lambda: now[0])
    assert len(limiter.pass_on(make(range(150)))) == 100
    assert len(limiter.pass_on(make(range(10)))) == 0
    now[0] = 0.25
    assert limiter.pass_on(make(range(40)))["t"].tolist() == list(range(25))
    now[0] = 100.0
    assert len(limiter.pass_on(make(range(500)))) == 100
    assert limiter.dropped == 50 + 10 + 15 + 400


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-5, 50), min_size=1, max_size=200))
def test_percentiles_are_right_to_two_per_cent(seconds):
    latency = Latency()
    for one in seconds:
        latency.add(one)
    ordered = sorted(seconds)
    for share in (50, 95, 99):
        true = ordered[-(-len(ordered) * share // 100) - 1]
        assert true / 1.001 <= latency.percentile(share) <= true * 1.021
    assert latency.longest == max(seconds)


def test_no_answers_have_no_percentiles():
    assert Latency().percentile(95) is None


@pytest.mark.parametrize(
    ("make_it", "said"),
    [
        (lambda: EventQueue(0), "the queue is 0 events long"),
        (lambda: RateLimiter(-1), "the rate is -1 events/s; a number from 1 on"),
        (lambda: RateLimiter(float("nan")), "the rate is nan events/s"),
        (lambda: RateLimiter(float("inf")), "the rate is inf events/s; a number from 1 on"),
        (lambda: RateLimiter(0.9), "the rate is 0.9 events/s; a number from 1 on"),
        (lambda: run_with(Given([]), Limits(rate=5)), "a rate of 5 events/s is asked for at the pace fast"),
        (lambda: Sorter(-1), "the tolerance is -1 µs"),
        (lambda: Limits(stall_seconds=0), "the stall is 0 s"),
        (lambda: Limits(answers=0), "0 answers are asked for"),
    ],
    ids=["queue", "rate", "no rate", "endless rate", "small rate", "rate at fast", "tolerance", "stall", "answers"],
)
def test_limits_that_make_no_sense_are_refused(make_it, said):
    with pytest.raises(InputError, match=said):
        make_it()


# Sources


def test_a_recording_comes_in_packets(tmp_path):
    times = np.sort(np.random.default_rng(0).integers(0, 60_000, 3000))
    path = tmp_path / "one.npz"
    write(Recording(make(times), SENSOR), path)
    for pace in ("fast", "real"):
        source = open_source(str(path), pace=pace)
        assert isinstance(source, FileSource)
        packets = list(source.packets(lambda: False))
        assert same(np.concatenate(packets), make(times))
        assert source.size == SENSOR
        assert source.live == (pace == "real")
        spans = [int(packet["t"][-1] - packet["t"][0]) for packet in packets]
        assert max(spans) < (10_000 if pace == "real" else 60_000)


def test_a_format_without_a_size_has_the_readers(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("".join(f"{index} {index % 20} 5 1\n" for index in range(1000)))
    from ripe_mambaspike.events.reading import read

    assert open_source(str(path), pace="fast").size == read(path).sensor_size


def test_the_order_of_a_file_is_kept():
    events = make([5, 3, 25_000, 24_000, 60_000, 1])
    parts = list(split(events, 10_000, most=2))
    assert same(np.concatenate(parts), events)
    assert [len(part) for part in parts] == [2, 2, 2]


def test_a_pipe_is_read_to_its_end(tmp_path):
    path = tmp_path / "frames"
    other = write_frame(make_events([1], [1], [5], [0]), (30, 30))
    path.write_bytes(write_frame(make([1, 2]), SENSOR) + b"noise" * 9 + other + write_frame(make([3]), SENSOR))
    with path.open("rb") as file:
        source = PipeSource(file)
        assert [packet["t"].tolist() for packet in source.packets(lambda: False)] == [[1, 2], [3]]
    assert source.size == SENSOR
    assert source.refused == 2
    assert source.last_reason == "a sensor of 30×30 in a stream of 20×18"


@pytest.mark.parametrize("given", ["tcp://host:1", "udp://host", "udp://host:70000", "udp://:5", "udp://[::1:5"])
def test_sources_that_are_none(given):
    with pytest.raises(InputError, match=r"udp://HOST:PORT"):
        open_source(given)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ReadError, match="cannot be read"):
        open_source(str(tmp_path / "none.npz"))


# The run


class Echo:
    """A streamer that answers every packet at once."""

    def __init__(self, size=SENSOR):
        self.size, self.late, self.silent = size, 0, 0
        self.pushed, self.advanced, self.closed = [], [], 0

    def push(self, events):
        self.pushed.append(events["t"].tolist())
        return [Answer(0, 10, 4, 4, (1.0,), "one", 1.0, (0.1,) * 3, None, 0.01)]

    def advance(self, to_us):
        self.advanced.append(to_us)
        return []

    def settle(self):
        pass

    def close(self):
        self.closed += 1
        return []


class Given:
    """A source of ready packets."""

    def __init__(self, packets, live=False, pause=0.0, failure=None):
        self.live, self.refused, self.last_reason, self.size = live, 0, None, SENSOR
        self._packets, self._pause, self._failure = packets, pause, failure

    def packets(self, stopped):
        for packet in self._packets:
            yield packet
            if self._failure is not None:
                raise self._failure
            until = time.monotonic() + self._pause
            while not stopped() and time.monotonic() < until:
                time.sleep(0.005)


def run_with(source, limits=None, **options):
    echo, answers, said = Echo(), [], []
    run = StreamRun(source, lambda size: echo, limits or Limits(), answered=answers.append, says=said.append, **options)
    return echo, answers, said, run


def test_everything_reaches_the_network():
    echo, answers, said, run = run_with(Given([make([1, 2]), make([3]), make([4, 5, 6])]))
    summary = run.run()
    assert echo.pushed == [[1, 2], [3], [4, 5, 6]]
    assert (summary.events, summary.answers, len(answers), said) == (6, 3, 3, [])
    assert summary.latency_ms["p50"] == pytest.approx(10, rel=0.03)  # not live: what the answer took
    assert summary.dropped == {"queue": 0, "rate": 0, "late": 0, "stray": 0}


def test_it_stops_after_enough_answers():
    _, answers, _, run = run_with(Given([make([index]) for index in range(50)]), Limits(answers=7))
    assert run.run().answers == len(answers) == 7


def test_it_stops_when_asked():
    asked = []
    source = Given([make([1]), make([2])], live=True, pause=60)
    _, answers, _, run = run_with(source, asked_to_stop=lambda: bool(asked or answers))
    assert run.run().answers == 1


def test_a_stall_is_told_and_time_goes_on():
    source = Given([make([1000]), make([1_500_000])], live=True, pause=0.3)
    echo, _, said, run = run_with(source, Limits(stall_seconds=0.05))
    summary = run.run()
    assert summary.stalls >= 1
    assert said[0].startswith("no events for ")
    assert echo.advanced[:-1] == sorted(echo.advanced[:-1])
    assert echo.advanced[-1] == 1_500_001  # the end of the source
    assert echo.advanced[0] >= 51_000  # the newest event and the wall time since
    assert summary.events == 2


def test_a_new_clock_is_told():
    source = Given([make([10**9]), make([5]), make([6])], live=True)
    echo, _, said, run = run_with(source)
    assert run.run().restarts == 1
    assert echo.closed == 1
    assert echo.pushed == [[10**9], [5, 6]]
    assert said == ["the source's clock began anew; the windows in flight are given up"]


def test_the_end_closes_the_last_bin():
    echo, _, _, run = run_with(Given([make([1, 9]), make([4])]))
    run.run()
    assert echo.advanced == [10]
    broken, _, _, run = run_with(Given([make([1, 9])], failure=ReadError("one.npz is cut off")))
    with pytest.raises(ReadError):
        run.run()
    assert broken.advanced == []  # who knows what the rest was


def frames_over_a_port(frames, make_streamer, limits, **options):
    source = UdpSource("127.0.0.1", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in frames:
            sender.sendto(data, source.address)
    said = []
    run = StreamRun(source, make_streamer, limits, answered=lambda one: None, says=said.append, **options)
    return source, said, run


def refuse_small(size):
    if min(size) < 10:
        raise InputError(f"the sensor of {size[0]}×{size[1]} is too small")


@pytest.mark.parametrize("asked", [True, False], ids=["asked first", "made"])
def test_a_sensor_of_no_use_is_refused_and_the_stream_goes_on(asked):
    echo = Echo()

    def make_streamer(size):
        refuse_small(size)
        return echo

    small, empty = write_frame(make_events([1], [1], [1], [0]), (8, 8)), write_frame(make([]), (1, 1))
    frames = [empty, small, small, write_frame(make([1, 2]), SENSOR), small, write_frame(make([3]), SENSOR)]
    options = {"usable": refuse_small} if asked else {}
    source, said, run = frames_over_a_port(frames, make_streamer, Limits(answers=2), tell_refusals=True, **options)
    summary = run.run()
    assert echo.pushed == [[1, 2], [3]]
    assert source.size == SENSOR
    assert (summary.refused_packets, summary.last_refusal) == (3, "a sensor of 8×8 in a stream of 20×18")
    assert len(said) == 1
    assert "refused (" in said[0]


def test_a_sensor_that_was_asked_for_is_not_given_up(tmp_path):
    path = tmp_path / "frames"
    path.write_bytes(write_frame(make([1]), SENSOR))
    with path.open("rb") as file:
        source = PipeSource(file, sensor_size=(8, 8))
        with pytest.raises(InputError, match="8×8 is too small"):
            StreamRun(source, refuse_small, Limits(), answered=print, says=print)


@pytest.mark.parametrize(
    "data", [b"x" * 100, write_frame(make_events([1], [1], [1], [0]), (8, 8))], ids=["no", "small"]
)
def test_nothing_but_refusals_is_an_error(data, tmp_path):
    path, said = tmp_path / "frames", []
    path.write_bytes(data)
    with path.open("rb") as file:
        run = StreamRun(PipeSource(file), refuse_small, Limits(), answered=print, says=said.append, tell_refusals=True)
        with pytest.raises(InputError, match=r"none of its 1 packets could be used \(the last: the "):
            run.run()
    assert run.summary.refused_packets == 1
    assert [one[:22] for one in said] == ["a packet was refused ("]


def test_refusals_are_told_now_and_then(monkeypatch):
    monkeypatch.setattr("ripe_mambaspike.deploy.stream_run.TOLD_EVERY", 0.0)
    source = Given([make([1]), make([2]), make([3])], live=True, pause=0.2)
    _, answers, said, run = run_with(source, tell_refusals=True)

    def more(answer):
        answers.append(answer)
        source.refused, source.last_reason = 1000 * len(answers) - 999, f"reason {len(answers)}"

    run._answered = more
    run.run()
    assert said[:2] == ["a packet was refused (reason 1)", "1,001 packets were refused (the last: reason 2)"]
    assert len(said) == 3


def test_a_closed_standard_input_is_told(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="the source is - and standard input is closed"):
        open_source("-")


def test_drops_are_counted_by_kind():
    source = Given([make(range(100))], live=True)
    echo, _, _, run = run_with(source, Limits(rate=30))
    summary = run.run()
    assert echo.pushed == [list(range(30))]
    assert summary.dropped["rate"] == 70


def test_a_source_that_fails_is_an_error_after_what_came():
    echo, _, _, run = run_with(Given([make([1])], failure=ReadError("one.npz is cut off at byte 7")))
    with pytest.raises(ReadError, match="cut off at byte 7"):
        run.run()
    assert echo.pushed == [[1]]
    assert run.summary.events == 1


def test_datagrams_and_garbage_over_a_port():
    source = UdpSource("127.0.0.1", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in (b"", b"hello", write_frame(make([1, 2]), SENSOR), b"REVT", write_frame(make([3]), SENSOR)):
            sender.sendto(data, source.address)
    echo, _, _, run = run_with(source, Limits(answers=2))
    summary = run.run()
    assert echo.pushed == [[1, 2], [3]]
    assert (summary.refused_packets, summary.last_refusal) == (3, "4 bytes are shorter than a header")
    taken = UdpSource("127.0.0.1", 0)
    with pytest.raises(InputError, match=r"udp://127.0.0.1:\d+ cannot be opened"):
        UdpSource("127.0.0.1", taken.address[1])
