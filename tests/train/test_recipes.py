"""Recipes: the shipped ones are the paper's, reading is strict, and what is written reads back the same."""

import dataclasses
import os
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ripe_mambaspike.train.recipe_checks import NAME

from ripe_mambaspike.data.augment.settings import BENCHMARKS, Augmentation
from ripe_mambaspike.data.sets.registry import dataset_info
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.train import recipe_fields
from ripe_mambaspike.train.recipe import DataSettings, ModelSettings, Recipe, RunSettings, ScheduleSettings
from ripe_mambaspike.train.recipes import (
    check,
    describe,
    difference,
    fields_of,
    list_recipes,
    load_recipe,
    recipe_from,
    save_recipe,
    to_dict,
    to_yaml,
    with_settings,
)

PAPER = ["dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "dailydvs200", "dailydvs200-lite"]
OURS = ["folder", "nmnist-600", "quickstart", "sim-nmnist", "sim-nmnist-real"]
OURS += ["synthgesture", "synthgesture-128", "synthgesture-causal"]
SHIPPED = PAPER + OURS
# Table "hyper": lr, decay, warm-up in epochs and moves, epochs, batch, accumulate, α's end, TET, SGC, L1, passes
HYPER = {
    "dvsgesture": (1e-3, 0.05, 10, 0, 300, 32, 1, 4, 5e-3, 1, 1e-4, 2),
    "cifar10dvs": (1e-3, 0.03, 15, 0, 300, 32, 1, 3, 1e-2, 0, 0, 2),
    "ncaltech101": (1e-3, 0.03, 15, 0, 300, 32, 1, 3, 1e-2, 0, 0, 2),
    "nmnist": (1e-3, 0.05, 10, 0, 300, 64, 2, 4, 5e-3, 1, 1e-4, 2),
    "dailydvs200": (5e-4, 0.02, 0, 2000, 250, 32, 1, 4, 5e-3, 0, 1e-4, 1),
    "dailydvs200-lite": (5e-4, 0.02, 0, 2000, 250, 32, 1, 4, 5e-3, 0, 1e-4, 1),
}


def refused(call, *named):
    with pytest.raises(ConfigError) as caught:
        call()
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    for word in named:
        assert word in said, said
    return said


# What ships


def test_the_shipped_recipes_paper_first():
    assert list_recipes() == SHIPPED


def test_they_ship_in_a_wheel():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "recipes/*.yaml" in project["tool"]["setuptools"]["package-data"]["ripe_mambaspike"]


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_are_its_table(name):
    recipe = load_recipe(name)
    rates, plan, loss = recipe.optimizer, recipe.schedule, recipe.loss
    found = (
        *(rates.learning_rate, rates.weight_decay, plan.warmup_epochs, plan.warmup_steps, plan.epochs, plan.batch_size),
        *(plan.grad_accum_steps, plan.sharpness_end, loss.spread, loss.consistency, loss.rates, loss.passes),
    )
    assert found == HYPER[name]
    assert (rates.min_learning_rate, rates.clip_grad_norm, plan.sharpness_start) == (1e-6, 1.0, 2.0)
    assert recipe.augmentation == BENCHMARKS[name.removesuffix("-lite")]
    config = model_config(name)
    assert (recipe.model.name, recipe.data.time_steps, recipe.data.grid) == (name, config.time_steps, config.in_size)
    assert recipe.model.fields == {}
    assert recipe.data.dataset == name.removesuffix("-lite")
    assert recipe.run == RunSettings()


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recipe(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    dataset_info(recipe.data.dataset)
    what, command, *_ = describe(name).splitlines()
    assert what
    assert command.split("  ")[0] == f"ripe train {name}" + " --set data.root=DIR" * (name == "folder")
    assert recipe_from(yaml.safe_load(to_yaml(recipe, comments=True)), "again") == recipe
    assert recipe_from(yaml.safe_load(to_yaml(recipe)), "again") == recipe
    assert recipe_from(to_dict(recipe), "again") == recipe


@pytest.mark.parametrize("name", OURS)
def test_ours_mirror_and_reverse_gestures_alone_and_label_them_so(name):
    """A mirrored digit is none; a mirrored gesture is another one."""
    augmentation = load_recipe(name).augmentation
    flips = (augmentation.horizontal_flip, augmentation.time_reversal, augmentation.swap_polarity, augmentation.relabel)
    assert flips == (
        (0.5, 0.5, True, True) if load_recipe(name).data.dataset == "synthgesture" else (0, 0, False, False)
    )


def test_ours():
    found = {name: load_recipe(name) for name in OURS}
    plans = {
        name: (r.data.dataset, r.model.name, r.schedule.epochs, r.schedule.batch_size) for name, r in found.items()
    }
    assert plans["nmnist-600"][:3] == ("nmnist-600", "nmnist", 150)
    assert (found["nmnist-600"].data.folds, found["nmnist-600"].data.validation) == (5, False)
    assert plans["sim-nmnist"] == ("sim-nmnist", "nmnist", 8, 128)
    assert plans["quickstart"] == ("synthgesture", "dvsgesture", 8, 8)
    assert plans["synthgesture"] == ("synthgesture", "dvsgesture", 12, 16)
    assert plans["synthgesture-128"] == ("synthgesture", "dvsgesture", 45, 16)
    assert [found[name].data.grid for name in OURS] == [None, *((side, side) for side in (34, 32, 34, 34, 64, 128, 64))]
    assert [found[name].data.time_steps for name in OURS] == [16, 10, 12, 10, 10, 16, 16, 16]
    small, large = to_dict(found["synthgesture"]), to_dict(found["synthgesture-128"])
    assert small["augmentation"] == large["augmentation"]
    causal = {"name": "synthgesture-causal", "model": {"name": "dvsgesture", "fields": {"causal": True}}}
    assert to_dict(found["synthgesture-causal"]) == {**small, **causal}


# Reading


def test_what_is_left_out_keeps_its_default():
    made = recipe_from({"name": "mine", "schedule": {"epochs": 20}}, "x")
    assert made == Recipe(name="mine", schedule=ScheduleSettings(epochs=20))


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("optimizer: {learning_rate: 1e-3}", "optimizer.learning_rate", 1e-3),
        ("optimizer: {learning_rate: 1}", "optimizer.learning_rate", 1.0),
        ("optimizer: {learning_rate: 2.5e-3}", "optimizer.learning_rate", 2.5e-3),
        ("data: {grid: 48}", "data.grid", (48, 48)),
        ("data: {grid: [34, 48]}", "data.grid", (34, 48)),
        ("data: {grid: null}", "data.grid", None),
        ("data: {root: null}", "data.root", None),
        ("data: {root: /there}", "data.root", "/there"),
        ("data: {cache: off}", "data.cache", "off"),
        ("run: {graph: off}", "run.cuda_graph", "off"),
        ("data: {extra: [sim-nmnist=/a]}", "data.extra", ("sim-nmnist=/a",)),
        ("loss: {passes: 1}", "loss.passes", 1),
        ("data: {binary: yes}", "data.binary", True),
        ("model: {fields: {drop_path_rate: 1e-1}}", "model.fields", {"drop_path_rate": 0.1}),
        ("model: {fields: {neurons: [lif, lif, silif]}}", "model.fields", {"neurons": ["lif", "lif", "silif"]}),
    ],
)
def test_a_value_is_read_by_its_type(text, path, value):
    made = recipe_from(yaml.safe_load(text), "x")
    found = {field: (found, type(found)) for field, _, found in recipe_fields.leaves(made)}
    assert found[path] == (value, type(value))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("schedule: {epoch: 3}", ["here has no field 'schedule.epoch'", "did you mean 'schedule.epochs'"]),
        ("epochs: 3", ["no field 'epochs'", "did you mean 'schedule.epochs'"]),
        ("shedule: {}", ["no field 'shedule'", "did you mean 'schedule'"]),
        ("data: {epochs: 3}", ["no field 'data.epochs'", "did you mean 'schedule.epochs'"]),
        ("{3: 4}", ["no field '3'"]),
        ("data: 3", ["here: data is 3", "fields and their values are wanted"]),
        ("data:", ["here: data is None"]),
        ("schedule: {epochs: 3.0}", ["here: schedule.epochs is 3.0; a whole number is wanted"]),
        ("schedule: {epochs: '3'}", ["schedule.epochs is '3'; a whole number"]),
        ("schedule: {epochs: true}", ["schedule.epochs is True; a whole number"]),
        ("optimizer: {learning_rate: fast}", ["optimizer.learning_rate is 'fast'; a finite number"]),
        ("optimizer: {learning_rate: .nan}", ["optimizer.learning_rate is nan; a finite number"]),
        ("optimizer: {learning_rate: .inf}", ["optimizer.learning_rate is inf; a finite number"]),
        ("optimizer: {learning_rate: 1e999}", ["optimizer.learning_rate is '1e999'; a finite number"]),
        (f"optimizer: {{learning_rate: 1{'0' * 400}}}", ["optimizer.learning_rate is 1000", "a finite number"]),
        ("optimizer: {learning_rate: true}", ["optimizer.learning_rate is True; a finite number"]),
        ("optimizer: {learning_rate: null}", ["optimizer.learning_rate is None; a finite number"]),
        ("data: {binary: 1}", ["data.binary is 1; true or false is wanted"]),
        ("data: {by: events}", ["data.by is 'events'; one of time, count is wanted"]),
        ("data: {by: off}", ["data.by is False"]),
        ("loss: {passes: 3}", ["loss.passes is 3; one of 1, 2"]),
        ("loss: {passes: true}", ["loss.passes is True; one of 1, 2"]),
        ("loss: {passes: 2.0}", ["loss.passes is 2.0; one of 1, 2"]),
        ("loss: {passes: [1]}", ["loss.passes is [1]; one of 1, 2"]),
        ("data: {set: 3}", ["data.dataset is 3; a text"]),
        ("data: {root: 2024-01-01}", ["data.root is datetime.date(2024, 1, 1); a text (in quotes)"]),
        ("data: {grid: [1, 2, 3]}", ["data.grid is [1, 2, 3]; one whole number or a list of two"]),
        ("data: {grid: [34.0, 34]}", ["data.grid is [34.0, 34]"]),
        ("data: {extra: sim-nmnist=/a}", ["data.extra is 'sim-nmnist=/a'; a list of texts"]),
        ("data: {extra: [3]}", ["data.extra is [3]; a list of texts"]),
        ("model: {fields: 3}", ["model.fields is 3; a mapping"]),
        ("model: {fields: {1: 2}}", ["model.fields is {1: 2}; a mapping"]),
        ("[]", ["here is []; fields and their values are wanted"]),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_sentence(text, named):
    refused(lambda: recipe_from(yaml.safe_load(text), "here"), *named)


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("schedule.epochs=0", "at least 1"),
        ("schedule.batch_size=0", "at least 1"),
        ("schedule.grad_accum_steps=0", "at least 1"),
        ("schedule.warmup_epochs=-1", "at least 0"),
        ("schedule.warmup_epochs=301", "at most schedule.epochs (300)"),
        ("schedule.warmup_steps=-1", "at least 0"),
        ("schedule.first_epochs=-1", "at least 0"),
        ("schedule.sharpness_start=0", "above 0"),
        ("schedule.sharpness_end=-1", "above 0"),
        ("optimizer.learning_rate=1e-7", "at least optimizer.min_learning_rate (1e-06)"),
        ("optimizer.min_learning_rate=-1", "at least 0"),
        ("optimizer.tdm_lr_scale=-1", "at least 0"),
        ("optimizer.weight_decay=-1", "at least 0"),
        ("optimizer.clip_grad_norm=0", "above 0"),
        ("loss.spread=-1", "at least 0"),
        ("loss.consistency=-1", "at least 0"),
        ("loss.rates=-1", "at least 0"),
        ("data.dataset=nmist", "did you mean 'nmnist'"),
        ("data.time_steps=0", "at least 1"),
        ("data.time_steps=5000", "1 to 4096"),
        ("data.grid=7", "from 8 to 4096"),
        ("data.grid=[8, 5000]", "from 8 to 4096"),
        ("data.extra=[nmnist]", "SET=ROOT"),
        ("data.extra=[nmnist=]", "SET=ROOT"),
        ("data.extra=[what=/a]", "SET=ROOT"),
        ("data.folds=1", "at least 2"),
        ("data.folds=-2", "at least 0"),
        ("data.fold=1", "0 (no folds)"),
        ("data.fold=-1", "at least 0"),
        ("data.num_workers=-1", "at least 0"),
        ("run.seed=-1", "at least 0"),
        ("run.seed=9223372036854775808", "from 0 to 9223372036854775807"),
        ("run.ema_decay=1", "up to but not 1"),
        ("run.ema_decay=-0.1", "at least 0"),
        ("run.recalibrate_batches=0", "at least 1"),
        ("run.validate_every=0", "at least 1"),
        ("run.checkpoint_minutes=-1", "at least 0"),
        ("name=a/b", "letters, digits"),
        ("name=..", "letters, digits"),
        ("name=''", "letters, digits"),
        ("model.name=dvsgestur", "did you mean 'dvsgesture'"),
        ("model.fields.neuron=lif", "did you mean 'neurons'"),
        ("model.fields.drop_path_rate=2", "up to but not 1"),
        ("model.fields.drop_path_rate=much", "a finite number"),
        ("model.fields.classes=3", "comes from the data"),
        ("model.fields.steps=3", "comes from the data"),
        ("model.fields.resolution=34", "comes from the data"),
        ("model.fields.form=deployed", "comes from the data"),
        ("augmentation.horizontal_flip=2", "from 0 to 1"),
        ("augmentation.nda_operations=-1", "from 0 to 100"),
    ],
)
def test_a_value_out_of_range(setting, wanted):
    field = setting.partition("=")[0]
    said = refused(lambda: with_settings(load_recipe("dvsgesture"), [setting]), "recipe 'dvsgesture'", wanted)
    assert field.rpartition(".")[0] in said
    assert field.rpartition(".")[2] in said


