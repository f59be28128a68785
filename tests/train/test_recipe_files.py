"""Recipe files: strict reading, errors with file and reason, and what is written reads back the same."""

import dataclasses
import os

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raising import raises
from ripe_mambaspike.data.settings import DataSettings, read_data_settings
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.train.recipe import Recipe, comments_of, field_help
from ripe_mambaspike.train.recipes import (
    describe_recipe,
    difference,
    list_recipes,
    load_recipe,
    recipe_from,
    save_recipe,
    to_dict,
    to_yaml,
    with_settings,
)
from ripe_mambaspike.yaml_text import parse_yaml


def test_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("# What it is\n# Its command\nname: mine\noptimizer:\n  learning_rate: 2e-3\n")
    recipe = load_recipe(path)
    assert load_recipe(str(path)) == recipe
    assert (recipe.name, recipe.optimizer.learning_rate) == ("mine", 2e-3)
    assert describe_recipe(path) == "What it is\nIts command"


def test_saving_and_loading(tmp_path):
    for name in list_recipes():
        save_recipe(load_recipe(name), tmp_path / "recipe.yaml")
        assert load_recipe(tmp_path / "recipe.yaml") == load_recipe(name)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
    with raises(ConfigError, path=tmp_path / "no" / "recipe.yaml"):
        save_recipe(Recipe(), tmp_path / "no" / "recipe.yaml")


def test_the_data_of_a_run_that_an_earlier_version_saved(tmp_path):
    path = tmp_path / "recipe.yaml"
    text = "name: old\ndata: {set: nmnist, cut: folders, steps: 7, grid: [34, 34], workers: 2}\noptimiser: {lr: 1}"
    path.write_text(text)
    expected = DataSettings(dataset="nmnist", partition="folders", time_steps=7, grid=(34, 34), num_workers=2)
    assert read_data_settings(path) == expected
    with raises(ConfigError, field="data.set", path=path):  # nothing else is read of it
        load_recipe(path)
    path.write_text("data: {time_steps: many}")
    with raises(ConfigError, field="data.time_steps", path=path):
        read_data_settings(path)


def test_an_unknown_name_names_the_nearest():
    with raises(ConfigError, "recipe", mentions=(*list_recipes(), "'dvs-gesture'", "did you mean 'dvsgesture'?")):
        load_recipe("dvs-gesture")
    with raises(ConfigError, field="recipe", mentions="got ''"):
        load_recipe("")


HUGE = "0x" + "f" * 5000  # more digits than Python prints
NOT_RECIPES = [
    ("name: [", "line 1"),
    ("name: a\n\tb: c", "line 2"),
    ("just words", "'just words'"),
    ("", "None"),
    (b"\xff\xfe\x00", "utf-8"),
    ("name: \x01", "#x0001"),
    ("!!python/object/apply:os.system ['true']", "os.system"),
    ("name: !!python/name:os.system", "os.system"),
    ("name: a\nname: b", "line 2: expected each field once, got 'name' twice"),
    ("data: {time_steps: 1, 'time_steps': 2}", "'time_steps' twice"),
    ("a: &x [1]\nb: *x", "line 2: expected values written out, got an alias"),
    ("a: &x [*x]", "an alias"),
    ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "an alias"),
    ("run: {seed: " + "1" * 5000 + "}", "5000 digits"),
    ("run: {seed: 0" + " " * 70000 + "}", "at most 65,536"),
    *((text, "20 deep") for text in ("[" * 5000, "{" * 3000, "- " * 3000, "? " * 3000)),
    ("data: {first: [" + "a, " * 12000 + "a]}", "10000 values"),
    ("{" + ", ".join(map(str, range(6000))) + "}", "10000 values"),
    *((f"{field}: {{{name}: {HUGE}}}", "5002 digits") for field, name in (
        ("schedule", "epochs"), ("optimizer", "learning_rate"), ("loss", "passes"))),
    *((text, "5002 digits") for text in (
        f"data: {{grid: [{HUGE}, 1]}}", f"model: {{fields: {{head_hidden_size: {HUGE}}}}}", f"name: {HUGE}",
        f"model: {{fields: {{? {HUGE} : 1}}}}")),
    ("schedule: {epochs: 1" + ":59" * 2000 + "}", "schedule.epochs"),
    ("a: " * 3000, "line 1"),
    ("{? [1] : 2}", "line 1"),
    ("? [a]\n: 1", "line 1"),
    ("2: 1", "'2'"),
    ("~: 1", "'None'"),
    ("2020-01-01: 1", "'2020-01-01'"),
    ("name: 2020-99-99 x/y", "letters, digits"),
    ("data: !!set {a}", "data"),
    ("data: !!omap [a: 1]", "data"),
    ("optimizer: {learning_rate: .nan}", "optimizer.learning_rate"),
    ("optimizer: {learning_rate: .inf}", "optimizer.learning_rate"),
    ("model: {fields: {stage_channels: [.nan, 2, 3]}}", "model.fields.stage_channels"),
    ("model: {fields: {stage_channels: {a: [1, {b: 2}]}}}", "model.fields.stage_channels"),
    ("--- {}\n--- {}", "line 2"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "quoted"), NOT_RECIPES, ids=range(len(NOT_RECIPES)))
