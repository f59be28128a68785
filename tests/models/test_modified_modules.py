"""Modules that are hooked, subclassed or replaced are called, on the reference path."""

import copy
import logging

import pytest
import torch
from tests.raising import raises
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, parametrize

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models import fused as fast
from ripe_mambaspike.models.fused import kernels_cover
from ripe_mambaspike.nn.neurons import SiLIF
from ripe_mambaspike.ops.backend import kernels, log_once

FIELDS = ({}, {"num_tokens": 4, "head_hidden_size": 24, "attention": "gate", "neurons": "lif"}, {"mixer": "gru"})


def is_called(module):
    return type(module).forward is not nn.ModuleList.forward  # containers have none


def kinds(model):
    """One module of every type that PyTorch calls, by name; the network itself is not one."""
    found = {}
    for name, module in model.named_modules():
        if name and is_called(module):
            found.setdefault(type(module).__name__, name)
    return found


def slow(*cases):
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


FAST = [("training", 0), ("deployed", 1), ("deployed", 2)]


@pytest.fixture(params=[*FAST, *slow(("training", 1), ("training", 2), ("deployed", 0))], ids=str)
def model(request, small, louder):
    form, index = request.param
    return louder(small(form=form, **FIELDS[index])).double().eval()


@pytest.fixture
def x(events):
    return events(19, 16, dtype=torch.float64)


def both(model, x):
    """Logits with the fused operators wanted, and without."""
    with torch.no_grad():
        with kernels("plain"):
            given = model(x)
        with kernels("off"):
            return given, model(x)


def test_an_unmodified_network_takes_the_fused_path(model, x):
    with kernels("plain"):
        assert kernels_cover(model, x)
        assert model.modification() is None


def test_every_kind_of_module_can_be_hooked(model, x):
    _, untouched = both(model, x)
    for kind, name in kinds(model).items():
        module = model.get_submodule(name)
        for register in (module.register_forward_hook, module.register_forward_pre_hook):
            seen = []
            handle = register(lambda *given, seen=seen: seen.append(1))
            with torch.no_grad(), kernels("plain"):
                assert not kernels_cover(model, x), kind
                for count in (1, 2):
                    given = model(x)
                    assert len(seen) == count, (kind, name)
            handle.remove()
            torch.testing.assert_close(given, untouched, rtol=1e-9, atol=1e-9)
    with kernels("plain"):
        assert kernels_cover(model, x)


def test_every_kind_of_module_can_be_replaced_by_a_subclass_or_a_method(model, x):
    _, untouched = both(model, x)
    for kind, name in kinds(model).items():
        for way in ("subclass", "method"):
            altered = copy.deepcopy(model)
            module = altered.get_submodule(name)
            seen = []
            own = module.forward

            def forward(*given, seen=seen, own=own, **options):
                seen.append(1)
                return own(*given, **options)

            if way == "method":
                module.forward = forward
            else:
                module.__class__ = type(
                    "Mine", (type(module),), {"forward": lambda self, *a, f=forward, **o: f(*a, **o)}
                )
            with torch.no_grad(), kernels("plain"):
                given = altered(x)
            assert seen, (kind, way)
            torch.testing.assert_close(given, untouched, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_every_kind_of_module_can_be_hooked_in_training(small, events):
    x = events(19, 16, dtype=torch.float64)
    model = small().double().train()
    for kind, name in kinds(model).items():
        seen = []
        handle = model.get_submodule(name).register_forward_hook(lambda *given, seen=seen: seen.append(1))
        with kernels("plain"):
            model.run(x)
            assert len(seen) == 1, kind
            model.run_passes(x, [fast.HARD, fast.HARD])
            assert len(seen) == 3, kind
        handle.remove()


def test_backward_hooks_fire(small, events):
    model = small().train()
    seen = []
    for name in ("stages.1.second_norm", "hierarchy.blocks.0"):  # whose outputs PyTorch can follow
        model.get_submodule(name).register_full_backward_hook(lambda *given: seen.append(1))
    model(events()).sum().backward()
    assert len(seen) == 2


def test_the_error_of_a_replaced_neuron_is_raised(small, events):
    class Raises(SiLIF):
        def forward(self, *given, **options):
            raise RuntimeError("called")

    model = small().eval()
    model.stages[1].first_neuron = Raises(12)
    with torch.no_grad(), pytest.raises(RuntimeError, match="called"):
        model(events())


def test_a_module_of_an_unknown_type_is_called(small, louder, events):
    class Louder(nn.Module):
        def forward(self, potential, spikes, features, initial_state=None):
            return (2 * features, torch.zeros_like(features)), None

    model = louder(small(attention="none")).eval()
    _, before = both(model, events())
    model.stages[2].attention = Louder()
    given, expected = both(model, events())
    assert torch.equal(given, expected)
    assert not torch.equal(given, before)


@pytest.mark.parametrize(
    "name", ["head", "bridge.attention", "hierarchy.blocks.1.merge", "hierarchy.transitions.1.widen"]
)
@pytest.mark.parametrize("way", ["parametrized", "weight-norm", "hook-weight-norm", "no-bias"])
def test_parametrized_weights_take_the_reference_path(small, louder, events, name, way):
    model = louder(small()).eval()
    module = model.get_submodule(name)
    if way == "parametrized":
        parametrize.register_parametrization(module, "weight", nn.Tanh())
    elif way == "weight-norm":
        parametrizations.weight_norm(module)
    elif way == "no-bias":
        module.bias = None
    else:
        nn.utils.weight_norm(module)
        with torch.no_grad():
            module.weight_g.mul_(3)  # seen by the next call alone
    given, expected = both(model, events())
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(given, expected) or way == "no-bias"  # of the head the operators take care themselves


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m.hierarchy.norm, "eps", 0.3),
        lambda m: setattr(m.stages[0].first_norm, "eps", 0.3),
        lambda m: setattr(m.stages[1].first_conv.branches[2].norm, "eps", 0.3),
        lambda m: setattr(m.stages[1].first_conv.branches[0].convs[0], "padding_mode", "circular"),
        lambda m: setattr(m.bridge.mixture.scales[0].conv, "padding_mode", "circular"),
        lambda m: setattr(m.hierarchy, "norm", nn.LayerNorm(8, 0.3, elementwise_affine=False)),
        lambda m: m.stages[0].second_conv.branches[1].convs.__setitem__(0, nn.Conv2d(8, 8, 1).double()),  # with a bias
    ],
)
def test_unsupported_settings_take_the_reference_path(small, louder, events, change):
    model = louder(small()).double().eval()
    x = events(dtype=torch.float64)
    _, before = both(model, x)
    change(model)
    given, expected = both(model, x)
    assert torch.equal(given, expected)
    assert not torch.equal(given, before)


