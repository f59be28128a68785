"""What a recording is: checked columns, spans, turns."""

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike import read
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events import EVENT, Recording, make_events, write


@pytest.mark.parametrize(
    ("columns", "field", "values"),
    [
        (([-1], [0], [0], [0]), "x", ["0 to 65535", "-1 to -1"]),
        (([0], [70000], [0], [0]), "y", ["0 to 65535", "70000 to 70000"]),
        (([0], [0], [0.5], [0]), "t", ["integers", "fractions"]),
        (([0], [0], [np.nan], [0]), "t", ["nan to nan"]),
        (([0], [0], [0], [2]), "p", ["0 to 1", "2 to 2"]),
        (([0], [0], [0], ["a"]), "p", ["integers", "<U1"]),
        (([0, 1], [0], [0], [0]), "events", ["one length", "(2,), (1,)"]),
        (([[0]], [[0]], [[0]], [[0]]), "events", ["one length", "(1, 1)"]),
    ],
)
def test_columns_that_are_no_events(columns, field, values):
    with raises(InputError, field=field, mentions=values):
        make_events(*columns)


def test_columns_of_any_kind_of_numbers():
    events = make_events(np.array([3.0, 4.0]), [5, 65535], np.array([-7, 2**40]), [True, False])
    assert events.dtype == EVENT
    assert events.tolist() == [(3, 5, -7, 1), (4, 65535, 2**40, 0)]


def test_turned():
    small = np.array([(0, 1, 5, 1), (200, 3, 6, 0)], [("x", "u1"), ("y", "u1"), ("t", "<i8"), ("p", "u1")])
    wide = np.array([(0, 1, 5, 1), (345, 259, 6, 0)], EVENT)
    assert Recording(wide, (346, 260)).turned().events.tolist() == [(345, 258, 5, 1), (0, 0, 6, 0)]
    assert Recording(small, (201, 4)).turned().turned().events.tolist() == small.tolist()


def test_crop_is_half_open_and_order_is_stable():
    recording = Recording(make_events([1, 2, 3, 4], [0] * 4, [30, 10, 30, 20], [0] * 4), (10, 10))
    assert recording.ordered()["x"].tolist() == [2, 4, 1, 3]
    assert recording.crop(10, 30)["x"].tolist() == [2, 4]
    assert (recording.first_us, recording.last_us, recording.duration_us) == (10, 30, 20)
    assert repr(recording) == "Recording(4 events, 10×10, 2e-05 s, memory)"


@pytest.mark.parametrize("ending", [".csv", ".npy", ".npz", ".bin", ".raw", ".aedat"])
def test_events_of_other_kinds_are_written_as_ours(tmp_path, ending):
    other = np.array([(True, 7, 2, 3)], [("p", "?"), ("t", "<i4"), ("y", "u1"), ("x", "<i8")])
    path = write(Recording(other, (34, 34)), tmp_path / f"a{ending}")
    assert [int(read(path)[name][0]) for name in "xytp"] == [3, 2, 7, 1]


@pytest.mark.parametrize("path", [None, 3, "a\0b"])
def test_invalid_paths(path):
    with raises(InputError, field="path"):
        read(path)
