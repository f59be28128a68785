"""The report: three files or none, pictures decoded and events looked for where they should be."""

import json
import os
from io import BytesIO

import numpy as np
import pytest
import torch
from makers import random_events
from PIL import Image

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import make_events
from ripe_mambaspike.events.simulate import report as r
from ripe_mambaspike.events.simulate.compare import compare_recordings
from ripe_mambaspike.events.view.frames import GROUND, OFF, ON

SIZE, DURATION = (34, 34), 100_000
LARGE_SIZES = ((128, 128), (640, 480))
slow = pytest.mark.slow


def some(count=8, size=SIZE):
    real = [random_events(200, size, DURATION, seed) for seed in range(count)]
    simulated = [random_events(230, size, DURATION, 90 + seed) for seed in range(count)]
    labels = [each % 3 for each in range(count)]
    pictures = torch.rand(count, 28, 28, generator=torch.Generator().manual_seed(0))
    return compare_recordings(real, simulated, labels, size, DURATION), real, simulated, pictures, labels


def decode(data):
    image = Image.open(BytesIO(data))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def test_three_files_with_the_numbers(tmp_path):
    import matplotlib

    settings = dict(matplotlib.rcParams)
    folder = r.write_comparison(*some(), tmp_path / "new" / "report")
    assert dict(matplotlib.rcParams) == settings
    assert folder == tmp_path / "new" / "report"
    assert sorted(each.name for each in folder.iterdir()) == ["comparison.json", "comparison.png", "twins.png"]
    document = json.loads((folder / "comparison.json").read_text())
    assert document["events"] == {"real": 200, "simulated": 230, "ratio": 1.15}
    assert any(line.startswith("mean events:") for line in document["misses"])
    assert decode((folder / "comparison.png").read_bytes()).shape == (940, 1500, 3)


def test_the_same_bytes_again_over_what_was_there(tmp_path):
    made = some(3)
    (tmp_path / "twins.png").write_bytes(b"old")
    (tmp_path / "other").write_text("kept")
    first = {each.name: each.read_bytes() for each in r.write_comparison(*made, tmp_path).iterdir()}
    second = {each.name: each.read_bytes() for each in r.write_comparison(*made, tmp_path).iterdir()}
    assert first == second
    assert first["other"] == b"kept"


@pytest.fixture
def undrawn(monkeypatch):
    """Without the pictures, which take seconds to draw."""
    for name in ("figure_png", "twins_png"):
        monkeypatch.setattr(r, name, lambda *_: b"png")


def test_a_disk_that_fills_leaves_everything_as_it_was(tmp_path, monkeypatch, undrawn):
    made, calls = some(3), []
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "comparison.json").write_text("old")

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) % 3 == 0:  # the last of the three
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for name in ("old", "new"):
        with raises(InputError, field="folder", path=tmp_path / name, mentions=["No space left"]):
            r.write_comparison(*made, tmp_path / name)
    assert [(each.name, each.read_text()) for each in (tmp_path / "old").iterdir()] == [("comparison.json", "old")]
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_folders_place_is_named(tmp_path, undrawn):
    (tmp_path / "taken").write_text("")
    with raises(InputError, field="folder", path=tmp_path / "taken"):
        r.write_comparison(*some(2), tmp_path / "taken")


@pytest.mark.parametrize("wrong", [torch.zeros(2, 28, 28), torch.zeros(3, 1, 28, 28)])
def test_pictures_that_are_not_as_many_or_not_flat(tmp_path, wrong):
    comparison, real, simulated, _, labels = some(3)
    with raises(InputError, field="pictures"):
        r.write_comparison(comparison, real, simulated, wrong, labels, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_events_of_twins_are_where_they_should_be():
    """One ON event in the real third bin, one OFF event in the simulated last one."""
    real, simulated = [make_events([5], [2], [25_000], [1])], [make_events([33], [33], [99_999], [0])]
    comparison = compare_recordings(real, simulated, [4], SIZE, DURATION)
    picture = np.zeros((1, 28, 28))
    picture[0, 0, 0] = 1
    pixels = decode(r.twins_png(comparison, real, simulated, picture, [4]))
    zoom, side, top = 3, 102, r.HEAD + r.LABEL
    left = r.EDGE + 2 * side + 3 * r.GAP
    bins = left + side + 2 * r.GAP

    def frame(line, number):
        x = left if number == 0 else bins + (number - 1) * (side + r.GAP)
        y = top + line * (side + r.GAP)
        return pixels[y : y + side, x : x + side]

    wanted = {(0, 0): (5, 2, ON), (0, 3): (5, 2, ON), (1, 0): (33, 33, OFF), (1, 10): (33, 33, OFF)}
    for line in (0, 1):
        for number in range(11):
            shown = frame(line, number)
            lit = (shown != GROUND).any(2)
            if (line, number) not in wanted:
                assert not lit.any()
                continue
            x, y, color = wanted[line, number]
            assert (shown[y * zoom : (y + 1) * zoom, x * zoom : (x + 1) * zoom] == color).all()
            assert lit.sum() == zoom**2
    shown = pixels[top : top + 212, r.EDGE : r.EDGE + 212]
    assert ((shown == 255).all(2)).sum() == 7**2  # one white pixel of the picture, seven times as large
    assert ((shown == 0).all(2)).sum() == 7**2 * (28 * 28 - 1)


@pytest.mark.parametrize("size", [(1, 1), (5, 40), *(pytest.param(size, marks=slow) for size in LARGE_SIZES)])
@pytest.mark.parametrize("shape", [(28, 28), pytest.param((1120, 336), marks=slow), (1, 28)])
def test_sensors_and_pictures_of_every_shape(size, shape):
    comparison, real, simulated, pictures, labels = some(2, size)
    shown = np.tile(pictures.numpy(), (1, 40, 12))[:, : shape[0], : shape[1]]
    pixels = decode(r.twins_png(comparison, real, simulated, shown, labels))
    assert pixels.shape[1] >= 1000
    assert pixels.shape[0] < 1500


def test_recordings_without_events_can_be_drawn(tmp_path):
    empty = make_events([], [], [], [])
    for real, simulated in (([empty], [empty]), ([empty], [make_events([0], [0], [0], [1])])):
        comparison = compare_recordings(real, simulated, [0], SIZE, DURATION)
        r.write_comparison(comparison, real, simulated, torch.zeros(1, 28, 28), [0], tmp_path)


def test_shown_are_the_least_and_the_most_alike():
    assert r.choose_pairs([0.5, 0.1, 0.9, 0.3], 2) == [1, 2]
    assert r.choose_pairs([0.5, 0.1, 0.9, 0.3], 6) == [1, 3, 0, 2]
    assert r.choose_pairs([0.7], 6) == [0]
