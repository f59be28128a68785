"""Downloads that are refused: wrong files, servers, disks and addresses. Each error says what was wrong."""

import errno
import hashlib
import os
import subprocess
import sys
import threading

import pytest
from faulty_server import DATA, OTHER, archive, left

from raising import raises
from ripe_mambaspike.data import archives, transfer
from ripe_mambaspike.data.download import download
from ripe_mambaspike.errors import DataError


def test_a_wrong_file_is_thrown_away_and_the_next_mirror_asked(site, tmp_path):
    bad, good = site.add("bad", data=OTHER), site.add("good")
    assert download(archive(bad, good), tmp_path).read_bytes() == DATA
    assert site.asked == [("/bad", None, None), ("/good", None, None)]
    assert left(tmp_path) == {"set.zip"}


def test_the_error_lists_the_failure_of_every_mirror(site, tmp_path):
    bad, gone = site.add("bad", data=OTHER), site.add("gone", status=404)
    with pytest.raises(DataError) as caught:
        download(archive(bad, gone), tmp_path)
    message = str(caught.value)
    for part in ("set.zip", hashlib.md5(OTHER).hexdigest(), hashlib.md5(DATA).hexdigest(), f"{gone} answered 404"):
        assert part in message
    assert "\n" not in message
    assert left(tmp_path) == set()


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_not_repeated(site, tmp_path, status):
    with raises(DataError, "archive", tmp_path / "set.zip", f"answered {status}"):
        download(archive(site.add("file", status=status)), tmp_path)
    assert len(site.asked) == 1


def test_an_empty_accepted_is_no_file(site, tmp_path):
    """Figshare's guard answers programs with 202 and nothing."""
    with raises(DataError, "archive", tmp_path / "set.zip", "answered 202"):
        download(archive(site.add("file", status=202, data=b""), data=b""), tmp_path)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(site, tmp_path, status):
    url = site.add("file", status=status, after={"status": 200})
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert len(site.asked) == 2


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("change", [-7, 7])
def test_a_file_too_short_or_too_long_is_refused(site, tmp_path, announced, change):
    data = DATA[:change] if change < 0 else DATA + bytes(change)
    url = site.add("file", data=data, announced=announced)
    reason = f"has a file of {len(data)}" if announced else f"gave more than {len(DATA)}" if change > 0 else "gave md5"
    with raises(DataError, "archive", tmp_path / "set.zip", (f"of {len(DATA)} bytes", reason)):
        download(archive(url, size=len(DATA)), tmp_path)
    assert left(tmp_path) == set()


def test_a_file_without_end_is_refused(site, tmp_path, monkeypatch):
    """Where neither the list nor the server says how long it is."""
    monkeypatch.setattr(transfer, "MAX_ARCHIVE_BYTES", len(DATA) - 1)
    url = site.add("file", announced=False)
    with raises(DataError, "archive", tmp_path / "set.zip", f"more than {len(DATA) - 1} bytes"):
        download(archive(url), tmp_path)
    assert left(tmp_path) == set()


def test_a_redirect_is_followed_but_not_to_files(site, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(DATA)
    target = site.add("file", cuts=[1000])
    url = site.add("door", status=302, location=target, data=b"", heeds_range=False)
    assert download(archive(url), tmp_path / "a").read_bytes() == DATA
    assert site.asked[-1] == ("/file", "bytes=1000-", '"one"')
    for name, location, reason in (
        ("local", secret.as_uri(), "answered 302"),
        ("ftp", "ftp://127.0.0.1:1/file", "unknown url type: ftp"),
    ):
        with raises(DataError, "archive", mentions=reason):
            download(archive(site.add(name, status=302, location=location)), tmp_path / name)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://host/file", "/etc/hostname", "https:///file"])
def test_only_http_and_https_are_addresses(url):
    with raises(DataError, "urls", mentions=("http", url)):
        archive(url)


def test_a_refused_connection_is_named(site, tmp_path):
    with raises(DataError, "archive", mentions=("5 times", "refused")):
        download(archive("http://127.0.0.1:1/file"), tmp_path)


def test_a_silent_server_is_given_up(site, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(transfer, "MAX_TRIES", 2)
    hold = threading.Event()
    try:
        with raises(DataError, "archive", mentions="timed out"):
            download(archive(site.add("file", hold=hold)), tmp_path)
    finally:
        hold.set()


def test_a_full_disk_keeps_what_was_received(site, tmp_path, monkeypatch):
    url = site.add("file")
    write, calls = transfer._write, []

    def full(file, data):
        calls.append(data)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, data)

    monkeypatch.setattr(transfer, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(transfer, "_write", full)
    with raises(DataError, "disk", tmp_path / "set.zip.part", "No space left on device") as caught:
        download(archive(url), tmp_path)
    kept = (tmp_path / "set.zip.part").stat().st_size
    assert f"{len(DATA) - kept} more bytes" in str(caught.value)
    assert (tmp_path / "set.zip.part").read_bytes() == DATA[:kept]
    assert kept == len(calls[0])
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert site.asked[-1][1] == f"bytes={kept}-"


@pytest.mark.parametrize("size", [None, len(DATA)])
def test_a_disk_without_room_is_seen_before_anything_is_written(site, tmp_path, monkeypatch, size):
    usage = archives.shutil._ntuple_diskusage(10**9, 10**9, len(DATA) - 1)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda folder: usage)
    with raises(DataError, "disk", tmp_path, (f"{len(DATA)} free bytes for set.zip", f"got {len(DATA) - 1}")):
        download(archive(site.add("file"), size=size), tmp_path)
    assert len(site.asked) == (0 if size else 1)


def test_a_wrong_file_that_is_there_is_named_and_left(site, tmp_path):
    (tmp_path / "set.zip").write_bytes(OTHER)
    with raises(DataError, "archive", tmp_path / "set.zip", hashlib.md5(OTHER).hexdigest()):
        download(archive(site.add("file")), tmp_path)
    assert (tmp_path / "set.zip").read_bytes() == OTHER
    assert site.asked == []


def test_without_mirrors_the_error_says_to_get_it_by_hand(tmp_path):
    with raises(DataError, "archive", tmp_path / "set.zip", ("by hand", hashlib.md5(DATA).hexdigest())):
        download(archive(), tmp_path)


def test_a_second_process_is_refused(site, tmp_path):
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    command = [sys.executable, "-c", code, str(tmp_path / "set.zip.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with raises(DataError, "lock", tmp_path / "set.zip.lock", "another one that downloads"):
            download(archive(site.add("file")), tmp_path)
        assert site.asked == []
        other.kill()
    assert download(archive(site.add("file")), tmp_path).read_bytes() == DATA  # the lock died with its holder
    assert left(tmp_path) == {"set.zip"}


def test_a_folder_that_cannot_be_made(site, tmp_path):
    (tmp_path / "file").write_text("")
    with raises(DataError, "root", tmp_path / "file" / "folder"):
        download(archive(site.add("file")), tmp_path / "file" / "folder")
