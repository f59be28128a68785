"""Runs that start from a trained network: what is kept, what is new, what is trained, and resuming."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raising import raises
from ripe_mambaspike import create_model, from_pretrained, fuse
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.labels import Labels
from ripe_mambaspike.models.shipped import weights_folder
from ripe_mambaspike.studies.plan import recipe_hash
from ripe_mambaspike.train.callback import TrainingStopped
from ripe_mambaspike.train.network import create_network
from ripe_mambaspike.train.recipes import load_recipe, with_settings
from ripe_mambaspike.train.start import load_start
from ripe_mambaspike.train.step import make_optimizer

HEAD = ("head.weight", "head.bias")


@pytest.fixture(scope="module")
def others(make_network, tmp_path_factory) -> Path:
    """A network of three other classes, in its training form."""
    model = create_model("dvsgesture", seed=5, **{**make_network().config.to_dict(), "num_classes": 3})
    model.labels = Labels(("a", "b", "c"), None, None, 4, (16, 16), "time", binary=False)
    return model.save_pretrained(tmp_path_factory.mktemp("others"))


def differing(before, after):
    return {name for name, value in after.items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("form", ["training", "deployed"])
def test_all_but_the_last_layer_is_kept(tiny, others, tmp_path, form):
    folder = others if form == "training" else fuse(from_pretrained(others), quiet=True).save_pretrained(tmp_path)
    recipe, classes = tiny(f"model.pretrained={folder}"), tuple(map(str, range(11)))
    model = create_network(recipe, classes, load_start(recipe, classes))
    weights = from_pretrained(folder).state_dict()
    assert model.config.form == form
    assert model.head.weight.shape == (11, 8)
    assert not differing(weights, {name: value for name, value in model.state_dict().items() if name not in HEAD})
    fresh = create_network(tiny(), classes)
    again = create_network(recipe, classes, load_start(recipe, classes))
    assert torch.equal(model.head.weight, again.head.weight)
    assert fresh.head.weight.shape == model.head.weight.shape


def test_the_last_layer_of_the_same_classes_is_kept(tiny, finished):
    start = from_pretrained(finished)
    recipe = tiny(f"model.pretrained={finished}")
    model = create_network(recipe, start.class_names, load_start(recipe, start.class_names))
    assert not differing(start.state_dict(), model.state_dict())
    assert load_start(recipe, start.class_names).facts.new_head is False
    assert load_start(recipe, start.class_names[::-1]).facts.new_head is True


@pytest.mark.parametrize(
    ("freeze", "learned"),
    [
        ("none", {"entry", "stages", "bridge", "hierarchy", "head"}),
        ("stages", {"bridge", "hierarchy", "head"}),
        ("all-but-head", {"head"}),
    ],
)
def test_what_is_frozen_stays_and_the_rest_is_learned(tiny, go, others, tmp_path, freeze, learned):
    settings = (f"model.pretrained={others}", f"model.freeze={freeze}", "schedule.epochs=1")
    result = go(tiny(*settings), tmp_path / "run")
    before, after = from_pretrained(others), from_pretrained(tmp_path / "run")
    changed = differing(before.state_dict(), dict(after.named_parameters()))
    assert {name.partition(".")[0] for name in changed} == learned
    assert result["started_from"] == {
        "name": str(others),
        "sha256": json.loads((others / "config.json").read_text())["weights"]["sha256"],
        "form": "training",
        "new_head": True,
        "freeze": freeze,
        "lr_scale": 0.1,
        "expanded": False,
        "made_causal": False,
    }
    normed = {"entry", "stages", "bridge"}
    kept = {"none": set(), "stages": {"entry", "stages"}, "all-but-head": normed}[freeze]
    statistics = {name: value for name, value in after.named_buffers() if "running" in name}
    moved = {name.partition(".")[0] for name in differing(before.state_dict(), statistics)}
    assert moved == normed - kept


def test_a_deployed_start_is_trained_in_its_training_form(tiny, go, watching, outcome, others, tmp_path):
    start = fuse(from_pretrained(others), quiet=True).save_pretrained(tmp_path / "start")
    recipe = tiny(f"model.pretrained={start}", "model.expand=true")
    result = go(recipe, tmp_path / "whole")
    assert result["started_from"]["expanded"] is True
    assert result["parameters"]["training"] > result["parameters"]["deployed"]
    assert from_pretrained(tmp_path / "whole").config.form == "training"

    def stop(trainer):
        if trainer.state.global_step == 4:
            raise TrainingStopped

    with pytest.raises(TrainingStopped):
        go(recipe, tmp_path / "stopped", watching(on_step=stop))
    go(recipe, tmp_path / "stopped", resume=True)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_the_old_part_learns_more_slowly(make_network):
    model = make_network()
    groups = make_optimizer(model, 1e-3, 0.05, tdm_lr_scale=3.0, body_lr_scale=0.1).param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert len(rates) == sum(p.requires_grad for p in model.parameters())
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            scale = 1.0 if name in HEAD else 0.3 if name.endswith("coefficient") else 0.1
            assert rates[id(parameter)] == pytest.approx(scale * 1e-3), name


def test_the_filters_have_the_rate_of_the_others(tiny, go, watching, others, tmp_path):
    callback = watching()
    words = ("optimizer.tdm_lr_scale=50", "optimizer.pretrained_lr_scale=0.25", "schedule.epochs=1")
    result = go(tiny(f"model.pretrained={others}", *words), tmp_path / "run", callback)
    assert {group.get("lr_scale", 1.0) for group in callback.trainer.optimizer.param_groups} == {1.0, 0.25}
    assert [line.partition(":")[0] for line in result["left_out"]] == ["optimizer.tdm_lr_scale"]


def test_without_a_start_nothing_is_slower(tiny, go, finished):
    assert json.loads((finished / "result.json").read_text())["started_from"] is None
    saved = load_recipe(finished / "recipe.yaml")
    assert (saved.model.pretrained, saved.model.pretrained_checksum, saved.model.freeze) == (None, None, "none")


@pytest.mark.parametrize("freeze", [pytest.param("none", marks=pytest.mark.slow), "all-but-head"])
def test_a_stopped_run_ends_with_the_same_bits(tiny, go, watching, outcome, others, tmp_path, freeze):
    recipe = tiny(f"model.pretrained={others}", f"model.freeze={freeze}", "run.ema_decay=0.5")
    go(recipe, tmp_path / "whole")

    def stop(trainer):
        if trainer.state.global_step == 4:
            raise TrainingStopped

    with pytest.raises(TrainingStopped):
        go(recipe, tmp_path / "stopped", watching(on_step=stop))
    go(recipe, tmp_path / "stopped", resume=True)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_another_start_is_not_resumed_from(tiny, go, watching, others, make_network, tmp_path):
    start = tmp_path / "start"
    shutil.copytree(others, start)

    def stop(trainer):
        raise TrainingStopped

    recipe = tiny(f"model.pretrained={start}")
    with pytest.raises(TrainingStopped):
        go(recipe, tmp_path / "run", watching(on_step=stop))
    make_network().save_pretrained(start)
    with raises(ConfigError, field="model.pretrained", path=start):
        go(recipe, tmp_path / "run", resume=True)
    with raises(ConfigError, field="model.pretrained"):
        go(tiny(f"model.pretrained={others}"), tmp_path / "run", resume=True)


def test_what_the_start_decides_is_said(tiny, go, others, tmp_path):
    words = ("model.fields={neurons: lif, stage_channels: [4, 8, 8], embed_dims: [4, 8, 8]}", "schedule.epochs=1")
    result = go(tiny(f"model.pretrained={others}", *words), tmp_path / "run")
    assert [line.partition(":")[0] for line in result["left_out"]] == ["model.fields.neurons"]
    assert from_pretrained(tmp_path / "run").config.neurons == from_pretrained(others).config.neurons


def test_unusable_starts(tiny, go, others, tmp_path):
    for settings, field in (
        ((f"model.pretrained={tmp_path / 'nothing'}",), "model.pretrained"),
        ((f"model.pretrained={others}", "data.time_steps=5"), "data.time_steps"),
    ):
        with raises(ConfigError, field=field):
            go(tiny(*settings), tmp_path / "run")
    with raises(ConfigError, field="model.freeze"):
        tiny("model.freeze=stages")
    mlp = create_model("event-mlp", num_classes=3, time_steps=4, in_size=16).save_pretrained(tmp_path / "mlp")
    with raises(ConfigError, field="model.freeze"):
        go(tiny(f"model.pretrained={mlp}", "model.freeze=stages"), tmp_path / "run")


def test_hashes_of_recipes_without_a_start_stay():
    recipe = load_recipe("gestures-hard-small")
    started = with_settings(recipe, ["model.pretrained=nmnist-simulated"])
    known = replace(started, model=replace(started.model, pretrained_checksum="0" * 64))
    assert recipe_hash(started) != recipe_hash(recipe)
    assert recipe_hash(known) == recipe_hash(started)


def test_the_command_starts_from_a_shipped_network(tiny_words, tmp_path, capsys):
    words = [*tiny_words("schedule.epochs=1"), "--pretrained", "gestures-simulated", "--freeze", "all-but-head"]
    words = [word for word in words if not word.startswith("model.fields")]
    assert main([*words, "--out", str(tmp_path / "run"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["started_from"]["name"], result["started_from"]["new_head"]) == ("gestures-simulated", False)
    before, after = from_pretrained("gestures-simulated"), from_pretrained(tmp_path / "run")
    assert differing(before.state_dict(), after.state_dict()) == set(HEAD)
    assert main(["eval", str(tmp_path / "run"), "--fused", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["top1"] == result["top1"]
    assert (
        load_recipe(tmp_path / "run" / "recipe.yaml").model.pretrained_checksum
        == (json.loads((weights_folder() / "gestures-simulated" / "config.json").read_text())["weights"]["sha256"])
    )


@pytest.mark.parametrize("form", ["training", "deployed"])
def test_a_start_is_made_causal_where_the_recipe_asks_for_it(tiny, go, make_network, tmp_path, form):
    start = create_model("dvsgesture", seed=5, **make_network().config.to_dict())
    start = fuse(start, quiet=True) if form == "deployed" else start
    start.save_pretrained(tmp_path / "start")
    fields = "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8], causal: true}"
    asked = (fields, f"model.pretrained={tmp_path / 'start'}", "schedule.epochs=1")
    result = go(tiny(*asked, "model.expand=true"), tmp_path / "run")
    trained = from_pretrained(tmp_path / "run")
    assert (trained.config.causal, trained.config.form) == (True, "training")
    assert (result["started_from"]["made_causal"], result["started_from"]["form"]) == (True, form)
    assert not [line for line in result["left_out"] if "causal" in line]
