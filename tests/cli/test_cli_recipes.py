"""`ripe recipes`."""

import json
import re

import pytest
import yaml

from raising import raises
from ripe_mambaspike.cli.recipes import RecipesCommand, show_fields
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipes import (
    describe_recipe,
    field_help,
    list_recipes,
    load_recipe,
    recipe_from,
    save_recipe,
    with_settings,
)


def test_the_list_has_one_line_per_recipe(capsys):
    assert RecipesCommand().run() == 0
    result = capsys.readouterr().out
    lines = [line for line in result.splitlines() if line.startswith("│")]
    assert [line.split("│")[1].strip() for line in lines] == list_recipes()
    for name, line in zip(list_recipes(), lines, strict=True):
        assert describe_recipe(name).splitlines()[0] in line
    assert "64 × 2" in lines[list_recipes().index("nmnist")]


def test_the_list_as_json(capsys):
    assert RecipesCommand(json=True).run() == 0
    rows = {row["recipe"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    assert list(rows) == list_recipes()
    assert rows["dailydvs200-lite"] == {
        "recipe": "dailydvs200-lite",
        "what": "DailyDVS-200 with the narrower network of the paper",
        "set": "dailydvs200",
        "network": "dailydvs200-lite",
        "steps": 10,
        "grid": [224, 224],
        "epochs": 250,
        "batch_size": 32,
        "accumulate": 1,
    }


@pytest.mark.parametrize("name", list_recipes())
def test_one_is_printed_as_a_recipe_file(capsys, name):
    assert RecipesCommand(name).run() == 0
    result = capsys.readouterr().out
    assert result.startswith(f"# {describe_recipe(name).splitlines()[0]}\n# ripe train {name}")
    assert "  # T, time bins of a clip; 0" in result
    assert recipe_from(yaml.safe_load(result), "printed") == load_recipe(name)


def test_one_as_json(capsys):
    assert RecipesCommand("nmnist", json=True).run() == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["recipe"], document["description"]) == ("nmnist", describe_recipe("nmnist"))
    assert recipe_from(document["values"], "printed") == load_recipe("nmnist")
    assert document["fields"] == field_help()
    parts = document["schema"]["$defs"]
    assert parts["Augmentation"]["properties"]["label_smoothing"] == {"type": "number", "default": 0.1}
    assert parts["ScheduleSettings"]["properties"]["epochs"] == {"type": "integer", "minimum": 0, "default": 300}
    assert parts["RunSettings"]["properties"]["device"]["enum"] == ["auto", "cpu", "cuda"]


def test_a_file_is_printed_too(capsys, tmp_path):
    save_recipe(load_recipe("nmnist"), tmp_path / "mine.yaml")
    assert RecipesCommand(str(tmp_path / "mine.yaml")).run() == 0
    assert recipe_from(yaml.safe_load(capsys.readouterr().out), "printed") == load_recipe("nmnist")


def test_an_unknown_name(capsys):
    with raises(ConfigError, field="recipe") as error:
        RecipesCommand("mnist").run()
    assert "nmnist" in str(error.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["train", "seeds"])
def test_help_lists_every_field_with_its_comment(ripe, command):
    result = ripe(command, "--help")
    assert result.code == 0
    words = " ".join(result.out.replace("│", " ").split())
    for path, text in field_help().items():
        assert f"--{path} " in words if "." in path else f"--set {path}=" in words
        assert text in words


def test_the_help_lists_every_field_as_it_is_typed(capsys):
    """Each with its default, which can be typed as it is shown."""
    show_fields()
    text = capsys.readouterr().out
    found = re.findall(r"^  --(?:set )?([a-z_.]+)[ =].*\n((?:      .*\n)+)", text, re.MULTILINE)
    found = [(name, " ".join(lines.split()).rpartition("(default: ")[2][:-1]) for name, lines in found]
    assert [name for name, _ in found] == list(field_help())
    defaults = [f"{name}={default}" for name, default in found]
    assert with_settings(Recipe(), defaults) == Recipe()
    assert "None" not in text
    assert "--data.grid [INT, INT] | null" in text
    assert "--data.validation true|false" in text
    assert "--run.device auto|cpu|cuda" in text
    assert "--model.fields {NAME: VALUE, …}" in text
