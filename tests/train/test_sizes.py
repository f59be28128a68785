"""Sizes that a recipe leaves to the data."""

import json

import pytest
import yaml

from raising import raises
from ripe_mambaspike.data.settings import grid_for
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.train.jobs import SeedRun
from ripe_mambaspike.train.network import create_network
from ripe_mambaspike.train.recipes import load_recipe, save_recipe, with_settings
from ripe_mambaspike.train.run_folder import with_choices_of
from ripe_mambaspike.train.seeds import finished_result


@pytest.mark.parametrize(
    ("sensor_size", "grid"),
    [
        ((34, 34), (34, 34)),
        ((64, 64), (64, 64)),
        ((65, 64), (63, 64)),
        ((128, 128), (64, 64)),
        ((240, 180), (48, 64)),
        ((180, 240), (64, 48)),
        ((304, 240), (51, 64)),
        ((346, 260), (48, 64)),
        ((640, 480), (48, 64)),
        ((1280, 720), (36, 64)),
        ((4, 3), (8, 8)),  # the network takes no less
        ((1280, 16), (8, 64)),
    ],
)
def test_the_grid_of_a_sensor(sensor_size, grid):
    """(width, height) → (height, width)"""
    assert grid_for(sensor_size) == grid


def test_a_run_without_a_grid_takes_and_saves_the_sensors(tiny, go, watching, finished, tmp_path, outcome):
    callback = watching()
    given = tiny("data.grid=null")
    go(given, tmp_path / "run", callback)
    assert callback.trainer.model.config.in_size == (16, 16)
    assert [line for line in callback.lines if "data.grid" in line and "16×16" in line]
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["data"]["grid"] == [16, 16]
    assert json.loads((tmp_path / "run" / "best" / "labels.json").read_text())["data"]["grid"] == [16, 16]
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_run_resumes_with_its_own_grid(tiny, go, watching, finished, tmp_path):
    """A recipe that leaves the grid to the data is the same one as that with the grid it led to."""
    callback = watching()
    go(tiny("data.grid=null"), finished, callback, resume=True)
    assert str(finished) in callback.lines[-1]
    go(tiny("data.grid=16"), finished, resume=True)
    with raises(ConfigError, field="data.grid"):
        go(tiny("data.grid=18"), finished, resume=True)
    with raises(ConfigError, field="data.time_steps"):
        go(tiny("data.grid=null", "data.time_steps=5"), finished, resume=True)


def test_a_group_of_seeds_knows_its_finished_runs(tiny, finished):
    assert finished_result(SeedRun(0, None, finished), tiny("data.grid=null")) is not None


def test_a_recipe_that_leaves_its_sizes_to_the_data_reads_back(tmp_path):
    recipe = load_recipe("folder")
    assert recipe.data.grid is None
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    set_by_hand = with_settings(recipe, ["data.grid=48"])
    assert with_choices_of(recipe, set_by_hand) == set_by_hand
    assert with_choices_of(set_by_hand, recipe) == set_by_hand


def test_a_network_needs_a_grid():
    with raises(ConfigError, field="data.grid"):
        create_network(load_recipe("folder"), ("a", "b"))
