"""The average of the weights against a loop by hand."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ripe_mambaspike.train.average import AveragedWeights


def test_against_a_loop_by_hand():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    average = AveragedWeights(model, 0.9)
    wanted = [p.detach().double().clone() for p in model.parameters()]
    for step in range(1, 121):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        wanted = [
            decay * old + (1 - decay) * p.detach().double() for old, p in zip(wanted, model.parameters(), strict=True)
        ]
        assert all(torch.allclose(v.double(), w, atol=1e-5) for v, w in zip(average.values, wanted, strict=True)), step
    assert (1 + 79) / (10 + 79) < 0.9 < (1 + 81) / (10 + 81)  # both kinds of decay were tried


def test_averaged_weights_are_swapped_in_and_back():
    model = nn.Linear(3, 4)
    average = AveragedWeights(model, 0.5)
    first = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    moved = model.weight.detach().clone()
    places = [p.data_ptr() for p in model.parameters()]
    with average.swapped_in():
        assert torch.equal(model.weight, first)
    assert torch.equal(model.weight, moved)
    with pytest.raises(KeyError), average.swapped_in():
        raise KeyError
    assert torch.equal(model.weight, moved)
    assert torch.equal(average.values[0], first)
    assert [p.data_ptr() for p in model.parameters()] == places


def test_a_run_saves_the_average_and_trains_on_the_weights(tiny, go, watching, tmp_path):
    """best/ holds the average over the steps; the steps are those of a run without one."""
    seen, ends = [], {}

    def note(trainer):
        seen.append({name: p.detach().clone() for name, p in trainer.model.named_parameters()})

    for name, ema in (("with", 0.6), ("without", 0.0)):
        seen.clear()
        recipe = tiny(f"run.ema_decay={ema}", "schedule.epochs=1")
        first = None

        class FromTheStart(watching):
            def on_train_begin(self, recipe, data, trainer):
                super().on_train_begin(recipe, data, trainer)
                note(trainer)

        go(recipe, tmp_path / name, FromTheStart(on_step=note))
        ends[name] = list(seen)
    assert len(ends["with"]) == 4
    for one, other in zip(ends["with"], ends["without"], strict=True):
        assert all(torch.equal(value, other[name]) for name, value in one.items())
    best = load_file(tmp_path / "with" / "best" / "model.safetensors")
    for name, first in ends["with"][0].items():
        wanted = first.double()
        for step, weights in enumerate(ends["with"][1:], 1):
            decay = min(0.6, (1 + step) / (10 + step))
            wanted = decay * wanted + (1 - decay) * weights[name].double()
        assert torch.allclose(best[name].double(), wanted, rtol=1e-5, atol=1e-7), name
    plain = load_file(tmp_path / "without" / "best" / "model.safetensors")
    assert all(torch.equal(plain[name], value) for name, value in ends["without"][-1].items())
    assert not torch.equal(plain["head.weight"], best["head.weight"])
    saved = load_file(max((tmp_path / "with" / "checkpoints").iterdir()))
    averaged = [name for name in saved if name.startswith("average.")]
    assert len(averaged) == len([name for name in saved if name.startswith("model.") and "running" not in name])
