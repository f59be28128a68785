"""`ripe data sets`, `download`, `prepare` and `verify`: whole sets, from the server to the part that is loaded."""

import hashlib
import io
import json
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from ripe_mambaspike import load_dataset
from ripe_mambaspike.data import transfer
from ripe_mambaspike.data.mirrors import Archive, DownloadInfo
from ripe_mambaspike.data.sets import datasets, registry
from ripe_mambaspike.events import Recording, make_events, write


def make_clip(number, backwards=False):
    draw = np.random.default_rng(number)
    times = np.sort(draw.integers(0, 5000, 30 + number))
    columns = (
        draw.integers(0, 34, len(times)),
        draw.integers(0, 34, len(times)),
        times,
        draw.integers(0, 2, len(times)),
    )
    events = make_events(*columns)
    return Recording(events[::-1] if backwards else events, (34, 34))


@pytest.fixture
def tree(tmp_path):
    """Two classes of four recordings."""
    for number in range(8):
        path = tmp_path / "tree" / ("left" if number < 4 else "right") / f"{number}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(make_clip(number), path)
    return tmp_path / "tree"


def prepare(ripe, root, *words, name="folder"):
    return ripe("data", "prepare", name, "--root", root, "--workers", "1", *words)


def test_the_list_of_datasets(ripe):
    result = ripe("data", "sets", "--json")
    assert (result.code, result.err) == (0, "")
    document = json.loads(result.out)
    assert [entry["name"] for entry in document] == list(datasets())
    rows = {entry["name"]: entry for entry in document}
    assert list(rows["nmnist"]) == [
        "name", "title", "sizes", "sensor", "partitions", "files", "download", "license", "home", "simulated",
    ]  # fmt: skip
    assert rows["cifar10dvs"]["partitions"] == ["first-100", "last-100", "random-100"]
    assert rows["nmnist"]["license"] == "CC BY-SA 4.0"
    assert {name for name, row in rows.items() if row["download"]} == {"dvsgesture", "cifar10dvs", "nmnist"}
    assert rows["folder"]["home"] is None
    result = ripe("data", "sets")
    assert result.code == 0
    for word in (*datasets(), "7886/823", "1176/288 or 1077/264", "by hand"):
        assert word in result.out


def test_prepare_and_verify(ripe, tree, store_document_keys):
    result = prepare(ripe, tree, "--test-share", "0.25", "--json")
    assert (result.code, result.err) == (0, "")
    document = json.loads(result.out)
    assert list(document) == store_document_keys
    partition = document["partitions"].pop("share-0.25")
    assert list(partition) == ["train", "val", "test", "checksum", "published"]
    assert (partition["train"], partition["val"], partition["test"], partition["published"]) == (4, 2, 2, False)
    events = sum(30 + number for number in range(8))
    assert document | {"store": "", "key": "", "sha256": ""} == {
        "set": "folder", "store": "", "key": "", "sha256": "", "current": True, "others": [], "clips": 8,
        "events": events, "classes": 2, "sensor_size": [34, 34], "crop": None, "partitions": {}, "notes": [],
        "warnings": 0, "unreadable": 0,
    }  # fmt: skip
    index = json.loads((tree / ".ripe" / "folder" / document["key"] / "index.json").read_text())
    assert document["sha256"] == index["sha256"]
    assert document["store"].startswith(str(tree / ".ripe" / "folder"))
    result = ripe("data", "verify", "folder", "--root", tree, "--json")
    assert (result.code, result.err) == (0, "")
    verified = json.loads(result.out)
    assert list(verified) == [*store_document_keys, "verified", "source"]
    assert (verified["verified"], verified["source"], verified["clips"]) == (True, "unchanged", 8)


def test_text_output(ripe, tree):
    result = prepare(ripe, tree, "--test-share", "0.25")
    assert (result.code, result.err) == (0, "")
    assert "folder: 8 clips of 2 classes, 268 events, 34×34" in result.out
    assert "share-0.25" in result.out
    result = ripe("data", "verify", "folder", "--root", tree)
    assert (result.code, result.err) == (0, "")
    assert "the source is unchanged" in result.out
    (tree / "left" / "0.npz").unlink()
    result = ripe("data", "verify", "folder", "--root", tree)
    assert result.code == 2
    assert "0 files differ" in result.err
    assert "1 are missing" in result.err