def test_what_comes_first_leaves_epochs_for_the_rest():
    with_settings(load_recipe("quickstart"), ["schedule.epochs=3"])
    said = refused(lambda: with_settings(load_recipe("quickstart"), ["schedule.epochs=2"]), "recipe 'quickstart'")
    assert said.endswith("schedule.first_epochs is 2; fewer than schedule.epochs (2) is wanted")
    with_settings(load_recipe("dvsgesture"), ["schedule.epochs=1", "schedule.warmup_epochs=1"])  # nothing comes first


def test_the_ends_of_the_ranges_are_allowed():
    made = with_settings(
        load_recipe("dvsgesture"),
        [
            "schedule.epochs=10",
            "optimizer.learning_rate=1e-6",
            "data.folds=2",
            "data.fold=1",
            "run.ema_decay=0.999",
            "data.grid=8",
        ],
    )
    assert made.schedule.warmup_epochs == made.schedule.epochs == 10
    assert made.optimizer.learning_rate == made.optimizer.min_learning_rate
    iterations = with_settings(made, ["schedule.epochs=1", "schedule.warmup_steps=5"])  # instead of epochs
    assert iterations.schedule.epochs == 1


def test_a_recipe_made_in_python_can_be_checked():
    check(Recipe())
    refused(lambda: check(Recipe(schedule=ScheduleSettings(epochs=0))), "schedule.epochs is 0")
    refused(lambda: check(Recipe(data=DataSettings(grid=(64,)))), "data.grid is (64,)")
    refused(lambda: check(Recipe(model=ModelSettings("nmnist", {"width": 3}))), "width", "nmnist")


