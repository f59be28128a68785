"""HDF5 as the data sets lay it out."""

import sys

import numpy as np
import pytest
from makers import EVENTS, as_events, columns, hdf5, read_or_not, refused

from ripe_mambaspike.events import read

h5py = pytest.importorskip("h5py")


def dsec(file):
    for name, column in columns(EVENTS).items():
        file.create_dataset(f"events/{name}", data=column, chunks=(8,), compression="gzip")
    file["t_offset"] = 49599300523
    file["ms_to_idx"] = np.zeros(5, np.uint64)


def rpg(file):
    file["events/xs"] = EVENTS["x"].astype(np.int16)
    file["events/ys"] = EVENTS["y"].astype(np.int16)
    file["events/ts"] = EVENTS["t"] / 1e6
    file["events/ps"] = EVENTS["p"].astype(bool)
    file.attrs["sensor_resolution"] = (180, 240)


def prophesee(file):
    made = np.zeros(len(EVENTS), [("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")])
    for name, column in columns(EVENTS).items():
        made[name] = column
    file["CD/events"] = made
    file.attrs["width"], file.attrs["height"] = 1280, 720


def v2e(file):
    file["events"] = np.stack([EVENTS[name].astype(np.uint32) for name in "txyp"], axis=1)


def flat(file):
    for name, column in columns(EVENTS).items():
        file[name] = column


@pytest.mark.parametrize(
    ("fill", "size", "blocks"),
    [
        (dsec, (128, 128), (1, 7)),
        (rpg, (240, 180), (1, 7)),
        (prophesee, (1280, 720), (1, 7)),
        (v2e, (128, 128), (20,)),
        (flat, (128, 128), (1, 7)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_layout(read_bytes, fill, size, blocks):
    recording = read_bytes(hdf5(fill), "a.h5", blocks=blocks)
    np.testing.assert_array_equal(recording.events, EVENTS)
    assert recording.format == "hdf5"
    assert recording.sensor_size == size
    assert recording.metadata["time_unit"] == ("s" if fill is rpg else "us")


def test_the_offset_of_dsec_is_in_the_metadata_and_not_added(saved):
    recording = read(saved(hdf5(dsec), "a.h5"))
    assert recording.metadata["t_offset_us"] == 49599300523
    assert recording["t"].tolist() == EVENTS["t"].tolist()


def test_more_events_than_a_block_has(saved):
    events = as_events([(i % 640, i % 480, 3 * i, i % 2) for i in range(70_000)])

    def fill(file):
        for name, column in columns(events).items():
            file[f"events/{name}"] = column

    np.testing.assert_array_equal(read(saved(hdf5(fill), "a.h5")).events, events)


def test_a_file_is_closed_when_it_was_read(saved):
    """HDF5 returns the old contents of a file that is still open."""
    path = saved(hdf5(dsec), "a.h5")
    read(path)
    path.write_bytes(hdf5(rpg))
    assert read(path).sensor_size == (240, 180)


def never_written(**how):
    def fill(file):
        for name in "xytp":
            file.create_dataset(f"events/{name}", shape=(10**8,), dtype="<i8", **how)

    return fill


def named(**given):
    def fill(file):
        for name, data in given.items():
            file[f"events/{name}"] = data

    return fill


def table(data):
    def fill(file):
        file["events"] = data

    return fill


@pytest.mark.parametrize(
    ("fill", "field", "values"),
    [
        (never_written(), "/events/x", ["written", "(100000000,)"]),
        (never_written(chunks=(4096,)), "/events/x", ["written", "(100000000,)"]),
        (lambda file: None, "events", ["datasets x, y, t, p", "got nothing"]),
        (named(x=[1], y=[2]), "events", ["datasets x, y, t, p", "got events"]),
        (named(x=[1, 2], y=[2], t=[1], p=[0]), "columns", ["'x': (2,)", "'y': (1,)"]),
        (named(x=[[1]], y=[[1]], t=[[1]], p=[[1]]), "columns", ["'x': (1, 1)"]),
        (named(x=[], y=[], t=[], p=[]), "events", ["got none"]),
        (named(x=["a"], y=[1], t=[1], p=[1]), "/events/x", ["numbers"]),
        (named(x=[70000], y=[1], t=[1], p=[1]), "events", ["1 event that had a coordinate below 0 or above 65535"]),
        (table(np.full((3, 4), b"abc")), "events", ["datasets x, y, t, p", "got events"]),
        (table(np.full((3, 4), 7)), "columns", ["order"]),
    ],
)
def test_a_file_that_is_no_recording(saved, fill, field, values):
    refused(saved(hdf5(fill), "a.h5"), field, *values)


@pytest.mark.parametrize("value", [0, (0, 5), (1e300, 5), "wide", (2, 3, 4), (99999, 5)])
def test_invalid_resolutions(saved, value):
    def fill(file):
        dsec(file)
        file.attrs["resolution"] = value

    path = saved(hdf5(fill), "a.h5")
    recording, error = read_or_not(path)
    assert str(path) in error if recording is None else recording.sensor_size == (128, 128)


def test_a_cut_file(saved):
    data = hdf5(dsec)
    refused(saved(data[: len(data) // 2], "a.h5"), "file", "HDF5", "damage")


def test_without_the_package(saved, monkeypatch, in_process):
    path = saved(hdf5(dsec), "a.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused(path, "format", "package h5py", "ripe-mambaspike[data]")
