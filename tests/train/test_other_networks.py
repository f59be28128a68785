"""Networks other than RIPE-MambaSpike: trained, resumed and logged by the same recipes."""

import json

import pytest
import torch

from raising import raises
from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.train.callback import TrainingStopped
from ripe_mambaspike.train.network import unused_settings
from ripe_mambaspike.train.recipes import load_recipe, with_settings

NETWORKS = {
    "event-mlp": "model.fields={grid_size: 4, hidden_size: 8}",
    "mamba-spike": "model.fields={channels: [4, 4, 4], embed_dim: 8, depth: 1}",
    "mamba-spike-pooled": "model.fields={channels: [4, 4, 4], embed_dim: 8, depth: 1, pool_size: 2}",
}


@pytest.mark.parametrize("name", NETWORKS)
def test_trained_and_reloaded(tiny, go, read_log, watching, tmp_path, name):
    callback = watching()
    result = go(tiny(f"model.name={name}", NETWORKS[name]), tmp_path / "run", callback)
    saved = from_pretrained(tmp_path / "run" / "best")
    assert result["parameters"] == dict.fromkeys(("training", "deployed"), saved.parameter_count())
    wanted = {"loss.passes", "loss.spread", "schedule.sharpness_start, schedule.sharpness_end"}
    if name == "event-mlp":
        wanted.add("loss.rates")
    for lines in (result["left_out"], callback.lines):
        assert wanted <= {line.partition(":")[0] for line in lines}
    rows = read_log(tmp_path / "run")
    assert all(row["relaxed"] == row["consistency"] == row["tdm_1"] == row["sharpness"] == "" for row in rows)
    assert [bool(row["rate"]) for row in rows] == [name != "event-mlp"] * 2
    assert [bool(row["rate_3"]) for row in rows] == [name != "event-mlp"] * 2
    fresh = create_model(name, seed=0, **{**saved.config.to_dict()}).state_dict()
    learned = [key for key, value in saved.named_parameters() if not torch.equal(value, fresh[key])]
    assert len(learned) == len(list(saved.parameters()))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["left_out"] == result["left_out"]


@pytest.mark.parametrize("name", ["event-mlp", "mamba-spike-pooled"])
def test_a_stopped_run_ends_with_the_same_bits(tiny, go, watching, outcome, tmp_path, name):
    recipe = tiny(f"model.name={name}", NETWORKS[name])
    go(recipe, tmp_path / "whole")

    def stop(trainer):
        if trainer.state.global_step == 4:
            raise TrainingStopped

    with pytest.raises(TrainingStopped):
        go(recipe, tmp_path / "stopped", watching(on_step=stop))
    go(recipe, tmp_path / "stopped", resume=True)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_all_of_ours_is_used(finished):
    assert json.loads((finished / "result.json").read_text())["left_out"] == []


def test_steps_of_the_logits_decide_about_the_spread():
    model = create_model("cnn-gru", channels=(4, 4, 4), hidden_size=4, in_size=16, time_steps=2)
    left_out = [line.partition(":")[0] for line in unused_settings(load_recipe("dvsgesture"), model)]
    assert left_out == ["loss.passes", "loss.rates", "schedule.sharpness_start, schedule.sharpness_end"]


def test_a_relaxed_pass_is_not_made_up():
    model = create_model("event-mlp", num_classes=3, in_size=16, time_steps=2)
    x = torch.zeros(1, 2, 2, 16, 16)
    for modes in ([ForwardMode(relaxed=True)], [ForwardMode(), ForwardMode(relaxed=True)]):
        with raises(ConfigError, "passes"):
            model.run_passes(x, modes)


def test_fields_of_another_architecture_are_left_out():
    ours = load_recipe("quickstart")
    assert ours.model.fields
    left = with_settings(ours, ["model.name=event-mlp"])
    assert (left.model.fields, set(left.model.unused_fields)) == ({}, set(ours.model.fields))
    (line,) = (one for one in unused_settings(left, create_model("event-mlp")) if one.startswith("model.fields"))
    assert all(name in line for name in ours.model.fields)
    other = with_settings(ours, ["model.name=event-mlp", "model.fields.hidden_size=8"])
    assert other.model.fields == {"hidden_size": 8}
    same = with_settings(ours, ["model.name=nmnist"])
    assert (same.model.fields, same.model.unused_fields) == (ours.model.fields, ())


def test_fields_that_were_left_out_belong_to_the_last_network():
    left = with_settings(load_recipe("quickstart"), ["model.name=event-mlp", "model.fields.hidden_size=8"])
    back = with_settings(left, ["model.name=nmnist", "model.fields.neurons=lif"])
    assert (back.model.fields, back.model.unused_fields) == ({"neurons": "lif"}, ("hidden_size",))
    again = with_settings(back, ["model.name=cifar10dvs"])
    assert (again.model.fields, again.model.unused_fields) == ({"neurons": "lif"}, ())
