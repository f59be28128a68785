"""NumPy files as different authors write them."""

import io
import zipfile

import numpy as np
import pytest
from makers import EVENTS, array_header, columns, npy, npz, refused

from ripe_mambaspike.events import RecordingWarning, read
from ripe_mambaspike.events.formats import arrays

PADDED = np.dtype(
    {"names": ["t", "x", "y", "p"], "formats": ["<i8", "<i2", "<i2", "u1"], "offsets": [0, 8, 10, 12], "itemsize": 16}
)
LARGE = np.array(
    [(i % 300, i % 200, 10 * i, i % 2) for i in range(70_000)], dtype=EVENTS.dtype
)  # more than a block has


def table(events, order, dtype=np.int64):
    return np.stack([events[name].astype(dtype) for name in order], axis=1)


@pytest.mark.parametrize(
    "dtype",
    [
        EVENTS.dtype,
        PADDED,
        [("p", "?"), ("t", "<u8"), ("y", "<i4"), ("x", "<i4")],
        [("x", ">u2"), ("y", ">u2"), ("p", "i1"), ("t", ">i8"), ("extra", "f4")],
        [("timestamp", "<i8"), ("X", "u1"), ("Y", "u1"), ("polarity", "i1")],
        [("ts", "<f8"), ("xs", "f4"), ("ys", "f4"), ("ps", "f4")],
    ],
    ids=["ours", "padded", "reversed", "big endian", "other names", "floats"],
)
@pytest.mark.parametrize("events", [EVENTS, LARGE], ids=["small", "large"])
def test_named_fields_in_any_order(saved, dtype, events):
    if np.dtype(dtype).fields.get("X"):
        events = events[(events["x"] < 256) & (events["y"] < 256)]
    array = np.zeros(len(events), dtype)
    names = {"t": ("t", "timestamp", "ts"), "x": ("x", "X", "xs"), "y": ("y", "Y", "ys"), "p": ("p", "polarity", "ps")}
    for name, spellings in names.items():
        array[next(spelling for spelling in spellings if spelling in array.dtype.names)] = events[name]
    recording = read(saved(npy(array)))
    np.testing.assert_array_equal(recording.events, events)
    assert recording.format == "npy"
    assert recording.metadata["time_unit"] == "us"


@pytest.mark.parametrize("order", ["txyp", "xytp", "xypt"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64, np.float64, np.int16, ">i4"])
def test_four_columns_in_any_order(saved, order, dtype):
    recording = read(saved(npy(table(EVENTS, order, dtype))))
    np.testing.assert_array_equal(recording.events, EVENTS)
    assert recording.metadata["columns"] == order


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_short_times_are_recognized(saved, dtype):
    """x goes further than t here, but not always forward; unsigned numbers must not hide that."""
    events = EVENTS.copy()
    events["t"] = np.arange(len(events)) // 2
    np.testing.assert_array_equal(read(saved(npy(table(events, "txyp", dtype)))).events, events)


def test_the_order_is_settled_once(read_bytes):
    recording = read_bytes(npy(table(LARGE[:3000], "xytp")), blocks=(500, 4096))
    np.testing.assert_array_equal(recording.events, LARGE[:3000])


@pytest.mark.parametrize("sign", [-1, 0])
def test_off_may_be_minus_one(saved, sign):
    array = table(EVENTS, "txyp")
    array[:, 3] = np.where(array[:, 3] == 1, 1, sign)
    np.testing.assert_array_equal(read(saved(npy(array))).events, EVENTS)


@pytest.mark.parametrize(("unit", "scale"), [("s", 1e6), ("ms", 1e3), ("us", 1), ("ns", 1e-3)])
def test_the_unit_of_the_times_can_be_given(saved, unit, scale):
    array = np.zeros(3, [("x", "u2"), ("y", "u2"), ("t", "f8"), ("p", "u1")])
    array["t"] = np.array([5, 1000, 250_000]) / scale
    assert read(saved(npy(array)), time_unit=unit)["t"].tolist() == [5, 1000, 250_000]


def test_fractional_times_are_seconds(saved):
    array = np.zeros(3, [("x", "u2"), ("y", "u2"), ("t", "f8"), ("p", "u1")])
    array["t"] = [0.003811, 1.5, 1468939993.067416]
    assert read(saved(npy(array)))["t"].tolist() == [3811, 1_500_000, 1468939993067416]


@pytest.mark.parametrize("compressed", [False, True])
def test_an_archive_of_columns(read_bytes, compressed):
    recording = read_bytes(npz(compressed, sensor_size=np.array([60, 50]), **columns(EVENTS)), blocks=(2, 7))
    np.testing.assert_array_equal(recording.events, EVENTS)
    assert recording.format == "npz"
    assert recording.sensor_size == (60, 50)


def test_an_archive_with_more_events_than_a_block_has(saved):
    recording = read(saved(npz(True, polarity=LARGE["p"], x=LARGE["x"], y=LARGE["y"], ts=LARGE["t"], other=np.eye(3))))
    np.testing.assert_array_equal(recording.events, LARGE)


