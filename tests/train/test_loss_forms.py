"""The two forms of the loss: `release`, with which the paper's figures were made, and `paper`, as it is printed."""

import pytest
import torch

from raising import raises
from ripe_mambaspike.bench.step import RECIPES
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import Output
from ripe_mambaspike.train.callback import TrainingStopped
from ripe_mambaspike.train.objective import LossWeights, consistency, objective
from ripe_mambaspike.train.recipe import LossSettings
from ripe_mambaspike.train.recipes import list_recipes, load_recipe, recipe_from, to_dict, with_settings

SHORT = ("schedule.epochs=1", "schedule.batch_size=11", "loss.rates=0.5")
PRINTED_PASSES = {
    "dvsgesture": 2,
    "cifar10dvs": 1,
    "ncaltech101": 1,
    "nmnist": 2,
    "dailydvs200": 1,
    "dailydvs200-lite": 1,
}


@pytest.mark.parametrize("name", PRINTED_PASSES)
def test_the_passes_of_the_papers_recipes(name):
    recipe = load_recipe(name)
    assert (recipe.loss.form, recipe.loss.num_passes) == ("release", 2)
    assert with_settings(recipe, ["loss.form=paper"]).loss.num_passes == PRINTED_PASSES[name]


def test_a_benchmark_takes_the_passes_of_its_recipe():
    assert {name: step.passes for name, step in RECIPES.items()} == {
        name: load_recipe(name).loss.num_passes for name in RECIPES
    }


def test_our_recipes_train_as_before():
    hard_alone = {name for name in list_recipes() if load_recipe(name).loss.num_passes == 1}
    small = {"sim-cifar10-small", "sim-caltech101-small", "gestures-hard-small"}
    assert hard_alone == {"few", "folder", "quickstart", "nmnist-600-tuned", "sim-dvsgesture-tuned"} | small
    assert {load_recipe(name).loss.form for name in list_recipes()} == {"release"}


@pytest.mark.parametrize(
    ("settings", "passes", "share"),
    [
        (("loss.form=release", "loss.consistency=0.7"), 2, 0.5),
        (("loss.form=release", "loss.consistency=0"), 2, 0.5),
        (("loss.form=release", "loss.consistency=0.7", "loss.passes=1"), 1, 0),
        (("loss.form=paper", "loss.consistency=0.7"), 2, 0),
        (("loss.form=paper", "loss.consistency=0"), 1, 0),
        (("loss.form=paper", "loss.consistency=0", "loss.passes=1"), 1, 0),
    ],
)
def test_the_terms_of_a_run(tiny, go, read_log, tmp_path, settings, passes, share):
    recipe = tiny(*SHORT, *settings)
    go(recipe, tmp_path / "run")
    (row,) = read_log(tmp_path / "run")
    assert float(row["relaxed_share"]) == share
    assert [row[name] == "" for name in ("relaxed", "consistency")] == [passes == 1] * 2
    hard, relaxed, apart, rate = (float(row[name] or 0) for name in ("hard", "relaxed", "consistency", "rate"))
    expected = (1 - share) * hard + share * relaxed + recipe.loss.consistency * apart + 0.5 * rate
    assert float(row["loss"]) == pytest.approx(expected, rel=1e-5)
    if passes == 2:
        assert abs(hard - relaxed) > 1e-3  # so that a wrong share would show


def test_as_printed_the_relaxed_pass_learns_from_the_consistency_alone():
    hard, soft = (torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    rates = torch.tensor([0.1, 0.3], dtype=torch.float64)
    weights = LossWeights(relaxed_share=0.0, spread=0.5, consistency=0.7, rates=0.01)
    parts = objective(Output(hard, rates), Output(soft, rates), torch.tensor([1, 2]), weights)
    expected = parts.hard + 0.7 * consistency(hard, soft) + 0.01 * 0.2
    assert parts.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    (found,) = torch.autograd.grad(parts.loss, soft)
    (alone,) = torch.autograd.grad(0.7 * consistency(hard, soft), soft)
    assert torch.allclose(found, alone, rtol=1e-12, atol=0)


def test_the_printed_form_refuses_to_compare_with_a_pass_that_is_left_out():
    with raises(ConfigError, field="loss.passes", mentions="2"):
        with_settings(load_recipe("folder"), ["loss.form=paper"])
    recipe = with_settings(load_recipe("folder"), ["loss.form=paper", "loss.consistency=0"])
    assert recipe.loss.num_passes == 1


def test_a_recipe_of_before_has_the_default_form():
    values = to_dict(load_recipe("dvsgesture"))
    del values["loss"]["form"]
    assert recipe_from(values, "of before") == load_recipe("dvsgesture")
    assert LossSettings().form == "release"


def test_a_run_of_before_is_resumed_with_the_default_form(tiny, go, watching, outcome, finished, tmp_path):
    folder = tmp_path / "run"
    stopping = watching(on_step=lambda trainer: steps.append(1))
    steps = []
    with pytest.raises(TrainingStopped):
        go(tiny(), folder, stopping, stop_requested=lambda: len(steps) == 4)
    lines = (folder / "recipe.yaml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("  form:")]
    assert len(kept) == len(lines) - 1
    (folder / "recipe.yaml").write_text("\n".join(kept) + "\n")
    go(tiny(), folder, resume=True)
    assert outcome(folder) == outcome(finished)
