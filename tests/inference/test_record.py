"""`record` writes what a source yields, in every format, bounded by time and number, and always a complete file."""

import os
import socket
import threading
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest
from fuzz.targets.streams import dv_header, dv_packet
from packets import SENSOR, make, same

from raising import raises
from ripe_mambaspike import read, record, write
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.registry import CHUNK_ENCODERS, ENCODERS
from ripe_mambaspike.inference.stream.cameras.dv import DvSource
from ripe_mambaspike.inference.stream.packets import write_packet
from ripe_mambaspike.inference.stream.send import RecordingSender
from ripe_mambaspike.inference.stream.sources import PipeSource, TcpSource, UdpSource


class Source:
    """Packets that were made before; then it ends, fails, or waits."""

    invalid, last_invalid = 0, None

    def __init__(self, packets, *, live=True, size=SENSOR, failure=None, wait=False):
        self.live, self.size, self._packets, self._failure, self._wait = live, size, packets, failure, wait
        self.losses, self.other = Counter(), Counter()

    def close(self):
        pass

    def packets(self, stopped):
        yield from self._packets
        while self._wait and not stopped():
            time.sleep(0.01)
        if self._failure is not None:
            raise self._failure


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    draws = np.random.default_rng(1)
    events = make(np.sort(draws.integers(3_000_000, 4_500_000, 30_000)))
    path = tmp_path_factory.mktemp("clip") / "clip.raw"
    return write(Recording(events, SENSOR), path), events


def pieces(events, count=7):
    return [events[bounds[0] : bounds[-1] + 1] for bounds in np.array_split(np.arange(len(events)), count)]


@pytest.mark.parametrize("suffix", ENCODERS)
def test_a_file_of_every_format_is_the_one_that_is_written_at_once(clip, tmp_path, suffix):
    _, events = clip
    summary = record(Source(pieces(events), live=False), tmp_path / f"out{suffix}")
    at_once = write(Recording(events, SENSOR), tmp_path / f"whole{suffix}")
    assert (tmp_path / f"out{suffix}").read_bytes() == at_once.read_bytes()
    assert same(read(summary.path, sensor_size=SENSOR).events, events)
    assert summary.events == len(events)
    assert (summary.first_us, summary.last_us) == (events["t"].min(), events["t"].max())
    assert summary.bytes == at_once.stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"out{suffix}", f"whole{suffix}"]


@pytest.mark.filterwarnings("ignore::ripe_mambaspike.events.recording.RecordingWarning")
@pytest.mark.parametrize("suffix", CHUNK_ENCODERS)
def test_pieces_with_long_gaps_wraps_and_steps_back(tmp_path, suffix):
    times = np.array([5, 5, 4000, 4100, 30_000_000, 30_000_001, 29_999_990, 70_000_000, 70_000_000])
    if suffix == ".bin":
        times.sort()
    events = make(times)
    path = tmp_path / f"out{suffix}"
    summary = record(Source([events[at : at + 1] for at in range(len(events))], live=False), path)
    assert same(read(path, sensor_size=SENSOR).events, events)
    assert summary.backwards == (0 if suffix == ".bin" else 1)


@pytest.mark.filterwarnings("ignore::ripe_mambaspike.events.recording.RecordingWarning")
def test_a_later_piece_may_begin_before_the_first_one(tmp_path):
    period = 1 << 24  # of the time in EVT 3.0
    events = make([period + 5, period - 5, period + 9])
    record(Source([events[:1], events[1:]], live=False), tmp_path / "out.raw")
    assert same(read(tmp_path / "out.raw").events, events)


def test_seconds_and_events(clip, tmp_path):
    path, events = clip
    summary = record(str(path), tmp_path / "a.raw", seconds=0.5, pace="fast")
    assert same(read(summary.path).events, events[events["t"] < events["t"][0] + 500_000])
    assert record(str(path), tmp_path / "b.raw", events=1234, pace="fast").events == 1234
    assert same(read(tmp_path / "b.raw").events, events[:1234])


def test_a_quiet_live_source_ends_by_the_wall_clock(clip, tmp_path):
    _, events = clip
    began = time.monotonic()
    summary = record(Source([events[:100]], wait=True), tmp_path / "a.raw", seconds=0.2)
    assert summary.events == 100
    assert time.monotonic() - began < 5