def test_a_patched_forward_is_called(small, events, monkeypatch):
    model = small().eval()
    monkeypatch.setattr(SiLIF, "forward", lambda *given, **options: 1 / 0)
    with torch.no_grad(), pytest.raises(ZeroDivisionError):
        model(events())


def test_global_hooks_are_called(small, events):
    model = small().eval()
    seen = set()
    handle = register_module_forward_hook(lambda module, *_: seen.add(type(module).__name__))
    try:
        with torch.no_grad():
            model(events())
    finally:
        handle.remove()
    assert {"SiLIF", "CSiLIF", "BidirectionalMamba", "Linear"} <= seen


def test_hooks_of_the_network_itself_stay_on_the_fused_path(small, events, monkeypatch):
    model = small().eval()
    seen = []
    model.register_forward_hook(lambda *given: seen.append(1))
    with torch.no_grad(), kernels("plain"):
        assert kernels_cover(model, events())
        model(events())
    assert seen == [1]


def test_a_modification_is_logged_once(small, events, caplog):
    log_once.cache_clear()
    model = small().eval()
    model.stages[0].first_neuron.register_forward_hook(lambda *given: None)
    with torch.no_grad(), caplog.at_level(logging.WARNING), kernels("plain"):
        model(events())
        model(events())
    assert len(caplog.records) == 1
    assert "stages.0.first_neuron" in caplog.text


def test_an_identity_head_gives_features(small, events):
    model = small().eval()
    model.head = nn.Identity()
    given, expected = both(model, events())
    assert given.shape == (2, 5, 24)
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)


def test_hooks_in_mamba_spike_blocks_are_called(tiny_baseline, events):
    model, x = tiny_baseline().eval(), events(13, 18, steps=7)
    seen = []
    for module in (model.blocks[0].norm, model.blocks[1].mamba):
        module.register_forward_hook(lambda *given: seen.append(1))
    given, expected = both(model, x)
    assert len(seen) == 4
    assert torch.equal(given, expected)


def test_a_run_with_state_refuses_hooked_blocks(small, events):
    model = small(causal=True).eval()
    model.run(events(), state={})
    model.hierarchy.blocks[1].register_forward_hook(lambda *given: None)
    with raises(ConfigError, "hierarchy.blocks.1"):
        model.run(events(), state={})


@pytest.mark.gpu
def test_on_a_gpu(small, louder, events):
    model, x = louder(small(form="deployed")).eval().cuda(), events().cuda()
    with torch.no_grad():
        with kernels("off"):
            expected = model(x)
        for kind, name in kinds(model).items():
            seen = []
            handle = model.get_submodule(name).register_forward_hook(lambda *given, seen=seen: seen.append(1))
            given = model(x)
            handle.remove()
            assert seen == [1], kind
            torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)
