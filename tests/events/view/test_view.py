"""The one function: what it writes, what it refuses, and that a failure leaves no trace."""

import subprocess
import sys

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike import files
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import EVENT, Recording, make_events
from ripe_mambaspike.events.view import view

MAGIC = {".png": b"\x89PNG", ".gif": b"GIF89a", ".html": b"<!doctype html>", ".HTML": b"<!doctype html>"}


@pytest.mark.parametrize("ending", MAGIC)
def test_the_ending_decides(make, tmp_path, ending):
    path = tmp_path / f"seen{ending}"
    path.write_text("what was there before")
    assert view(make(), str(path), title="x") == path
    assert path.read_bytes().startswith(MAGIC[ending])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["x.bmp", "x", "x.htm"])
def test_other_endings_are_refused(make, tmp_path, name):
    path = tmp_path / name
    with raises(InputError, field="path", path=path, mentions=[".png, .gif, .html", repr(path.suffix)]):
        view(make(), path)


@pytest.mark.parametrize("ending", [pytest.param(".png", marks=pytest.mark.slow), ".gif", ".html"])
def test_events_out_of_order_look_the_same(make, tmp_path, ending):
    recording = make(count=100)
    times = np.arange(100) * 1000  # no two alike, so there is one order
    ordered = Recording(make_events(recording["x"], recording["y"], times, recording["p"]), (20, 13))
    mixed = Recording(ordered.events[np.random.default_rng(1).permutation(100)], (20, 13))
    first, second = (view(one, tmp_path / f"{n}{ending}", title="t") for n, one in enumerate((ordered, mixed)))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("option", ["frames", "window_us"])
@pytest.mark.parametrize("value", [0, -3, 1.5, True, "4"])
def test_options_are_whole_numbers(make, tmp_path, option, value):
    with raises(InputError, field=option, mentions=["an int of at least 1", repr(value)]):
        view(make(), tmp_path / "x.png", **{option: value})


def test_numbers_of_numpy_are_whole_numbers(make, tmp_path):
    plain = view(make(), tmp_path / "1.gif", frames=3, window_us=2000)
    assert view(make(), tmp_path / "2.gif", frames=np.int64(3), window_us=np.uint16(2000)).read_bytes() == (
        plain.read_bytes()
    )


def test_invalid_recordings_are_refused(make, tmp_path):
    with raises(InputError, field="events", path=tmp_path / "x.png", mentions=["at least one"]):
        view(Recording(make_events([], [], [], []), (4, 4)), tmp_path / "x.png")
    with raises(InputError, field="events", mentions=["4×4 sensor", "(9, 0)"]):
        view(Recording(make_events([9], [0], [0], [1]), (4, 4)), tmp_path / "x.html")
    with raises(InputError, field="p", mentions=["2 to 2"]):
        view(Recording(np.array([(0, 0, 0, 2)], EVENT), (4, 4)), tmp_path / "x.gif")
    assert not list(tmp_path.iterdir())


def test_paths_that_cannot_be_written(make, tmp_path):
    missing = tmp_path / "nowhere" / "x.html"
    with raises(InputError, field="path", path=missing, mentions=["No such file or directory"]):
        view(make(), missing)
    folder = tmp_path / "folder.html"
    folder.mkdir()
    with raises(InputError, field="path", path=folder):
        view(make(), folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_failure_leaves_the_old_file(make, tmp_path, monkeypatch):
    path = tmp_path / "x.html"
    path.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with raises(InputError, field="path", path=path, mentions=["No space left on device"]):
        view(make(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_importing_it_imports_no_heavy_package():
    code = (
        "import sys; from ripe_mambaspike.events.view import view; import ripe_mambaspike.events.view.picture, "
        "ripe_mambaspike.events.view.animation, ripe_mambaspike.events.view.page; "
        "heavy = {'matplotlib', 'PIL', 'torch'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_pictures_touch_no_global_state(make, tmp_path):
    code = (
        "import sys; from pathlib import Path; import matplotlib; before = matplotlib.rcParams.copy(); "
        "from ripe_mambaspike.events.recording import Recording, make_events; "
        "from ripe_mambaspike.events.view import view; "
        "view(Recording(make_events([0], [0], [0], [1]), (4, 4)), Path(sys.argv[1]) / 'x.png'); "
        "assert dict.__eq__(matplotlib.rcParams.copy(), before); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