# Files


def test_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("# What it is\n# Its command\nname: mine\noptimiser:\n  lr: 2e-3\n")
    recipe = load_recipe(path)
    assert load_recipe(str(path)) == recipe
    assert (recipe.name, recipe.optimizer.learning_rate) == ("mine", 2e-3)
    assert describe(path) == "What it is\nIts command"


def test_saving_and_loading(tmp_path):
    for name in SHIPPED:
        save_recipe(load_recipe(name), tmp_path / "recipe.yaml")
        assert load_recipe(tmp_path / "recipe.yaml") == load_recipe(name)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
    refused(lambda: save_recipe(Recipe(), tmp_path / "no" / "recipe.yaml"), "no/recipe.yaml", "cannot be written")


def test_an_unknown_name_names_the_nearest():
    said = refused(lambda: load_recipe("dvs-gesture"), "'dvs-gesture'", "did you mean 'dvsgesture'?")
    for name in SHIPPED:
        assert name in said
    refused(lambda: load_recipe(""), "no recipe ''")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"name: [", ["cannot be read as YAML", "line 1"]),
        (b"name: a\n\tb: c", ["cannot be read as YAML", "line 2"]),
        (b"just words", ["'just words'"]),
        (b"", ["None"]),
        (b"\xff\xfe\x00", ["no text in UTF-8"]),
        (b"name: \x01", ["cannot be read as YAML"]),
        (b"!!python/object/apply:os.system ['true']", ["cannot be read as YAML"]),
        (b"name: a\nname: b", ["has the field 'name' twice"]),
        (b"a: &x [1]\nb: *x", ["uses an alias"]),
        (b"a: &x [*x]", ["uses an alias"]),
        (b"[" * 5000, ["20 deep"]),
        (b"{? [1] : 2}", ["cannot be read as YAML"]),
        (b"run: {seed: " + b"1" * 5000 + b"}", ["cannot be read as YAML"]),
        (b"run: {seed: 0" + b" " * 70000 + b"}", ["at most 65,536 are read"]),
    ],
    ids=range(14),
)
def test_a_file_that_is_no_recipe(tmp_path, content, named):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    refused(lambda: load_recipe(path), "mine.yaml", *named)


