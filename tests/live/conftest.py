"""A small network served on a free port, recordings to watch, and a viewer that speaks the page's language."""

import http.client
import io
import json
import struct
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ripe_mambaspike import create_model
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.live.library import list_recordings
from ripe_mambaspike.live.limits import ConnectionCounter, ServerLimits
from ripe_mambaspike.live.network import make_served_network

FIELDS = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 16}
NAMES = tuple(f"digit {number}" for number in range(10))
SENSOR = (24, 20)
HOSTILE = '"><img src=x onerror=document.body.id=1>.npy'
PATIENCE = 60  # s until a test gives up on what must come


def random_events(count, seconds, seed=0, sensor=SENSOR, start_us=1000):
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, int(seconds * 1e6), count)) + start_us
    times[0], times[-1] = start_us, start_us + int(seconds * 1e6) - 1
    return make_events(
        rng.integers(0, sensor[0], count), rng.integers(0, sensor[1], count), times, rng.integers(0, 2, count)
    )


def save_npz(path, events, sensor=SENSOR):
    with path.open("wb") as file:
        np.savez(file, events=events, sensor_size=np.array(sensor))


@pytest.fixture(scope="session")
def classifier():
    model = create_model("nmnist", seed=0, **FIELDS)
    randomize(model, 0)  # so that every stage fires
    return Classifier(model.eval(), NAMES, 4, (16, 16), "time", False)


@pytest.fixture(scope="session")
def network(classifier):
    return make_served_network(classifier, window_ms=400, hop_ms=100)


@pytest.fixture(scope="session")
def clip():
    return Recording(random_events(3000, 0.3), SENSOR)


@pytest.fixture(scope="session")
def folder(tmp_path_factory, clip):
    """Four recordings by name: long, short, damaged, and one with a hostile name."""
    folder = tmp_path_factory.mktemp("recordings")
    save_npz(folder / "a_long.npz", random_events(9000, 1.2, seed=1))
    save_npz(folder / "b_short.npz", clip.events)
    (folder / "c_damaged.npz").write_bytes(b"PK\x03\x04 nothing more")
    np.save(folder / f"e_{HOSTILE}"[:-4], random_events(2000, 0.3, seed=2))
    (folder / "notes.md").write_text("not offered")
    return folder


@dataclass
class Running:
    """A service that runs in a thread."""

    port: int
    service: Any
    server: Any
    thread: Any
    callers: Any

    def request(self, method, path, body=None, **headers):
        """Status, headers and body of one request."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        link.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = link.getresponse()
        said = answer.status, dict(answer.getheaders()), answer.read()
        link.close()
        return said

    def upload(self, data, name="clip.npz"):
        """Status of an upload, and what was said."""
        from urllib.parse import quote

        status, _, body = self.request("POST", f"/upload?name={quote(name)}", data)
        return status, json.loads(body)


class Watcher:
    """A viewer without a page."""

    def __init__(self, running, **options):
        from websockets.sync.client import connect

        address = f"ws://127.0.0.1:{running.port}/watch"
        self._stack = ExitStack()
        self.socket = self._stack.enter_context(connect(address, max_size=None, compression=None, **options))
        self.frames, self.answers, self.said = [], [], []

    def ask(self, do, value=None):
        self.socket.send(json.dumps({"do": do} if value is None else {"do": do, "value": value}))

    def hear(self):
        """The next message; a frame as (header, shades)."""
        message = self.socket.recv(PATIENCE)
        if isinstance(message, bytes):
            self.frames.append((struct.unpack("<HHIddII", message[:32]), message[32:]))
            return {"kind": "frame"}
        said = json.loads(message)
        self.said.append(said)
        if said["kind"] == "predictions":
            self.answers += said["predictions"]
        return said

    def until(self, wanted):
        """Hear until a message of that kind, or one that a function picks."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            said = self.hear()
            if said["kind"] == wanted if isinstance(wanted, str) else wanted(said):
                return said
        raise AssertionError(f"nothing came that is {wanted}; the last were {self.said[-5:]}")

    def __enter__(self):
        self.hello = self.until(lambda said: said["kind"] in ("hello", "error"))
        return self

    def __exit__(self, *_):
        self._stack.close()


@pytest.fixture(scope="session")
def serving(network, folder):
    """What starts services, all of which are stopped in the end."""
    for package in ("starlette", "uvicorn", "websockets"):
        pytest.importorskip(package, reason=f"{package} is not installed (the extra serve)")
    from ripe_mambaspike.live.server import Service, listen, make_app, make_server

    def start(stack, live=None, listed=None, network=network, service=None, **limits):
        bounds = ServerLimits(**limits) if service is None else service.limits
        if service is None:
            service = Service(network, list_recordings(folder, 100)[0] if listed is None else listed, live, bounds)
        callers = ConnectionCounter(bounds.per_address)
        server, socket = make_server(make_app(service), bounds, callers), listen("127.0.0.1", 0)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        stack.callback(socket.close)
        stack.callback(thread.join, 30)
        stack.callback(setattr, server, "should_exit", True)
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        return Running(socket.getsockname()[1], service, server, thread, callers)

    return start


@pytest.fixture
def serve(serving):
    """A service of the test's own, on a free port."""
    with ExitStack() as stack:
        yield lambda **options: serving(stack, **options)


@pytest.fixture(scope="session")
def running(serving):
    """A service with the usual limits that tests share."""
    with ExitStack() as stack:
        yield serving(stack, uploads_a_minute=1000)


@pytest.fixture
def watch():
    """A viewer of a running service: `with watch(running) as viewer`."""
    return Watcher


@pytest.fixture
def wait_until():
    """Wait for something that must happen."""

    def wait(true, what):
        end = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < end, f"{what} did not happen"
            time.sleep(0.005)

    return wait


@pytest.fixture(name="random_events", scope="session")
def give_random_events():
    return random_events


@pytest.fixture
def packed():
    """Events as the bytes of an npz file."""

    def pack(events, sensor=SENSOR):
        file = io.BytesIO()
        np.savez(file, events=events, sensor_size=np.array(sensor))
        return file.getvalue()

    return pack
