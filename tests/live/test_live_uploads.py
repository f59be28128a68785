"""Uploads: every format, and everything that someone may send instead."""

import http.client
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.writing import write
from ripe_mambaspike.live.limits import ServerLimits
from ripe_mambaspike.live.reading import read_bounded

pytest.importorskip("websockets", reason="websockets is not installed (the extra serve)")


def left(running):
    """What lies in the service's private folder."""
    return sorted(path.name for path in running.service.folder.iterdir())


@pytest.mark.parametrize("ending", [".npz", ".csv", ".bin", ".raw"])
def test_an_upload_is_played_and_its_file_removed(running, watch, tmp_path, clip, ending):
    path = tmp_path / f"clip{ending}"
    write(clip, path)
    status, said = running.upload(path.read_bytes(), f"my clip{ending}")
    assert status == 200, said
    assert said["name"] == f"my clip{ending}"
    assert said["events"] == len(clip)
    assert left(running) == []
    with watch(running) as viewer:
        viewer.ask("upload", said["upload"])
        assert viewer.until("opened")["events"] == len(clip)
        assert viewer.until("predictions")["predictions"]


@pytest.mark.parametrize(
    "name", ["../../../../tmp/taken.npz", "/etc/passwd", "a\0b.npz", "<script>.npz", "…" * 400, ""]
)
def test_a_hostile_name_is_shown_and_nothing_else(running, packed, clip, name):
    before = set(Path("/tmp").iterdir())
    status, said = running.upload(packed(clip.events), name)
    assert status == 200
    assert said["name"].isprintable()
    assert len(said["name"]) <= 120
    assert left(running) == []
    assert "taken.npz" not in {path.name for path in set(Path("/tmp").iterdir()) - before}


def test_files_on_the_way_are_private(running, packed, clip, monkeypatch):
    from ripe_mambaspike.live import library

    seen = []
    path_of = library.private_path

    def spied(folder, name):
        seen.append(path_of(folder, name))
        return seen[-1]

    assert running.service.folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr("ripe_mambaspike.live.server.private_path", spied)
    assert running.upload(packed(clip.events), "../x.npz")[0] == 200
    assert seen[0].parent == running.service.folder
    assert seen[0].name.strip("0123456789abcdef") == ".npz"


def test_an_upload_that_announces_too_much_is_refused_at_once(serve):
    running = serve(upload_bytes=1000)
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as link:
        # And not a byte more.
        link.sendall(b"POST /upload?name=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2147483648\r\n\r\n")
        said = b""
        while piece := link.recv(4096):
            said += piece
    assert said.startswith(b"HTTP/1.1 413")
    assert b"upload: expected at most 0.000953674 MB" in said
    assert left(running) == []


def test_an_upload_that_grows_too_large_is_refused_and_removed(serve):
    running = serve(upload_bytes=100_000)
    link = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    link.putrequest("POST", "/upload?name=x.npz")
    link.putheader("Transfer-Encoding", "chunked")
    link.endheaders()
    try:
        for _ in range(4000):
            link.send(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
    except OSError:
        pass  # it was refused while it was being sent
    else:
        pytest.fail("260 MB were taken")
    assert left(running) == []
    assert running.upload(b"small", "x")[0] == 400  # still there


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "streamed"])
def test_a_client_that_goes_on_sending_gets_the_refusal(serve, announced):
    """A client that reads nothing before it has sent all still hears why."""
    running = serve(upload_bytes=100_000)
    link = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    pieces = [bytes(1 << 16)] * 40  # 2.6 MB
    headers = {"Content-Length": str(40 << 16)} if announced else {"Transfer-Encoding": "chunked"}
    link.request("POST", "/upload?name=x.npz", iter(pieces), headers, encode_chunked=not announced)
    answer = link.getresponse()
    assert (answer.status, answer.getheader("connection")) == (413, "close")
    assert b"upload: expected at most 0.0953674 MB" in answer.read()
    link.close()
    assert left(running) == []


def test_an_upload_that_breaks_off_leaves_nothing(running, wait_until):
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as link:
        link.sendall(b"POST /upload?name=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\nbegun")
        wait_until(lambda: left(running), "the upload's file")
    wait_until(lambda: not left(running) and running.service.arriving == 0, "the file's end")


def test_an_upload_that_takes_too_long_is_refused(serve):
    running = serve(upload_seconds=1)
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as link:
        link.sendall(b"POST /upload?name=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\nbegun")
        assert link.recv(4096).startswith(b"HTTP/1.1 408")
    assert left(running) == []


