"""`ripe serve`: what it refuses before it listens, and that it serves, says where, and ends when it is told to."""

import errno
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

pytest.importorskip("starlette", reason="starlette is not installed (the extra serve)")
pytest.importorskip("uvicorn", reason="uvicorn is not installed (the extra serve)")
pytest.importorskip("websockets", reason="websockets is not installed (the extra serve)")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--port", "70000"), ("--port", "70000", "65535")),
        (("--host", "not a host"), ("--host", "'not a host'")),
        (("--host", "no-such-host.invalid"), ("--host", "'no-such-host.invalid'", "127.0.0.1")),
        (("--recordings", "nowhere"), ("--recordings", "nowhere")),
        (("--window", "0"), ("--window", "got 0")),
        (("--hop", "-5"), ("--hop", "got -5")),
        (("--window", "1000", "--hop", "0.01"), ("hop", "1024")),
        (("--viewers", "0"), ("--viewers", "got 0")),
        (("--upload-mb", "0"), ("--upload-mb", "got 0")),
        (("--frames", "many"), ("--frames", "'many'")),
        (("--record-to", "mine"), ("--record-to", "--source")),
        (("--allow-training",), ("--allow-training", "--record-to")),
        (
            ("--source", "udp://127.0.0.1:0", "--record-to", "mine", "--host", "0.0.0.0"),
            ("--record-to", "127.0.0.1", "'0.0.0.0'"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_served_is_refused(refused, saved, words, named):
    refused(["serve", saved, *words], *named)


def test_a_missing_checkpoint_is_refused(refused, tmp_path):
    refused(["serve", tmp_path / "none"], "none")


def test_a_port_that_is_taken_is_refused(refused, saved):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reason = os.strerror(errno.EADDRINUSE)
        refused(["serve", saved, "--port", port], "--port", port, reason)


def test_a_package_that_is_missing_is_named(refused, saved, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(["serve", saved], "starlette", "ripe-mambaspike[serve]")


@pytest.mark.slow
def test_it_serves_until_a_signal_stops_it(saved, tmp_path):
    with (tmp_path / "clip.npy").open("wb") as file:
        np.save(file, np.zeros((1, 4)))
    words = [sys.executable, "-m", "ripe_mambaspike", "serve", str(saved), "--port", "0", "--recordings", str(tmp_path)]
    words += ["--window", "400"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            result = process.stdout.readline()
            assert result.startswith("nmnist on http://127.0.0.1:")
            assert result.endswith("/ (1 recordings listed)\n")
            address = result.split(" on ")[1].split(" ")[0]
            with urllib.request.urlopen(address, timeout=60) as answer:
                assert "<title>ripe serve</title>" in answer.read().decode()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "")
