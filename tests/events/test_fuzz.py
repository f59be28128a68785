"""Damaged and random files: a reader returns a valid recording, or raises an error that names the file."""

import resource
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from makers import NAMES, SMALL, array_header, read_or_not, small

FUZZ = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
ENDINGS = st.sampled_from([".bin", ".raw", ".dat", ".aedat", ".aedat4", ".npy", ".npz", ".h5", ".txt", ".csv", ""])
MAGICS = {
    "aedat2": b"#!AER-DAT2.0\r\n",
    "aedat3": b"#!AER-DAT3.1\r\n",
    "aedat4": b"#!AER-DAT4.0\r\n",
    "prophesee": b"% ",
    "npy": b"\x93NUMPY\x01\x00",
    "npz": b"PK\x03\x04",
    "hdf5": b"\x89HDF\r\n\x1a\n",
    "comment": b"# ",
}
EXTREMES = (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\0\0\0\x80", b"9" * 30, b"-", b"\n", b"nan")
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "delete", "cut"]),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=8) | st.sampled_from(EXTREMES),
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(autouse=True, scope="module")
def little_memory():
    """4 GiB more than in use: a reader that allocates what a header claims fails."""
    status = Path("/proc/self/statm")
    if not status.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(status.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (4 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check(path, data):
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", RuntimeWarning)  # of numpy, where it computes nonsense
        recording, error = read_or_not(path)
    if recording is None:
        assert path.name in error
        return
    width, height = recording.sensor_size
    assert len(recording) >= 1
    assert recording["x"].max() < width
    assert recording["y"].max() < height
    assert set(recording["p"].tolist()) <= {0, 1}
    assert recording.events.dtype.names == ("x", "y", "t", "p")


def edited(data, edits):
    data = bytearray(data)
    for kind, where, value in edits:
        at = int(where * len(data))
        if kind == "replace":
            data[at : at + len(value)] = value
        elif kind == "insert":
            data[at:at] = value
        elif kind == "delete":
            del data[at : at + len(value)]
        else:
            del data[at:]
    return bytes(data)


@pytest.mark.parametrize("name", [name for name in SMALL if SMALL[name][1]])
@FUZZ
@given(data=st.data())
def test_anything_after_a_header(tmp_path, name, data):
    file_name, head, body = SMALL[name]
    small(name)
    length = len(body) if name.startswith("npy") else None  # as in its header
    check(tmp_path / file_name, head + data.draw(st.binary(min_size=length or 0, max_size=length or 200)))


@pytest.mark.parametrize("magic", MAGICS)
@FUZZ
@given(body=st.binary(max_size=200))
def test_anything_after_a_magic(tmp_path, magic, body):
    check(tmp_path / "a", MAGICS[magic] + body)


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(edits=EDITS)
def test_a_good_file_that_was_damaged(tmp_path, name, edits):
    file_name, data = small(name)
    check(tmp_path / file_name, edited(data, edits))


@FUZZ
@given(body=st.binary(max_size=300), ending=ENDINGS)
def test_anything_by_any_name(tmp_path, body, ending):
    check(tmp_path / f"a{ending}", body)


@FUZZ
@given(text=st.text("0123456789.,;- \n\r\tex#%ytpnaif\x0b\x0c\x1c", max_size=200))
def test_any_text(tmp_path, text):
    check(tmp_path / "a.txt", text.encode())


@FUZZ
@given(
    lines=st.lists(st.text("0123456789.,;:= xgeometryvformatwdhiTBASpcu-#%\0", max_size=40), max_size=6),
    body=st.binary(),
)
@pytest.mark.parametrize(
    "start", [b"% evt 3.0\n", b"% evt 2.1\n", b"% Version 2\n", b"#!AER-DAT2.0\r\n", b"#!AER-DAT3.1\r\n"]
)
def test_any_header(tmp_path, start, lines, body):
    sign = start[:1].decode()
    check(tmp_path / "a", start + "".join(f"{sign} {line}\n" for line in lines).encode() + body)


@FUZZ
@given(
    descr=st.sampled_from(
        ["'<i8'", "'<f8'", "'|O'", "'<U9'", "'V4'", "[('x','<i8')]", "'<f2'", "'<c16'", "('<i4',(4,))"]
    ),
    shape=st.sampled_from(
        ["(1000000000000, 4)", "(4, 4)", "()", "(0,)", "(-1, 4)", "(True, 4)", "4", "(4, 1000000000000)"]
    ),
    body=st.binary(max_size=300),
)
def test_any_header_of_an_array(tmp_path, descr, shape, body):
    check(tmp_path / "a.npy", array_header(descr, shape) + body)
