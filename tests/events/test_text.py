"""Text as different authors write it."""

import numpy as np
import pytest
from makers import EVENTS, refused, rows

from ripe_mambaspike.events import read


def lines(order, separator=" ", time=str, sign=str):
    made = []
    for x, y, t, p in rows(EVENTS):
        cells = {"x": str(x), "y": str(y), "t": time(t), "p": sign(p)}
        made.append(separator.join(cells[name] for name in order) + "\n")
    return "".join(made)


def seconds(time):
    return f"{time / 1e6:.9f}"


@pytest.mark.parametrize("order", ["txyp", "xytp", "xypt"])
@pytest.mark.parametrize("separator", [" ", ",", ", ", ";", "\t", "   "])
@pytest.mark.parametrize(("time", "unit"), [(str, "us"), (seconds, "s")])
def test_any_order_separator_and_unit(saved, order, separator, time, unit):
    recording = read(saved(lines(order, separator, time).encode()))
    np.testing.assert_array_equal(recording.events, EVENTS)
    assert recording.format == "text"
    assert recording.metadata["columns"] == order
    assert recording.metadata["time_unit"] == unit


@pytest.mark.parametrize("names", ["t x y p", "timestamp,x,y,polarity", "Time;X;Y;Pol", "ts\txs\tys\tps"])
def test_names_in_the_first_line(read_bytes, names):
    recording = read_bytes(f"{names}\n{lines('txyp')}".encode(), blocks=(1, 5))
    np.testing.assert_array_equal(recording.events, EVENTS)


def test_names_decide_an_ambiguous_order(saved):
    data = b"p,t,y,x\n1,5,6,7\n0,6,1,1\n"
    assert read(saved(data)).events.tolist() == [(7, 6, 5, 1), (1, 1, 6, 0)]


def test_comments_empty_lines_and_a_size(read_bytes):
    body = lines("txyp").replace("\n", "\n\n# a comment\n  % another\n", 3)
    recording = read_bytes(f"# made by hand\n\n64 48\n# t x y p\n{body}".encode(), blocks=(50,))
    np.testing.assert_array_equal(recording.events, EVENTS)
    assert recording.sensor_size == (64, 48)
    assert recording.metadata["sensor_size_from"] == "the file"


@pytest.mark.parametrize("sign", [lambda p: str(2 * p - 1), lambda p: f"{p}.0", lambda p: "+1" if p else "-1"])
def test_polarities_of_other_kinds(saved, sign):
    np.testing.assert_array_equal(read(saved(lines("txyp", sign=sign).encode())).events, EVENTS)


def test_windows_line_ends(saved):
    np.testing.assert_array_equal(read(saved(lines("txyp").replace("\n", "\r\n").encode())).events, EVENTS)


def test_whole_times_are_microseconds_however_short_the_recording(saved):
    assert read(saved(b"x,y,t,p\n1,2,3,0\n4,5,6,1\n"))["t"].tolist() == [3, 6]


def test_one_fractional_time_means_seconds(saved):
    assert read(saved(b"x,y,t,p\n1,2,3,0\n4,5,6.5,1\n"))["t"].tolist() == [3_000_000, 6_500_000]


def test_numbers_of_savetxt_are_microseconds_when_whole_and_far_apart(saved):
    table = "".join(f"{t:.18e} {x:.18e} {y:.18e} {p:.18e}\n" for x, y, t, p in rows(EVENTS))
    np.testing.assert_array_equal(read(saved(table.encode())).events, EVENTS)


def test_the_unit_can_be_given(saved):
    assert read(saved(b"x,y,t,p\n1,2,3,0\n4,5,6,1\n"), time_unit="ms")["t"].tolist() == [3000, 6000]


def test_the_unit_is_settled_by_the_first_lines(read_bytes):
    data = b"t,x,y,p\n" + b"".join(f"{i},1,1,0\n".encode() for i in range(0, 5000, 10))
    assert read_bytes(data, blocks=(1, 3))["t"].tolist() == list(range(0, 5000, 10))


@pytest.mark.parametrize("cut", ["1000 5", "1000 5 6 ", "1"])
def test_a_line_cut_off_at_the_end_is_counted(saved, cut):
    path = saved((lines("txyp") + cut).encode())
    with pytest.warns(UserWarning, match="1 event that was cut off at the end of the file left out"):
        recording = read(path)
    np.testing.assert_array_equal(recording.events, EVENTS)
    refused(path, "strict", "1 event that was cut off", strict=True)


@pytest.mark.parametrize("end", ["90000 5 6 1", "90000 5 6 1\n\n \n"])
def test_a_last_line_without_an_end_is_an_event(saved, end):
    recording = read(saved((lines("txyp") + end).encode()), strict=True)
    assert len(recording) == len(EVENTS) + 1


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [
        ("1 2 3 1\n1 2 3\n1 2 3 1\n", "line 2", ["4 numbers", "'1 2 3'"]),
        ("# a\n\n1 2 3 1\n1 2 x 1\n", "line 4", ["'1 2 x 1'"]),
        ("x,y,t,p\n1,2,3\n1,5,6,7,1\n", "line 2", ["'1,2,3'"]),
        ("x y t p q\n1 2 3 1\n", "line 2", ["5 numbers", "'1 2 3 1'"]),
        ("5 6 7 1\n", "columns", ["order"]),
        ("x,y,t,p\n1,2,nan,1\n", "t", ["nan in event 0"]),
        ("x,y,t,p\n1,70000,3,1\n", "events", ["coordinate below 0 or above 65535"]),
        ("x,y,t,p\n", "events", ["none"]),
        ("# only a comment\n", "events", ["none"]),
        ("9" * 5000 + " " + "9" * 5000 + "\n", "line 1", ["4 numbers"]),
        ("99999 3\n1 2 3 1\n", "sensor_size", ["99999×3"]),
    ],
)
def test_text_that_is_no_recording(saved, text, field, values):
    refused(saved(text.encode(), "a.txt"), field, *values)


def test_text_that_stops_being_text(saved):
    refused(saved(b"x,y,t,p\n" + b"1,2,3,1\n" * 2000 + b"\xff\xfe\n", "a.txt"), "text", "UTF-8")


def test_a_table_with_more_columns_and_a_mark_at_its_start(saved):
    """As spreadsheets and data frames write them: a byte order mark, row numbers without a name, other columns."""
    text = "\ufeff,x,y,weight,t,p\n0,1,2,0.5,30,1\n1,4,5,0.25,60,0\n"
    recording = read(saved(text.encode(), "a.csv"))
    assert recording.events.tolist() == [(1, 2, 30, 1), (4, 5, 60, 0)]
