"""An architecture of one's own, added by following the guide, is trained, saved, counted and evaluated like ours."""

import json

import torch

from ripe_mambaspike import create_model, from_pretrained, list_models
from ripe_mambaspike.account.run import account
from ripe_mambaspike.api import evaluate
from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.models.base import ARCHITECTURES
from ripe_mambaspike.models.registry import _MODELS
from ripe_mambaspike.train.recipes import load_recipe, with_settings
from ripe_mambaspike.train.run import train

SETTINGS = ("model.name=one-layer", "model.fields.width=8", "data.time_steps=4", "data.grid=16", "schedule.epochs=2",
            "schedule.batch_size=4", "run.device=cpu", "schedule.warmup_epochs=0")  # fmt: skip


def test_a_network_of_ones_own(follow, restored, tmp_path):
    restored(_MODELS, ARCHITECTURES)
    follow("Add an architecture", "one_layer")
    assert "one-layer" in list_models()
    model = create_model("one-layer", seed=0, width=8, num_classes=3, in_size=16, time_steps=4).eval()
    x = torch.poisson(torch.full((2, 4, 2, 16, 16), 0.5))
    out = model.run(x, observe=("spikes",))
    assert out.logits.shape == (2, 4, 3)
    assert out.rates.tolist() == [out.observed["neuron.spikes"].mean().item()]
    document = account("one-layer", in_size=16, time_steps=4, fields={"width": 8})
    assert document["parameters"]["training"] == 2 * 8 * 9 + 2 * 8 + 8 * 11 + 11
    assert document["flops"]["total"] == 2 * 4 * (4 * 4 * 2 * 8 * 9 + 8 * 11)

    simulate_dataset("synthgesture", tmp_path / "data", train=11, val=11, test=11, size=16)
    recipe = with_settings(load_recipe("synthgesture"), [f"data.root={tmp_path / 'data'}", *SETTINGS])
    result = train(recipe, tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "result.json").read_text())
    assert kept["top1"] == result.top1 == evaluate(tmp_path / "run").scores.top1
    assert any(line.startswith("loss.passes: ") for line in kept["left_out"])
    assert from_pretrained(tmp_path / "run" / "best").name == "one-layer"
