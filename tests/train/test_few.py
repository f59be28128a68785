"""The recipe `few`: a run that fits itself to a handful of recordings, with or without a test split."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike import from_pretrained
from ripe_mambaspike.data.own_folder import prepare_own_folder
from ripe_mambaspike.data.settings import DataSettings
from ripe_mambaspike.data.training_data import open_data
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.models.accuracy import read_result
from ripe_mambaspike.train.fit import DIGITS, GESTURES, choose_batch_size, choose_epochs, choose_start, fit_recipe
from ripe_mambaspike.train.recipes import load_recipe, with_settings
from ripe_mambaspike.train.run import train


def record(root: Path, classes=("left", "right"), each=1, side=12, duration_us=300_000, seed=0) -> Path:
    """Recordings of random events as .npy with named fields; their largest coordinate is the sensor's."""
    draw = np.random.default_rng(seed)
    for name in classes:
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            events = np.zeros(200, [("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
            events["t"] = np.sort(draw.integers(0, duration_us, 200))
            events["t"][[0, -1]] = 0, duration_us
            events["x"], events["y"] = draw.integers(0, side, (2, 200))
            events["x"][0] = events["y"][0] = side - 1
            events["p"] = draw.integers(0, 2, 200)
            np.save(root / name / f"{number}.npy", events)
    return root


def few(root: Path, *settings: str):
    return with_settings(load_recipe("few"), [f"data.root={root}", *settings])


def opened(root: Path, **recorded):
    data = DataSettings(dataset="folder", root=str(record(root, **recorded)), grid=None, prepare=True)
    prepare_own_folder(data)
    return open_data(replace(data, validation=False))


def test_one_recording_a_class_is_trained_on_and_not_tested(tmp_path, watching):
    seen = watching()
    recipe = few(record(tmp_path / "mine"), "data.grid=12", "schedule.epochs=2")
    result = train(recipe, tmp_path / "run", callback=seen)
    assert (result.top1, result.n, result.picked_on, result.epoch) == (None, 0, "last epoch", 2)
    assert result.clips == {"train": 2, "val": 0, "test": 0}
    assert read_result(tmp_path / "run") == result
    assert from_pretrained(tmp_path / "run").class_names == ("left", "right")
    assert any("no test split" in line for line in seen.lines)
    with raises(DataError, field="top1"):
        result.tested_top1  # noqa: B018
    again = train(recipe, tmp_path / "run", resume=True)
    assert again == result


def test_the_run_keeps_what_it_chose_and_is_resumed_with_it(tmp_path):
    root = record(tmp_path / "mine", each=5)
    recipe = few(root, "data.grid=12", "schedule.epochs=1")
    result = train(recipe, tmp_path / "run")
    assert result.clips == {"train": 8, "val": 0, "test": 2}
    assert result.n == 2
    saved = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert (saved.model.pretrained, saved.data.time_steps, saved.schedule.batch_size) == (DIGITS, 10, 4)
    assert train(recipe, tmp_path / "run", resume=True) == result
    with raises(ConfigError, field="schedule.batch_size"):
        train(with_settings(recipe, ["schedule.batch_size=3"]), tmp_path / "run", resume=True)


def test_a_changed_folder_is_prepared_again(tmp_path):
    data = DataSettings(dataset="folder", root=str(record(tmp_path)), grid=None, prepare=True)
    prepare_own_folder(data)
    assert open_data(data).describe()["train"] == 2
    record(tmp_path, each=6, seed=1)
    prepare_own_folder(data)
    assert open_data(data).describe()["test"] == 2
    assert prepare_own_folder(data) == []  # unchanged


def test_folders_of_a_split_are_kept(tmp_path):
    record(tmp_path / "train", each=2)
    record(tmp_path / "test", each=3, seed=1)
    data = DataSettings(dataset="folder", root=str(tmp_path), grid=None, prepare=True, validation=False)
    assert len(prepare_own_folder(data)) == 1
    facts = open_data(data).describe()
    assert (facts["train"], facts["test"]) == (4, 6)


def test_the_start_is_chosen_by_names_then_by_sensor_and_duration(tmp_path):
    assert choose_start(opened(tmp_path / "a")) == DIGITS
    assert choose_start(opened(tmp_path / "b", side=100)) == GESTURES
    assert choose_start(opened(tmp_path / "c", duration_us=1_500_000)) == GESTURES
    digits = tuple(map(str, range(10)))
    assert choose_start(opened(tmp_path / "d", classes=digits, side=100)) == DIGITS


def test_a_given_start_decides_the_time_steps(tmp_path):
    fitted = fit_recipe(few("x", f"model.pretrained={GESTURES}"), opened(tmp_path))
    assert (fitted.model.pretrained, fitted.data.time_steps) == (GESTURES, 16)
    with raises(ConfigError, field="model.pretrained"):
        fit_recipe(few("x", "model.pretrained=no-such-network"), opened(tmp_path))


@pytest.mark.parametrize("clips", [1, 2, 7, 10, 50, 100, 200, 600])
def test_batch_size_and_epochs_by_the_number_of_clips(clips):
    size = choose_batch_size(clips)
    assert 1 <= size <= min(8, clips)
    assert 12 <= choose_epochs(clips, size) <= 120


@pytest.mark.parametrize("setting", ["data.time_steps=0", "schedule.epochs=0", "schedule.batch_size=0"])
def test_values_are_left_open_only_with_a_start(setting):
    with raises(ConfigError, field=setting.partition("=")[0]):
        with_settings(load_recipe("folder"), [setting])


def test_wrong_input(tmp_path):
    with raises(ConfigError, field="data.root"):
        train(with_settings(load_recipe("few"), []), tmp_path / "run")
    with raises(ConfigError, field="data.prepare"):
        with_settings(load_recipe("few"), ["data.dataset=nmnist"])
    with raises(DataError, path=tmp_path / "none"):
        train(few(tmp_path / "none"), tmp_path / "other")