def test_crop_and_scale(clip, tmp_path):
    path, events = clip
    summary = record(str(path), tmp_path / "a.npz", crop=(4, 2, 12, 16), scale=(6, 4), pace="fast")
    inside = (events["x"] >= 4) & (events["x"] < 16) & (events["y"] >= 2)
    found = read(summary.path)
    assert found.sensor_size == summary.sensor_size == (6, 4)
    assert summary.source_size == SENSOR
    assert summary.dropped == {"outside the crop": int((~inside).sum())}
    assert found["x"].tolist() == ((events["x"][inside] - 4) // 2).tolist()
    assert found["y"].tolist() == ((events["y"][inside] - 2) // 4).tolist()
    few = record(str(path), tmp_path / "b.npz", crop=(4, 2, 12, 16), events=10, pace="fast")
    assert few.dropped.get("outside the crop", 0) < 40


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seconds": 0}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"events": 0}, "events"),
        ({"crop": (0, 0, 21, 1)}, "crop"),
        ({"scale": (40, 40)}, "scale"),
        ({"scale": (0, 4)}, "scale"),
        ({"queue_events": 0}, "queue_events"),
    ],
)
def test_options_that_cannot_be(clip, tmp_path, options, field):
    with raises(InputError, field):
        record(str(clip[0]), tmp_path / "a.raw", pace="fast", **options)
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_replaced_only_by_force(clip, tmp_path):
    out = tmp_path / "a.raw"
    out.write_bytes(b"kept")
    with raises(InputError, "out"):
        record(str(clip[0]), out, pace="fast")
    assert out.read_bytes() == b"kept"
    record(str(clip[0]), out, pace="fast", force=True)
    assert same(read(out).events, clip[1])
    with raises(InputError, "out"):
        record(str(clip[0]), tmp_path / "no" / "a.raw", pace="fast")
    with raises(InputError, "path"):
        record(str(clip[0]), tmp_path / "a.unknown", pace="fast")


@pytest.mark.parametrize("suffix", [".raw", ".npy", ".npz"])
def test_a_source_that_fails_leaves_what_came_before(clip, tmp_path, suffix):
    _, events = clip
    out = tmp_path / f"a{suffix}"
    gone = InputError.expected("source", "a camera that stays connected", "none")
    kept = []
    with raises(InputError, "source"):
        record(Source(pieces(events), live=False, failure=gone), out, on_start=kept.append)
    assert same(read(out, sensor_size=SENSOR).events, events)
    assert kept[0].events == len(events)
    assert kept[0].bytes == out.stat().st_size


def test_times_that_the_format_cannot_hold_leave_what_came_before(tmp_path):
    events = make([20_000_000, 20_000_001, 5])  # the camera's clock restarted
    with raises(InputError, "t"):
        record(Source([events[:2], events[2:]], live=False), tmp_path / "a.raw")
    assert same(read(tmp_path / "a.raw").events, events[:2])


@pytest.mark.parametrize("suffix", [".raw", ".npz"])
def test_without_events_nothing_is_written(tmp_path, suffix):
    with raises(InputError, "source"):
        record(Source([make([])], live=False), tmp_path / f"a{suffix}")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_keeps_what_was_written(clip, tmp_path, monkeypatch):
    _, events = clip
    written, real = [], os.write

    def fail_later(descriptor, data):
        if len(written) == 3:
            real(descriptor, data[:11])
            raise OSError(28, "No space left on device")
        written.append(len(data))
        return real(descriptor, data)

    parts = pieces(events)
    monkeypatch.setattr("ripe_mambaspike.events.recorder.os.write", fail_later)
    with raises(InputError, "out"):
        record(Source(parts, live=False), tmp_path / "a.raw")
    monkeypatch.undo()
    assert same(read(tmp_path / "a.raw").events, np.concatenate(parts[:3]))


def test_stopped(clip, tmp_path):
    _, events = clip
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    summary = record(Source(pieces(events), wait=True), tmp_path / "a.raw", should_stop=stop.is_set)
    assert same(read(summary.path).events, events)


@pytest.fixture
def slow_disk(monkeypatch):
    real = os.write

    def slow(descriptor, data):
        time.sleep(0.05)
        return real(descriptor, data)

    monkeypatch.setattr("ripe_mambaspike.events.recorder.os.write", slow)


@pytest.mark.usefixtures("slow_disk")
def test_a_slow_disk_is_counted(clip, tmp_path):
    _, events = clip
    parts, said = pieces(events, 20), []
    summary = record(Source(parts), tmp_path / "a.npy", queue_events=2 * len(parts[0]), on_message=said.append)
    assert summary.dropped["queue"] > 0
    assert summary.events + summary.dropped["queue"] == len(events)
    assert len(read(summary.path, sensor_size=SENSOR)) == summary.events
    assert len(said) == 1  # while it records, and once


