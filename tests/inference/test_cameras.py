"""Adapters of cameras, on the drivers' own types; the network stream of dv-processing, with its own writer."""

import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fuzz.targets.streams import dv_header, dv_packet
from packets import make, same

from raising import raises
from ripe_mambaspike import list_cameras, read, record
from ripe_mambaspike.errors import InputError, ReadError, RipeError
from ripe_mambaspike.events.evt_stream import EvtStreamDecoder
from ripe_mambaspike.events.formats.evt3 import encode_evt3
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.inference.stream.cameras.dv import DvSource
from ripe_mambaspike.inference.stream.cameras.inivation import InivationSource
from ripe_mambaspike.inference.stream.cameras.usb import BAD_TIMES, DROPPED, OVERFLOWS, UsbSource
from ripe_mambaspike.inference.stream.dv_protocol import DvStreamReader
from ripe_mambaspike.inference.stream.sequences import SequenceCounter
from ripe_mambaspike.inference.stream.source_registry import SOURCES, SourceOptions, find_source_kind
from ripe_mambaspike.inference.stream.sources import open_stream

DRIVER_EVENT = np.dtype([("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("on", "?")])  # of neuromorphic-drivers, packed


def driver_events(events):
    found = np.empty(len(events), DRIVER_EVENT)
    for ours, theirs in (("t", "t"), ("x", "x"), ("y", "y"), ("p", "on")):
        found[theirs] = events[ours]
    return found


class Device:
    """What `neuromorphic_drivers.open` returns, fed with recorded pairs of the driver's own status and packet."""

    def __init__(self, drivers, camera, pairs, failure=None):
        self._camera, self._pairs, self._failure, self.closed = camera, iter(pairs), failure, False

    def properties(self):
        return self._camera.Properties()

    def close(self):
        self.closed = True

    def __next__(self):
        try:
            return next(self._pairs)
        except StopIteration:
            if self._failure is not None:
                raise self._failure from None
            raise


def status(drivers, dropped, quiet=False):
    kinds = sys.modules["neuromorphic_drivers.status"]
    ring = kinds.RingStatus(1.0, 0, 1, False, 5, dropped)
    return kinds.RawStatus(2.0, None) if quiet else kinds.Status(2.0, ring)


def packet(kind, events, overflows=None, **beside):
    made = kind()
    for name in kind.__annotations__:
        setattr(made, name, [] if name == "frames" else None)
    made.polarity_events = None if events is None else driver_events(events)
    made.polarity_events_overflow_indices = overflows
    for name, value in beside.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def drivers():
    return pytest.importorskip("neuromorphic_drivers")


def test_an_evk4_over_usb(drivers, tmp_path):
    far = 1 << 40  # the camera's clock starts anywhere
    events = make(far + np.arange(500))
    pairs = [
        (status(drivers, 0, quiet=True), None),
        (status(drivers, 0), packet(drivers.Evt3Packet, events[:200])),
        (status(drivers, 3), packet(drivers.Evt3Packet, None)),
        (status(drivers, 7), packet(drivers.Evt3Packet, events[200:], np.array([5, 9], np.uint64))),
    ]
    device = Device(drivers, drivers.prophesee_evk4, pairs)
    source = UsbSource(device)
    assert source.size == (1280, 720)
    summary = record(source, tmp_path / "clip.raw")
    assert same(read(summary.path).events, events)
    assert summary.losses == {DROPPED: 7, OVERFLOWS: 2}
    assert summary.sensor_size == (1280, 720)
    assert device.closed


def test_a_davis_that_is_pulled_out(drivers, tmp_path):
    events = make([5, 6, 7])
    imu = np.zeros(3, np.dtype([("t", "<u8"), ("temperature", "<f4")]))
    triggers = np.zeros(2, np.dtype([("t", "<u8"), ("id", "u1")]))
    frame = drivers.Frame()
    pairs = [
        (
            status(drivers, 0),
            packet(drivers.Davis346Packet, events, imu_events=imu, trigger_events=triggers, frames=[frame]),
        )
    ]
    device = Device(drivers, drivers.inivation_davis346, pairs, RuntimeError("No such device (disconnected)"))
    kept = []
    with raises(InputError, "source"):
        record(UsbSource(device), tmp_path / "clip.raw", on_start=kept.append)
    assert same(read(tmp_path / "clip.raw").events, events)
    assert kept[0].other == {"IMU samples": 3, "triggers": 2, "frames": 1}
    assert kept[0].sensor_size == (346, 260)
    assert device.closed


def test_times_out_of_range_are_counted(drivers):
    made = packet(drivers.DvxplorerPacket, make([1, 2]))
    made.polarity_events["t"][1] = (1 << 64) - 1
    source = UsbSource(Device(drivers, drivers.inivation_dvxplorer, [(status(drivers, 0), made)]))
    (found,) = source.packets(lambda: False)
    assert found["t"].tolist() == [1]
    assert source.losses[BAD_TIMES] == 1


def test_a_camera_of_another_size_than_given(drivers):
    with raises(InputError, "sensor_size"):
        UsbSource(Device(drivers, drivers.prophesee_evk4, []), (128, 128))


def test_a_capture_of_dv_processing(tmp_path):
    """`MonoCameraRecording` is a capture as a camera is: batches of events, IMU samples and triggers, then it ends."""
    dv = pytest.importorskip("dv_processing")
    path = tmp_path / "clip.aedat4"
    first = 1_700_000_000_000_000
    events = make(first + np.arange(25_000))
    writer = dv.io.MonoCameraWriter(str(path), dv.io.MonoCameraWriter.DVSConfig("DVXplorer_1", (20, 18)))
    store = dv.EventStore()
    for x, y, t, p in events.tolist():
        store.push_back(t, x, y, bool(p))
    writer.writeEvents(store)
    writer.writeTrigger(dv.Trigger(first + 10, dv.TriggerType.EXTERNAL_SIGNAL_RISING_EDGE))
    del writer
    source = InivationSource(dv.io.MonoCameraRecording(str(path)))
    kept = []
    with raises(InputError, "source"):  # it ends as a camera that was pulled out
        record(source, tmp_path / "clip.raw", on_start=kept.append)
    assert same(read(tmp_path / "clip.raw").events, events)
    assert kept[0].other == {"triggers": 1}


@pytest.mark.parametrize(("scheme", "module"), [("usb", "neuromorphic_drivers"), ("inivation", "dv_processing")])
def test_without_the_extra(monkeypatch, scheme, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match="camera") as caught:
        open_stream(f"{scheme}://")
    assert caught.value.field == "source"
    found = list_cameras()
    assert len(found.problems) >= 1


def test_the_list_of_cameras(monkeypatch, drivers):
    dv = pytest.importorskip("dv_processing")
    listed = drivers.ListedDevice(drivers.Name.PROPHESEE_EVK4, drivers.Connection.USB_SUPER, "1:2", "00ABC", None)
    monkeypatch.setattr(drivers, "list_devices", lambda: [listed])
    model = SimpleNamespace(cameraModel=dv.io.camera.CameraModel.DVXPLORER, serialNumber="DXA1")
    monkeypatch.setattr(dv.io.camera, "discover", lambda: [model])
    found = list_cameras()
    assert {one.source for one in found.cameras} == {"usb://00ABC", "inivation://DXA1"}
    assert not found.problems
    assert all(find_source_kind(one.source) is not None for one in found.cameras)


# The network stream of dv-processing


WRITER = """
import sys, time
import dv_processing as dv

port, batches, each, pause, late = int(sys.argv[1]), *map(float, sys.argv[2:])
time.sleep(late)
writer = dv.io.NetworkWriter("127.0.0.1", port, dv.io.Stream.EventStream(0, "events", "CAM_1", (320, 240)))
while not writer.getClientCount():
    time.sleep(0.005)
at = 0
for _ in range(int(batches)):
    store = dv.EventStore()
    for _ in range(int(each)):
        store.push_back(10**15 + at, at % 320, at % 240, at % 2 == 0)
        at += 1
    while writer.getQueuedPacketCount() > 500:  # it loses packets without a word while 1,024 wait
        time.sleep(0.001)
    writer.writeEvents(store)
    time.sleep(pause)
while writer.getClientCount():  # an empty queue does not mean that all has been sent
    time.sleep(0.005)
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.mark.parametrize(
    ("batches", "each", "pause", "late"), [(5, 3, 0.01, 0), (3000, 2, 0, 0), (2, 60_000, 0, 0), (3, 10, 0.05, 1.0)]
)
def test_a_network_stream_of_dv_processing(tmp_path, batches, each, pause, late):
    """Small, bursty (the package's own reader drops packets beyond 1,000), large, and late writers."""
    pytest.importorskip("dv_processing")
    port = free_port()
    arguments = [str(port), *map(str, (batches, each, pause, late))]
    writer = subprocess.Popen([sys.executable, "-c", WRITER, *arguments])
    try:
        summary = record(f"dv://127.0.0.1:{port}", tmp_path / "clip.npz", events=batches * each)
    finally:
        writer.kill()
        writer.wait()
    found, at = read(summary.path), np.arange(batches * each)
    assert found.sensor_size == (320, 240)
    assert found["t"].tolist() == (10**15 + at).tolist()
    assert found["x"].tolist() == (at % 320).tolist()
    assert found["y"].tolist() == (at % 240).tolist()
    assert found["p"].tolist() == (at % 2 == 0).tolist()
    assert not summary.dropped


@pytest.mark.parametrize("suffix", [".raw", ".npy"])
def test_a_burst_of_a_dv_writer_waits_for_the_disk(tmp_path, suffix):
    """Far more events at once than the queue takes."""
    pytest.importorskip("dv_processing")
    port, count = free_port(), 60 * 5000
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(port), "60", "5000", "0", "0"])
    try:
        path = tmp_path / f"clip{suffix}"
        summary = record(f"dv://127.0.0.1:{port}", path, events=count, queue_events=20_000)
    finally:
        writer.kill()
        writer.wait()
    found, at = read(path, sensor_size=(320, 240)), np.arange(count)
    assert not summary.dropped
    assert summary.invalid_packets == 0
    assert found["t"].tolist() == (10**15 + at).tolist()
    assert found["x"].tolist() == (at % 320).tolist()


def test_a_dv_writer_that_ends_inside_a_packet_is_reported(tmp_path):
    """So it is seen when a writer exits before everything was sent: the protocol has no numbers and no end."""
    events = make(np.arange(300))
    sent = dv_header((20, 18)) + dv_packet(events[:200]) + dv_packet(events[200:])[:-100]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.sendall(sent)

        thread = threading.Thread(target=serve)
        thread.start()
        summary = record(DvSource("127.0.0.1", server.getsockname()[1]), tmp_path / "clip.raw")
        thread.join()
    assert same(read(summary.path).events, events[:200])
    assert summary.invalid_packets == 1


def test_a_dv_writer_that_goes_away_ends_the_recording(tmp_path):
    pytest.importorskip("dv_processing")
    port = free_port()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(port), "100000", "5", "0.002", "0"])
    began = []

    def watch():
        if not began:
            began.append(time.monotonic())
        elif time.monotonic() - began[0] > 1.5 and writer.poll() is None:
            writer.kill()
        return False

    summary = record(f"dv://127.0.0.1:{port}", tmp_path / "clip.raw", should_stop=watch)
    writer.wait()
    found = read(summary.path)
    assert len(found) == summary.events > 0
    assert found["t"].tolist() == (10**15 + np.arange(len(found))).tolist()


