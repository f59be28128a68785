"""Opening a recording: found by content, checked on the way, in pieces or whole; and what is no recording."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from makers import (
    BINARY_WORDS,
    EVENTS,
    NAMES,
    SMALL,
    as_events,
    atis,
    dvs128,
    evt3,
    npy,
    prophesee,
    read_or_not,
    refused,
    small,
)

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events import RecordingWarning, open_recording, read, read_chunks, registry

VARIANTS = ("npy-table", "npz-compressed", "hdf5-compound")  # of formats that are tested without them
FORMATS = {"evt21-swapped": "evt21", "npy-table": "npy", "csv": "text"}


def file_of(name, saved):
    return saved(*reversed(small(name)))


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_same_events(saved, name):
    recording = read(file_of(name, saved), strict=True)
    np.testing.assert_array_equal(recording.events, EVENTS)
    assert recording.events.dtype == EVENTS.dtype
    assert recording.format == FORMATS.get(name, name.split("-")[0])
    assert recording.warnings == ()
    assert EVENTS["x"].max() < recording.sensor_size[0]
    assert EVENTS["y"].max() < recording.sensor_size[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", ["a.bin", "a.npz", "a.aedat4", "a.raw", "noending"])
def test_the_format_does_not_depend_on_the_name(saved, name, other):
    path = file_of(name, saved)
    np.testing.assert_array_equal(read(path.rename(path.with_name(other))).events, EVENTS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 5, 7, 24, 1000])
def test_chunks_are_the_whole_in_pieces(saved, block_size, name, size):
    path = file_of(name, saved)
    for block in (1 << 16, 20):
        block_size(block)
        chunks = list(read_chunks(path, events=size))
        np.testing.assert_array_equal(np.concatenate([chunk.events for chunk in chunks]), EVENTS)
        assert [len(chunk) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
        assert 1 <= len(chunks[-1]) <= size
        assert chunks[-1].sensor_size == read(path).sensor_size


def test_chunks_do_not_share_memory(saved):
    chunks = list(read_chunks(saved(small("npy")[1]), events=10))
    assert all(chunk.events.flags.owndata for chunk in chunks)  # so that none keeps a larger piece alive
    chunks[0].events["x"] = 9
    np.testing.assert_array_equal(np.concatenate([chunk.events for chunk in chunks[1:]]), EVENTS[10:])


@pytest.mark.parametrize("events", [0, -1, 2.5, "all"])
def test_chunks_of_no_size_are_refused_at_once(saved, events):
    with raises(InputError, field="events", mentions=["at least 1", repr(events)]):
        read_chunks(saved(small("npy")[1]), events=events)


def test_a_recording_in_chunks_warns_once(saved):
    data = b"".join(atis(1, 1, t, 0) for t in (5, 9, 7, 8, 6))
    with pytest.warns(RecordingWarning, match="times run backwards at 2 events") as caught:
        chunks = list(read_chunks(saved(data, "a.bin"), events=2))
    assert len(caught) == 1
    assert chunks[-1].warnings == ("times run backwards at 2 events",)


@pytest.mark.parametrize("block", [1, 2, 100])
def test_times_that_run_back_are_counted_and_kept(saved, block_size, block):
    block_size(block)
    path = saved(b"".join(atis(1, 1, t, 0) for t in (5, 9, 7, 8, 6)), "a.bin")
    with pytest.warns(RecordingWarning, match=r"a\.bin: times run backwards at 2 events"):
        recording = read(path)
    assert recording["t"].tolist() == [5, 9, 7, 8, 6]
    assert recording.warnings == ("times run backwards at 2 events",)
    refused(path, "strict", "times run backwards at", strict=True)


@pytest.mark.parametrize("block", [1, 3, 100])
def test_events_outside_the_sensor_are_counted_and_left_out(saved, block_size, block):
    block_size(block)
    events = as_events([(9, 9, 1, 1), (10, 0, 2, 1), (0, 0, 3, 0), (0, 8, 4, 0), (3, 7, 5, 0)])
    path = saved(prophesee("3.0", "geometry 10x8") + evt3(events), "a.raw")
    with pytest.warns(RecordingWarning, match="3 events outside the 10×8 sensor left out"):
        recording = read(path)
    assert recording.events.tolist() == [(0, 0, 3, 0), (3, 7, 5, 0)]
    refused(path, "strict", "outside the 10×8 sensor left out by event", strict=True)
    assert len(read(path, sensor_size=(11, 10), strict=True)) == 5


def test_all_events_outside_are_no_recording(saved):
    path = saved(npy(EVENTS[1:]), "a.npy")
    refused(path, "events", "23 events outside the 1×1 sensor", sensor_size=(1, 1))


def test_a_sensor_size_given_counts_for_more_than_one_guessed(saved):
    recording = read(saved(small("npy")[1]), sensor_size=(50, 60))
    assert recording.sensor_size == (50, 60)
    assert recording.metadata["sensor_size_from"] == "the caller"


@pytest.mark.parametrize("size", [(0, 5), (5,), (5, 6, 7), (5, 70000), (1.5, 2), "big", 5])
def test_invalid_sensor_sizes(saved, size):
    with raises(InputError, field="sensor_size", mentions=["1 to 65536", size]):
        read(saved(small("npy")[1]), sensor_size=size)


def test_an_unknown_time_unit(saved):
    with raises(InputError, field="time_unit", mentions=["one of s, ms, us, ns", "'minutes'"]):
        read(saved(small("npy")[1]), time_unit="minutes")


def test_format_and_size_are_known_before_events_are_read(saved):
    opened = open_recording(saved(small("evt3")[1], "a.raw"))
    assert (opened.format, opened.declared_size, opened.events) == ("evt3", (640, 480), 0)
    assert sum(map(len, opened.pieces())) == opened.events == 24


# What is no recording


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\0", "a.xyz"),
        (bytes(range(256)) * 9, "a.xyz"),
        (b"GIF89a" + bytes(50), "a.xyz"),
        (b"#!AER-DAT9.9\r\n" + bytes(64), "a.xyz"),
        (prophesee("4.0") + bytes(64), "a.xyz"),
        (b"Hello, this is a letter.\n", "a.xyz"),
        (b"{}", "a.xyz"),
        (np.random.default_rng(0).bytes(5000), "a.bin"),
    ],
)
def test_no_known_format(saved, data, name):
    path = saved(data, name)
    refused(path, "format", path, data[:8].hex(" "), *(one.title for one in registry.FORMATS.values()))


def test_an_empty_file(saved):
    refused(saved(b"", "a.xyz"), "size", "empty")


@pytest.mark.parametrize("name", [name for name in SMALL if SMALL[name][1] and name not in ("npy", "npy-table")])
def test_a_header_alone_holds_no_events(saved, name):
    refused(saved(SMALL[name][1], SMALL[name][0]), "events", "none")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in NAMES]
)
def test_a_file_cut_off_anywhere(saved, name):
    """Every length gives the first events of the file, or an error that names the file; half a word names its byte."""
    path = file_of(name, saved)
    data = path.read_bytes()
    head = len(SMALL[name][1]) if name in SMALL else 0
    lengths = range(1, len(data)) if len(data) < 3000 else range(1, len(data), 11)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        for length in lengths:
            path.write_bytes(data[:length])
            recording, error = read_or_not(path)
            half_a_word = name in BINARY_WORDS and (length - head) % BINARY_WORDS[name]
            if recording is None:
                assert path.name in error
                assert f"cut off at byte {length}" in error or not half_a_word or length < head
            else:
                assert not half_a_word
                # The last number of a text may be cut and still be one.
                events = recording.events[:-1] if recording.format == "text" else recording.events
                np.testing.assert_array_equal(events, EVENTS[: len(events)])


def test_a_folder_and_missing_files(tmp_path):
    refused(tmp_path, "file", "a folder")
    refused(tmp_path / "none.bin", "file", "none.bin", "No such file or directory")
    refused(tmp_path / ("n" * 5000), "file", "File name too long")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.bin")
    refused(tmp_path / "pipe.bin", "file", "no plain file")


def test_a_link_to_itself(tmp_path):
    (tmp_path / "loop.bin").symlink_to("loop.bin")
    refused(tmp_path / "loop.bin", "file", "loop.bin")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(saved):
    path = saved(small("npy")[1])
    path.chmod(0)
    refused(path, "file", "Permission denied")


# Memory

READ_IN_CHUNKS = """
import pathlib, re, sys
from ripe_mambaspike.events import read_chunks

print(sum(len(chunk) for chunk in read_chunks(sys.argv[1], events=1_000_000)))
print(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
print("torch" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux reports the peak memory of a process without its parent's"
)
def test_a_large_file_is_read_in_little_memory(saved):
    """19 million events, 150 MB; as events in memory they would take 250 MB. Torch is not imported for it."""
    block = b"".join(dvs128(i % 128, i // 128 % 128, i, i % 2) for i in range(1000))
    words = np.tile(np.frombuffer(block, ">u4").reshape(-1, 2), (19_000, 1)).astype(">u4")
    words[:, 1] = np.arange(len(words))
    path = saved(b"#!AER-DAT2.0\r\n" + words.tobytes(), "large.aedat")
    assert path.stat().st_size > 150e6
    run = [sys.executable, "-c", READ_IN_CHUNKS, str(path)]
    events, memory, torch = subprocess.run(run, check=True, capture_output=True, text=True).stdout.split()
    path.unlink()
    assert int(events) == 19_000_000
    assert int(memory) < 300 * 1024
    assert torch == "False"