def test_verify_notices_a_new_recording(ripe, tree, refused):
    assert prepare(ripe, tree, "--test-share", "0.25").code == 0
    write(make_clip(9), tree / "left" / "new.npz")
    refused(["data", "verify", "folder", "--root", tree], "1 new", "left/new.npz")
    (tree / "left" / "new.npz").unlink()
    (tree / "up").mkdir()
    refused(["data", "verify", "folder", "--root", tree], "up")


def test_notes_and_warnings_go_to_standard_error(ripe, tree):
    for number in range(4):
        write(make_clip(number, backwards=True), tree / "left" / f"{number}.npz")
    for number in range(20, 30):
        write(make_clip(number, backwards=True), tree / "left" / f"{number}.npz")
    result = prepare(ripe, tree, "--json")
    assert result.code == 0
    assert json.loads(result.out)["warnings"] == 14
    lines = result.err.splitlines()
    assert lines[0].startswith("ripe: note: ")
    assert "--test-share" in lines[0]
    assert len(lines) == 13
    assert "--test-share" in lines[12]
    assert lines[1].startswith("ripe: warning: left/0.npz: times run backwards")
    assert lines[11].startswith("ripe: warning: and 4 more, listed in ")
    result = prepare(ripe, tree, "--strict")
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    assert "left/0.npz: " in result.err


def test_another_store(ripe, refused, tree, tmp_path):
    assert prepare(ripe, tree, "--store", tmp_path / "stores", "--test-share", "0.5").code == 0
    assert not (tree / ".ripe").exists()
    assert ripe("data", "verify", "folder", "--root", tree, "--store", tmp_path / "stores").code == 0
    refused(("data", "verify", "folder", "--root", tree), tree / ".ripe", "folder")
    assert len(load_dataset("folder", tree, "test", store=tmp_path / "stores")) == 4


def test_verify_notices_a_changed_byte(ripe, refused, tree):
    document = json.loads(prepare(ripe, tree, "--json").out)
    shard = tree.parent / document["store"] / "shard-00000.npy"
    data = shard.read_bytes()
    shard.write_bytes(data[:-3] + bytes([data[-3] ^ 8]) + data[-2:])
    refused(("data", "verify", "folder", "--root", tree), shard, "sha256")
    assert prepare(ripe, tree).code == 0
    assert ripe("data", "verify", "folder", "--root", tree).code == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("prepare", "folder", "--workers", "0"), ["--workers", "0", "1 to 1024"]),
        (("prepare", "folder", "--workers", "-2"), ["--workers", "-2"]),
        (("prepare", "folder", "--workers", "2000"), ["--workers", "2000"]),
        (("prepare", "folder", "--workers", "two"), ["--workers", "two"]),
        (("prepare", "folder", "--test-share", "2"), ["--test-share", "2.0"]),
        (("prepare", "folder", "--test-share", "0"), ["--test-share", "0.0"]),
        (("prepare", "folder", "--test-share", "nan"), ["--test-share", "nan"]),
        (("prepare", "folder", "--test-share", "half"), ["--test-share", "half"]),
        (("prepare", "folder", "--sensor-size", "0", "0", "--workers", "1"), ["--sensor-size", "(0, 0)"]),
        (("prepare", "folder", "--time-unit", "h"), ["--time-unit", "h"]),
        (("prepare", "folder", "--partial"), ["--partial", "folder"]),
        (("prepare", "nmnist", "--test-share", "0.5"), ["--test-share", "nmnist"]),
        (("prepare", "nmnist", "--lists", "lists"), ["--lists", "nmnist"]),
        (("prepare", "nmnist"), ["nmnist"]),
        (("prepare", "dailydvs200"), ["train.txt"]),
        (("prepare", "mnist"), ["mnist", "dvsgesture"]),
        (("verify", "mnist"), ["mnist", "dvsgesture"]),
        (("verify", "folder"), ["ripe data prepare folder"]),
        (("download", "mnist"), ["mnist", "dvsgesture"]),
        (("download", "folder"), ["folder"]),
        (("download", "ncaltech101"), ["ncaltech101", "Caltech101.zip"]),
        (("download", "dailydvs200"), ["dailydvs200"]),
        (("download", "nmnist", "--json"), ["--json"]),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_invalid_options_are_refused(refused, tree, words, named):
    refused(("data", *words, "--root", tree), *named)
    assert not list(tree.glob(".ripe/*/current"))


