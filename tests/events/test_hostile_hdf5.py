"""Malicious HDF5 files: links to other files, sizes without data, links in circles."""

import numpy as np
import pytest
from makers import EVENTS, columns, hdf5, refused

from ripe_mambaspike.events import read
from ripe_mambaspike.events.formats import hdf5 as hdf5_format

h5py = pytest.importorskip("h5py")


def put(**how):
    def fill(file):
        for name, column in columns(EVENTS).items():
            file.create_dataset(f"events/{name}", data=column, **how)

    return fill


def elsewhere(kind, secret):
    def fill(file):
        if kind == "external link":
            file["events"] = h5py.ExternalLink(str(secret), "/events")
        elif kind == "link to an external link":
            file["other"] = h5py.ExternalLink(str(secret), "/")
            file["events"] = h5py.SoftLink("/other/events")
        elif kind == "external member":
            put()(file)
            del file["events/t"]
            file["events/t"] = h5py.ExternalLink(str(secret), "/events/t")
        elif kind == "external offset":
            put()(file)
            file["t_offset"] = h5py.ExternalLink(str(secret), "/events/t")
        elif kind == "external storage":
            for name in "xytp":
                file.create_dataset(f"events/{name}", (8,), "u1", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        else:
            layout = h5py.VirtualLayout((len(EVENTS),), "<u2")
            layout[:] = h5py.VirtualSource(str(secret), "events/x", (len(EVENTS),))
            for name in "xytp":
                file.create_virtual_dataset(f"events/{name}", layout)

    return fill


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("external link", "events"),
        ("link to an external link", "events"),
        ("external member", "events/t"),
        ("external offset", "t_offset"),
        ("external storage", "/events/x"),
        ("virtual", "/events/x"),
    ],
)
def test_another_files_contents_are_not_read(saved, kind, field):
    secret = saved(hdf5(put()), "secret.h5")
    assert len(read(secret)) == len(EVENTS)
    refused(saved(hdf5(elsewhere(kind, secret)), "sent.h5"), field, "another file")


def test_links_within_a_file_are_followed(saved):
    def fill(file):
        for name, column in columns(EVENTS).items():
            file[f"kept/{name}s"] = column
        file["between"] = h5py.SoftLink("kept")
        file["events"] = h5py.SoftLink("/between")

    np.testing.assert_array_equal(read(saved(hdf5(fill), "a.h5")).events, EVENTS)


def test_links_in_a_circle(saved):
    def fill(file):
        file["events"] = h5py.SoftLink("/other")
        file["other"] = h5py.SoftLink("events")

    refused(saved(hdf5(fill), "a.h5"), "events")


@pytest.mark.parametrize(
    "how",
    [
        {"shape": (1 << 29,), "dtype": "<i8", "chunks": (1 << 16,)},
        {"shape": (1 << 29,), "dtype": "<i8"},
        {"data": [1, 2]},
        {"data": 1.5},
        {"data": "five"},
    ],
)
def test_an_offset_that_is_no_number(saved, how):
    def fill(file):
        put()(file)
        file.create_dataset("t_offset", **how)

    refused(saved(hdf5(fill), "a.h5"), "t_offset")


def test_a_resolution_of_many_entries_is_not_read(saved):
    def fill(file):
        put()(file)
        file.attrs["resolution"] = np.zeros(8000, np.int64)

    assert read(saved(hdf5(fill), "a.h5")).sensor_size == (128, 128)


def zeros_of(count, chunk):
    def fill(file):
        for name in "xytp":
            made = file.create_dataset(f"events/{name}", (count,), "u1", chunks=(chunk,), compression="gzip")
            for at in range(0, count, chunk):
                made[at : at + chunk] = 0

    return fill


def test_zeros_packed_into_chunks(saved):
    path = saved(hdf5(zeros_of(30_000_000, 10_000_000)), "a.h5")
    assert path.stat().st_size < 200_000
    refused(path, "events")


def test_a_chunk_that_is_too_large(saved):
    path = saved(hdf5(put(chunks=True, maxshape=(None,))), "a.h5")
    assert len(read(path)) == len(EVENTS)

    def fill(file):
        put()(file)
        del file["events/t"]
        size = hdf5_format.MAX_CHUNK_BYTES // 8 + 1
        file.create_dataset("events/t", data=EVENTS["t"], chunks=(size,), maxshape=(None,), compression="gzip")

    refused(saved(hdf5(fill), "b.h5"), "/events/t")


def test_a_chunk_is_unpacked_once(saved, in_process, monkeypatch):
    """By a cache that holds it; the library unpacks a larger one again for every part of it that is read."""
    opened = []
    real = h5py.File

    class Spied(real):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            opened.append(self)
            self.cache = self.id.get_access_plist().get_cache()[2]

    monkeypatch.setattr(h5py, "File", Spied)
    path = saved(b"", "a.h5")
    with real(path, "w") as file:
        zeros_of(3_000_000, 3_000_000)(file)
    assert len(read(path)) == 3_000_000
    assert opened[-1].cache > 3_000_000


@pytest.mark.parametrize("filters", [{"scaleoffset": 8}], ids=["scale and offset"])
def test_a_filter_that_no_recording_has(saved, filters):
    path = saved(hdf5(put(chunks=(8,), **filters)), "a.h5")
    refused(path, "/events/x")


def test_rows_of_huge_items(saved):
    def fill(file):
        made = np.zeros(3, [("x", "u2"), ("y", "u2"), ("t", "i8"), ("p", "u1"), ("more", "V100000")])
        file["CD/events"] = made

    refused(saved(hdf5(fill), "a.h5"), "/CD/events")


def test_a_group_with_very_many_members_is_not_opened_one_by_one(saved):
    def fill(file):
        group = file.create_group("events")
        for number in range(hdf5_format.MAX_MEMBERS + 1):
            group[f"n{number}"] = group

    refused(saved(hdf5(fill), "a.h5"), "events")
