"""Reading what a test wrote: whole, and cut into blocks at every place."""

import os
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ripe_mambaspike.events import read, source
from ripe_mambaspike.events.formats import arrays, hdf5, text
from ripe_mambaspike.events.registry import FORMATS

BLOCKS = source.blocks


@pytest.fixture
def saved(tmp_path):
    """Write bytes to a file of the test's own."""

    def save(data, name="recording"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return save


@pytest.fixture
def in_process(monkeypatch):
    """Read AEDAT4 and HDF5 in the test's own process, where a test can change what they find."""
    for name, one in FORMATS.items():
        monkeypatch.setitem(FORMATS, name, replace(one, isolated=False))


@pytest.fixture
def block_size(monkeypatch, request):
    """Set how many words, rows or lines a reader takes at a time."""

    def set_size(count):
        request.getfixturevalue("in_process")
        monkeypatch.setattr(source, "blocks", partial(BLOCKS, count=count))
        monkeypatch.setattr(arrays, "BLOCK_WORDS", count)
        monkeypatch.setattr(hdf5, "BLOCK_WORDS", count)
        monkeypatch.setattr(text, "LINES_PER_READ", count)

    return set_size


@pytest.fixture
def read_bytes(saved, block_size):
    """The recording of these bytes; events, warnings and metadata do not depend on the block size."""

    def run(data, name="recording", blocks=(1, 2, 7), **options):
        path = saved(data, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            block_size(source.BLOCK_WORDS)
            whole = read(path, **options)
            for count in blocks:
                block_size(count)
                again = read(path, **options)
                np.testing.assert_array_equal(again.events, whole.events)
                assert sorted(again.warnings) == sorted(whole.warnings)
                assert again.metadata == whole.metadata
                assert again.sensor_size == whole.sensor_size
        block_size(source.BLOCK_WORDS)
        return whole

    return run


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real recordings."""
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("RIPE_SHARED_DATA") or beside)
    if not folder.is_dir():
        pytest.skip("there are no real recordings here: set RIPE_SHARED_DATA to their folder")
    return folder