@pytest.mark.parametrize("sent", [b"", b"hello, this is no header at all"])
def test_a_server_that_is_no_dv_writer(tmp_path, sent):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            connection.sendall(sent)
            connection.close()

        threading.Thread(target=serve).start()
        with pytest.raises(RipeError):
            record(DvSource("127.0.0.1", server.getsockname()[1]), tmp_path / "clip.raw")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("header", "field"),
    [
        (dv_header((8, 8), compression=1), "compression"),
        (dv_header((8, 8), kind="FRME"), "stream"),
        (dv_header((0, 8)), "sensor_size"),
        (dv_header((8, 8))[:-40] + bytes(40), "sensor_size"),
        ((1 << 30).to_bytes(4, "little") + dv_header((8, 8))[4:], "header"),
    ],
)
def test_dv_headers_that_cannot_be_used(header, field):
    with raises(ReadError, field):
        list(DvStreamReader().feed(header))


def test_dv_packets():
    events = make([1, 2, 3])
    stream = dv_header((20, 18)) + dv_packet(events) * 2
    reader = DvStreamReader()
    found = [one for at in range(len(stream)) for one in reader.feed(stream[at : at + 1])]
    assert found[0] is None
    assert same(found[1], events)
    assert same(found[2], events)
    small = DvStreamReader()
    assert sum(len(one) for one in small.feed(dv_header((5, 18)) + dv_packet(events)) if one is not None) == (
        len(events) - small.outside
    )
    assert small.outside == np.count_nonzero(events["x"] >= 5)
    with raises(ReadError, "packet"):
        list(DvStreamReader().feed(dv_header((20, 18)) + dv_packet(events).replace(b"EVTS", b"EVTX")))


