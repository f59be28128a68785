"""Recipes: the shipped ones are the paper's, reading is strict, and what is written reads back the same."""

import dataclasses
import os
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raising import raises
from ripe_mambaspike.data.augment.settings import BENCHMARKS
from ripe_mambaspike.data.sets.registry import dataset_info
from ripe_mambaspike.data.settings import DataSettings, read_data_settings
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.train.recipe import ModelSettings, Recipe, RunSettings, ScheduleSettings
from ripe_mambaspike.train.recipes import (
    RENAMED_FIELDS,
    check_recipe,
    describe_recipe,
    difference,
    field_help,
    list_recipes,
    load_recipe,
    recipe_from,
    save_recipe,
    to_dict,
    to_yaml,
    with_settings,
)
from ripe_mambaspike.yaml_text import parse_yaml

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


def read(text):
    return recipe_from(parse_yaml(text, "here"), "here")


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
    what, command, *_ = describe_recipe(name).splitlines()
    assert what
    assert command.split("  ")[0] == f"ripe train {name}" + " --set data.root=DIR" * (name == "folder")
    assert read(to_yaml(recipe, comments=True)) == recipe
    assert read(to_yaml(recipe)) == recipe
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
        ("data: {root: 2024-01-01}", "data.root", "2024-01-01"),
        ("data: {cache: off}", "data.cache", "off"),
        ("run: {cuda_graph: off}", "run.cuda_graph", "off"),
        ("data: {extra: [sim-nmnist=/a]}", "data.extra", ("sim-nmnist=/a",)),
        ("loss: {passes: 1}", "loss.passes", 1),
        ("data: {binary: true}", "data.binary", True),
        ("model: {fields: {drop_path_rate: 1e-1}}", "model.fields", {"drop_path_rate": 0.1}),
        ("model: {fields: {neurons: [lif, lif, silif]}}", "model.fields", {"neurons": ["lif", "lif", "silif"]}),
    ],
)
def test_a_value_is_read_by_its_type(text, path, value):
    section, name = path.split(".")
    found = getattr(getattr(read(text), section), name)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("schedule: {epoch: 3}", "schedule.epoch"),
        ("epochs: 3", "epochs"),
        ("{3: 4}", "3"),
        ("data: 3", "data"),
        ("data:", "data"),
        ("schedule: {epochs: 3.0}", "schedule.epochs"),
        ("schedule: {epochs: '3'}", "schedule.epochs"),
        ("schedule: {epochs: true}", "schedule.epochs"),
        ("schedule: {epochs: 1:59}", "schedule.epochs"),
        ("optimizer: {learning_rate: fast}", "optimizer.learning_rate"),
        ("optimizer: {learning_rate: .nan}", "optimizer.learning_rate"),
        ("optimizer: {learning_rate: 1e999}", "optimizer.learning_rate"),
        ("optimizer: {learning_rate: true}", "optimizer.learning_rate"),
        ("optimizer: {learning_rate: null}", "optimizer.learning_rate"),
        ("data: {binary: 1}", "data.binary"),
        ("data: {binary: yes}", "data.binary"),
        ("data: {by: events}", "data.by"),
        ("data: {by: off}", "data.by"),
        ("loss: {passes: 3}", "loss.passes"),
        ("loss: {passes: true}", "loss.passes"),
        ("loss: {passes: [1]}", "loss.passes"),
        ("data: {dataset: 3}", "data.dataset"),
        ("data: {grid: [1, 2, 3]}", "data.grid"),
        ("data: {grid: '48,48'}", "data.grid"),
        ("data: {grid: [34.0, 34]}", "data.grid"),
        ("data: {extra: sim-nmnist=/a}", "data.extra"),
        ("data: {extra: [3]}", "data.extra[0]"),
        ("model: {fields: 3}", "model.fields"),
        ("model: {fields: {stage_channels: [.nan, 2, 3]}}", "model.fields.stage_channels[0]"),
        ("[]", None),
        ("", None),
    ],
)
def test_a_wrong_value_names_its_field(text, field):
    with raises(ConfigError, field=field) as caught:
        read(text)
    assert len(str(caught.value).splitlines()) == 1


def test_a_wrong_name_gets_a_hint():
    for text, meant in (
        ("schedule: {epoch: 3}", "schedule.epochs"),
        ("epochs: 3", "schedule.epochs"),
        ("data: {epochs: 3}", "schedule.epochs"),
        ("data: {dataset: nmist}", "nmnist"),
        ("model: {name: dvsgestur}", "dvsgesture"),
        ("model: {fields: {neuron: lif}}", "neurons"),
        ("model: {neurons: lif}", "model.fields.neurons"),
        ("attention: grouped", "model.fields.attention"),
    ):
        with raises(ConfigError) as caught:
            read(text)
        assert f"did you mean '{meant}'?" in str(caught.value)


@pytest.mark.parametrize(("earlier", "now"), RENAMED_FIELDS.items())
def test_an_earlier_name_is_refused_with_todays(earlier, now):
    section, _, name = earlier.partition(".")
    with raises(ConfigError, field=earlier) as caught:
        recipe_from({section: {name: 1} if name else {}}, "here")
    assert now in str(caught.value)
    assert now in {*field_help(), "optimizer"}


