"""A recording over a socket: what arrives is what the file has, what does not is counted."""

import socket
import threading
import time

import numpy as np
import pytest
from packets import SENSOR, make, same

from raising import raises
from ripe_mambaspike import write
from ripe_mambaspike.errors import InputError, ReadError
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.inference.stream.links import FRAME_EVENTS, UdpLink
from ripe_mambaspike.inference.stream.packets import DATAGRAM_EVENTS, write_packet
from ripe_mambaspike.inference.stream.send import RecordingSender
from ripe_mambaspike.inference.stream.sources import TcpSource, UdpSource

EVENTS = make(np.sort(np.random.default_rng(0).integers(5, 200_005, 30_000)))


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("sent") / "one.npz"
    write(Recording(EVENTS, SENSOR), path)
    return path


class Received:
    """What comes from a source, taken by a thread of its own."""

    def __init__(self, source):
        self.source, self.packets, self.end = source, [], threading.Event()
        self.thread = threading.Thread(target=self._take, daemon=True)
        self.thread.start()

    def _take(self):
        for events in self.source.packets(self.end.is_set):
            self.packets.append(events)

    def wait_for(self, count):
        until = time.monotonic() + 30
        while sum(map(len, self.packets)) < count:
            assert time.monotonic() < until, f"{sum(map(len, self.packets))} of {count} events came"
            time.sleep(0.005)

    @property
    def events(self):
        return np.concatenate(self.packets)

    def stop(self):
        self.end.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


def to(source):
    return f"{'tcp' if isinstance(source, TcpSource) else 'udp'}://127.0.0.1:{source.address[1]}"


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.parametrize("kind", [TcpSource, UdpSource])
def test_what_arrives_is_the_recording(recording, kind):
    source = kind("127.0.0.1", 0)
    received = Received(source)
    summary = RecordingSender(recording, to(source), speed=4).run()
    received.wait_for(len(EVENTS))
    assert same(received.events, EVENTS)
    assert (source.size, source.invalid, source.lost) == (SENSOR, 0, 0)
    assert (summary.events, summary.rounds, summary.lost) == (len(EVENTS), 1, {})
    assert summary.packets == len(received.packets)
    assert max(map(len, received.packets)) <= DATAGRAM_EVENTS
    if kind is TcpSource:
        received.thread.join(30)  # it ends by itself
        assert not received.thread.is_alive()
    received.stop()


@pytest.mark.parametrize(("speed", "seconds"), [(1.0, 0.2), (0.5, 0.4)])
def test_the_clock_of_the_recording_divided_by_the_speed(recording, speed, seconds):
    source = TcpSource("127.0.0.1", 0)
    received = Received(source)
    summary = RecordingSender(recording, to(source), speed=speed).run()
    received.stop()
    assert summary.seconds >= seconds - 0.001
    assert summary.behind_seconds < 10


def test_times_go_on_in_the_next_round(recording):
    source = TcpSource("127.0.0.1", 0)
    received = Received(source)
    sender = RecordingSender(recording, to(source), speed=50, loop=True, should_stop=lambda: sender.summary.rounds == 3)
    summary = sender.run()
    received.thread.join(30)
    events, duration = received.events, int(EVENTS["t"][-1] - EVENTS["t"][0]) + 1
    assert (summary.rounds, len(events)) == (3, 3 * len(EVENTS))
    for number, part in enumerate(np.split(events, 3)):
        assert (part["t"] == EVENTS["t"] + number * duration).all()
        assert (part["x"] == EVENTS["x"]).all()
    assert (np.diff(events["t"]) >= 0).all()


def test_events_that_nobody_gets_are_counted(recording):
    said = []
    sender = RecordingSender(
        recording, f"udp://127.0.0.1:{free_port(socket.SOCK_DGRAM)}", speed=50, on_message=said.append
    )
    with raises(InputError, field="to"):
        sender.run()
    assert sender.summary.events == sender.summary.packets == 0
    assert sender.summary.lost == {"Connection refused": len(EVENTS)}
    assert len(said) == 1


def test_a_udp_receiver_that_leaves_is_counted_exactly(recording):
    source = UdpSource("127.0.0.1", 0)
    received = Received(source)
    sender = RecordingSender(recording, to(source))
    thread = threading.Thread(target=sender.run)
    thread.start()
    received.wait_for(5000)
    received.stop()
    thread.join(30)
    came, lost = sum(map(len, received.packets)), sender.summary.lost["Connection refused"]
    assert sender.summary.events + lost == len(EVENTS)
    assert came <= sender.summary.events < len(EVENTS)