@pytest.mark.parametrize(
    ("data", "name", "sentence"),
    [
        (b"", "a.npz", "upload: expected a recording, got nothing"),
        (b"nothing like events", "a.xyz", "a.xyz: format: "),
        (b"PK\x03\x04damaged", "a.npz", "a.npz"),
        (os.urandom(64), "a.bin", "a.bin"),
    ],
    ids=["empty", "unknown", "damaged", "noise"],
)
def test_an_upload_that_is_no_recording_gets_one_sentence(running, data, name, sentence):
    status, said = running.upload(data, name)
    assert status == 400
    assert said["error"].startswith(sentence)
    assert name != "a.xyz" or "the bytes 6e 6f 74 68" in said["error"]
    assert str(running.service.folder) not in said["error"]
    assert left(running) == []


def test_a_recording_larger_or_longer_than_allowed(serve, packed, random_events):
    running = serve(events=1000, seconds=1)
    status, said = running.upload(packed(random_events(1001, 0.5)), "many.npz")
    assert (status, said["error"]) == (413, "many.npz: events: expected at most 1,000, got more")
    status, said = running.upload(packed(random_events(100, 3.0)), "long.npz")
    assert (status, said["error"]) == (413, "long.npz: duration: expected at most 1 s, got 3 s")


def test_a_reader_that_dies_or_hangs_is_an_error_of_its_file(serve, packed, clip, monkeypatch, tmp_path):
    running = serve()
    dying = tmp_path / "dying"
    dying.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dying.chmod(0o700)
    monkeypatch.setattr("ripe_mambaspike.live.reading.sys.executable", str(dying))
    status, said = running.upload(packed(clip.events), "crash.npz")
    assert (status, said["error"].split(":")[0]) == (400, "crash.npz")
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o700)
    monkeypatch.setattr("ripe_mambaspike.live.reading.sys.executable", str(hanging))
    running.service.library.limits = ServerLimits(reading_seconds=1)
    status, said = running.upload(packed(clip.events), "slow.npz")
    assert (status, said["error"].split(":")[0]) == (413, "slow.npz")
    assert "within 1 s" in said["error"]
    assert left(running) == []
    monkeypatch.undo()
    running.service.library.limits = ServerLimits()
    assert running.upload(packed(clip.events), "good.npz")[0] == 200


def test_uploads_are_rationed(serve, packed, clip):
    running = serve(uploads_a_minute=1)
    assert running.upload(packed(clip.events))[0] == 200
    status, said = running.upload(packed(clip.events))
    assert (status, said["error"]) == (429, "uploads: expected at most 1 a minute, got more")


def test_uploads_arrive_a_few_at_a_time(serve, wait_until):
    running = serve(uploads=1)
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as link:
        link.sendall(b"POST /upload?name=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\nbegun")
        wait_until(lambda: running.service.arriving == 1, "an upload's arrival")
        status, said = running.upload(b"another")
        assert (status, said["error"].split(",")[0]) == (503, "uploads: expected at most 1 at once")


def test_the_folder_is_removed_with_the_service(serve):
    running = serve()
    folder = running.service.folder
    assert folder.is_dir()
    running.server.should_exit = True
    running.thread.join(30)
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["external link", "external storage", "virtual"])
def test_an_hdf5_file_that_names_another_is_refused(tmp_path, kind, clip):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed (the extra data)")
    secret, sent = tmp_path / "secret.h5", tmp_path / "sent.h5"
    with h5py.File(secret, "w") as file:
        for name in "xytp":
            file[f"events/{name}"] = clip[name]
    assert len(read_bounded(secret, 10_000, 10)) == len(clip)
    with h5py.File(sent, "w") as file:
        if kind == "external link":
            file["events"] = h5py.ExternalLink(str(secret), "/events")
        elif kind == "virtual":
            layout = h5py.VirtualLayout((len(clip),), clip["x"].dtype)
            layout[:] = h5py.VirtualSource(secret, "events/x", (len(clip),))
            for name in "xytp":
                file.create_virtual_dataset(f"events/{name}", layout)
        else:
            storage = [(str(secret), 0, h5py.h5f.UNLIMITED)]
            for name in "xytp":
                file.create_dataset(f"events/{name}", (8,), "u2", external=storage)
    with pytest.raises(ReadError) as caught:
        read_bounded(sent, 10_000, 10)
    assert caught.value.path == sent
    assert caught.value.field.strip("/") == ("events" if kind == "external link" else "events/x")


def test_events_come_out_in_order(tmp_path, clip):
    shuffled = np.random.default_rng(0).permutation(clip.events)
    write(Recording(shuffled, clip.sensor_size), tmp_path / "clip.npz")
    assert (read_bounded(tmp_path / "clip.npz", 10_000, 10)["t"] == clip["t"]).all()