@pytest.mark.parametrize(
    "setting",
    [
        *("schedule.epochs=0", "schedule.batch_size=0", "schedule.grad_accum_steps=0", "schedule.warmup_epochs=-1"),
        *("schedule.warmup_epochs=301", "schedule.warmup_steps=-1", "schedule.first_epochs=-1"),
        *("schedule.sharpness_start=0", "schedule.sharpness_end=-1"),
        *("optimizer.learning_rate=1e-7", "optimizer.min_learning_rate=-1", "optimizer.tdm_lr_scale=-1"),
        *("optimizer.weight_decay=-1", "optimizer.clip_grad_norm=0"),
        *("loss.spread=-1", "loss.consistency=-1", "loss.rates=-1"),
        *("data.dataset=nmist", "data.time_steps=0", "data.time_steps=5000", "data.grid=7", "data.grid=[8, 5000]"),
        *("data.store=zz", "data.extra=[nmnist]", "data.extra=[nmnist=]", "data.extra=[what=/a]"),
        *("data.folds=1", "data.folds=-2", "data.fold=1", "data.fold=-1", "data.num_workers=-1"),
        *("run.seed=-1", "run.seed=9223372036854775808", "run.ema_decay=1", "run.ema_decay=-0.1", "run.threads=2000"),
        *("run.recalibrate_batches=0", "run.validate_every=0", "run.checkpoint_minutes=-1"),
        *("name=a/b", "name=..", "name=''", "model.name=dvsgestur"),
        *("model.fields.neuron=lif", "model.fields.drop_path_rate=2", "model.fields.drop_path_rate=much"),
        *("model.fields.num_classes=3", "model.fields.time_steps=3", "model.fields.in_size=34"),
        "model.fields.form=deployed",
    ],
)
def test_a_value_out_of_range(setting):
    with raises(ConfigError, field=setting.partition("=")[0]) as caught:
        with_settings(load_recipe("dvsgesture"), [setting])
    assert "recipe 'dvsgesture'" in str(caught.value)


@pytest.mark.parametrize("setting", ["augmentation.horizontal_flip=2", "augmentation.nda_operations=-1"])
def test_augmentation_checks_itself(setting):
    with raises(ConfigError) as caught:
        with_settings(load_recipe("dvsgesture"), [setting])
    assert "augmentation" in str(caught.value)


def test_data_first_leaves_epochs_for_the_rest():
    with_settings(load_recipe("quickstart"), ["schedule.epochs=3"])
    with raises(ConfigError, field="schedule.first_epochs"):
        with_settings(load_recipe("quickstart"), ["schedule.epochs=2"])
    with_settings(load_recipe("dvsgesture"), ["schedule.epochs=1", "schedule.warmup_epochs=1"])  # without data.first


def test_the_ends_of_the_ranges_are_allowed():
    words = ["schedule.epochs=10", "optimizer.learning_rate=1e-6", "data.folds=2", "data.fold=1", "data.grid=8"]
    made = with_settings(load_recipe("dvsgesture"), [*words, "run.ema_decay=0.999"])
    assert made.schedule.warmup_epochs == made.schedule.epochs == 10
    assert made.optimizer.learning_rate == made.optimizer.min_learning_rate
    assert with_settings(made, ["schedule.epochs=1", "schedule.warmup_steps=5"]).schedule.epochs == 1


def test_a_recipe_made_in_python_can_be_checked():
    check_recipe(Recipe())
    for recipe, field in (
        (Recipe(schedule=ScheduleSettings(epochs=0)), "schedule.epochs"),
        (Recipe(data=DataSettings(grid=(64,))), "data.grid"),
        (Recipe(model=ModelSettings("nmnist", {"width": 3})), "model.fields.width"),
    ):
        with raises(ConfigError, field=field):
            check_recipe(recipe)


# Files


def test_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("# What it is\n# Its command\nname: mine\noptimizer:\n  learning_rate: 2e-3\n")
    recipe = load_recipe(path)
    assert load_recipe(str(path)) == recipe
    assert (recipe.name, recipe.optimizer.learning_rate) == ("mine", 2e-3)
    assert describe_recipe(path) == "What it is\nIts command"


def test_saving_and_loading(tmp_path):
    for name in SHIPPED:
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
    with raises(ConfigError, field="recipe") as caught:
        load_recipe("dvs-gesture")
    assert all(name in str(caught.value) for name in (*SHIPPED, "did you mean 'dvsgesture'?"))
    with raises(ConfigError, field="recipe"):
        load_recipe("")


