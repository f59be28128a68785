"""`--format` of the commands that play recordings: files without a header, and sources that are none."""

import asyncio
import json
import threading

import numpy as np
import pytest

from raising import raises
from recorded_stream import SENSOR, draw_events, save_network
from ripe_mambaspike import load, read, record, write
from ripe_mambaspike.errors import InputError, ReadError
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.inference.stream.send import RecordingSender
from ripe_mambaspike.inference.stream.sources import TcpSource, open_stream

FAST = ("--window", "40", "--hop", "20", "--pace", "fast", "--json")
LIVE = (
    "tcp://127.0.0.1:0",
    "udp://127.0.0.1:0",
    "evt3://127.0.0.1:0",
    "dv://127.0.0.1:9",
    "usb://",
    "inivation://",
    "-",
)
ANSWER = ("start_us", "stop_us", "label", "probabilities")


@pytest.fixture(scope="module")
def events():
    return draw_events()


@pytest.fixture(scope="module")
def whole(events, tmp_path_factory):
    return write(Recording(events, SENSOR), tmp_path_factory.mktemp("whole") / "clip.raw")


@pytest.fixture(scope="module")
def bare(whole, events, tmp_path_factory):
    """The same events as EVT 3.0 and as DAT, both without a header."""
    folder = tmp_path_factory.mktemp("bare")
    data = whole.read_bytes()
    (folder / "clip.raw").write_bytes(data[data.index(b"% end\n") + len(b"% end\n") :])
    words = np.zeros(len(events), [("t", "<u4"), ("address", "<u4")])
    words["t"] = events["t"]
    x, y, p = (events[name].astype(np.uint32) for name in "xyp")
    words["address"] = x | y << 14 | p << 28
    (folder / "clip.dat").write_bytes(words.tobytes())
    return {"evt3": folder / "clip.raw", "dat": folder / "clip.dat"}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return save_network(tmp_path_factory.mktemp("net"))


@pytest.mark.parametrize("format", ["evt3", "dat"])
def test_a_stream_of_a_file_without_a_header(ripe, refused, network, whole, bare, format):
    wanted = ripe("stream", network, "--source", whole, *FAST)
    found = ripe("stream", network, "--source", bare[format], *FAST, "--format", format)
    assert (wanted.code, found.code) == (0, 0)
    rows, others = ([json.loads(line) for line in one.out.splitlines()[:-1]] for one in (wanted, found))
    assert [[row[name] for name in ANSWER] for row in rows] == [[row[name] for name in ANSWER] for row in others]
    assert rows
    refused(["stream", network, "--source", bare[format], *FAST], str(bare[format]))


@pytest.mark.parametrize("format", ["evt3", "dat"])
def test_sending_a_file_without_a_header(bare, events, tmp_path, format):
    source = TcpSource("127.0.0.1", 0)
    to = f"tcp://127.0.0.1:{source.address[1]}"
    sender = RecordingSender(bare[format], to, speed=50, sensor_size=SENSOR, format=format)
    thread = threading.Thread(target=sender.run)
    thread.start()
    record(source, tmp_path / "copy.npz")
    thread.join()
    assert read(tmp_path / "copy.npz").events.tolist() == events.tolist()
    assert sender.summary.sensor_size == SENSOR


@pytest.mark.parametrize("format", ["evt3", "dat"])
def test_recording_a_file_without_a_header(ripe, refused, bare, events, tmp_path, format):
    words = ("record", "--source", bare[format], "--pace", "fast", "--sensor-size", *SENSOR, "--out")
    assert ripe(*words, tmp_path / "a.npz", "--format", format).code == 0
    assert read(tmp_path / "a.npz").events.tolist() == events.tolist()
    refused([*words, tmp_path / "b.npz"], str(bare[format]))


@pytest.mark.parametrize("format", ["evt3", "dat"])
def test_serving_files_without_a_header(network, bare, events, tmp_path, format):
    pytest.importorskip("starlette", reason="starlette is not installed (the extra serve)")
    from ripe_mambaspike.live.library import RecordingLibrary
    from ripe_mambaspike.live.serve import make_service

    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / bare[format].name).write_bytes(bare[format].read_bytes())

    def opened(**given):
        made = make_service(load(network), recordings=tmp_path / "clips", window_ms=40, **given)
        library = RecordingLibrary(made.listed, tmp_path, made.network, made.worker, made.limits, made.format)
        return asyncio.run(library.open(0)).recording, library, made

    recording, library, _ = opened(format=format)
    assert recording.events.tolist() == events.tolist()
    assert recording.sensor_size == SENSOR
    with raises(ReadError):  # an upload is still recognized by its content
        asyncio.run(library.add_upload(bare[format], "clip"))
    with raises(ReadError):
        opened()
    live = make_service(load(network), source=str(bare[format]), window_ms=40, format=format).live
    assert live is not None
    assert live.size == SENSOR


@pytest.mark.parametrize("source", LIVE)
def test_a_format_of_a_source_that_is_no_file(refused, network, tmp_path, source):
    with raises(InputError, "format"):
        open_stream(source, format="dat")
    with raises(InputError, "format"):
        record(source, tmp_path / "a.raw", format="dat")
    refused(["record", "--source", source, "--out", tmp_path / "a.raw", "--format", "dat"], "--format", source)
    refused(["stream", network, "--source", source, "--window", "40", "--format", "dat"], "--format", source)
    assert not list(tmp_path.glob("a*"))


def test_a_format_of_a_live_source_of_the_page(refused, network, tmp_path):
    pytest.importorskip("starlette", reason="starlette is not installed (the extra serve)")
    words = ["serve", network, "--window", "40", "--format"]
    refused([*words, "dat", "--source", "udp://127.0.0.1:0"], "--format", "udp://127.0.0.1:0")
    refused([*words, "dat", "--source", "udp://127.0.0.1:0", "--recordings", tmp_path], "--format", "udp://127.0.0.1:0")
    refused([*words, "dat"], "--format", "neither")
    refused([*words, "data", "--recordings", tmp_path], "--format", "'data'")


def test_an_opened_source_has_no_format(whole, tmp_path):
    with raises(InputError, "format"):
        record(open_stream(str(whole), pace="fast"), tmp_path / "a.raw", format="evt3")


def test_formats_that_are_not_known(refused, network, bare, tmp_path):
    named = ("--format", "data")
    refused(["stream", network, "--source", bare["dat"], "--window", "40", *named], "--format", "'data'")
    refused(["send", bare["dat"], "--to", "udp://127.0.0.1:9", *named], "--format", "'data'")
    refused(["record", "--source", bare["dat"], "--out", tmp_path / "a.raw", *named], "--format", "'data'")


def test_words_without_a_header_need_a_sensor(refused, bare, tmp_path):
    named = ("--format", "evt3")
    refused(["send", bare["evt3"], "--to", "udp://127.0.0.1:9", *named], "sensor_size")
    refused(["record", "--source", bare["evt3"], "--out", tmp_path / "a.raw", *named], "sensor_size")