HUGE = "0x" + "f" * 5000  # more digits than Python prints


@pytest.mark.parametrize(
    "content",
    [
        f"schedule: {{epochs: {HUGE}}}",
        f"optimizer: {{learning_rate: {HUGE}}}",
        f"data: {{grid: [{HUGE}, 1]}}",
        f"loss: {{passes: {HUGE}}}",
        f"model: {{fields: {{head_hidden_size: {HUGE}}}}}",
        f"name: {HUGE}",
        f"model: {{fields: {{? {HUGE} : 1}}}}",
        "schedule: {epochs: 1" + ":59" * 2000 + "}",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
        "data: {first: [" + "a, " * 12000 + "a]}",
        "{" * 3000,
        "a: " * 3000,
        "- " * 3000,
        "? " * 3000,
        "{" + ", ".join(map(str, range(6000))) + "}",
        "2: 1",
        "~: 1",
        "2020-01-01: 1",
        "? [a]\n: 1",
        "data: !!set {a}",
        "data: !!omap [a: 1]",
        "name: !!python/name:os.system",
        "name: 2020-99-99",
        "optimizer: {learning_rate: .nan}",
        "optimizer: {learning_rate: .inf}",
        "model: {fields: {stage_channels: [.nan, 2, 3]}}",
        "model: {fields: {stage_channels: {a: [1, {b: 2}]}}}",
        "data: {steps: 1, 'steps': 2}",
        "--- {}\n--- {}",
    ],
)
def test_hostile_files(tmp_path, content):
    """A ConfigError of one line, and no other exception."""
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    refused(lambda: load_recipe(path), "mine.yaml")


