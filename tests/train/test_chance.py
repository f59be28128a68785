"""A run that does not learn gives a warning with the likely causes; one that learns gives none."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from ripe_mambaspike.models.accuracy import Evaluation
from ripe_mambaspike.report import write_report
from ripe_mambaspike.train import trainer as loop
from ripe_mambaspike.train.chance import (
    MIN_CLIPS,
    chance_warning,
    commonest_share,
    first_check_epoch,
    is_at_chance,
    result_warnings,
)
from ripe_mambaspike.train.recipes import load_recipe, with_settings

CLASSES = ("swipe_left", "swipe_right")


def recipe_of(*settings, name="folder"):
    return with_settings(load_recipe(name), list(settings))


def data_of(labels, events=640, test=(0, 1)):
    """As much of a set as is looked at."""
    labels = np.array(labels)
    return SimpleNamespace(
        classes=CLASSES,
        train=SimpleNamespace(labels=labels),
        test=SimpleNamespace(labels=np.array(test)),
        members={"train": np.arange(len(labels))},
        store=SimpleNamespace(index=SimpleNamespace(clips=SimpleNamespace(events=[events] * len(labels)))),
        describe=lambda: {"grid": [34, 34], "sensor_size": [34, 34], "train": len(labels)},
    )


def upper_tail(right, count, chance):
    """P(X ≥ right), by adding up."""
    tail, probability = 0.0, (1 - chance) ** count
    for hits in range(count + 1):
        tail += probability if hits >= right else 0
        probability *= (count - hits) / (hits + 1) * chance / (1 - chance)
    return tail


@pytest.mark.parametrize("count", [24, 64, 300])
@pytest.mark.parametrize("chance", [0.1, 0.25, 0.5, 0.8])
def test_the_border_is_the_binomials(count, chance):
    border = next(right for right in range(count + 1) if upper_tail(right, count, chance) <= 0.05)
    assert [is_at_chance(right, count, chance) for right in range(count + 1)] == [
        right < border for right in range(count + 1)
    ]


def test_no_warning_for_few_clips_or_one_class():
    assert not is_at_chance(5, MIN_CLIPS - 1, 0.5)
    assert is_at_chance(5, MIN_CLIPS, 0.5)
    assert not is_at_chance(100, 100, 1.0)
    assert not is_at_chance(97, 100, 0.99)  # all of them right would be luck as well


@pytest.mark.parametrize(
    ("settings", "epoch"),
    [
        (["schedule.epochs=30"], 10),
        (["schedule.epochs=31"], 11),
        (["schedule.epochs=1"], 2),  # never
        (["schedule.epochs=30", "schedule.warmup_steps=100"], 14),  # eight steps an epoch
        (["schedule.epochs=3", "schedule.warmup_steps=100"], 3),  # the last at the latest
        (["schedule.epochs=4", "schedule.warmup_steps=8"], 2),
        (["schedule.warmup_steps=0", "schedule.warmup_epochs=12"], 13),
        (["schedule.warmup_epochs=12"], 10),  # warmed up in iterations instead
        (["schedule.epochs=8", "schedule.first_epochs=5", "data.first=[swipe_left]"], 6),
        (["schedule.epochs=8", "schedule.first_epochs=5", "schedule.warmup_steps=8"], 3),
    ],
)
def test_first_check_epoch(settings, epoch):
    assert first_check_epoch(recipe_of(*settings), 64) == epoch


def test_chance_is_the_commonest_class_as_shown():
    labels = np.array([0] * 90 + [1] * 10)
    assert commonest_share(labels, recipe_of(), CLASSES) == pytest.approx(0.9)
    mirrored = recipe_of("augmentation.horizontal_flip=0.5", "augmentation.relabel=true")
    assert commonest_share(labels, mirrored, CLASSES) == pytest.approx(0.5)


def test_the_warning_names_the_numbers_and_the_causes():
    data, row = data_of([0, 1] * 40), {"epoch": 10.0, "train_top1": 0.55}
    warning = chance_warning(recipe_of(), data, row)
    for word in (
        "55.0 %",
        "50.0 %",
        "epoch 10 of 30",
        "optimizer.learning_rate=0.001",
        "34×34",
        "data.grid",
        "data.time_steps",
    ):
        assert word in warning
    assert "augmentation." not in warning  # nothing is on that could change a label
    flipped = chance_warning(recipe_of("augmentation.polarity_flip=0.5"), data, row)
    assert "augmentation.polarity_flip=0.5" in flipped
    assert "time_reversal" not in flipped
    flips = recipe_of(
        "augmentation.time_reversal=0.25", "augmentation.relabel=true",
        "augmentation.reverse_pairs=[swipe_left=swipe_right]",
    )  # fmt: skip
    assert "augmentation.time_reversal=0.25" in chance_warning(flips, data, row)
    assert "events" not in chance_warning(recipe_of(), data_of([0, 1] * 40, events=16 * 500), row)


@pytest.mark.parametrize(("epoch", "accuracy"), [(1, 0.5), (10, 0.75), (30, 1.0)])
def test_no_warning_too_early_or_of_a_run_that_learns(epoch, accuracy):
    row = {"epoch": float(epoch), "train_top1": accuracy}
    assert chance_warning(recipe_of(), data_of([0, 1] * 40), row) is None
    assert result_warnings(recipe_of(), data_of([0, 1] * 40), [row], 0.5) == []


def test_a_result_is_judged_by_the_last_epoch():
    data, recipe = data_of([0, 1] * 40), recipe_of()
    low, high = {"epoch": 30.0, "train_top1": 0.5}, {"epoch": 30.0, "train_top1": 0.9}
    assert result_warnings(recipe, data, [], 1.0) == []
    assert len(result_warnings(recipe, data, [high, low], 1.0)) == 1
    assert result_warnings(recipe, data, [low, high], 1.0) == []  # late, but it learned


def test_a_result_is_judged_by_the_test_part_too():
    """A small set is learned by heart whatever its labels; what was learned is worth nothing."""
    data, recipe = data_of([0, 1] * 40, test=[0, 1] * 20), recipe_of()
    low, high = {"epoch": 30.0, "train_top1": 0.5}, {"epoch": 30.0, "train_top1": 0.9}
    (warning,) = result_warnings(recipe, data, [low, high], 0.55)
    assert warning.startswith("test accuracy is 55.0 %")
    assert "90.0 % of them right" in warning
    (warning,) = result_warnings(recipe, data, [low], 0.55)
    assert warning.startswith("training accuracy")  # one warning of the two
    assert result_warnings(recipe, data, [high], 0.85) == []
    assert result_warnings(recipe, data_of([0, 1] * 40, test=[0] * 39 + [1]), [high], 39 / 40) == []  # nothing to say


def accuracies(monkeypatch, *values):
    """The training accuracy of each epoch to come."""
    left = list(values)
    real = loop.mean_columns
    monkeypatch.setattr(loop, "mean_columns", lambda means: {**real(means), "train_top1": left.pop(0)})


@pytest.fixture
def many(monkeypatch):
    """Eleven clips of eleven classes are enough to judge by."""
    monkeypatch.setattr("ripe_mambaspike.train.chance.MIN_CLIPS", 11)


def test_a_run_at_chance_is_reported_once_and_in_result_and_report(tiny, go, watching, many, monkeypatch, tmp_path):
    accuracies(monkeypatch, *[1 / 11] * 3)
    callback = watching()
    result = go(tiny("schedule.epochs=3"), tmp_path / "run", callback)
    assert len([line for line in callback.lines if line.startswith("warning: ")]) == 1
    (warning,) = result["warnings"]
    assert "epoch 3 of 3" in warning
    assert "augmentation.horizontal_flip=0.5" in warning
    assert json.loads((tmp_path / "run" / "result.json").read_text())["warnings"] == [warning]
    page = write_report(tmp_path / "run").read_text()
    assert "not clearly above chance" in page


def test_a_short_run_is_not_warned_of_twice(tiny, go, watching, many, monkeypatch, tmp_path):
    """Its last epoch is the first that is checked, and the result has the warning."""
    accuracies(monkeypatch, *[1 / 11] * 2)
    callback = watching()
    result = go(tiny(), tmp_path / "run", callback)
    assert len(result["warnings"]) == 1
    assert callback.lines == []


def test_a_run_that_learns_gives_no_warning(tiny, go, watching, many, monkeypatch, tmp_path):
    accuracies(monkeypatch, 1 / 11, 1.0)  # at chance before it is checked
    monkeypatch.setattr(Evaluation, "top1", 8 / 11)
    callback = watching()
    result = go(tiny(), tmp_path / "run", callback)
    assert not [line for line in callback.lines if "chance" in line]
    assert result["warnings"] == []
    assert "not clearly above chance" not in write_report(tmp_path / "run").read_text()


@pytest.mark.parametrize("given", [None, 3, "text", {"a": 1}, [1, None, "<script>alert(1)</script>"]])
def test_a_report_of_strange_warnings(finished, tmp_path, given):
    shutil.copytree(finished, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    (tmp_path / "run" / "result.json").write_text(json.dumps({**result, "warnings": given}))
    page = write_report(tmp_path / "run").read_text()
    assert "<script>alert(1)" not in page
    assert ("&lt;script&gt;alert(1)" in page) == isinstance(given, list)