def test_datagrams_that_find_no_room_are_counted(recording):
    source = UdpSource("127.0.0.1", 0)
    sent = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        room = source._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        packet = write_packet(EVENTS[:4000], SENSOR)
        for _ in range(2 * room // len(packet) + 10):
            sender.sendto(packet, source.address)
            sent += 1
        received = Received(source)
        received.wait_for(4000)
        time.sleep(0.3)
        sender.sendto(packet, source.address)  # which says how many were dropped before it
        sent += 1
        time.sleep(0.3)
    received.stop()
    assert source.lost > 0
    assert len(received.packets) + source.lost == sent


def test_a_tcp_receiver_that_leaves_ends_the_sender(recording):
    source = TcpSource("127.0.0.1", 0)
    received = Received(source)
    sender = RecordingSender(recording, to(source), loop=True)
    failed = []

    def run():
        try:
            sender.run()
        except InputError as error:
            failed.append(error.field)

    thread = threading.Thread(target=run)
    thread.start()
    received.wait_for(3000)
    received.stop()
    thread.join(30)
    assert failed == ["to"]
    assert sender.summary.lost


@pytest.mark.slow
def test_a_receiver_that_does_not_read_makes_the_sender_wait_and_ctrl_c_ends_it(tmp_path):
    path = tmp_path / "long.npz"
    write(Recording(make(np.arange(200_000)), SENSOR), path)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sender = RecordingSender(
            path, f"tcp://127.0.0.1:{deaf.getsockname()[1]}", speed=100, loop=True, should_stop=stop.is_set
        )
        thread = threading.Thread(target=sender.run)
        thread.start()
        time.sleep(0.5)
        began = time.monotonic()
        stop.set()
        thread.join(30)
    assert time.monotonic() - began < 10
    assert sum(sender.summary.lost.values()) > 0  # the packet that could not be ended


def test_one_connection_at_a_time_and_the_next_one_after_it(recording):
    source = TcpSource("127.0.0.1", 0, keep_listening=True)
    received = Received(source)
    with socket.create_connection(source.address) as first:
        first.sendall(write_packet(EVENTS[:10], SENSOR))
        received.wait_for(10)
        with socket.create_connection(source.address) as second:
            assert second.recv(1) == b""  # closed at once
        assert source.invalid == 1
        first.sendall(write_packet(EVENTS[10:20], SENSOR)[:-1])  # cut off
    until = time.monotonic() + 30
    while source.invalid < 2 and time.monotonic() < until:
        time.sleep(0.005)
    RecordingSender(recording, to(source), speed=50).run()
    received.wait_for(10 + len(EVENTS))
    received.stop()
    assert source.invalid == 2
    assert same(received.events[10:], EVENTS)


def test_a_connection_without_a_packet_does_not_end_the_source(recording):
    source = TcpSource("127.0.0.1", 0)
    received = Received(source)
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(source.address) as other:
            other.sendall(data)
    RecordingSender(recording, to(source), speed=50).run()
    received.thread.join(30)
    assert same(received.events, EVENTS)
    assert source.invalid == 1


def test_datagrams_to_other_machines_fit_a_frame():
    from ripe_mambaspike.inference.stream.addresses import parse_address

    assert UdpLink(parse_address("udp://127.0.0.1:9", "to")).max_events == DATAGRAM_EVENTS
    assert (
        len(write_packet(EVENTS[:FRAME_EVENTS], SENSOR)) <= 1472 < len(write_packet(EVENTS[: FRAME_EVENTS + 1], SENSOR))
    )


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"to": "udp://127.0.0.1"}, "to"),
        ({"to": "http://127.0.0.1:5"}, "to"),
        ({"to": "udp://127.0.0.1:0"}, "to"),
        ({"to": "tcp://127.0.0.1:70000"}, "to"),
        ({"speed": 0.0}, "speed"),
        ({"speed": -1.0}, "speed"),
        ({"speed": float("nan")}, "speed"),
        ({"speed": float("inf")}, "speed"),
    ],
)
def test_what_cannot_be_sent(recording, given, field):
    with raises(InputError, field=field):
        RecordingSender(recording, **{"to": "udp://127.0.0.1:9", **given})


def test_no_receiver_and_no_file(recording, tmp_path):
    with raises(InputError, field="to", mentions="Connection refused"):
        RecordingSender(recording, f"tcp://127.0.0.1:{free_port(socket.SOCK_STREAM)}")
    with raises(ReadError, path=tmp_path / "none.npz"):
        RecordingSender(tmp_path / "none.npz", "udp://127.0.0.1:9")
    taken = TcpSource("127.0.0.1", 0)
    with raises(InputError, field="source", mentions=to(taken)):
        TcpSource("127.0.0.1", taken.address[1])
