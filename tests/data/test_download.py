"""Downloads against a server in this process that cuts, lies and forgets on demand."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from raising import raises
from ripe_mambaspike.data import archives
from ripe_mambaspike.data import download as module
from ripe_mambaspike.data.download import download
from ripe_mambaspike.data.mirrors import Archive
from ripe_mambaspike.errors import DataError

DATA = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(10_000))  # 320,000 bytes, no two places alike
OTHER = bytes(reversed(DATA))


@dataclass
class Page:
    """What one path of the server gives."""

    data: bytes = DATA
    etag: str | None = '"one"'
    date: str | None = None
    heeds_range: bool = True
    heeds_if_range: bool = True
    announced: bool = True  # False: chunked, without a length
    status: int = 200
    location: str | None = None
    cuts: list[int] = field(default_factory=list)  # bytes of the next answers' bodies before the connection closes
    after: dict[str, object] = field(default_factory=dict)  # what changes after the first answer
    hold: threading.Event | None = None  # waited for before the second half of a body
    shift: int = 0  # added to the first byte that Content-Range names


@dataclass
class Site:
    url: str
    pages: dict[str, Page] = field(default_factory=dict)
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)  # path, Range, If-Range
    sent: int = 0

    def add(self, name: str, **what: object) -> str:
        self.pages[f"/{name}"] = Page(**what)
        return f"{self.url}/{name}"


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        page = self.site.pages.get(self.path, Page(status=404, data=b""))
        span, version = self.headers["Range"], self.headers["If-Range"]
        self.site.asked.append((self.path, span, version))
        start, status = 0, page.status
        if span and page.heeds_range and (not page.heeds_if_range or version in (None, page.etag or page.date)):
            start, status = int(span.removeprefix("bytes=").removesuffix("-")), 206
            if start >= len(page.data):
                start, status = len(page.data), 416
        body = page.data[start:]
        cut = page.cuts.pop(0) if page.cuts else len(body)
        self.send_response(status)
        for header, value in (("ETag", page.etag), ("Last-Modified", page.date), ("Location", page.location)):
            if value:
                self.send_header(header, value)
        if status == 206:
            first = start + page.shift
            self.send_header("Content-Range", f"bytes {first}-{len(page.data) - 1}/{len(page.data)}")
        if page.announced:
            self.send_header("Content-Length", str(len(body)))
        for name, value in page.after.items():  # before the other side can ask again
            setattr(page, name, value)
        self.end_headers()
        self.send(body[: cut // 2])
        if page.hold:
            page.hold.wait(20)
        self.send(body[cut // 2 : cut])
        self.close_connection = True

    def send(self, body: bytes) -> None:
        self.site.sent += len(body)
        with suppress(OSError):  # the other side hung up
            self.wfile.write(body)
            self.wfile.flush()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Site(f"http://127.0.0.1:{server.server_port}")
    server.RequestHandlerClass = type("Bound", (Handler,), {"site": site})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield site
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 5.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def archive(*urls: str, data: bytes = DATA, size: int | None = None, kind: str = "md5") -> Archive:
    return Archive("set.zip", urls, size, f"{kind}:{hashlib.new(kind, data).hexdigest()}", "set")


def left(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["md5", "sha256"])
@pytest.mark.parametrize("size", [None, len(DATA)])
@pytest.mark.parametrize("announced", [True, False])
def test_a_file_arrives_whole_and_alone(site, tmp_path, kind, size, announced):
    url = site.add("file", announced=announced)
    path = download(archive(url, size=size, kind=kind), tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "set.zip"
    assert path.read_bytes() == DATA
    assert left(path.parent) == {"set.zip"}
    assert site.asked == [("/file", None, None)]


@pytest.mark.parametrize("cut", [0, 1, 1000, 65_536, len(DATA) // 2, len(DATA) - 1])
def test_a_cut_connection_goes_on_at_the_very_byte(site, tmp_path, cut):
    url = site.add("file", cuts=[cut])
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert site.sent == len(DATA)  # every byte went over the wire once
    again = (f"bytes={cut}-", '"one"') if cut else (None, None)
    assert site.asked[1:] == [("/file", *again)]


def test_an_interrupted_call_is_continued_by_the_next(site, tmp_path):
    url = site.add("file")

    def interrupt(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(archive(url), tmp_path, progress=interrupt)
    kept = (tmp_path / "set.zip.part").stat().st_size
    assert 0 < kept < len(DATA)
    assert left(tmp_path) == {"set.zip.part", "set.zip.part.json"}
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert site.asked[-1] == ("/file", f"bytes={kept}-", '"one"')


def test_the_date_serves_where_there_is_no_strong_etag(site, tmp_path):
    date = "Mon, 05 Jan 2026 10:00:00 GMT"
    url = site.add("file", etag=None, date=date, cuts=[500])
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert site.asked[1] == ("/file", "bytes=500-", date)
    weak = site.add("weak", etag='W/"one"', cuts=[500])
    assert download(archive(weak), tmp_path / "weak").read_bytes() == DATA
    assert site.asked[3] == ("/weak", "bytes=500-", None)  # a weak mark may not stand in If-Range


def test_a_server_without_ranges_is_read_from_zero(site, tmp_path):
    url = site.add("file", heeds_range=False, cuts=[1000])
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert site.sent == 1000 + len(DATA)


@pytest.mark.parametrize("heeds_if_range", [True, False])
def test_a_file_changed_on_the_server_is_started_anew(site, tmp_path, heeds_if_range):
    after = {"data": DATA, "etag": '"two"', "heeds_if_range": heeds_if_range}
    url = site.add("file", data=OTHER, cuts=[1000], after=after)
    seen = []
    assert download(archive(url), tmp_path, progress=lambda done, total: seen.append(done)).read_bytes() == DATA
    spans = [None, "bytes=1000-"] if heeds_if_range else [None, "bytes=1000-", None]
    assert [span for _, span, _ in site.asked] == spans
    assert seen.count(len(DATA)) == 1  # the two versions were never put together


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_range_that_starts_elsewhere_is_not_used(site, tmp_path, shift):
    url = site.add("file", cuts=[1000], shift=shift)
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert [span for _, span, _ in site.asked] == [None, "bytes=1000-", None]


def test_pieces_that_do_not_fit_are_fetched_once_more_from_zero(site, tmp_path):
    url = site.add("file", data=OTHER, etag=None, cuts=[1000], after={"data": DATA})  # no mark tells the two apart
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert [span for _, span, _ in site.asked] == [None, "bytes=1000-", None]


def test_a_complete_part_is_not_asked_for_again(site, tmp_path):
    url = site.add("file")
    (tmp_path / "set.zip.part").write_bytes(DATA)
    (tmp_path / "set.zip.part.json").write_text(json.dumps({"url": url, "total": len(DATA), "version": '"one"'}))
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert site.asked == []


@pytest.mark.parametrize("note", ["", "[]", '{"url": 1, "total": 5, "version": null}', '{"url": "x"}', None])
def test_bytes_of_unknown_origin_are_dropped(site, tmp_path, note):
    url = site.add("file")
    (tmp_path / "set.zip.part").write_bytes(b"anything")
    if note is not None:
        (tmp_path / "set.zip.part.json").write_text(note)
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert site.asked == [("/file", None, None)]


@pytest.mark.parametrize("total", [None, len(DATA) - 1])
def test_a_part_longer_than_the_file_is_started_anew(site, tmp_path, total):
    url = site.add("file")
    (tmp_path / "set.zip.part").write_bytes(DATA + b"more")
    (tmp_path / "set.zip.part.json").write_text(json.dumps({"url": url, "total": total, "version": '"one"'}))
    assert download(archive(url), tmp_path).read_bytes() == DATA  # by a 416, or by the note itself


def test_the_next_mirror_goes_on_where_the_first_gave_up(site, tmp_path):
    first = site.add("first", cuts=[1000] + [0] * 9)
    second = site.add("second", etag='"its own"')
    assert download(archive(first, second), tmp_path).read_bytes() == DATA
    assert len([path for path, _, _ in site.asked if path == "/first"]) == module.MAX_TRIES
    assert site.asked[-1] == ("/second", "bytes=1000-", None)
    assert site.sent == len(DATA)


def test_new_ground_earns_new_tries(site, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PROGRESS_BYTES", 20_000)
    url = site.add("file", cuts=[30_000] * 9)
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert len(site.asked) == 10
    never = site.add("never", cuts=[30_000] * 99, heeds_range=False)  # gets nowhere new after the first answer
    with raises(DataError, "archive", tmp_path / "never" / "set.zip", "5 times"):
        download(archive(never), tmp_path / "never")
    assert len(site.asked) == 10 + 5


def test_a_wrong_file_is_thrown_away_and_the_next_mirror_asked(site, tmp_path):
    bad, good = site.add("bad", data=OTHER), site.add("good")
    assert download(archive(bad, good), tmp_path).read_bytes() == DATA
    assert site.asked == [("/bad", None, None), ("/good", None, None)]
    assert left(tmp_path) == {"set.zip"}


def test_all_mirrors_bad_is_one_sentence_with_what_came(site, tmp_path):
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
    monkeypatch.setattr("ripe_mambaspike.data.download.MAX_ARCHIVE_BYTES", len(DATA) - 1)
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


def test_a_server_that_is_not_there(tmp_path):
    with raises(DataError, "archive", mentions=("5 times", "refused")):
        download(archive("http://127.0.0.1:1/file"), tmp_path)


def test_a_silent_server_is_given_up(site, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(module, "MAX_TRIES", 2)
    hold = threading.Event()
    try:
        with raises(DataError, "archive", mentions="timed out"):
            download(archive(site.add("file", hold=hold)), tmp_path)
    finally:
        hold.set()


def test_a_full_disk_keeps_what_came(site, tmp_path, monkeypatch):
    url = site.add("file")
    write, calls = module._write, []

    def full(file, data):
        calls.append(data)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, data)

    monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(module, "_write", full)
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


def test_a_short_write_is_completed(tmp_path):
    class Reluctant:
        taken = b""

        def write(self, data):
            self.taken += bytes(data[:3])
            return min(3, len(data))

    file = Reluctant()
    module._write(file, DATA[:100])
    assert file.taken == DATA[:100]


def test_a_file_that_is_there_is_not_fetched(site, tmp_path):
    (tmp_path / "set.zip").write_bytes(DATA)
    seen = []
    path = download(archive(site.add("file")), tmp_path, progress=lambda *step: seen.append(step))
    assert path.read_bytes() == DATA
    assert site.asked == []
    assert seen == [(len(DATA), len(DATA))]
    assert download(archive(), tmp_path) == path  # one that only a person can fetch


def test_a_wrong_file_that_is_there_is_named_and_left(site, tmp_path):
    (tmp_path / "set.zip").write_bytes(OTHER)
    with raises(DataError, "archive", tmp_path / "set.zip", hashlib.md5(OTHER).hexdigest()):
        download(archive(site.add("file")), tmp_path)
    assert (tmp_path / "set.zip").read_bytes() == OTHER
    assert site.asked == []


def test_without_mirrors_a_person_is_asked(tmp_path):
    with raises(DataError, "archive", tmp_path / "set.zip", ("by hand", hashlib.md5(DATA).hexdigest())):
        download(archive(), tmp_path)


def test_a_second_process_is_refused(site, tmp_path):
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    command = [sys.executable, "-c", code, str(tmp_path / "set.zip.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with raises(DataError, "lock", tmp_path / "set.zip.lock", "being downloaded by another process"):
            download(archive(site.add("file")), tmp_path)
        assert site.asked == []
        other.kill()
    assert download(archive(site.add("file")), tmp_path).read_bytes() == DATA  # the lock died with its holder
    assert left(tmp_path) == {"set.zip"}


def test_a_killed_process_is_continued(site, tmp_path):
    hold = threading.Event()
    url = site.add("file", hold=hold)
    wanted = archive(url)
    code = (
        "import sys; from ripe_mambaspike.data import download as d;"
        f"d.download(d.Archive({wanted.name!r}, ({url!r},), None, {wanted.checksum!r}, 'set'), sys.argv[1])"
    )
    part = tmp_path / "set.zip.part"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as other:
        end = time.monotonic() + 20
        while not (part.exists() and part.stat().st_size == len(DATA) // 2):
            assert time.monotonic() < end
            assert other.poll() is None
            time.sleep(0.005)
        other.send_signal(signal.SIGKILL)
    hold.set()
    assert left(tmp_path) == {"set.zip.part", "set.zip.part.json", "set.zip.lock"}
    assert download(wanted, tmp_path).read_bytes() == DATA
    assert site.asked[1:] == [("/file", f"bytes={len(DATA) // 2}-", '"one"')]
    assert left(tmp_path) == {"set.zip"}


@pytest.mark.parametrize("size", [None, len(DATA)])
@pytest.mark.parametrize("announced", [True, False])
def test_progress_climbs_to_the_whole(site, tmp_path, monkeypatch, size, announced):
    monkeypatch.setattr(module, "CHUNK_BYTES", 10_000)
    seen = []
    cuts = [100_000] if announced else []
    url = site.add("file", announced=announced, cuts=cuts)
    download(archive(url, size=size), tmp_path, progress=lambda *step: seen.append(step))
    done = [step[0] for step in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, len(DATA))
    assert len(done) > 30
    assert {step[1] for step in seen} == ({len(DATA)} if announced or size else {None})


def test_a_folder_that_cannot_be_made(site, tmp_path):
    (tmp_path / "file").write_text("")
    with raises(DataError, "root", tmp_path / "file" / "folder"):
        download(archive(site.add("file")), tmp_path / "file" / "folder")
