"""Recordings of one's own as the README has it: `ripe data prepare folder`, then `ripe train folder`."""

import json

import numpy as np
import pytest
import yaml

from ripe_mambaspike.events import Recording, make_events, write

SIDE = 34
DURATION_US = 400_000
SMALL = (
    "data.time_steps=4",
    "data.grid=17",  # of two pixels each: a mirrored clip has no columns that others lack
    "model.fields={stage_channels: [8, 16, 16], embed_dims: [8, 16, 16], neurons: [lif, lif, lif]}",
    "schedule.warmup_steps=0",
    "schedule.epochs=5",
)


def swipe(random, direction, alike):
    """A bright bar that crosses the sensor: ON events at its front, OFF at its back, and a fifth of noise.

    Bars that are alike differ in their noise alone, so that none can be learned by heart.
    """
    count = int(random.integers(500, 900))
    t = np.sort(random.integers(0, DURATION_US, count))
    p = random.integers(0, 2, count)
    drawn = np.random.default_rng(0) if alike else random
    begin, end, width = drawn.uniform(0, 0.2), drawn.uniform(0.8, 1), drawn.uniform(0.08, 0.2)
    along = begin + (end - begin) * t / DURATION_US + (p - 0.5) * width + random.normal(0, 0.015, count)
    low = drawn.uniform(0, 0.5)
    across = random.uniform(low, low + 0.5, count)
    a, b = (np.clip((place * SIDE).astype(int), 0, SIDE - 1) for place in (along, across))
    if direction in ("left", "up"):
        a = SIDE - 1 - a
    x, y = (a, b) if direction in ("left", "right") else (b, a)
    noise = random.choice(count, count // 5, replace=False)
    x[noise], y[noise] = random.integers(0, SIDE, (2, len(noise)))
    return Recording(make_events(x, y, t, p), (SIDE, SIDE))


def record(root, count, alike=False, **classes):
    """`count` recordings of each class, by the direction it has."""
    random = np.random.default_rng(0)
    for name, direction in classes.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            write(swipe(random, direction, alike), root / name / f"{number:02d}.npz")
    return root


@pytest.fixture
def swipes(tmp_path, monkeypatch, ripe):
    """Prepared swipes in four directions, in the folder my-gestures below the one a user is in."""
    monkeypatch.chdir(tmp_path)
    directions = {f"swipe_{direction}": direction for direction in ("left", "right", "up", "down")}
    record(tmp_path / "my-gestures", 20, **directions)
    assert ripe("data", "prepare", "folder", "--root", "my-gestures", "--test-share", "0.2").code == 0
    return tmp_path


@pytest.mark.slow
def test_swipes_are_learned(swipes, ripe):
    printed = ripe(
        "train", "folder", "--no-report", "--set", "data.root=my-gestures", "data.time_steps=8", "schedule.epochs=10"
    )
    assert printed.code == 0
    result = json.loads((swipes / "runs" / "folder-1" / "result.json").read_text())
    assert result["n"] == 16
    assert result["top1"] >= 0.9
    assert result["warnings"] == []
    assert yaml.safe_load((swipes / "runs" / "folder-1" / "recipe.yaml").read_text())["data"]["grid"] == [SIDE, SIDE]
    assert "chance" not in printed.err + printed.out


def test_a_recipe_that_mirrors_refuses_swipes(swipes, refused):
    words = ["train", "synthgesture", "--set", "data.dataset=folder", "data.root=my-gestures"]
    refused(words, "augmentation.mirror_pairs", "swipe_down")
    refused([*words, "augmentation.horizontal_flip=0"], "augmentation.reverse_pairs", "swipe_down")
    refused([*words, "augmentation.relabel=false"], "augmentation.horizontal_flip", "swipe_left")


@pytest.mark.slow
@pytest.mark.parametrize("flip", [0, 0.5])
def test_a_run_that_learns_nothing_gives_a_warning(tmp_path, ripe, flip):
    """One class is the other in a mirror, and nothing in their names says so."""
    root = record(tmp_path / "mine", 50, alike=True, first="left", second="right")
    assert ripe("data", "prepare", "folder", "--root", root, "--test-share", "0.4").code == 0
    settings = (f"data.root={root}", f"augmentation.horizontal_flip={flip}", *SMALL)
    printed = ripe("train", "folder", "--out", tmp_path / "run", "--set", *settings)
    assert printed.code == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert printed.err.count("warning: ") == (flip > 0)
    assert ("augmentation.horizontal_flip=0.5" in printed.err) == (flip > 0)
    assert bool(result["warnings"]) == (flip > 0)
    assert ("chance" in printed.out) == (flip > 0)
    assert ("not clearly above chance" in (tmp_path / "run" / "report.html").read_text()) == (flip > 0)
    if not flip:
        assert result["top1"] >= 0.9
