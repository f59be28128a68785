"""`ripe stream`: lines, JSON lines, the summary, and what it cannot use."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ripe_mambaspike import create_model, write
from ripe_mambaspike.api import load
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.inference.stream.packets import read_packet, write_packet
from ripe_mambaspike.models.base import clip_logits
from ripe_mambaspike.models.labels import Calibration, Labels, UnknownRule, read_labels, save_labels

NAMES = ("clap", "wave [both]", "roll")
SENSOR = (20, 18)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    fields = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 16}
    model = create_model("nmnist", seed=0, num_classes=3, **fields)
    randomize(model, 0)
    folder = model.save_pretrained(tmp_path_factory.mktemp("net"))
    save_labels(Labels(NAMES, "mine", None, 4, (16, 16), "time", False, 1, "validation"), folder)
    return folder


@pytest.fixture(scope="module")
def events():
    rng = np.random.default_rng(0)
    count = 4000
    times = np.sort(rng.integers(0, 100_000, count))
    times[[0, -1]] = 0, 100_000
    return make_events(rng.integers(0, 20, count), rng.integers(0, 18, count), times, rng.integers(0, 2, count))


@pytest.fixture(scope="module")
def recording(events, tmp_path_factory):
    path = tmp_path_factory.mktemp("recordings") / "one.npz"
    write(Recording(events, SENSOR), path)
    return path


def rows_of(result):
    lines = [json.loads(line) for line in result.out.splitlines()]
    return lines[:-1], lines[-1]["summary"]


FAST = ("--window", "40", "--hop", "20", "--pace", "fast")


def test_json_lines_are_predictions_of_the_windows(ripe, network, recording, events):
    result = ripe("stream", network, "--source", recording, *FAST, "--json")
    answers, summary = rows_of(result)
    assert result.code == 0
    assert [(one["start_us"], one["stop_us"]) for one in answers] == [(a, a + 40_000) for a in range(0, 60_001, 20_000)]
    classifier = load(network)
    for one in answers:
        span = {"start_us": one["start_us"], "stop_us": one["stop_us"]}
        window = Recording(events, SENSOR).crop(*span.values())
        with torch.no_grad():
            logits = classifier.model(bin_events(window, 4, grid=(16, 16), **span).unsqueeze(0))
        assert one["probabilities"] == torch.softmax(clip_logits(logits)[0], -1).tolist()
        assert one["label"] == NAMES[int(np.argmax(one["probabilities"]))]
        assert one["final"] is True
    assert (summary["predictions"], summary["events"]) == (4, 4000)
    assert summary["dropped"] == {"queue": 0, "rate": 0, "late": 0, "stray": 0}
    assert set(summary["latency_ms"]) == {"p50", "p95", "p99", "max"}


def test_text_output(ripe, network, recording):
    result = ripe("stream", network, "--source", recording, *FAST, "--early", "--max-predictions", "2")
    lines = result.out.splitlines()
    assert result.code == 0
    assert sum("after" in line and "of 4 steps" in line for line in lines) >= 5
    assert any(line.strip().startswith("0.020–0.060 s") for line in lines)
    assert "2 predictions" in result.out
    assert "latency p50" in result.out


def test_a_network_with_a_threshold_says_unknown(ripe, network, recording, tmp_path):
    """A threshold between the least and the most certain window."""
    plain, _ = rows_of(ripe("stream", network, "--source", recording, *FAST, "--json"))
    assert all((one["score"], one["unknown"]) == (None, False) for one in plain)
    shares = sorted(one["probability"] for one in plain)
    rule = UnknownRule(score="probability", threshold=(shares[1] + shares[2]) / 2, keep=0.5)
    facts = Calibration(temperature=1.0, set="mine", split="val", store="0", clips=4, unknown=rule)
    folder = load(network).model.save_pretrained(tmp_path / "net")
    save_labels(replace(read_labels(network), calibration=facts), folder)
    rows, _ = rows_of(ripe("stream", folder, "--source", recording, *FAST, "--json"))
    assert [one["unknown"] for one in rows] == [one["probability"] < rule.threshold for one in plain]
    assert ripe("stream", folder, "--source", recording, *FAST).out.count("unknown, at best ") == 2


def test_the_pace_is_the_recordings_own(ripe, network, recording):
    began = time.monotonic()
    _, summary = rows_of(ripe("stream", network, "--source", recording, "--window", "40", "--hop", "20", "--json"))
    assert time.monotonic() - began >= 0.1
    assert summary["predictions"] == 4


def test_rate_limits_and_dropped_events_are_reported(ripe, network, recording):
    result = ripe("stream", network, "--source", recording, *FAST[:4], "--max-rate", "500")
    assert result.code == 0
    assert "events dropped: rate 3," in result.out


def test_a_recording_as_long_as_the_window_is_predicted(ripe, network, recording, events):
    result = ripe("stream", network, "--source", recording, "--window", "100.001", "--pace", "fast", "--json")
    (answer,), _ = rows_of(result)
    offline = predict(load(network), Recording(events, SENSOR))
    assert answer["probabilities"] == list(offline.probabilities.values())
    assert result.err == ""


def test_a_recording_shorter_than_the_window_gives_a_message(ripe, network, recording):
    result = ripe("stream", network, "--source", recording, "--window", "120", "--pace", "fast")
    assert result.code == 0
    assert len(result.err.splitlines()) == 1
    assert "100.001 ms" in result.err
    assert "120 ms" in result.err
    assert "0 predictions" in result.out


def test_a_full_disk_and_a_closed_output(network, recording, monkeypatch, capfd):
    """Both forms alike; in this process, with a standard output of its own, as a process costs seconds."""
    words = ["stream", str(network), "--source", str(recording), *FAST]
    for form in ([], ["--json"]):
        with Path("/dev/full").open("w") as full:
            monkeypatch.setattr("sys.stdout", full)
            assert main([*words, *form]) == 2
        result = capfd.readouterr().err
        assert result.startswith("ripe: stdout")
        assert "No space left on device" in result
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as left:
            monkeypatch.setattr("sys.stdout", left)
            assert main([*words, *form]) == 141
        assert capfd.readouterr().err == ""


def stream_process(words, **options):
    command = [sys.executable, "-m", "ripe_mambaspike", "stream", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, **pipes, **options)


@pytest.mark.slow
def test_packets_and_noise_from_a_pipe_until_ctrl_c(network, events):
    """One process for all of it: a process costs seconds."""
    process = stream_process([network, "--source", "-", "--window", "40", "--json"], stdin=subprocess.PIPE)
    for part in np.array_split(events, 20):
        process.stdin.write(write_packet(part, SENSOR) + b"noise")
    process.stdin.flush()
    first = json.loads(process.stdout.readline())
    assert (first["start_us"], first["stop_us"], first["step"], first["time_steps"]) == (0, 40_000, 4, 4)
    for _ in range(6):  # hops of 10 ms, as the window has four bins
        last = json.loads(process.stdout.readline())
    assert last["stop_us"] == 100_000
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    rows = [json.loads(line) for line in out.decode().splitlines()]
    assert process.returncode == 130, err.decode()
    assert "Traceback" not in err.decode()
    assert rows[-1]["summary"]["invalid_packets"] >= 19
    assert rows[-1]["summary"]["predictions"] >= 7


def send_process(words):
    command = [sys.executable, "-m", "ripe_mambaspike", "send", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["tcp", "udp"])
def test_answers_over_a_socket_are_those_of_the_file(ripe, network, recording, scheme):
    """Two processes and a socket between them, as on two machines."""
    words = ("--window", "40", "--hop", "20", "--json")
    expected, whole = rows_of(ripe("stream", network, "--source", recording, *words, "--pace", "fast"))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if scheme == "tcp" else socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        address = f"{scheme}://127.0.0.1:{one.getsockname()[1]}"
    receiver = stream_process([network, "--source", address, *words, *(["--stall", "30"] if scheme == "udp" else [])])
    assert address in receiver.stderr.readline().decode()
    sender = send_process([recording, "--to", address, "--json"])
    out, err = sender.communicate(timeout=120)
    assert sender.returncode == 0, err.decode()
    sent = json.loads(out)
    assert (sent["events"], sent["rounds"], sent["lost"]) == (4000, 1, {})
    if scheme == "udp":  # which has no end: the last window stays open
        expected = expected[:-1]
        lines = [receiver.stdout.readline() for _ in expected]
        receiver.send_signal(signal.SIGINT)
        rest, err = receiver.communicate(timeout=120)
        assert receiver.returncode == 130, err.decode()
        rows = [json.loads(line) for line in [*lines, *rest.splitlines()]]
    else:
        out, err = receiver.communicate(timeout=120)
        assert receiver.returncode == 0, err.decode()
        rows = [json.loads(line) for line in out.splitlines()]
    *answers, last = rows
    for field in ("start_us", "stop_us", "label", "probabilities", "rates"):
        assert [one[field] for one in answers] == [one[field] for one in expected]
    assert last["summary"]["events"] == whole["events"] == 4000
    assert last["summary"]["dropped"] == {"queue": 0, "rate": 0, "late": 0, "stray": 0}
    assert (last["summary"]["invalid_packets"], last["summary"]["lost_packets"]) == (0, 0)


@pytest.mark.slow
def test_a_loop_is_sent_until_ctrl_c(recording):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(60)
        address = f"udp://127.0.0.1:{receiver.getsockname()[1]}"
        sender = send_process([recording, "--to", address, "--loop", "--speed", "20"])
        newest = -1
        while newest < 300_000:  # in the third round
            packet = read_packet(receiver.recv(65536))
            assert packet.sensor_size == SENSOR
            assert packet.events["t"][0] >= newest
            newest = int(packet.events["t"][-1])
        sender.send_signal(signal.SIGINT)
        out, err = sender.communicate(timeout=60)
    assert (sender.returncode, err) == (130, b"")
    assert f"packets to {address}" in out.decode()


def test_invalid_receivers_are_refused(refused, recording, tmp_path):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        closed = f"tcp://127.0.0.1:{one.getsockname()[1]}"
    refused(("send", recording, "--to", closed), "--to", closed)
    refused(("send", recording, "--to", "udp://127.0.0.1:99999"), "--to", "65535")
    refused(("send", recording, "--to", "udp://127.0.0.1:9", "--speed", "0"), "--speed")
    refused(("send", tmp_path / "none.raw", "--to", "udp://127.0.0.1:9"), "none.raw")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--window", "0"), ["--window", "0.001 to 3600000 ms, got 0"]),
        (("--window", "3600001"), ["--window", "0.001 to 3600000 ms, got 3600001"]),
        (("--window", "1e15"), ["--window", "0.001 to 3600000 ms, got 1e+15"]),
        (("--window", "60000", "--hop", "1"), ["1024"]),
        (("--max-rate", "inf"), ["--max-rate", "inf"]),
        (("--max-rate", "0.9"), ["--max-rate", "0.9"]),
        (("--max-rate", "0"), ["--max-rate", "0.0"]),
        (("--max-rate", "5", "--pace", "fast"), ["--max-rate", "--pace fast", "got 5"]),
        (("--hop", "-3"), ["--hop", "got -3"]),
        (("--tolerance", "-1"), ["--tolerance", "0 to 1000000000000 ms, got -1"]),
        (("--queue", "0"), ["--queue", "got 0"]),
        (("--stall", "0"), ["--stall", "got 0"]),
        (("--max-predictions", "0"), ["--max-predictions", "got 0"]),
        (("--pace", "slow"), ["--pace", "slow", "real", "fast"]),
        (("--sensor-size", "8", "8"), ["grid", "8×8"]),
    ],
    ids=lambda value: " ".join(value).replace("--", "") if isinstance(value, tuple) else None,
)
def test_invalid_options_are_refused(refused, network, recording, words, named):
    refused(("stream", network, "--source", recording, *words), *named)


def test_invalid_sources_are_refused(refused, network, tmp_path):
    for source, named in (
        (tmp_path / "none.aedat", "none.aedat"),
        ("udp://127.0.0.1:99999", "65535"),
        ("http://127.0.0.1", "udp://HOST:PORT"),
    ):
        refused(("stream", network, "--source", source), named)


def test_a_network_trained_on_counts_is_refused(refused, network, recording, tmp_path):
    model = create_model("nmnist", seed=0, num_classes=3, time_steps=4, in_size=16)
    folder = model.save_pretrained(tmp_path / "counts")
    save_labels(Labels(NAMES, "mine", None, 4, (16, 16), "count", False, 1, "validation"), folder)
    refused(("stream", folder, "--source", recording), "count")


def test_a_damaged_file_is_refused_after_its_predictions(ripe, network, events, tmp_path):
    path = tmp_path / "cut.txt"
    rows = "".join(f"{t} {x} {y} {p}\n" for x, y, t, p in events.tolist())
    path.write_text(rows + "not an event\n")
    result = ripe("stream", network, "--source", path, "--sensor-size", "20", "18", *FAST)
    assert result.code == 2
    assert str(path) in result.err