def test_a_file_that_is_not_a_recipe(tmp_path, content, quoted):
    """A ConfigError of one line with the file and the reason, and no other exception."""
    path = tmp_path / "mine.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with raises(ConfigError, path=path, mentions=(path, quoted)) as caught:
        load_recipe(path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("field", ["schedule.epochs", "model.fields.head_hidden_size", "name"])
def test_settings_with_huge_numbers_are_refused(field):
    with raises(ConfigError):
        with_settings(load_recipe("nmnist"), [f"{field}={HUGE}"])


def test_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    names = (tmp_path / "mine.yaml", "mine.yml", "x" * 5000 + ".yaml", tmp_path, tmp_path / "pipe.yaml", "a\0.yaml")
    reasons = ("No such file", "No such file", "too long", "a folder", "regular file", "null byte")
    for name, reason in zip(names, reasons, strict=True):
        with raises(ConfigError, path=name, mentions=reason):
            load_recipe(name)
    save_recipe(Recipe(), tmp_path / "recipe.yaml")
    with raises(ConfigError, path=tmp_path, mentions=f"did you mean {tmp_path / 'recipe.yaml'}?"):
        load_recipe(tmp_path)


# Help


def test_every_field_has_the_comment_written_behind_it():
    found = field_help()
    flat = [f"{part}.{name}" for part, values in to_dict(Recipe()).items() if part != "name" for name in values]
    assert list(found) == ["name", *flat]
    assert found["data.time_steps"] == "T, time bins of a clip; 0, with model.pretrained: that network's"
    assert found["optimizer.decay_rule"] == 'what decays: see train.step; "release" repeats its slip'
    assert found["model.fields"] == "other fields of its config, such as {neurons: lif}"
    assert found["augmentation.mixup_alpha"] == "Mixup's λ ~ Beta(α, α)"
    assert all(found.values())


@dataclasses.dataclass
class Sample:
    a: tuple[int, ...] = (
        1,
        2,
    )  # behind the last line
    b: str = "# none"  # with # a sign
    # a line of its own
    c: int = 3


def test_comments_after_several_lines_and_behind_strings_with_signs():
    assert comments_of(Sample) == {"a": "behind the last line", "b": "with # a sign", "c": ""}


def test_the_written_yaml_says_what_each_field_means():
    text = to_yaml(load_recipe("nmnist"), comments=True)
    assert "\n  time_steps: 10  # T, time bins of a clip; 0, with model.pretrained: that network's\n" in text
    assert "\n  grid: [34, 34]  # " in text
    assert "\noptimizer:  # AdamW\n" in text
    assert "#" not in to_yaml(load_recipe("nmnist"))
    assert list(yaml.safe_load(text)) == [field.name for field in dataclasses.fields(Recipe)]


# Any recipe

share = st.floats(0, 1)
positive = st.floats(1e-12, 1e12)
counts = st.integers(1, 10**6)
texts = st.text(max_size=20)


@st.composite
def made_recipes(draw):
    epochs = draw(counts)
    min_rate = draw(st.floats(0, 1))
    folds = draw(st.sampled_from([0, 2, 5]))
    fields = {
        "neurons": st.sampled_from([["lif"] * 3, "silif"]),
        "drop_path_rate": st.floats(0, 0.99),
        "tdm": st.booleans(),
    }
    values = {
        "name": draw(st.from_regex(r"\w[\w.+-]{0,99}", fullmatch=True)),
        "data": {
            "root": draw(st.none() | texts),
            "partition": draw(st.none() | texts),
            "time_steps": draw(st.integers(1, 4096)),
            "grid": [draw(st.integers(8, 4096)), draw(st.integers(8, 4096))],
            "extra": ["sim-nmnist=" + root for root in draw(st.lists(st.text(min_size=1, max_size=9), max_size=3))],
            "folds": folds,
            "fold": draw(st.integers(0, max(folds - 1, 0))),
            "cache": draw(st.sampled_from(["auto", "off", "memory", "device"])),
            "binary": draw(st.booleans()),
        },
        "model": {"name": "nmnist", "fields": draw(st.fixed_dictionaries({}, optional=fields))},
        "optimizer": {
            "learning_rate": min_rate + draw(positive),
            "min_learning_rate": min_rate,
            "weight_decay": draw(share),
        },
        "loss": {"spread": draw(positive), "passes": draw(st.sampled_from([1, 2]))},
        "augmentation": {"mixup_alpha": draw(share), "nda_operations": draw(st.integers(0, 100))},
        "schedule": {"epochs": epochs, "warmup_epochs": draw(st.integers(0, epochs)), "batch_size": draw(counts)},
        "run": {"seed": draw(st.integers(0, 2**63 - 1)), "ema_decay": draw(st.floats(0, 0.9999))},
    }
    return recipe_from(values, "made")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipe=made_recipes(), comments=st.booleans())
def test_any_recipe_reads_back_as_it_was(recipe, comments):
    text = to_yaml(recipe, comments)
    again = recipe_from(parse_yaml(text.encode().decode(), "again"), "again")
    assert again == recipe
    assert difference(again, recipe) == []
    assert len(text.splitlines()) == len(field_help()) + 7  # one line per field and section


@pytest.mark.parametrize("code", [0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x85, 0xA0, 0x2028, 0x2029, 0xFEFF])
@pytest.mark.parametrize(
    "around", ["{}", "a{}", "{}b", "a{}b", " {} "], ids=["alone", "end", "start", "inside", "spaces"]
)
def test_line_breaks_in_a_value_read_back(code, around):
    recipe = recipe_from({"data": {"partition": around.format(chr(code)), "root": chr(code)}}, "made")
    text = to_yaml(recipe)
    assert recipe_from(parse_yaml(text, "again"), "again") == recipe
    assert len(text.splitlines()) == len(field_help()) + 7