@pytest.mark.parametrize("field", ["schedule.epochs", "model.fields.head_hidden_size", "name"])
def test_settings_with_endless_numbers(field):
    refused(lambda: with_settings(load_recipe("nmnist"), [f"{field}={HUGE}"]))


def test_no_file(tmp_path):
    refused(lambda: load_recipe(tmp_path / "mine.yaml"), "mine.yaml is not there")
    refused(lambda: load_recipe("mine.yml"), "mine.yml is not there")
    refused(lambda: load_recipe("a\0.yaml"), "no path")
    refused(lambda: load_recipe("x" * 5000 + ".yaml"), "cannot be read")
    refused(lambda: load_recipe(tmp_path), "is a folder")
    save_recipe(Recipe(), tmp_path / "recipe.yaml")
    refused(lambda: load_recipe(tmp_path), "is a folder", str(tmp_path / "recipe.yaml"))
    os.mkfifo(tmp_path / "pipe.yaml")
    refused(lambda: load_recipe(tmp_path / "pipe.yaml"), "not a regular file")


# Setting and comparing


def test_settings():
    before = load_recipe("dvsgesture")
    words = ["schedule.epochs=30", "data.grid=[34,48]", "data.cache=off", "optimizer.learning_rate=1e-2", "name=mine"]
    words += ["data.root=", "model.fields.neurons=[lif, lif, lif]", "model.fields.drop_path_rate=0.3"]
    after = with_settings(before, words)
    assert (after.schedule.epochs, after.data.grid, after.data.cache, after.name) == (30, (34, 48), "off", "mine")
    assert (after.optimizer.learning_rate, after.data.root) == (1e-2, None)
    assert after.model.fields == {"neurons": ["lif"] * 3, "drop_path_rate": 0.3}
    assert before == load_recipe("dvsgesture")  # unchanged, its mapping too
    changed = ["name", "data.grid", "data.cache", "model.fields.neurons", "model.fields.drop_path_rate"]
    assert difference(before, after) == [*changed, "optimizer.learning_rate", "schedule.epochs"]
    assert difference(after, after) == []
    assert with_settings(after, ["model.fields={}"]).model.fields == {}
    assert with_settings(before, []) == before


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["schedule.epochs"], ["'schedule.epochs'", "field=value"]),
        (["=3"], ["'=3'", "field=value"]),
        (["schedule.epoch=3"], ["recipe 'dvsgesture' has no field 'schedule.epoch'", "'schedule.epochs'"]),
        (["epochs=3"], ["no field 'epochs'", "did you mean 'schedule.epochs'"]),
        (["batchsize=3"], ["did you mean 'schedule.batch_size'"]),
        (["schedule={epochs: 3}"], ["schedule is a part"]),
        (["model.fields.=3"], ["no field 'model.fields.'"]),
        (["run.seed=1", "run.seed=2"], ["run.seed was set twice"]),
        (["model.fields={}", "model.fields.tdm=false"], ["model.fields.tdm was set twice (as model.fields"]),
        (["run.seed=[", "run.seed=2"], ["'run.seed=['", "cannot be read as YAML"]),
        (["schedule.epochs=three"], ["schedule.epochs is 'three'; a whole number is wanted"]),
    ],
)
def test_settings_that_make_no_sense(words, named):
    refused(lambda: with_settings(load_recipe("dvsgesture"), words), *named)


