"""Small files of every format, put together byte by byte; every one holds the same `EVENTS`."""

import io
import struct
import warnings

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events import EVENT, RecordingWarning, make_events, read, read_chunks

AEDAT2 = b"#!AER-DAT2.0\r\n# This is a raw AE data file - do not edit\r\n"
AEDAT3 = b"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: DVS128\r\n#Start-Time: 2017-01-01 10:00:00\r\n#!END-HEADER\r\n"
DAT = b"% Data file containing Event2D events.\n% Version 2\n% Width 304\n% Height 240\n\x00\x08"
PIXELS = [(3 * i % 40, 7 * i % 30) for i in range(24)]
EVENTS = make_events(
    [x for x, _ in PIXELS], [y for _, y in PIXELS], [1000 + 37 * i + 4096 * (i // 8) for i in range(24)], [0, 1, 1] * 8
)


def rows(events):
    return [tuple(int(value) for value in event) for event in events]


def as_events(listed):
    return np.array(listed, EVENT)


def random_events(count, size, span, seed=0, start=0):
    """Events anywhere on the sensor, in order, over `span` µs."""
    random = np.random.default_rng(seed)
    times = np.sort(start + random.integers(0, span, count))
    x, y = (random.integers(0, side, count) for side in size)
    return make_events(x, y, times, random.integers(0, 2, count))


def array_header(descr, shape):
    """The header of a .npy file."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def read_or_not(path):
    """(the recording, None), or (None, the error's message)."""
    try:
        return read(path), None
    except ReadError as error:
        return None, str(error)


def refused(path, field=None, *values, **options):
    """Check that a file is refused, read whole and in chunks, with an error that names it, the field and the values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        with raises(ReadError, field=field, path=path, mentions=values):
            read(path, **options)
        with raises(ReadError, field=field, path=path, mentions=values):
            list(read_chunks(path, events=100_000, **options))


def atis(x, y, t, p):
    return bytes([x, y, p << 7 | t >> 16, t >> 8 & 255, t & 255])


def dvs128(x, y, t, p):
    return struct.pack(">Ii", y << 8 | x << 1 | p, t)


def davis(x, y, t, p):
    return struct.pack(">Ii", y << 22 | x << 12 | p << 11, t)


def packet(kind, size, body, overflow=0, number=None):
    number = len(body) // size if number is None else number
    return struct.pack("<hhiiiiii", kind, 1, size, 4, overflow, number, number, number) + body


def polarity(x, y, t, p, valid=1):
    return struct.pack("<Ii", x << 17 | y << 2 | p << 1 | valid, t)


def prophesee(encoding, *lines):
    return "".join(f"% {line}\n" for line in (f"evt {encoding}", *lines, "end")).encode()


def evt2_time(high):
    return 8 << 28 | high


def evt2_event(x, y, low, p):
    return p << 28 | low << 22 | x << 11 | y


def words(kind, *values):
    return struct.pack(f"<{len(values)}{kind}", *values)


def evt2(events):
    return words(
        "I", *(part for x, y, t, p in rows(events) for part in (evt2_time(t >> 6), evt2_event(x, y, t & 63, p)))
    )


def evt21(events, upper_first=False):
    made = b""
    for x, y, t, p in rows(events):
        for upper, lower in ((evt2_time(t >> 6), 0), (evt2_event(x - x % 32, y, t & 63, p), 1 << x % 32)):
            made += words("I", upper, lower) if upper_first else words("I", lower, upper)
    return made


def evt3(events):
    return words(
        "H",
        *(
            part
            for x, y, t, p in rows(events)
            for part in (8 << 12 | t >> 12 & 4095, 6 << 12 | t & 4095, y, 2 << 12 | p << 11 | x)
        ),
    )


def dat(x, y, t, p):
    return words("I", t, p << 28 | y << 14 | x)


def aedat4(*packets, table=-1, width=40, height=30):
    """A file of (stream, content) packets without compression: stream 0 has events, stream 1 motion."""
    text = (
        '<dv version="2.0"><node name="outInfo" path="/"><node name="0" path="/0/">'
        '<attr key="typeIdentifier" type="string">EVTS</attr><node name="info" path="/0/info/">'
        f'<attr key="sizeX" type="int">{width}</attr><attr key="sizeY" type="int">{height}</attr></node></node>'
        '<node name="1" path="/1/"><attr key="typeIdentifier" type="string">IMUS</attr></node></node></dv>'
    ).encode()
    fields = struct.pack("<2x5H", 10, 20, 4, 12, 8)  # where in the table its fields are
    values = struct.pack("<iiIq", 10, 0, 12, table)  # compression, the text, the table after the packets
    header = struct.pack("<I4s4x", 24, b"IOHE") + fields + values + struct.pack("<I", len(text)) + text + b"\0"
    made = b"#!AER-DAT4.0\r\n" + struct.pack("<I", len(header)) + header
    return made + b"".join(struct.pack("<II", stream, len(content)) + content for stream, content in packets)


def aedat4_events(events):
    made = struct.pack("<I4s3H2xiI4xI", 16, b"EVTS", 6, 8, 4, 8, 8, len(events))
    made += b"".join(struct.pack("<qhh?3x", t, x, y, p) for x, y, t, p in rows(events))
    return struct.pack("<I", len(made)) + made


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(compressed=False, **arrays):
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def columns(events):
    return {name: events[name] for name in "xytp"}


def hdf5(fill):
    """The bytes of an HDF5 file that `fill` put together."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        fill(file)
    return buffer.getvalue()


def _dsec(file):
    for name, column in columns(EVENTS).items():
        file[f"events/{name}"] = column


def _compound(file):
    file.create_dataset("CD/events", data=EVENTS, chunks=(8,), compression="gzip")


def joined(maker):
    return b"".join(maker(*event) for event in rows(EVENTS))


def _text(separator):
    return "".join(separator.join(map(str, (t, x, y, p))) + "\n" for x, y, t, p in rows(EVENTS)).encode()


DAVIS = AEDAT2 + b"# AEChip: eu.seebetter.ini.chips.davis.DAVIS240C\r\n"
TABLE = np.stack([EVENTS[name].astype(np.int64) for name in "txyp"], axis=1)

SMALL = {  # name: (the file's name, how it begins, how it goes on)
    "atis": ("a.bin", b"", joined(atis)),
    "aedat2": ("a.aedat", AEDAT2, joined(dvs128)),
    "aedat2-davis": ("a.aedat", DAVIS, joined(davis)),
    "aedat3": ("a.aedat", AEDAT3, packet(1, 8, joined(polarity)[:96]) + packet(1, 8, joined(polarity)[96:])),
    "evt2": ("a.raw", prophesee("2.0"), evt2(EVENTS)),
    "evt21": ("a.raw", prophesee("2.1"), evt21(EVENTS)),
    "evt21-swapped": ("a.raw", prophesee("2.1"), evt21(EVENTS, upper_first=True)),
    "evt3": ("a.raw", prophesee("3.0", "geometry 640x480"), evt3(EVENTS)),
    "dat": ("a.dat", DAT, joined(dat)),
    "aedat4": (
        "a.aedat4",
        aedat4(),
        aedat4((0, aedat4_events(EVENTS[:10])), (0, aedat4_events(EVENTS[10:])))[len(aedat4()) :],
    ),
    "npy": ("a.npy", npy(EVENTS)[:128], npy(EVENTS)[128:]),
    "npy-table": ("a.npy", npy(TABLE)[:128], npy(TABLE)[128:]),
    "npz": ("a.npz", b"", npz(**columns(EVENTS))),
    "npz-compressed": ("a.npz", b"", npz(True, sensor_size=np.array([60, 50]), **columns(EVENTS))),
    "text": ("a.txt", b"# t x y p\n", _text(" ")),
    "csv": ("a.csv", b"64,48\nt,x,y,p\n", _text(",")),
}


def small(name):
    """(file name, bytes) of a small file; skips the test where the package that reads it is missing."""
    if name == "aedat4":
        pytest.importorskip("aedat")
    if name in ("hdf5", "hdf5-compound"):
        pytest.importorskip("h5py")
        return "a.h5", hdf5(_dsec if name == "hdf5" else _compound)
    file_name, head, body = SMALL[name]
    return file_name, head + body


NAMES = [*SMALL, "hdf5", "hdf5-compound"]
BINARY_WORDS = {
    "atis": 5,
    "aedat2": 8,
    "aedat2-davis": 8,
    "evt2": 4,
    "evt21": 8,
    "evt21-swapped": 8,
    "evt3": 2,
    "dat": 8,
}
