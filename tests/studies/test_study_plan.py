"""Plans: which runs there are, which are the same, and which have ended."""

import json
from dataclasses import replace

import pytest

from raising import raises
from ripe_mambaspike.errors import ConfigError, DataError, InputError
from ripe_mambaspike.studies.plan import check_data, plan_study, recipe_hash
from ripe_mambaspike.studies.study import load_study
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipes import load_recipe, save_recipe, with_settings

RESULT = {
    "format": "ripe-result", "version": 1, "name": "x", "protocol": "validation", "picked_on": "val", "epoch": 1,
    "set": "x", "partition": None, "top1": 0.5, "n": 10,
}  # fmt: skip


def test_runs_of_two_arms_and_two_seeds(tiny_plan, tmp_path):
    plan = tiny_plan()
    assert [(run.arm, run.seed) for run in plan.runs] == [("full", 0), ("no-tdm", 0), ("full", 1), ("no-tdm", 1)]
    assert plan.runs[0].key == plan.runs[2].key != plan.runs[1].key
    assert plan.runs[0].folder == tmp_path / "out" / "runs" / "synthgesture" / f"{plan.runs[0].key}-seed-0"
    assert len(plan.runs[0].key) == 12
    assert [run.recipe.model.fields.get("tdm", True) for run in plan.runs[:2]] == [True, False]
    assert all(run.recipe.schedule.epochs == 1 for run in plan.runs)


@pytest.mark.parametrize("setting", ["data.root=/x", "data.num_workers=2", "run.device=cpu", "name=y", "run.seed=7"])
def test_the_hash_ignores_what_does_not_change_the_result(setting):
    recipe = load_recipe("gestures-hard")
    assert recipe_hash(with_settings(recipe, [setting])) == recipe_hash(recipe)


@pytest.mark.parametrize("setting", ["schedule.epochs=999", "run.precision=float32", "model.fields.tdm=false"])
def test_the_hash_depends_on_what_changes_the_result(setting):
    recipe = load_recipe("gestures-hard")
    assert recipe_hash(with_settings(recipe, [setting])) != recipe_hash(recipe)


def test_the_hash_of_a_recipe_does_not_change():
    """Folders of finished runs have it in their name."""
    recipe = with_settings(Recipe(), ["schedule.epochs=30", "model.fields.tdm=false"])
    assert recipe_hash(recipe) == "d558b9c45f78"


def test_studies_share_runs(tmp_path):
    """The paper's mix of neurons and its penalty are those of the network as it is; A1 is an attention variant."""
    plans = {
        name: plan_study(load_study(name), ["gestures-hard"], "0", out=tmp_path)
        for name in ("components", "neuron-mixes", "rate-loss", "tokens", "attention", "sequence-modules", "peers")
    }
    folders = {name: {run.arm: run.folder for run in plan.runs} for name, plan in plans.items()}
    whole = folders["components"]["full"]
    assert folders["neuron-mixes"]["csilif-silif-silif"] == whole
    assert folders["rate-loss"]["default"] == folders["tokens"]["all"] == folders["sequence-modules"]["mamba"] == whole
    assert folders["peers"]["ours"] == folders["attention"]["ds-mpa"] == whole
    assert folders["attention"]["none"] == folders["components"]["no-attention"] != whole


@pytest.mark.parametrize(("name", "numbers"), [("gestures-hard", [4, 9, 18, None]), ("sim-cifar10", [3, 6, 12, None])])
def test_tokens_are_shares_of_a_sets_own_grid(tmp_path, name, numbers):
    """48×48 has 6×6 positions in the last stage, 34×34 has 5×5."""
    plan = plan_study(load_study("tokens"), [name], "0", out=tmp_path)
    assert [run.recipe.model.fields.get("num_tokens") for run in plan.runs] == numbers


def test_the_pooled_interface_has_a_quarter_of_the_side(tmp_path):
    plan = plan_study(load_study("interface"), ["gestures-hard"], "0", out=tmp_path)
    assert [run.recipe.model.fields.get("pool_size") for run in plan.runs] == [None, 3]


def test_an_arm_that_a_set_cannot_have_is_left_out(tmp_path):
    plan = plan_study(load_study("peers"), ["gestures-hard-small"], "0", out=tmp_path, settings=["data.grid=8"])
    assert plan.left_out
    assert {one.arm for one in plan.left_out}.isdisjoint(run.arm for run in plan.runs)
    assert len(plan.runs) + len(plan.left_out) == len(load_study("peers").chosen_arms())
    with raises(ConfigError):  # the reference cannot be left out
        plan_study(load_study("components"), ["gestures-hard"], "0", out=tmp_path, settings=["data.grid=4"])


def test_ended_runs_are_found_again(tiny_plan):
    plan = tiny_plan()
    run = plan.runs[1]
    assert plan.finished() == {}
    run.folder.mkdir(parents=True)
    save_recipe(replace(run.recipe, data=replace(run.recipe.data, root="elsewhere")), run.folder / "recipe.yaml")
    (run.folder / "result.json").write_text(json.dumps(RESULT))
    assert {folder: result.top1 for folder, result in plan.finished().items()} == {run.folder: 0.5}
    left = {one.folder for one in plan.runs} - set(plan.finished())
    assert [one["ended"] for one in plan.to_dict(left)["runs"]] == [False, True, False, False]


def test_a_run_on_other_data_is_not_taken_for_this_one(tiny_plan, gestures_root):
    plan = tiny_plan(root=gestures_root)
    run = plan.runs[0]
    assert run.recipe.data.store is not None
    run.folder.mkdir(parents=True)
    other = replace(run.recipe, data=replace(run.recipe.data, store="0123456789abcdef"))
    save_recipe(other, run.folder / "recipe.yaml")
    (run.folder / "result.json").write_text(json.dumps(RESULT))
    with raises(InputError, field="data.store"):
        plan.finished()


def test_data_is_checked_before_anything_runs(tiny_plan, gestures_root, tmp_path):
    check_data(tiny_plan(root=gestures_root))
    with raises(DataError, field="data.root", mentions="ripe sim make"):
        check_data(tiny_plan(root=tmp_path))


@pytest.mark.parametrize("setting", ["run.seed=1", "data.root=x", "data.store=abc"])
def test_fields_that_the_study_sets(tiny_plan, setting):
    with raises(ConfigError, field=setting.split("=")[0]):
        tiny_plan(settings=[setting])


def test_a_set_twice_is_refused(tmp_path):
    with raises(ConfigError, field="on"):
        plan_study(load_study("tokens"), ["gestures-hard", "gestures-hard"], "0", out=tmp_path)