# Help


def test_every_field_has_the_comment_written_behind_it():
    found = {field.path: field for field in fields_of()}
    expected = [path for path, _, _ in recipe_fields.leaves(Recipe())]
    assert list(found) == expected
    assert found["data.time_steps"].help == "T, time bins of a clip"
    assert found["optimizer.decay_rule"].help == 'what decays: see train.step; "release" repeats its slip'
    assert found["model.fields"].help == "other fields of its config, such as {neurons: [lif, lif, lif]}"
    assert found["augmentation.mixup_alpha"].help == "Mixup's λ ~ Beta(α, α)"
    assert all(field.help for field in found.values())
    assert found["data.grid"].default == [64, 64]
    assert found["data.by"].type == "one of time, count"
    assert found["data.root"].type == "a text or null"


def test_comments_over_several_lines_and_signs_in_texts():
    assert recipe_fields.comments_of(Sample) == {"a": "behind the last line", "b": "with # a sign", "c": ""}


@dataclasses.dataclass
class Sample:
    a: tuple[int, ...] = (
        1,
        2,
    )  # behind the last line
    b: str = "# none"  # with # a sign
    # a line of its own
    c: int = 3


def test_the_written_yaml_says_what_each_field_means():
    text = to_yaml(load_recipe("nmnist"), comments=True)
    assert "\n  steps: 10  # T, time bins of a clip\n" in text
    assert "\n  grid: [34, 34]  # " in text
    assert "\noptimiser:  # AdamW\n" in text
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
    lr_min = draw(st.floats(0, 1))
    folds = draw(st.sampled_from([0, 2, 5]))
    fields = {
        "neurons": st.sampled_from([["lif"] * 3, "silif"]),
        "drop_path_rate": st.floats(0, 0.99),
        "tdm": st.booleans(),
    }
    values = {
        "name": draw(st.from_regex(NAME, fullmatch=True)),
        "data": {
            "root": draw(st.none() | texts),
            "cut": draw(st.none() | texts),
            "steps": draw(st.integers(1, 4096)),
            "grid": [draw(st.integers(8, 4096)), draw(st.integers(8, 4096))],
            "extra": ["sim-nmnist=" + root for root in draw(st.lists(st.text(min_size=1, max_size=9), max_size=3))],
            "folds": folds,
            "fold": draw(st.integers(0, max(folds - 1, 0))),
            "cache": draw(st.sampled_from(["auto", "off", "memory", "device"])),
            "binary": draw(st.booleans()),
        },
        "model": {"name": "nmnist", "fields": draw(st.fixed_dictionaries({}, optional=fields))},
        "optimizer": {"lr": lr_min + draw(positive), "lr_min": lr_min, "weight_decay": draw(share)},
        "loss": {"spread": draw(positive), "passes": draw(st.sampled_from([1, 2]))},
        "augmentation": {"mixup_alpha": draw(share), "nda_operations": draw(st.integers(0, 100))},
        "schedule": {"epochs": epochs, "warmup_epochs": draw(st.integers(0, epochs)), "batch_size": draw(counts)},
        "run": {"seed": draw(st.integers(0, 2**63 - 1)), "ema": draw(st.floats(0, 0.9999))},
    }
    return recipe_from(values, "made")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipe=made_recipes(), comments=st.booleans())
def test_any_recipe_reads_back_as_it_was(recipe, comments):
    text = to_yaml(recipe, comments)
    again = recipe_from(yaml.safe_load(text.encode().decode()), "again")
    assert again == recipe
    assert difference(again, recipe) == []
    assert len(text.splitlines()) == len(fields_of()) + 7  # one line a field and a part


@pytest.mark.parametrize("code", [0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x85, 0xA0, 0x2028, 0x2029, 0xFEFF])
@pytest.mark.parametrize(
    "around", ["{}", "a{}", "{}b", "a{}b", " {} "], ids=["alone", "end", "start", "inside", "spaces"]
)
def test_ends_of_lines_in_a_text_read_back(code, around):
    recipe = recipe_from({"data": {"cut": around.format(chr(code)), "root": chr(code)}}, "made")
    text = to_yaml(recipe)
    assert recipe_from(yaml.safe_load(text), "again") == recipe
    assert len(text.splitlines()) == len(fields_of()) + 7


def test_defaults_of_augmentation_are_read():
    assert recipe_from({"augmentation": {}}, "x").augmentation == Augmentation()
