"""Recalibration: plain means over clean batches, and nothing else changes."""

import pytest
import torch
from safetensors.torch import load_file

from ripe_mambaspike.data.clips import TrainBatches
from ripe_mambaspike.data.training_data import open_data
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.nn.calibrate import recalibrate
from ripe_mambaspike.nn.norm import BatchNorm, TimeBatchNorm
from ripe_mambaspike.ops.backend import kernels

SIZES = (5, 3, 4)


@pytest.fixture
def network(make_network):
    model = make_network(drop_path_rate=0.9)
    randomize(model, 1)
    return model


@pytest.fixture
def batches():
    random = torch.Generator().manual_seed(5)
    # Ever more events, so that the mean of the batches is not that of the clips.
    return [
        torch.poisson(torch.full((size, 4, 2, 16, 16), 0.4 * (index + 1)), generator=random)
        for index, size in enumerate(SIZES)
    ]


def norms_of(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, BatchNorm | TimeBatchNorm)}


def by_hand(model, batches):
    """Mean over the batches of each norm's input mean and unbiased variance, in float64, by the reference path."""
    seen = {name: [] for name in norms_of(model)}

    def look(name):
        def hook(module, inputs):
            x = inputs[0].detach().double()
            over = (0, 3, 4) if isinstance(module, TimeBatchNorm) else (0, 2, 3)
            seen[name].append((x.mean(over), x.var(over, unbiased=True)))

        return hook

    hooks = [module.register_forward_pre_hook(look(name)) for name, module in norms_of(model).items()]
    model.train()
    with kernels("off"), torch.no_grad():
        for x in batches:
            model.run(x)
    for hook in hooks:
        hook.remove()
    assert all(len(found) == len(batches) for found in seen.values())
    return {name: [sum(values) / len(values) for values in zip(*found, strict=True)] for name, found in seen.items()}


@pytest.mark.parametrize("computed", ["off", "auto"])
def test_statistics_are_the_plain_mean_over_the_batches(network, batches, computed):
    wanted = by_hand(network, batches)
    randomize(network, 1)  # the pass above moved the statistics
    with kernels(computed):
        assert recalibrate(network, iter(batches)) == 3
    assert len(wanted) > 40
    for name, norm in norms_of(network).items():
        mean, variance = wanted[name]
        spread = float(variance.sqrt().max())
        assert torch.allclose(norm.running_mean.double(), mean, rtol=1e-3, atol=1e-3 * spread + 1e-6), name
        assert torch.allclose(norm.running_var.double(), variance, rtol=1e-3, atol=1e-3 * spread**2 + 1e-6), name


def test_the_entry_sees_the_clips_themselves(network, batches):
    recalibrate(network, batches)
    means = torch.stack([x.double().mean((0, 3, 4)) for x in batches])
    variances = torch.stack([x.double().var((0, 3, 4), unbiased=True) for x in batches])
    assert torch.allclose(network.entry.running_mean.double(), means.mean(0), rtol=1e-5)
    assert torch.allclose(network.entry.running_var.double(), variances.mean(0), rtol=1e-5)
    assert not torch.allclose(
        network.entry.running_mean.double(), torch.cat(batches).double().mean((0, 3, 4)), rtol=1e-3
    )


def test_earlier_statistics_have_no_effect(network, batches):
    recalibrate(network, batches)
    first = {name: value.clone() for name, value in network.state_dict().items()}
    for norm in norms_of(network).values():
        norm.running_mean.fill_(1e6)
        norm.running_var.fill_(1e6)
    recalibrate(network, batches)
    assert [name for name, value in network.state_dict().items() if not torch.equal(value, first[name])] == []


def test_drop_path_is_off(network, batches):
    """Nothing is drawn; a pass in training would."""
    network.train()
    before = torch.get_rng_state()
    recalibrate(network, batches)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        network.run(batches[0])
    assert not torch.equal(torch.get_rng_state(), before)


def test_nothing_else_changes(network, batches):
    network.train()
    network.stages[1].eval()
    norms = norms_of(network)
    norms["entry"].momentum = 0.25
    modes = {name: module.training for name, module in network.named_modules()}
    weights = {name: p.detach().clone() for name, p in network.named_parameters()}
    recalibrate(network, batches)
    assert {name: module.training for name, module in network.named_modules()} == modes
    assert [norm.momentum for norm in norms.values()] == [0.25] + [0.1] * (len(norms) - 1)
    assert all(torch.equal(p, weights[name]) and p.grad is None for name, p in network.named_parameters())


def test_all_is_put_back_after_an_error(network, batches):
    network.eval()

    def broken():
        yield batches[0]
        raise KeyError("lost")

    with pytest.raises(KeyError):
        recalibrate(network, broken())
    assert not any(module.training for module in network.modules())
    assert {norm.momentum for norm in norms_of(network).values()} == {0.1}


def test_a_run_takes_them_from_its_first_clean_batches(tiny, go, tmp_path):
    """The picked network's statistics of its input are those of the first batches of epoch 1, not augmented."""
    recipe = tiny("augmentation.polarity_flip=0.5", "augmentation.nda_operations=2", "schedule.epochs=1")
    go(recipe, tmp_path / "run")
    clips = open_data(recipe.data).train
    first = [x.double() for _, x, _, _ in TrainBatches(clips, 4, 0, 0, torch.device("cpu"))][:2]
    best = load_file(tmp_path / "run" / "best" / "model.safetensors")
    wanted = torch.stack([x.mean((0, 3, 4)) for x in first]).mean(0)
    assert torch.allclose(best["entry.running_mean"].double(), wanted, rtol=1e-5)