# EVT streams


def test_an_evt_stream_split_anywhere():
    events = make(np.sort(np.random.default_rng(0).integers(0, 40_000_000, 300)))
    data = b"".join(encode_evt3(Recording(events, (20, 18))))
    for size in (1, 3, 1000, len(data)):
        decoder = EvtStreamDecoder()
        found = [one for at in range(0, len(data), size) for one in decoder.feed(data[at : at + size])]
        assert same(np.concatenate([*found, *decoder.end()]), events)
        assert decoder.size == (20, 18)


def test_evt_words_without_a_header():
    events = make([4096, 5000])
    data = b"".join(encode_evt3(Recording(events, (20, 18))))
    words = data[data.index(b"% end\n") + 6 :]
    with raises(InputError, "sensor_size"):
        EvtStreamDecoder("evt3")
    with raises(InputError, "encoding"):
        EvtStreamDecoder("evt9", (20, 18))
    decoder = EvtStreamDecoder("evt3", (20, 18))
    assert same(np.concatenate(decoder.feed(words)), events)
    decoder.feed(b"\0")
    with raises(ReadError, "size"):
        decoder.end()
    small = EvtStreamDecoder("evt3", (1, 18))
    kept = np.concatenate(small.feed(words))
    assert len(kept) + sum(small.left_out.values()) == 2


def test_an_evt_stream_of_another_format():
    with raises(ReadError, "format"):
        EvtStreamDecoder().feed(b"% evt 9.0\n% end\nxx")


@pytest.mark.parametrize("given", ["nope://x", "dv://host", "tcp://1", "evt3://"])
def test_addresses_that_are_none(given):
    with raises(InputError, "source"):
        open_stream(given)


def test_words_of_an_unknown_sensor_are_refused_at_once():
    with raises(InputError, "sensor_size"):
        open_stream("evt3://127.0.0.1:0")
    source = open_stream("evt2://127.0.0.1:0", sensor_size=(640, 480))
    source.close()


def test_every_scheme_is_registered():
    assert {"udp", "tcp", "dv", "usb", "inivation", "evt2", "evt21", "evt3"} <= set(SOURCES)
    assert SourceOptions().pace == "real"


def test_a_sender_that_starts_again():
    counter = SequenceCounter()
    for number in (30_000, 30_001, 5, 6):
        assert not counter.count("one", number)
    assert not counter.losses()
    for number in (100, 102, 101, 102):
        counter.count("two", number)
    assert (counter.missing, counter.late, counter.doubled) == (0, 1, 1)