@pytest.mark.parametrize("command", ["download", "prepare", "verify"])
def test_invalid_roots_are_refused(refused, tmp_path, command):
    file = tmp_path / "file"
    file.write_text("")
    for root in (file, file / "below", tmp_path / ("x" * 300)):
        refused(("data", command, "dvsgesture", "--root", root), root)
    refused(("data", command, "dvsgesture"), "--root")
    refused(("data", command, "--root", tmp_path), "NAME")


def test_a_damaged_recording_is_refused(refused, tree):
    path = tree / "right" / "6.npz"
    path.write_bytes(path.read_bytes()[:-30])
    refused(("data", "prepare", "folder", "--root", tree, "--workers", "1", "--json"), path)
    refused(("data", "verify", "folder", "--root", tree), tree)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A set known as nmnist, of two archives on a server in this process."""
    (tmp_path / "served").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "served")))
    archives = []
    for part, numbers in (("Train", range(1, 7)), ("Test", range(1, 3))):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for number in numbers:
                write(make_clip(number), tmp_path / "clip.bin")
                archive.write(tmp_path / "clip.bin", f"{part}/{number % 2}/{number:05d}.bin")
        data = buffer.getvalue()
        (tmp_path / "served" / f"{part}.zip").write_bytes(data)
        url = f"http://127.0.0.1:{server.server_port}/{part}.zip"
        archives.append(Archive(f"{part}.zip", (url,), len(data), f"sha256:{hashlib.sha256(data).hexdigest()}", part))
    tiny = DownloadInfo("Tiny", "CC0", "Nobody 2020", "http://127.0.0.1/", tuple(archives), (), "none")
    monkeypatch.setitem(registry._DATASETS, "nmnist", replace(registry.dataset_info("nmnist"), download=tiny))
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield tmp_path / "served"
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_download_prepare_and_load(ripe, served, tmp_path):
    """Fetched, prepared, verified, loaded."""
    root = tmp_path / "sets" / "nmnist"
    result = ripe("data", "download", "nmnist", "--root", root)
    assert result == (0, f"{root}: Tiny, licence CC0; cite Nobody 2020\n", "")
    result = prepare(ripe, root, "--json", name="nmnist")
    assert result.code == 0
    assert result.err.splitlines() == [
        "ripe: note: 6 of the 60,000 train recordings are there",
        "ripe: note: 2 of the 10,000 test recordings are there",
    ]
    document = json.loads(result.out)
    assert document["clips"] == 8
    assert document["events"] == sum(30 + number for number in (1, 2, 3, 4, 5, 6, 1, 2))
    assert json.loads(ripe("data", "verify", "nmnist", "--root", root, "--json").out)["source"] == "unchanged"
    test = load_dataset("nmnist", root, "test")
    assert test.names == ["Test/0/00002", "Test/1/00001"]
    wanted = make_clip(2)
    np.testing.assert_array_equal(test[0][0]["t"], wanted["t"] - wanted.first_us)
    assert ripe("data", "download", "nmnist", "--root", root).code == 0


def test_a_download_that_fails(refused, served, tmp_path):
    (served / "Test.zip").write_bytes(b"something else")
    refused(("data", "download", "nmnist", "--root", tmp_path / "root"), "Test.zip", "14 bytes")
    assert not (tmp_path / "root" / "Test").exists()
    (served / "Test.zip").unlink()
    refused(("data", "download", "nmnist", "--root", tmp_path / "root"), "Test.zip", "404")
