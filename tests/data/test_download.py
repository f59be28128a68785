"""Downloads arrive whole, and go on where they were interrupted."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest
from faulty_server import DATA, OTHER, archive, left

from raising import raises
from ripe_mambaspike.data import transfer
from ripe_mambaspike.data.download import download
from ripe_mambaspike.errors import DataError


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
def test_a_broken_connection_resumes_at_the_next_byte(site, tmp_path, cut):
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


def test_the_date_is_used_without_a_strong_etag(site, tmp_path):
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


def test_the_next_mirror_resumes_the_download(site, tmp_path):
    first = site.add("first", cuts=[1000] + [0] * 9)
    second = site.add("second", etag='"its own"')
    assert download(archive(first, second), tmp_path).read_bytes() == DATA
    assert len([path for path, _, _ in site.asked if path == "/first"]) == transfer.MAX_TRIES
    assert site.asked[-1] == ("/second", "bytes=1000-", None)
    assert site.sent == len(DATA)


def test_progress_resets_the_tries(site, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "PROGRESS_BYTES", 20_000)
    url = site.add("file", cuts=[30_000] * 9)
    assert download(archive(url), tmp_path).read_bytes() == DATA
    assert len(site.asked) == 10
    never = site.add("never", cuts=[30_000] * 99, heeds_range=False)  # gets nowhere new after the first answer
    with raises(DataError, "archive", tmp_path / "never" / "set.zip", "5 times"):
        download(archive(never), tmp_path / "never")
    assert len(site.asked) == 10 + 5


def test_a_short_write_is_completed(tmp_path):
    class Reluctant:
        taken = b""

        def write(self, data):
            self.taken += bytes(data[:3])
            return min(3, len(data))

    file = Reluctant()
    transfer._write(file, DATA[:100])
    assert file.taken == DATA[:100]


def test_a_file_that_is_there_is_not_fetched(site, tmp_path):
    (tmp_path / "set.zip").write_bytes(DATA)
    seen = []
    path = download(archive(site.add("file")), tmp_path, progress=lambda *step: seen.append(step))
    assert path.read_bytes() == DATA
    assert site.asked == []
    assert seen == [(len(DATA), len(DATA))]
    assert download(archive(), tmp_path) == path  # one that only a person can fetch


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
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 10_000)
    seen = []
    cuts = [100_000] if announced else []
    url = site.add("file", announced=announced, cuts=cuts)
    download(archive(url, size=size), tmp_path, progress=lambda *step: seen.append(step))
    done = [step[0] for step in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, len(DATA))
    assert len(done) > 30
    assert {step[1] for step in seen} == ({len(DATA)} if announced or size else {None})
