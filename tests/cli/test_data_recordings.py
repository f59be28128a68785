"""`ripe data info` and `convert`: one recording of any format."""

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from ripe_mambaspike.events import Recording, make_events, read, write, writing

SUFFIXES = [".bin", ".npz", ".npy", ".raw", ".aedat", ".csv", ".txt"]
EVENTS = make_events(
    [3 * i % 40 for i in range(50)],
    [7 * i % 30 for i in range(50)],
    [1000 + 37 * i for i in range(50)],
    [0, 1, 1, 0, 1] * 10,
)
BACKWARDS = make_events([1, 2, 3], [1, 2, 3], [50, 10, 20], [1, 0, 1])


@pytest.fixture
def clip(tmp_path):
    return write(Recording(EVENTS, (40, 30)), tmp_path / "clip.npz")


@pytest.fixture
def troubled(tmp_path):
    return write(Recording(BACKWARDS, (40, 30)), tmp_path / "troubled.npz")


@pytest.fixture
def folder(tmp_path):
    """Its files before a command, for a look at what the command left behind."""
    return lambda: {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_info_as_json(ripe, clip):
    result = ripe("data", "info", clip, "--json")
    assert (result.code, result.err) == (0, "")
    document = json.loads(result.out)
    assert document == {
        "file": str(clip),
        "format": "npz",
        "sensor_size": [40, 30],
        "events": 50,
        "duration_us": 37 * 49,
        "on": 30,
        "off": 20,
        "first_us": 1000,
        "last_us": 1000 + 37 * 49,
        "warnings": [],
        "metadata": {"time_unit": "us", "sensor_size_from": "the file"},
    }


def test_info_as_text(ripe, clip):
    result = ripe("data", "info", clip)
    assert (result.code, result.err) == (0, "")
    for text in (clip.name, "40×30 (from the file)", "30 / 20 (60.0% ON)", "0.001813 s", "1,000 … 2,813 µs"):
        assert text in result.out


def test_info_with_options(ripe, tmp_path):
    path = tmp_path / "clip.csv"
    path.write_text("x,y,t,p\n1,2,5,1\n30,4,9,0\n")
    document = json.loads(ripe("data", "info", path, "--time-unit", "ms", "--sensor-size", "64", "48", "--json").out)
    assert (document["duration_us"], document["sensor_size"]) == (4000, [64, 48])
    document = json.loads(ripe("data", "info", path, "--json").out)
    assert (document["duration_us"], document["sensor_size"]) == (4, [34, 34])
    assert document["metadata"]["sensor_size_from"] == "the events"


def test_one_event(ripe, tmp_path):
    path = write(Recording(EVENTS[:1], (40, 30)), tmp_path / "one.npz")
    document = json.loads(ripe("data", "info", path, "--json").out)
    assert (document["events"], document["duration_us"], document["on"], document["off"]) == (1, 0, 0, 1)
    assert "–" in ripe("data", "info", path).out


def test_warnings_go_to_standard_error(ripe, troubled):
    result = ripe("data", "info", troubled, "--json")
    assert result.code == 0
    assert json.loads(result.out)["warnings"] == ["times run backwards at 1 event"]
    assert json.loads(result.out)["duration_us"] == 40
    assert result.err == f"ripe: warning: {troubled}: times run backwards at 1 event\n"


def test_info_of_a_file_read_in_pieces(ripe, troubled, monkeypatch):
    whole = ripe("data", "info", troubled, "--json")
    monkeypatch.setattr("ripe_mambaspike.events.formats.arrays.BLOCK_WORDS", 2)
    assert ripe("data", "info", troubled, "--json") == whole
    assert (json.loads(whole.out)["first_us"], json.loads(whole.out)["last_us"]) == (10, 50)


@pytest.mark.parametrize("command", ["info", "convert"])
def test_invalid_recordings_are_refused(refused, folder, tmp_path, command):
    rest = (tmp_path / "out.npz",) if command == "convert" else ("--json",)
    files = {
        "empty.bin": b"",
        "noise.dat": bytes(range(256)),
        "none.txt": b"hello there\n",
        "cut.bin": b"\1\2\3\4\5\6\7",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    empty_events = tmp_path / "no_events.npy"
    np.save(empty_events, EVENTS[:0])
    before = folder()
    refused(("data", command, empty_events, *rest), empty_events, "event")
    refused(("data", command, tmp_path / "none.bin", *rest), tmp_path / "none.bin", "No such file")
    refused(("data", command, tmp_path, *rest), tmp_path)
    refused(("data", command, tmp_path / "empty.bin", *rest), "empty.bin")
    refused(("data", command, tmp_path / "noise.dat", *rest), "noise.dat", "00 01 02")
    refused(("data", command, tmp_path / "none.txt", *rest), "none.txt")
    refused(("data", command, tmp_path / "cut.bin", *rest), "cut.bin", "7")
    refused(("data", command, "x" * 5000, *rest), "File name too long")
    assert folder() == before


@pytest.mark.parametrize("command", ["info", "convert"])
def test_invalid_options_are_refused(refused, clip, troubled, folder, tmp_path, command):
    rest = (tmp_path / "out.npz",) if command == "convert" else ("--json",)
    before = folder()
    refused(("data", command, troubled, *rest, "--strict"), troubled, "backwards")
    refused(("data", command, clip, *rest, "--sensor-size", "0", "0"), "--sensor-size", "(0, 0)", "1 to 65536")
    refused(("data", command, clip, *rest, "--sensor-size", "-4", "5"), "-4")
    refused(("data", command, clip, *rest, "--sensor-size", "5"), "--sensor-size", "5")
    refused(("data", command, clip, *rest, "--sensor-size", "a", "b"), "--sensor-size", "a")
    refused(("data", command, clip, *rest, "--time-unit", "h"), "--time-unit", "'h'", "'s'", "'ms'", "'us'", "'ns'")
    refused(("data", command, clip, *rest, "--colour"), "--colour")
    refused(("data", command), "FILE")
    assert folder() == before


@pytest.mark.parametrize("name", ["[bold].npz", "a[/b].npz", "größe [x].npz"])
def test_names_that_look_like_markup(ripe, tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    path = write(Recording(EVENTS, (40, 30)), tmp_path / name)
    result = ripe("data", "info", path)
    assert result.code == 0
    assert name in result.out.replace("\n", "")


def test_a_header_that_looks_like_markup(ripe, tmp_path):
    path = tmp_path / "clip.aedat"
    head = b"#!AER-DAT3.1\r\n#Source 1: DVS128\r\n#Start-Time: at [/noon]\r\n#!END-HEADER\r\n"
    path.write_bytes(head + struct.pack("<hhiiiiii", 1, 1, 8, 4, 0, 1, 1, 1) + struct.pack("<Ii", 1, 5))
    result = ripe("data", "info", path)
    assert result.code == 0
    assert "at [/noon]" in result.out


def test_a_file_name_that_is_not_utf8(tmp_path):
    path = write(Recording(EVENTS, (40, 30)), tmp_path / os.fsdecode(b"\xff.npz"))
    out = tmp_path / os.fsdecode(b"\xfe.bin")
    code = (
        "import sys; from ripe_mambaspike.cli.main import main; path, out = sys.argv[1:]\n"
        "for words in ([path, '--json'], [path]): assert main(['data', 'info', *words]) == 0\n"
        "assert main(['data', 'convert', path, out]) == 0"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}  # as on a terminal
    done = subprocess.run([sys.executable, "-c", code, path, out], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b".npz") == 2
    assert b".bin" in done.stdout


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "first", [pytest.param(one, marks=() if one == ".npz" else pytest.mark.slow) for one in SUFFIXES]
)
def test_converting_back_gives_the_same_bytes(ripe, tmp_path, first, suffix):
    clip = write(Recording(EVENTS, (40, 30)), tmp_path / f"clip{first}")
    out, back = tmp_path / f"out{suffix}", tmp_path / f"back{first}"
    result = ripe("data", "convert", clip, out, "--sensor-size", "40", "30")
    assert result.code == 0
    assert ("--sensor-size 40 30" in result.err) == (suffix in (".bin", ".npy"))
    assert result.out == f"{out}: 50 events, {out.stat().st_size:,} bytes, reads back the same\n"
    np.testing.assert_array_equal(read(out).events, EVENTS)
    assert ripe("data", "convert", out, back, "--sensor-size", "40", "30").code == 0
    assert back.read_bytes() == clip.read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.filterwarnings("ignore:.*times run backwards")
def test_convert_keeps_the_order_and_warns(ripe, troubled, tmp_path):
    out = tmp_path / "out.csv"
    result = ripe("data", "convert", troubled, out)
    assert result.code == 0
    assert result.err == f"ripe: warning: {troubled}: times run backwards at 1 event\n"
    assert read(out)["t"].tolist() == [50, 10, 20]


def test_convert_does_not_write_over_a_file(refused, ripe, clip, folder, tmp_path):
    old = tmp_path / "old.bin"
    old.write_bytes(b"kept")
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "link.npz").symlink_to(clip)
    before = folder()
    refused(("data", "convert", clip, old), old, "--force")
    refused(("data", "convert", clip, clip), clip)
    refused(("data", "convert", clip, clip, "--force"), clip)
    refused(("data", "convert", clip, tmp_path / "link.npz", "--force"), "link.npz")
    refused(("data", "convert", tmp_path / "none.npz", old, "--force"), tmp_path / "none.npz", "No such file")
    refused(("data", "convert", clip, tmp_path / "folder.npz", "--force"), "folder.npz", "Is a directory")
    refused(("data", "convert", clip, tmp_path / "nowhere" / "a.npz"), "nowhere", "No such file")
    refused(("data", "convert", clip, tmp_path / f"{'x' * 300}.npz"), "File name too long")
    refused(("data", "convert", clip, old / "a.npz"), "Not a directory")
    assert folder() == before
    assert ripe("data", "convert", clip, old, "--force").code == 0
    np.testing.assert_array_equal(read(old).events, EVENTS)


@pytest.mark.parametrize("name", ["out.mp4", "out", "out.aedat4", "out.h5"])
def test_an_unknown_suffix_is_refused(refused, clip, folder, tmp_path, name):
    before = folder()
    refused(
        ("data", "convert", clip, tmp_path / name),
        tmp_path / name,
        ".bin",
        ".npz",
        ".npy",
        ".raw",
        ".aedat",
        ".csv",
        ".txt",
    )
    assert folder() == before


@pytest.mark.parametrize(
    ("events", "size", "suffix"),
    [
        (make_events([300, 1], [1, 1], [5, 6], [1, 0]), (346, 260), ".bin"),
        (make_events([3, 1], [240, 1], [5, 6], [1, 0]), (346, 260), ".bin"),
        (make_events([3, 2000], [2, 1], [5, 6], [1, 0]), (2048, 30), ".aedat"),
        (make_events([3, 1], [2, 1], [5, 2**60], [1, 0]), (40, 30), ".csv"),
    ],
    ids=["too wide", "the overflow's row", "too wide for a DAVIS", "too late for text"],
)
def test_events_that_a_format_cannot_hold_are_refused(refused, folder, tmp_path, events, size, suffix):
    source = write(Recording(events, size), tmp_path / "clip.npz")
    out = tmp_path / f"out{suffix}"
    refused(("data", "convert", source, out))
    assert set(folder()) == {"clip.npz"}
    out.write_bytes(b"kept")
    refused(("data", "convert", source, out, "--force"))
    assert folder() == {"clip.npz": source.read_bytes(), out.name: b"kept"}


@pytest.mark.parametrize("strict", [False, True])
def test_times_before_zero_give_a_warning_and_are_refused_by_formats_without_them(ripe, folder, tmp_path, strict):
    source = write(Recording(make_events([3, 1], [2, 1], [-5, 6], [1, 0]), (40, 30)), tmp_path / "clip.npz")
    result = ripe("data", "convert", source, tmp_path / "out.bin", *(["--strict"] if strict else []))
    assert (result.code, result.out) == (2, "")
    assert [line.startswith("ripe: warning: ") for line in result.err.splitlines()] == (
        [False] if strict else [True, False]
    )
    assert set(folder()) == {"clip.npz"}


@pytest.mark.filterwarnings("ignore:.*times run backwards")
def test_a_file_that_does_not_read_back_is_not_kept(ripe, refused, folder, tmp_path, monkeypatch):
    """Times that jump about are not recognized in the 40-bit format; nor is a writer trusted that mixes up events."""
    times = np.random.default_rng(0).integers(0, 8_000_000, 50)
    source = tmp_path / "clip.npy"
    np.save(source, make_events(EVENTS["x"], EVENTS["y"], times, EVENTS["p"]))
    out = tmp_path / "out.bin"
    out.write_bytes(b"kept")
    before = folder()
    result = ripe("data", "convert", source, out, "--force")
    assert (result.code, result.out) == (2, "")
    warned, sentence = result.err.splitlines()
    assert "backwards" in warned
    assert str(out) in sentence
    assert folder() == before
    write(Recording(EVENTS, (40, 30)), tmp_path / "clip.npz")
    swapped = writing.ENCODERS[".npy"]
    monkeypatch.setitem(
        writing.ENCODERS, ".npy", lambda recording: swapped(Recording(recording.events[::-1], recording.sensor_size))
    )
    out = tmp_path / "out.npy"
    refused(
        ("data", "convert", tmp_path / "clip.npz", out),
        out,
    )
    assert not out.exists()
