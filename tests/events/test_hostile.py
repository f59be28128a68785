"""Malicious files: they would need too much memory or time, read other files, or overflow numbers."""

import io
import math
import os
import sys
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
from makers import (
    AEDAT3,
    EVENTS,
    aedat4,
    aedat4_events,
    array_header,
    dvs128,
    evt2_event,
    evt2_time,
    hdf5,
    npy,
    npz,
    packet,
    polarity,
    prophesee,
    refused,
    small,
    words,
)

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events import RecordingWarning, open_recording, read, read_chunks, source
from ripe_mambaspike.events.formats import aedat3

FIELDS = [("x", "<i8"), ("y", "<i8"), ("t", "<i8"), ("p", "<i8")]


def archive(**members):
    """Columns, some of them given as bytes; a number of zeros is packed after them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in {**{name: npy(EVENTS[name]) for name in "xytp"}, **members}.items():
            data, zeros = data if isinstance(data, tuple) else (data, 0)
            with made.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(data)
                for _ in range(0, zeros, 1 << 20):
                    file.write(bytes(min(zeros, 1 << 20)))
    return buffer.getvalue()


# Archives


def memory_to_refuse(path, field=None):
    """The most bytes that were held until the file was refused."""
    tracemalloc.start()
    try:
        refused(path, field)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["x", "t"])
def test_a_column_of_huge_items(saved, name):
    path = saved(archive(**{name: (array_header("'|V1000000'", "(64,)"), 64 << 20)}), "a.npz")
    assert memory_to_refuse(path) < 16 << 20


def test_fields_of_huge_items(saved):
    descr = "[('x','<u2'),('y','<u2'),('t','<i8'),('p','u1'),('more','|V1000000')]"
    path = saved(array_header(descr, "(1,)") + bytes(1_000_013), "a.npy")
    refused(path, "dtype")


@pytest.mark.parametrize("shape", ["(8388608,)", "(2, 4194304)", "()"])
def test_a_sensor_size_of_many_entries(saved, shape):
    path = saved(archive(sensor_size=(array_header("'<i8'", shape), 64 << 20)), "a.npz")
    assert memory_to_refuse(path, "sensor_size") < 16 << 20


def test_zeros_packed_into_an_archive(saved):
    count = 30_000_000
    assert count * EVENTS.dtype.itemsize > source.BASE_EVENT_BYTES
    column = (array_header("'|u1'", f"({count},)"), count)
    path = saved(archive(x=column, y=column, t=column, p=column), "a.npz")
    assert path.stat().st_size < 200_000
    refused(path, "events")


@pytest.mark.parametrize(
    "shape", ["(9223372036854775807,)", "(4611686018427387904, 4)", f"({10**30},)", "(2, 1 << 62)"]
)
def test_shapes_that_overflow(saved, shape):
    for data in (archive(x=array_header("'<i8'", shape)), npz_of(array_header("'<i8'", shape))):
        refused(saved(data, "a.npz"))
    refused(saved(array_header("'<i8'", shape) + bytes(64), "a.npy"))


def npz_of(data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("events.npy", data)
    return buffer.getvalue()


def test_names_in_an_archive_that_are_no_text(saved):
    data = bytearray(archive())
    local = data.index(b"x.npy")
    data[local - 24 + 1] |= 8  # the flag for UTF-8, in the local header alone
    data[local] = 0xFF
    refused(saved(bytes(data), "a.npz"))
    central = data.rindex(b"x.npy") if b"x.npy" in data else data.rindex(b"y.npy")
    data[central - 46 + 9] |= 8
    data[central] = 0xFF
    refused(saved(bytes(data), "b.npz"))


def test_more_in_a_member_than_its_header_says(saved):
    path = saved(archive(x=npy(EVENTS["x"]) + b"more"), "a.npz")
    refused(path, "x.npy")


# Text


@pytest.mark.parametrize("line", ["34 x,y,t,p", "x y,t,p", "x,y,t p", "x;y t;p", "n x,n y,t,p"])
def test_names_with_mixed_separators(saved, line):
    refused(saved(f"{line}\n1,2,3,1\n".encode(), "a.txt"), "line 1")


def test_a_line_without_an_end(saved):
    refused(saved(b"x,y,t,p\n" + b"1,2,3,1," * (1 << 20), "a.txt"), "line")
    refused(saved(b"1 " * (1 << 20), "b.txt"), "line")


# Headers


@pytest.mark.parametrize("line", [b"#\n", b"# a\r\n"])
def test_a_header_of_very_many_lines(saved, line):
    refused(saved(b"#!AER-DAT2.0\r\n" + line * 200_000 + bytes(80), "a.aedat"), "header")


def test_a_header_of_very_many_names(saved):
    lines = b"".join(b"%% n%d\n" % number for number in range(20_000))
    refused(saved(b"% evt 3.0\n" + lines + bytes(80), "a.raw"), "header")


# Times


def of_times(kind, times):
    """A file of one event at each time."""
    made = np.zeros(len(times), FIELDS)
    made["t"], made["x"], made["y"] = times, 3, 5
    return {
        "npy": lambda: ("a.npy", npy(made)),
        "npz": lambda: ("a.npz", npz(**{name: made[name] for name in "xytp"})),
        "text": lambda: ("a.txt", b"x,y,t,p\n" + b"".join(b"3,5,%d,0\n" % time for time in times)),
        "hdf5": lambda: ("a.h5", hdf5(lambda file: file.create_dataset("events", data=made))),
        "aedat2": lambda: ("a.aedat", b"#!AER-DAT2.0\r\n" + b"".join(dvs128(3, 5, time, 0) for time in times)),
        "aedat3": lambda: ("a.aedat", AEDAT3 + packet(1, 8, b"".join(polarity(3, 5, time, 0) for time in times))),
        "aedat4": lambda: ("a.aedat4", aedat4((0, aedat4_events(made.astype(EVENTS.dtype))))),
        "evt2": lambda: ("a.raw", prophesee("2.0") + words("I", *(
            part for time in times for part in (evt2_time(time >> 6 & (1 << 28) - 1), evt2_event(3, 5, time & 63, 0))
        ))),
    }[kind]()  # fmt: skip


KINDS = ["npy", "npz", "text", "hdf5", "aedat2", "aedat3", "aedat4", "evt2"]


@pytest.mark.parametrize("kind", KINDS)
def test_times_before_zero_are_kept_counted_and_refused_when_strict(saved, kind):
    small(kind)
    times = [5, -300, -200, 9] if kind == "evt2" else [-300, -200, 5, 9]  # a clock that runs back from its start
    name, data = of_times(kind, times)
    path = saved(data, name)
    with pytest.warns(RecordingWarning) as caught:
        recording = read(path)
    assert recording["t"].tolist() == times
    assert "times before 0 at 2 events" in recording.warnings
    assert len([warning for warning in caught if "before 0" in str(warning.message)]) == 1
    with pytest.raises(ReadError):
        read(path, strict=True)


@pytest.mark.parametrize("kind", ["npy", "npz", "text", "hdf5", "aedat4"])
@pytest.mark.parametrize("time", [1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63)])
def test_times_that_leave_no_room_to_subtract(saved, kind, time):
    small(kind)
    name, data = of_times(kind, [0, time, 10])
    refused(saved(data, name), "t")


def test_an_overflow_count_that_leaves_no_room(saved):
    data = AEDAT3 + packet(1, 8, polarity(3, 5, 0, 0), overflow=-(1 << 31))
    refused(saved(data, "a.aedat"), "t")


@pytest.mark.parametrize("dtype", ["<u8", "<i8", "<f8", "<f4", "<f2", "<i4"])
def test_the_largest_times_that_are_read(saved, dtype):
    most = min((1 << 62) - 1024, np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else 60000)
    made = np.zeros(2, [("x", "u2"), ("y", "u2"), ("t", dtype), ("p", "u1")])
    made["t"] = [0, most]
    recording = read(saved(npy(made), "a.npy"))
    assert recording.duration_us == int(made["t"][1])


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", "?", "u1", "<u8", "<i2"])
def test_coordinates_of_any_type_are_compared_without_a_warning(saved, dtype):
    made = np.zeros(3, [("x", dtype), ("y", dtype), ("t", "<i8"), ("p", dtype)])
    made["x"], made["t"] = [1, 0, 1], [1, 2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(saved(npy(made), "a.npy"))["x"].tolist() == [1, 0, 1]


# The last piece


@pytest.mark.parametrize("name", ["npy", "npz", "hdf5", "text", "csv", "npy-table", "aedat2-davis", "evt21"])
def test_the_last_chunk_has_all_metadata(saved, name):
    """Also when the pieces come out even."""
    file_name, data = small(name)
    path = saved(data, file_name)
    whole = read(path)
    for size in (1, 8, 24, 25):
        chunks = list(read_chunks(path, events=size))
        assert len(chunks) == math.ceil(24 / size)
        assert chunks[-1].metadata == whole.metadata
        assert chunks[-1].warnings == whole.warnings
        if "time_unit" in whole.metadata:
            assert {chunk.metadata["time_unit"] for chunk in chunks} == {"us"}


# Files that are none, or are not what they weigh


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/null", "/dev/stdin"])
def test_devices(device):
    if not os.path.exists(device):  # noqa: PTH110
        pytest.skip(f"there is no {device} here")
    with pytest.raises(ReadError) as caught:
        read(device)
    assert str(caught.value.path) == device


@pytest.mark.skipif(sys.platform != "linux", reason="holes are made in other ways elsewhere")
@pytest.mark.parametrize("name", ["atis", "aedat2", "aedat3", "aedat4", "evt2", "evt3", "dat", "npy", "text"])
def test_a_file_of_holes(saved, name):
    file_name, data = small(name)
    path = saved(data, file_name)
    size = 5 << 40
    try:
        os.truncate(path, size)
    except OSError as error:
        pytest.skip(f"no such file can be made here ({error})")
    if path.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("this file system fills holes")
    refused(path, "size")


@pytest.mark.skipif(sys.platform != "linux", reason="holes are made in other ways elsewhere")
def test_a_few_holes_are_read(saved):
    file_name, data = small("aedat2")
    path = saved(data, file_name)
    os.truncate(path, len(data) + 8 * 100_000)
    with pytest.warns(RecordingWarning):
        assert len(read(path)) == 24 + 100_000


def test_labels_beside_a_recording_that_are_no_file(saved, tmp_path, monkeypatch):
    file_name, data = small("aedat3")
    path = saved(data, file_name)
    beside = saved(b"class,start,end\n1,0,5\n", "a_labels.csv")
    assert read(path).metadata["labels"] == [{"label": 1, "start_us": 0, "stop_us": 5}]
    monkeypatch.setattr(aedat3, "MAX_LABEL_BYTES", 10)
    with pytest.raises(ReadError):
        read(path)
    assert beside.exists()


# Messages


def test_metadata_and_warnings_are_short_lines(saved):
    name, data = of_times("aedat3", [-5, 5])
    long = "long\x1b[2J" * 10_000
    path = saved(data.replace(b"2017-01-01 10:00:00", long.encode()), name)
    with pytest.warns(RecordingWarning) as caught:
        recording = read(path)
    assert 100 < len(recording.metadata["created"]) < 1000
    assert recording.metadata["created"].isprintable()
    deep = path.parent
    for _ in range(5):
        deep = deep / ("n\n" * 100)
        deep.mkdir()
    moved = path.rename(deep / path.name)
    with pytest.warns(RecordingWarning) as caught:
        read(moved)
    assert all(len(str(warning.message)) < 1200 and str(warning.message).isprintable() for warning in caught)


def test_a_damaged_header_of_an_array_warns_of_nothing_else(saved):
    path = saved(array_header("'<i8'", "(2 if 1is 1 else 3, 4)") + bytes(64), "a.npy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ReadError):
            open_recording(path)