@pytest.mark.parametrize(
    ("data", "field", "values"),
    [
        (array_header("'<i8'", "(1000000000000, 4)") + bytes(64), "size", ["got 64", "(1000000000000, 4)"]),
        (array_header("'<i8'", "(9" + "0" * 80 + ", 4)") + bytes(64), "size", ["got 64"]),
        (array_header("'<i8'", "(-2, 4)") + bytes(64), "dtype", ["(-2, 4)"]),
        (array_header("'<i8'", "(2, 4)") + bytes(65), "size", ["got 65"]),
        (array_header("'|O'", "(2, 4)") + bytes(64), "dtype", ["Python objects"]),
        (array_header("'<i8'", "(2, 3)") + bytes(48), "fields", ["x, y, t, p or four columns", "(2, 3)"]),
        (array_header("'<i8'", "(0, 4)"), "events", ["none"]),
        (b"\x93NUMPY\x01\x00\xff\xff{'descr'", "header", ["damage"]),
        (b"\x93NUMPY", "header", ["damage"]),
        (npy(np.zeros(3, [("x", "u2"), ("y", "u2")])), "fields", ["got x, y"]),
        (npy(np.zeros((3, 4), complex)), "fields", ["complex128"]),
        (npy(np.full((3, 4), 9)), "columns", ["order"]),
        (npy(np.zeros((3, 4))), "columns", ["order"]),
    ],
)
def test_invalid_arrays(saved, data, field, values):
    refused(saved(data, "a.npy"), field, *values)


@pytest.mark.parametrize(
    ("field", "value"), [("x", 0.5), ("x", np.inf), ("y", np.nan), ("p", 2.0), ("t", np.nan), ("t", 1e300)]
)
def test_numbers_that_are_no_events(saved, field, value):
    array = np.zeros(3, [(name, "f8") for name in "xytp"])
    array[field][1] = value
    refused(saved(npy(array), "a.npy"), field, f"{value} in event 1", "from -1 to 1" if field == "p" else "")


@pytest.mark.parametrize(("field", "value"), [("x", -1), ("y", -7), ("x", 65536), ("y", 10**9)])
def test_coordinates_that_no_sensor_has_are_left_out_and_counted(saved, field, value):
    array = np.zeros(3, [(name, "f8") for name in "xytp"])
    array["t"] = [5, 6, 7]
    array[field][1] = value
    path = saved(npy(array), "a.npy")
    with pytest.warns(RecordingWarning, match="1 event that had a coordinate below 0 or above 65535 left out"):
        recording = read(path)
    assert recording["t"].tolist() == [5, 7]
    refused(path, "strict", "coordinate below 0", strict=True)


@pytest.mark.parametrize("order", ["txyp", "xytp", "xypt"])
def test_an_array_stored_by_columns(saved, order, monkeypatch):
    path = saved(npy(np.asfortranarray(table(EVENTS, order))), "a.npy")
    assert read(path).events.tolist() == EVENTS.tolist()
    monkeypatch.setattr(arrays, "BLOCK_WORDS", 5)
    assert read(path).events.tolist() == EVENTS.tolist()


@pytest.mark.parametrize("made", [lambda: EVENTS, lambda: table(EVENTS, "xytp")])
def test_an_archive_with_one_array_of_events(saved, made):
    recording = read(saved(npz(events=made(), sensor_size=np.array([50, 60])), "a.npz"))
    assert recording.events.tolist() == EVENTS.tolist()
    assert recording.sensor_size == (50, 60)


def test_whole_times_are_microseconds_however_short(saved):
    array = np.zeros(3, [(name, "f8") for name in "xytp"])
    array["t"] = [0, 400, 899]
    assert read(saved(npy(array), "a.npy"))["t"].tolist() == [0, 400, 899]


def with_member(name, data, method=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for column in "xytp":
            archive.writestr(f"{column}.npy", data if column == name else npy(EVENTS[column]))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "field", "values"),
    [
        (with_member("x", array_header("'<i8'", "(1000000000000,)") + bytes(64)), "columns", [10**12]),
        (with_member("x", npy(EVENTS["x"][:5])), "columns", ["'x': 5", "'y': 24"]),
        (with_member("t", npy(np.eye(3))), "t.npy", ["a column", "(3, 3)"]),
        (with_member("t", b"nonsense"), "header", ["damage"]),
        (with_member("t", npy(np.array(["a"] * 24))), "t.npy", ["a column", "<U1"]),
        (with_member("x", npy(EVENTS["x"]), zipfile.ZIP_LZMA), "x.npy", ["compression"]),
        (npz(x=EVENTS["x"]), "fields", ["x, y, t, p or four columns", "uint16", "(24,)"]),
        (npz(x=EVENTS["x"], y=EVENTS["y"]), "arrays", ["x, y, t, p", "got x, y"]),
        (npz(sensor_size=np.array([0, 5]), **columns(EVENTS)), "sensor_size", ["a width and a height"]),
        (npz(sensor_size=np.eye(2), **columns(EVENTS)), "sensor_size", ["(2, 2)"]),
        (npz(**columns(EVENTS))[:-30], "archive", ["damage"]),
        (b"PK\x03\x04nothing", "archive", ["damage"]),
        (b"PK\x05\x06" + bytes(18), "arrays", ["got none"]),
    ],
    ids=range(13),  # an archive holds the time it was made
)
def test_invalid_archives(saved, data, field, values):
    refused(saved(data, "a.npz"), field, *values)


def test_a_damaged_member_is_named(saved):
    data = bytearray(with_member("x", npy(EVENTS["x"])))
    data[data.index(b"t.npy") + 150] ^= 0xFF
    refused(saved(bytes(data), "a.npz"), "header", "Bad CRC-32 for file 't.npy'")
