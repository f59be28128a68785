"""`ripe record`: what it prints, how it ends, and cameras in `ripe stream`."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from fuzz.targets.streams import dv_header, dv_packet

from recorded_stream import SENSOR, draw_events, save_network
from ripe_mambaspike import read, write
from ripe_mambaspike.events.recording import Recording


@pytest.fixture(scope="module")
def events():
    return draw_events()


@pytest.fixture(scope="module")
def clip(events, tmp_path_factory):
    return write(Recording(events, SENSOR), tmp_path_factory.mktemp("clip") / "clip.raw")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return save_network(tmp_path_factory.mktemp("net"))


def test_a_recording_as_a_source(ripe, clip, events, tmp_path):
    result = ripe("record", "--source", clip, "--pace", "fast", "--out", tmp_path / "a.npz", "--json")
    assert result.code == 0
    document = json.loads(result.out)
    assert (document["events"], document["duration_us"], document["sensor_size"]) == (4000, 100_000, list(SENSOR))
    assert np.array_equal(read(tmp_path / "a.npz").events, events)
    shown = ripe("record", "--source", clip, "--pace", "fast", "--out", tmp_path / "b.raw", "--crop", 0, 0, 10, 18)
    assert shown.code == 0
    assert "10×18" in shown.out
    assert "20×18" in shown.out


@pytest.mark.parametrize(
    "words",
    [
        ("--out", "a.raw"),
        ("--source", "-"),
        ("--source", "nope://", "--out", "a.raw"),
        ("--source", "none.raw", "--out", "a.raw"),
        ("--source", "none.raw", "--out", "a.xyz"),
    ],
)
def test_what_cannot_be_recorded(ripe, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    result = ripe("record", *words)
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_list(ripe, monkeypatch):
    drivers, dv = pytest.importorskip("neuromorphic_drivers"), pytest.importorskip("dv_processing")
    monkeypatch.setattr(drivers, "list_devices", list)
    monkeypatch.setattr(dv.io.camera, "discover", list)
    result = ripe("record", "--list")
    assert (result.code, result.err) == (0, "")
    assert result.out
    listed = drivers.ListedDevice(drivers.Name.PROPHESEE_EVK4, drivers.Connection.USB_SUPER, "1:2", "00ABC", None)
    monkeypatch.setattr(drivers, "list_devices", lambda: [listed])
    assert "usb://00ABC" in ripe("record", "--list").out
    assert json.loads(ripe("record", "--list", "--json").out)["cameras"][0]["serial"] == "00ABC"


def test_the_list_without_the_extra(ripe, monkeypatch):
    for module in ("neuromorphic_drivers", "dv_processing"):
        monkeypatch.setitem(sys.modules, module, None)
    result = ripe("record", "--list")
    assert result.code == 2
    assert "ripe-mambaspike[camera]" in result.err


def test_ctrl_c_leaves_a_complete_file(clip, events, tmp_path):
    """A pipe that stays open, as a camera does."""
    out = tmp_path / "a.raw"
    command = [sys.executable, "-m", "ripe_mambaspike", "record", "--source", "-", "--out", str(out), "--json"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(clip.read_bytes())
    process.stdin.flush()
    partial = tmp_path.glob(".a.raw.*")
    end = time.monotonic() + 30
    while not any(path.stat().st_size == clip.stat().st_size for path in partial) and time.monotonic() < end:
        time.sleep(0.05)
        partial = tmp_path.glob(".a.raw.*")
    assert not out.exists()
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(printed)["events"] == len(events)
    assert out.read_bytes() == clip.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["a.raw"]


def test_a_killed_recorder_leaves_what_can_be_recovered(ripe, clip, events, tmp_path):
    out = tmp_path / "a.raw"
    command = [sys.executable, "-m", "ripe_mambaspike", "record", "--source", "-", "--out", str(out)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(clip.read_bytes())
    process.stdin.flush()
    end = time.monotonic() + 30
    while not any(path.stat().st_size == clip.stat().st_size for path in tmp_path.glob(".a.raw.*")):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.kill()
    process.communicate()
    (left,) = tmp_path.iterdir()
    again = ripe("record", "--source", clip, "--pace", "fast", "--out", out)
    assert again.code == 0
    assert left.name in again.err
    assert np.array_equal(read(left).events, events)


def serve_once(data):
    """A server that sends this to its first client and closes; its address."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with server:
            connection, _ = server.accept()
            with connection:
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return f"dv://127.0.0.1:{server.getsockname()[1]}"


WINDOW = ("--window", "40", "--hop", "20", "--pace", "fast", "--json")


def test_a_network_stream_gives_the_predictions_of_the_recording(ripe, network, clip, events):
    address = serve_once(dv_header(SENSOR) + dv_packet(events[:1500]) + dv_packet(events[1500:]))
    lines = [ripe("stream", network, "--source", source, *WINDOW).out.splitlines() for source in (clip, address)]
    found = [[(row["stop_us"], row["probability"]) for row in map(json.loads, rows[:-1])] for rows in lines]
    assert len(found[0]) == 4
    assert found[0] == found[1]


def test_a_camera_of_another_size_is_refused_unless_asked_for(ripe, network, events):
    stream = dv_header((40, 36)) + dv_packet(events)
    refused = ripe("stream", network, "--source", serve_once(stream), *WINDOW)
    assert refused.code == 2
    assert "40×36" in refused.err
    for option in (("--sensor-size", 40, 36), ("--crop", 0, 0, 20, 18)):
        taken = ripe("stream", network, "--source", serve_once(stream), *WINDOW, *option)
        assert taken.code == 0
        assert len(taken.out.splitlines()) > 1
        assert "16×16" in taken.err
