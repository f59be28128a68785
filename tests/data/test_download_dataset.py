"""A whole set: every archive fetched, checked and unpacked, once."""

import hashlib
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import pytest

from raising import raises
from ripe_mambaspike.data import transfer
from ripe_mambaspike.data.download import download_dataset
from ripe_mambaspike.data.mirrors import Archive, DownloadInfo
from ripe_mambaspike.data.sets import registry
from ripe_mambaspike.errors import ConfigError, DataError


def zipped(files):
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


DATA = {f"{part}.zip": zipped({f"{part}/3/00001.bin": part.encode() * 9}) for part in ("Train", "Test", "Raw")}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A server of the archives: (its address, the folder it serves)."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name, data in DATA.items():
        (folder / name).write_bytes(data)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def known(site, monkeypatch):
    """Make a set known that the server has."""

    def make(fetched=("Train.zip", "Test.zip"), by_hand=()):
        archives = {
            name: Archive(name, (f"{site[0]}/{name}",), None, f"md5:{hashlib.md5(data).hexdigest()}", name[:-4])
            for name, data in DATA.items()
        }
        made = DownloadInfo(
            "Tiny", "CC0", "Nobody 2020", "http://127.0.0.1/", tuple(archives[name] for name in fetched),
            tuple(archives[name] for name in by_hand), "Ask a person.",
        )  # fmt: skip
        tiny = registry.DatasetInfo("tiny", "Tiny", (), "", "", "", download=made)
        monkeypatch.setitem(registry._DATASETS, "tiny", tiny)
        return made

    return make


def files_of(root):
    found = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(root).as_posix() for path in found}


TREE = {"Train.zip", "Train/3/00001.bin", "Test.zip", "Test/3/00001.bin"}


def test_every_archive_is_fetched_and_unpacked(known, tmp_path):
    facts, reports = known(), []
    root = tmp_path / "new" / "root"
    assert download_dataset("tiny", root, lambda *report: reports.append(report)) is facts
    assert files_of(root) == TREE
    assert (root / "Train" / "3" / "00001.bin").read_bytes() == b"Train" * 9
    size = len(DATA["Train.zip"])
    assert reports[-1][0] == "Test.zip"
    assert ("Train.zip", size, size) in reports
    assert all(done <= total for _, done, total in reports)


def test_what_is_unpacked_is_not_fetched_again(known, site, tmp_path):
    known()
    download_dataset("tiny", tmp_path / "root")
    for name in DATA:
        (site[1] / name).unlink()
    (tmp_path / "root" / "Train.zip").unlink()
    reports = []
    download_dataset("tiny", tmp_path / "root", lambda *report: reports.append(report))
    assert reports == []
    assert files_of(tmp_path / "root") == TREE - {"Train.zip"}


def test_an_interrupted_set_goes_on_with_the_archive_that_is_missing(known, site, tmp_path):
    known()
    (site[1] / "Test.zip").unlink()
    with raises(DataError, "archive", tmp_path / "root" / "Test.zip"):
        download_dataset("tiny", tmp_path / "root")
    assert files_of(tmp_path / "root") == {"Train.zip", "Train/3/00001.bin"}
    (site[1] / "Test.zip").write_bytes(DATA["Test.zip"])
    reports = []
    download_dataset("tiny", tmp_path / "root", lambda *report: reports.append(report))
    assert {name for name, _, _ in reports} == {"Test.zip"}
    assert files_of(tmp_path / "root") == TREE


def test_an_archive_downloaded_by_hand_is_used_instead(known, site, tmp_path):
    known(by_hand=("Raw.zip",))
    root = tmp_path / "root"
    root.mkdir()
    (root / "Raw.zip").write_bytes(DATA["Raw.zip"])
    download_dataset("tiny", root)
    assert files_of(root) == {"Raw.zip", "Raw/3/00001.bin"}
    (root / "Raw.zip").unlink()  # once unpacked it is needed no longer
    download_dataset("tiny", root)
    assert files_of(root) == {"Raw/3/00001.bin"}


def test_a_wrong_archive_downloaded_by_hand_is_refused(known, tmp_path):
    known(by_hand=("Raw.zip",))
    (tmp_path / "Raw.zip").write_bytes(b"wrong")
    with raises(DataError, "archive", tmp_path / "Raw.zip", hashlib.md5(b"wrong").hexdigest()):
        download_dataset("tiny", tmp_path)
    assert not (tmp_path / "Raw").exists()


def test_a_dataset_without_mirrors_is_refused_with_instructions(known, tmp_path):
    known(fetched=(), by_hand=("Raw.zip",))
    with raises(DataError, "dataset", tmp_path / "root", ("tiny", "Ask a person.")):
        download_dataset("tiny", tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", ["ncaltech101", "dailydvs200"])
def test_benchmarks_without_mirrors_are_refused_with_instructions(tmp_path, name):
    with raises(DataError, "dataset", tmp_path, (name, registry.dataset_info(name).download.instructions)):
        download_dataset(name, tmp_path)


@pytest.mark.parametrize("name", ["folder", "nmnist-600", "nothing"])
def test_what_is_no_benchmark(tmp_path, name):
    known = ("dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "dailydvs200")
    with raises((DataError, ConfigError), "dataset", mentions=(repr(name), *known)):
        download_dataset(name, tmp_path)


def test_a_root_that_cannot_be_made_is_refused(known, tmp_path):
    known(by_hand=("Raw.zip",))
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with raises(DataError, "root", mentions=[root]):
            download_dataset("tiny", root)