HUGE = "0x" + "f" * 5000  # more digits than Python prints
HOSTILE = [
    *("name: [", "name: a\n\tb: c", "just words", "", "name: \x01", "name: a\nname: b", "{? [1] : 2}", "2: 1", "~: 1"),
    *("a: &x [1]\nb: *x", "a: &x [*x]", "[" * 5000, "run: {seed: " + "1" * 5000 + "}", f"schedule: {{epochs: {HUGE}}}"),
    *("run: {seed: 0" + " " * 70000 + "}", "data: {first: [" + "a, " * 12000 + "a]}", "{" * 3000, "a: " * 3000),
    *(f"optimizer: {{learning_rate: {HUGE}}}", f"data: {{grid: [{HUGE}, 1]}}", f"loss: {{passes: {HUGE}}}"),
    *(f"model: {{fields: {{head_hidden_size: {HUGE}}}}}", f"name: {HUGE}", f"model: {{fields: {{? {HUGE} : 1}}}}"),
    *("schedule: {epochs: 1" + ":59" * 2000 + "}", "- " * 3000, "? " * 3000, "2020-01-01: 1", "? [a]\n: 1"),
    *("{" + ", ".join(map(str, range(6000))) + "}", "data: !!set {a}", "data: !!omap [a: 1]", "--- {}\n--- {}"),
    *("!!python/object/apply:os.system ['true']", "name: !!python/name:os.system", "name: 2020-99-99 x/y"),
    *("model: {fields: {stage_channels: {a: [1, {b: 2}]}}}", "data: {time_steps: 1, 'time_steps': 2}"),
]


@pytest.mark.parametrize("content", [*HOSTILE, b"\xff\xfe\x00"], ids=range(len(HOSTILE) + 1))
def test_a_file_that_is_no_recipe(tmp_path, content):
    """A ConfigError of one line, and no other exception."""
    path = tmp_path / "mine.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with raises(ConfigError) as caught:
        load_recipe(path)
    assert "mine.yaml" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("field", ["schedule.epochs", "model.fields.head_hidden_size", "name"])
def test_settings_with_endless_numbers(field):
    with raises(ConfigError):
        with_settings(load_recipe("nmnist"), [f"{field}={HUGE}"])


def test_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    save_recipe(Recipe(), tmp_path / "recipe.yaml")
    for name in (tmp_path / "mine.yaml", "mine.yml", "x" * 5000 + ".yaml", tmp_path, tmp_path / "pipe.yaml"):
        with raises(ConfigError, path=name):
            load_recipe(name)
    with raises(ConfigError):
        load_recipe("a\0.yaml")


# Setting and comparing


def test_settings():
    before = load_recipe("dvsgesture")
    words = ["schedule.epochs=30", "data.grid=[34,48]", "data.cache=off", "optimizer.learning_rate=1e-2", "name=mine"]
    words += ["data.root=", "data.store=1234567890123456"]
    words += ["model.fields.neurons=[lif, lif, lif]", "model.fields.drop_path_rate=0.3"]
    after = with_settings(before, words)
    assert (after.schedule.epochs, after.data.grid, after.data.cache, after.name) == (30, (34, 48), "off", "mine")
    assert (after.optimizer.learning_rate, after.data.root, after.data.store) == (1e-2, None, "1234567890123456")
    assert after.model.fields == {"neurons": ["lif"] * 3, "drop_path_rate": 0.3}
    assert before == load_recipe("dvsgesture")  # unchanged, its mapping too
    changed = ["name", "data.store", "data.grid", "data.cache", "optimizer.learning_rate", "schedule.epochs"]
    fields = ["model.fields.neurons", "model.fields.drop_path_rate"]
    assert sorted(difference(before, after)) == sorted([*changed, *fields])
    assert difference(after, after) == []
    assert with_settings(after, ["model.fields={}"]).model.fields == {}
    assert with_settings(before, []) == before


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["schedule.epochs"], None),
        (["=3"], None),
        (["schedule.epoch=3"], "schedule.epoch"),
        (["epochs=3"], "epochs"),
        (["schedule={epochs: 3}"], "schedule"),
        (["model.fields.=3"], "model.fields."),
        (["run.seed=1", "run.seed=2"], "run.seed"),
        (["model.fields={}", "model.fields.tdm=false"], "model.fields.tdm"),
        (["run.seed=["], None),
        (["schedule.epochs=three"], "schedule.epochs"),
    ],
)
def test_settings_that_make_no_sense(words, field):
    with raises(ConfigError, field=field):
        with_settings(load_recipe("dvsgesture"), words)


# Help


def test_every_field_has_the_comment_written_behind_it():
    found = field_help()
    flat = {f"{part}.{name}" for part, values in to_dict(Recipe()).items() if part != "name" for name in values}
    assert set(found) == {"name", *flat}
    assert found["data.time_steps"] == "T, time bins of a clip"
    assert found["augmentation.mixup_alpha"] == "Mixup's λ ~ Beta(α, α)"
    assert all(found.values())


def test_the_written_yaml_says_what_each_field_means():
    text = to_yaml(load_recipe("nmnist"), comments=True)
    assert "\n  time_steps: 10  # T, time bins of a clip\n" in text
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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipe=made_recipes(), comments=st.booleans())
def test_any_recipe_reads_back_as_it_was(recipe, comments):
    text = to_yaml(recipe, comments)
    again = read(text.encode().decode())
    assert again == recipe
    assert difference(again, recipe) == []
    assert len(text.splitlines()) == len(field_help()) + 7  # one line per field and section
