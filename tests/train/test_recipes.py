"""Recipes: the shipped ones are the paper's, values are checked strictly, and settings change single fields."""

import tomllib
from pathlib import Path

import pytest

from raising import raises
from ripe_mambaspike.data.augment.settings import BENCHMARKS, Augmentation
from ripe_mambaspike.data.sets.preparations import PREPARATIONS
from ripe_mambaspike.data.sets.registry import dataset_info
from ripe_mambaspike.data.settings import DataSettings
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
    to_dict,
    to_yaml,
    with_settings,
)
from ripe_mambaspike.yaml_text import parse_yaml

PAPER = ["dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "dailydvs200", "dailydvs200-lite"]
OURS = ["few", "folder", "nmnist-600", "nmnist-600-tuned", "quickstart", "sim-dvsgesture", "sim-dvsgesture-tuned"]
OURS += ["sim-nmnist", "sim-nmnist-real", "synthgesture", "synthgesture-128", "synthgesture-causal"]
OPEN = ["gestures-hard", "gestures-hard-small"]
OPEN += ["sim-caltech101", "sim-caltech101-small", "sim-cifar10", "sim-cifar10-small"]
SHIPPED = PAPER + sorted(OURS + OPEN)
# Table "hyper": lr, decay, warm-up in epochs and steps, epochs, batch, accumulate, α's end, TET, SGC, L1, passes
HYPER = {
    "dvsgesture": (1e-3, 0.05, 10, 0, 300, 32, 1, 4, 5e-3, 1, 1e-4, 2),
    "cifar10dvs": (1e-3, 0.03, 15, 0, 300, 32, 1, 3, 1e-2, 0, 0, 2),
    "ncaltech101": (1e-3, 0.03, 15, 0, 300, 32, 1, 3, 1e-2, 0, 0, 2),
    "nmnist": (1e-3, 0.05, 10, 0, 300, 64, 2, 4, 5e-3, 1, 1e-4, 2),
    "dailydvs200": (5e-4, 0.02, 0, 2000, 250, 32, 1, 4, 5e-3, 0, 1e-4, 2),
    "dailydvs200-lite": (5e-4, 0.02, 0, 2000, 250, 32, 1, 4, 5e-3, 0, 1e-4, 2),
}


def read(text):
    return recipe_from(parse_yaml(text, "here"), "here")


# What ships


def test_the_shipped_recipes_paper_first():
    assert list_recipes() == SHIPPED


def test_recipes_ship_in_a_wheel():
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
    assert (loss.form, loss.num_passes) == ("release", 2)
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
    assert command.split("  ")[0] == f"ripe train {name}" + " --set data.root=DIR" * (name in ("few", "folder"))
    assert read(to_yaml(recipe, comments=True)) == recipe
    assert read(to_yaml(recipe)) == recipe
    assert recipe_from(to_dict(recipe), "again") == recipe


@pytest.mark.parametrize("name", OURS)
def test_ours_mirror_and_reverse_gestures_alone_and_label_them_so(name):
    """A mirrored digit is none; a mirrored gesture is another one."""
    augmentation = load_recipe(name).augmentation
    flips = (augmentation.horizontal_flip, augmentation.time_reversal, augmentation.swap_polarity, augmentation.relabel)
    assert flips == ((0.5, 0.5, True, True) if "gesture" in load_recipe(name).data.dataset else (0, 0, False, False))


@pytest.mark.parametrize("name", OPEN)
def test_recipes_of_open_sets_read_their_set_as_it_is_made(name):
    """The grid is the sensor's, and pictures are mirrored, as their recordings were."""
    recipe, prepared = load_recipe(name), PREPARATIONS[name]
    assert (recipe.data.dataset, recipe.data.root, recipe.data.validation) == (name, None, True)
    assert recipe.data.grid == (prepared.side, prepared.side)
    gestures = prepared.shows == "gestures"
    augmentation = recipe.augmentation
    flips = (augmentation.horizontal_flip, augmentation.time_reversal, augmentation.swap_polarity, augmentation.relabel)
    assert flips == ((0.5, 0.5, True, True) if gestures else (0.5, 0, False, False))
    if not gestures:
        assert prepared.difficulty.mirror
    full = model_config(recipe.model.name)
    assert (full.stage_channels, full.embed_dims) == ((32, 64, 128), (32, 64, 128))
    assert (recipe.model.fields == {}) == (name != "gestures-hard-small")


def test_the_settings_of_our_recipes():
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
    assert [found[name].data.grid for name in OURS] == [
        None,
        None,
        *((side, side) for side in (34, 34, 32, 64, 64, 34, 34, 64, 128, 64)),
    ]
    assert [found[name].data.time_steps for name in OURS] == [0, 16, 10, 10, 12, 16, 16, 10, 10, 16, 16, 16]
    small, large = to_dict(found["synthgesture"]), to_dict(found["synthgesture-128"])
    assert small["augmentation"] == large["augmentation"]
    causal = {"name": "synthgesture-causal", "model": {**small["model"], "fields": {"causal": True}}}
    assert to_dict(found["synthgesture-causal"]) == {**small, **causal}


# Reading


def test_omitted_fields_keep_their_default():
    made = recipe_from({"name": "mine", "schedule": {"epochs": 20}}, "x")
    assert made == Recipe(name="mine", schedule=ScheduleSettings(epochs=20))
    assert recipe_from({"augmentation": {}}, "x").augmentation == Augmentation()


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
    ("text", "field", "quoted"),
    [
        ("schedule: {epoch: 3}", "schedule.epoch", "did you mean 'schedule.epochs'?"),
        ("epochs: 3", "epochs", "did you mean 'schedule.epochs'?"),
        ("data: {epochs: 3}", "data.epochs", "did you mean 'schedule.epochs'?"),
        ("shedule: {}", "shedule", "did you mean 'schedule'?"),
        ("data: {dataset: nmist}", "data.dataset", "did you mean 'nmnist'?"),
        ("model: {name: dvsgestur}", "model.name", "did you mean 'dvsgesture'?"),
        ("model: {fields: {neuron: lif}}", "model.fields.neuron", "did you mean 'neurons'?"),
        ("model: {neurons: lif}", "model.neurons", "did you mean 'model.fields.neurons'?"),
        ("attention: grouped", "attention", "did you mean 'model.fields.attention'?"),
        ("{3: 4}", "3", "3"),
        ("data: 3", "data", "3"),
        ("data:", "data", "None"),
        ("schedule: {epochs: 3.0}", "schedule.epochs", "int, got 3.0"),
        ("schedule: {epochs: '3'}", "schedule.epochs", "int, got '3'"),
        ("schedule: {epochs: true}", "schedule.epochs", "int, got True"),
        ("schedule: {epochs: 1:59}", "schedule.epochs", "int, got '1:59'"),
        ("optimizer: {learning_rate: fast}", "optimizer.learning_rate", "'fast'"),
        ("optimizer: {learning_rate: .nan}", "optimizer.learning_rate", "finite number, got nan"),
        ("optimizer: {learning_rate: .inf}", "optimizer.learning_rate", "finite number, got inf"),
        ("optimizer: {learning_rate: 1e999}", "optimizer.learning_rate", "finite number, got inf"),
        (f"optimizer: {{learning_rate: 1{'0' * 400}}}", None, "401 digits"),
        ("optimizer: {learning_rate: true}", "optimizer.learning_rate", "True"),
        ("optimizer: {learning_rate: null}", "optimizer.learning_rate", "None"),
        ("data: {binary: 1}", "data.binary", "bool, got 1"),
        ("data: {binary: yes}", "data.binary", "bool, got 'yes'"),
        ("data: {by: events}", "data.by", "one of 'time', 'count', got 'events'"),
        ("data: {by: off}", "data.by", "one of 'time', 'count', got 'off'"),
        ("loss: {passes: 3}", "loss.passes", "one of 1, 2, got 3"),
        ("loss: {passes: true}", "loss.passes", "True"),
        ("loss: {passes: 2.0}", "loss.passes", "2.0"),
        ("loss: {passes: [1]}", "loss.passes", "[1]"),
        ("data: {dataset: 3}", "data.dataset", "3"),
        ("data: {grid: [1, 2, 3]}", "data.grid", "one int or two, got [1, 2, 3]"),
        ("data: {grid: '48,48'}", "data.grid", "one int or two, got '48,48'"),
        ("data: {grid: [34.0, 34]}", "data.grid", "one int or two, got [34.0, 34]"),
        ("data: {extra: sim-nmnist=/a}", "data.extra", "list, got 'sim-nmnist=/a'"),
        ("data: {extra: [3]}", "data.extra[0]", "3"),
        ("model: {fields: 3}", "model.fields", "3"),
        ("model: {fields: {1: 2}}", "model.fields", "{1: 2}"),
        ("model: {fields: {stage_channels: [.nan, 2, 3]}}", "model.fields.stage_channels[0]", "nan"),
        ("[]", None, "here: expected fields and their values, got []"),
        ("", None, "here: expected fields and their values, got None"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(text, field, quoted):
    with raises(ConfigError, field=field, mentions=quoted) as caught:
        read(text)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("earlier", "now"), RENAMED_FIELDS.items())
def test_an_earlier_name_is_refused_with_todays(earlier, now):
    section, _, name = earlier.partition(".")
    with raises(ConfigError, field=earlier, mentions=now):
        recipe_from({section: {name: 1} if name else {}}, "here")
    assert now in {*field_help(), "optimizer"}


@pytest.mark.parametrize(
    ("setting", "bounds"),
    [
        ("schedule.epochs=0", ">= 1"),
        ("schedule.batch_size=0", ">= 1"),
        ("schedule.grad_accum_steps=0", ">= 1"),
        ("schedule.warmup_epochs=-1", ">= 0"),
        ("schedule.warmup_epochs=301", "schedule.epochs (300)"),
        ("schedule.warmup_steps=-1", ">= 0"),
        ("schedule.first_epochs=-1", ">= 0"),
        ("schedule.sharpness_start=0", "> 0"),
        ("schedule.sharpness_end=-1", "> 0"),
        ("optimizer.learning_rate=1e-7", "optimizer.min_learning_rate (1e-06)"),
        ("optimizer.min_learning_rate=-1", ">= 0"),
        ("optimizer.tdm_lr_scale=-1", ">= 0"),
        ("optimizer.weight_decay=-1", ">= 0"),
        ("optimizer.clip_grad_norm=0", "> 0"),
        ("loss.spread=-1", ">= 0"),
        ("loss.consistency=-1", ">= 0"),
        ("loss.rates=-1", ">= 0"),
        ("data.dataset=nmist", "did you mean 'nmnist'"),
        ("data.time_steps=0", ">= 1"),
        ("data.time_steps=5000", "from 1 to 4096"),
        ("data.grid=7", "from 8 to 4096"),
        ("data.grid=[8, 5000]", "from 8 to 4096"),
        ("data.store=zz", "'zz'"),
        ("data.extra=[nmnist]", "DATASET=ROOT"),
        ("data.extra=[nmnist=]", "DATASET=ROOT"),
        ("data.extra=[what=/a]", "DATASET=ROOT"),
        ("data.folds=1", "at least 2"),
        ("data.folds=-2", ">= 0"),
        ("data.fold=1", "from 0 to 0"),
        ("data.fold=-1", ">= 0"),
        ("data.num_workers=-1", ">= 0"),
        ("run.seed=-1", ">= 0"),
        ("run.seed=9223372036854775808", "<= 9223372036854775807"),
        ("run.ema_decay=1", "< 1"),
        ("run.ema_decay=-0.1", ">= 0"),
        ("run.threads=2000", "<= 1024"),
        ("run.recalibrate_batches=0", ">= 1"),
        ("run.validate_every=0", ">= 1"),
        ("run.checkpoint_minutes=-1", ">= 0"),
        ("name=a/b", "letters, digits"),
        ("name=..", "letters, digits"),
        ("name=''", "letters, digits"),
        ("model.name=dvsgestur", "did you mean 'dvsgesture'"),
        ("model.fields.neuron=lif", "did you mean 'neurons'"),
        ("model.fields.drop_path_rate=2", "from 0 up to but not including 1"),
        ("model.fields.drop_path_rate=much", "from 0 up to but not including 1"),
        ("model.fields.num_classes=3", "the data"),
        ("model.fields.time_steps=3", "the data"),
        ("model.fields.in_size=34", "the data"),
        ("model.fields.form=deployed", "the data"),
        ("augmentation.horizontal_flip=2", "from 0 to 1"),
        ("augmentation.nda_operations=-1", "from 0 to 100"),
    ],
)
def test_a_value_out_of_range(setting, bounds):
    with raises(ConfigError, field=setting.partition("=")[0], mentions=("recipe 'dvsgesture': ", bounds)):
        with_settings(load_recipe("dvsgesture"), [setting])


def test_data_first_leaves_epochs_for_the_rest():
    with_settings(load_recipe("quickstart"), ["schedule.epochs=3"])
    with raises(ConfigError, field="schedule.first_epochs", mentions="schedule.epochs (2), got 2"):
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
    for recipe, field, quoted in (
        (Recipe(schedule=ScheduleSettings(epochs=0)), "schedule.epochs", "got 0"),
        (Recipe(data=DataSettings(grid=(64,))), "data.grid", "got (64,)"),
        (Recipe(model=ModelSettings("nmnist", {"width": 3})), "model.fields.width", "'nmnist'"),
    ):
        with raises(ConfigError, field=field, mentions=quoted):
            check_recipe(recipe)


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
    assert difference(before, after) == [
        "name", "data.store", "data.grid", "data.cache", "model.fields.neurons", "model.fields.drop_path_rate",
        "optimizer.learning_rate", "schedule.epochs",
    ]  # fmt: skip
    assert difference(after, after) == []
    assert with_settings(after, ["model.fields={}"]).model.fields == {}
    assert with_settings(before, []) == before


@pytest.mark.parametrize(
    ("words", "field", "quoted"),
    [
        (["schedule.epochs"], None, "field=value, such as schedule.epochs=3, got 'schedule.epochs'"),
        (["=3"], None, "got '=3'"),
        (["schedule.epoch=3"], "schedule.epoch", "did you mean 'schedule.epochs'?"),
        (["epochs=3"], "epochs", "did you mean 'schedule.epochs'?"),
        (["batchsize=3"], "batchsize", "did you mean 'schedule.batch_size'?"),
        (["schedule={epochs: 3}"], "schedule", "one of its fields"),
        (["model.fields.=3"], "model.fields.", "'model.fields.'"),
        (["run.seed=1", "run.seed=2"], "run.seed", "a second one after run.seed"),
        (["model.fields={}", "model.fields.tdm=false"], "model.fields.tdm", "a second one after model.fields"),
        (["run.seed=[", "run.seed=2"], None, "run.seed: line 1"),
        (["schedule.epochs=three"], "schedule.epochs", "int, got 'three'"),
    ],
)
def test_settings_that_make_no_sense(words, field, quoted):
    with raises(ConfigError, field=field, mentions=quoted):
        with_settings(load_recipe("dvsgesture"), words)