@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize("suffix", [".raw", ".npy"])
@pytest.mark.parametrize("scheme", ["tcp", "dv", "pipe"])
def test_a_burst_makes_the_sender_wait_for_a_slow_disk(clip, tmp_path, scheme, suffix):
    """Sources that can wait lose nothing in a recording, at the pace of a live source, too."""
    _, events = clip
    parts, path = pieces(events, 20), tmp_path / f"a{suffix}"
    head, make_packet = (
        (dv_header(SENSOR), dv_packet) if scheme == "dv" else (b"", lambda part: write_packet(part, SENSOR))
    )
    data = head + b"".join(map(make_packet, parts))
    with socket.create_server(("127.0.0.1", 0)) as server:
        if scheme == "dv":
            source = DvSource("127.0.0.1", server.getsockname()[1])
            connect = lambda: server.accept()[0]  # noqa: E731
        elif scheme == "tcp":
            source = TcpSource("127.0.0.1", 0)
            connect = partial(socket.create_connection, source.address)
        else:
            reading, writing = socket.socketpair()
            source = PipeSource(reading.makefile("rb"))
            connect = lambda: writing  # noqa: E731

        def send():
            with connect() as connection:
                connection.sendall(data)

        thread = threading.Thread(target=send)
        thread.start()
        summary = record(source, path, queue_events=2 * len(parts[0]))
        thread.join()
    assert source.live
    assert not summary.dropped
    assert same(read(path, sensor_size=SENSOR).events, events)


@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize("suffix", [".raw", ".npy"])
def test_what_waits_when_a_recording_is_stopped_is_written(clip, tmp_path, suffix):
    _, events = clip
    drawn, path = [], tmp_path / f"a{suffix}"
    source = Source((drawn.append(part) or part for part in pieces(events, 20)), wait=True)
    summary = record(source, path, should_stop=lambda: len(drawn) == 20)
    assert summary.events == len(events)
    assert same(read(path, sensor_size=SENSOR).events, events)


@pytest.mark.usefixtures("slow_disk")
def test_seconds_end_by_the_clock_only_when_nothing_waits(clip, tmp_path):
    """All events of the first 0.1 s are there at once; writing them takes longer than that and the grace."""
    _, events = clip
    seconds = 0.1
    kept = events[events["t"] < events["t"][0] + seconds * 1e6]
    source = Source([*pieces(kept, 20)], wait=True)
    summary = record(source, tmp_path / "a.raw", seconds=seconds)
    assert same(read(summary.path).events, kept)


@pytest.mark.parametrize("kind", [TcpSource, UdpSource])
def test_what_is_sent_is_recorded_bit_for_bit(clip, tmp_path, kind):
    path, events = clip
    source = kind("127.0.0.1", 0)
    scheme = "tcp" if kind is TcpSource else "udp"
    sender = RecordingSender(path, f"{scheme}://127.0.0.1:{source.address[1]}", speed=5)
    thread = threading.Thread(target=sender.run)
    thread.start()
    summary = record(source, tmp_path / "copy.raw", events=len(events))
    thread.join()
    assert (tmp_path / "copy.raw").read_bytes() == path.read_bytes()
    assert not summary.dropped
    assert not summary.losses
    assert summary.sensor_size == SENSOR


@pytest.mark.parametrize("kind", ["pipe", "tcp"])
def test_the_bytes_of_a_raw_file_are_a_source(clip, tmp_path, kind):
    path, _ = clip
    data = path.read_bytes()
    if kind == "pipe":
        reading, writing = os.pipe()
        source = PipeSource(os.fdopen(reading, "rb"), "fast")
        sending = os.fdopen(writing, "wb")
    else:
        source = TcpSource("127.0.0.1", 0, "fast")
        connection = socket.create_connection(source.address)
        sending = connection.makefile("wb")

    def send():
        with sending:
            for at in range(0, len(data), 4321):
                sending.write(data[at : at + 4321])
        if kind == "tcp":
            connection.close()

    thread = threading.Thread(target=send)
    thread.start()
    record(source, tmp_path / "copy.raw")
    thread.join()
    assert (tmp_path / "copy.raw").read_bytes() == data


def test_memory_does_not_grow_with_the_recording(tmp_path):
    """The queue, and nothing else: a source that does not wait for the disk is made to."""
    import resource

    events = make(np.arange(100_000))
    record(Source([events], live=False), tmp_path / "a.raw", queue_events=100_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def many():
        for number in range(20):
            moved = events.copy()
            moved["t"] += 100_000 * number
            yield moved

    record(Source(many(), live=False), tmp_path / "b.raw", queue_events=100_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < 0.8 * 20 * events.nbytes


def test_numbered_datagrams_missing_late_and_doubled(tmp_path):
    source = UdpSource("127.0.0.1", 0)
    sent = [make([100 * number + 1], number) for number in range(8)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in (65533, 65534, 0, 65535, 0, 3):  # 1 and 2 never come, 65535 late, 0 twice
            sender.sendto(write_packet(sent[number % 8], SENSOR, number), source.address)
        sender.sendto(write_packet(sent[5], SENSOR), source.address)  # of an earlier version, without a number
    summary = record(source, tmp_path / "a.npy", events=6)
    assert summary.losses == {
        "datagrams missing in the sequence": 2,
        "datagrams that came late": 1,
        "datagrams that came twice": 1,
    }
