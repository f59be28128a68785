"""The Triton attention against its float64 reference, in Triton's interpreter (or on a GPU where there is one)."""

import pytest
import torch

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.membrane_attention import AttentionWeights, attend, attend_fire, attend_reference
from ripe_mambaspike.ops.norm_fire import Neuron, norm_fire_reference

NAMES = ("potential", "spikes", "features", "scale", "shift", "query", "key", "value", "gain")


def draw(batch, steps, positions, channels, *, affine=True, spikes="some", seed=0):
    """Inputs in float64, of numbers that float32 holds."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator).double()

    wide = (batch, steps, positions, channels)
    fired = {
        "some": lambda: (torch.rand(wide, generator=generator) < 0.3).double(),
        "silent": lambda: torch.zeros(wide).double(),
        "saturated": lambda: torch.ones(wide).double(),
        "relaxed": lambda: torch.rand(wide, generator=generator).double(),
    }[spikes]()
    return {
        "potential": normal(*wide),
        "spikes": fired,
        "features": normal(*wide),
        "scale": 1 + 0.3 * normal(steps, channels) if affine else None,
        "shift": 0.3 * normal(steps, channels) if affine else None,
        "query": (normal(channels, channels) / channels**0.5).float().double(),
        "key": (normal(channels, channels) / channels**0.5).float().double(),
        "value": (normal(channels, channels) / channels**0.5).float().double(),
        "gain": normal(channels),
    }


def expected_of(inputs, cotangents):
    """(out, A) and every gradient in float64."""
    leaves = {name: None if given is None else given.clone().requires_grad_() for name, given in inputs.items()}
    weights = AttentionWeights(*(leaves[name] for name in NAMES[5:]))
    outputs = attend_reference(*(leaves[name] for name in NAMES[:5]), weights)
    return outputs, gradients_of(outputs, leaves, cotangents)


def given_by(inputs, cotangents, hard):
    """The same by the operator in float32, hard spikes as bytes."""
    leaves = {name: None if given is None else given.float().requires_grad_() for name, given in inputs.items()}
    spikes = leaves["spikes"].detach()
    carrier = torch.zeros(spikes.shape).requires_grad_()
    leaves["spikes"] = carrier
    weights = AttentionWeights(*(leaves[name] for name in NAMES[5:]))
    outputs = attend(
        leaves["potential"],
        spikes.to(torch.uint8) if hard else spikes,
        carrier,
        *(leaves[name] for name in NAMES[2:5]),
        weights,
        keep_attention=True,
    )
    return outputs, gradients_of(outputs, leaves, cotangents)


def gradients_of(outputs, leaves, cotangents):
    chosen = [(out, by.to(out.dtype)) for out, by in zip(outputs, cotangents, strict=True) if by is not None]
    loss = sum((out * by).sum() for out, by in chosen)
    wanted = {name: leaf for name, leaf in leaves.items() if leaf is not None}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(wanted.items(), found, strict=True)
    }


def relative(given, expected):
    """The largest difference over the largest magnitude; over one where nothing is expected."""
    scale = expected.abs().max().item() or 1.0
    return (given.double() - expected).abs().max().item() / scale


def cotangents_for(inputs, which):
    generator = torch.Generator().manual_seed(7)
    both = [torch.randn(inputs["features"].shape, generator=generator).double() for _ in range(2)]
    return [by if name in which else None for name, by in zip(("out", "attention"), both, strict=True)]


def check(inputs, hard=True, which=("out", "attention"), tolerance=1e-5):
    cotangents = cotangents_for(inputs, which)
    outputs, gradients = given_by(inputs, cotangents, hard)
    wanted_outputs, wanted = expected_of(inputs, cotangents)
    for name, given, expected in zip(("out", "attention"), outputs, wanted_outputs, strict=True):
        assert given.dtype == torch.float32
        assert relative(given, expected) < tolerance, name
    assert gradients.keys() == wanted.keys()
    for name, expected in wanted.items():
        assert gradients[name].shape == expected.shape, name
        assert relative(gradients[name], expected) < tolerance, name


@pytest.mark.parametrize(
    "sizes",
    [(2, 3, 25, 16), (1, 2, 1, 32), (2, 1, 5, 16), (1, 2, 81, 3), (2, 2, 20, 2), (1, 2, 30, 48), (1, 2, 5, 192)],
    ids=lambda sizes: "x".join(map(str, sizes)),
)
def test_outputs_and_gradients_are_the_references(sizes):
    check(draw(*sizes))


@pytest.mark.parametrize("channels", [16, 96], ids=["fused", "wide"])
@pytest.mark.parametrize("spikes", ["silent", "saturated", "relaxed"])
def test_spikes_of_every_kind(spikes, channels):
    inputs = draw(2, 3, 9, channels, spikes=spikes)
    if spikes == "relaxed":
        inputs["spikes"] = inputs["spikes"].float().double()
    check(inputs, hard=spikes != "relaxed")


@pytest.mark.parametrize("channels", [16, 80], ids=["fused", "wide"])
@pytest.mark.parametrize("which", ["out", "attention"])
def test_either_gradient_may_be_missing_and_so_may_the_norm(which, channels):
    check(draw(1, 3, 7, channels, affine=False), which=(which,))


def test_a_program_holds_as_many_channels_as_are_allowed(monkeypatch):
    from ripe_mambaspike.ops.membrane_attention import triton_plan as attention_plan

    monkeypatch.setitem(attention_plan.FUSED_CHANNELS, torch.float32, 128)
    check(draw(1, 2, 20, 96))


def test_the_wide_route_takes_the_batch_in_slices(monkeypatch):
    from ripe_mambaspike.ops.membrane_attention import triton_plan as attention_plan

    monkeypatch.setitem(attention_plan.FUSED_CHANNELS, torch.float32, 0)
    monkeypatch.setattr(attention_plan, "SLICE_BYTES", 1)
    check(draw(3, 2, 9, 8))


def test_one_chunk_and_many_give_the_same(monkeypatch):
    from ripe_mambaspike.ops.membrane_attention import triton_plan as attention_plan

    inputs = draw(1, 3, 130, 16)
    check(inputs)
    monkeypatch.setattr(attention_plan, "PROGRAMS", 1)
    check(inputs)


def test_large_potentials_do_not_overflow():
    inputs = draw(1, 3, 9, 16)
    inputs["potential"] *= 40
    check(inputs, tolerance=2e-5)


def test_the_first_step_passes_unchanged():
    inputs = {name: given.float() for name, given in draw(1, 2, 6, 16).items()}
    weights = AttentionWeights(*(inputs[name] for name in NAMES[5:]))
    spikes, carrier = inputs["spikes"].to(torch.uint8), torch.zeros(1, 2, 6, 16)
    arguments = (inputs["potential"], spikes, carrier, inputs["features"], None, None, weights)
    out, nothing = attend(*arguments)
    assert torch.equal(out[:, 0], inputs["features"][:, 0])
    assert not torch.equal(out[:, 1], inputs["features"][:, 1])
    assert nothing.shape == (0,)


@pytest.mark.parametrize("channels", [16, 72], ids=["fused", "wide"])
def test_twice_the_same_bits_and_everything_is_written(channels, poisoned_empty):
    inputs = draw(1, 3, 33, channels)
    cotangents = cotangents_for(inputs, ("out", "attention"))
    (first, first_gradients), (second, second_gradients) = (given_by(inputs, cotangents, True) for _ in range(2))
    for one, other in zip((*first, *first_gradients.values()), (*second, *second_gradients.values()), strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


def neuron_of(channels, resonating):
    generator = torch.Generator().manual_seed(3)
    decay, rotation, drive, threshold = torch.rand(4, channels, generator=generator)
    return Neuron(0.5 + 0.4 * decay, rotation if resonating else None, 0.5 + drive, 0.5 + 0.5 * threshold)


def assert_fired(given, expected, potential, threshold):
    """Spikes equal wherever the potential is not within rounding of the threshold at this step or before it."""
    near = ((potential - threshold).abs() < 1e-4).cumsum(1) > 0
    assert near.double().mean() < 0.05
    assert torch.equal(given.double()[~near], expected[~near])


@pytest.mark.parametrize("alone", [True, False], ids=["one kernel", "two"])
@pytest.mark.parametrize("filtered", [True, False], ids=["filtered", "plain"])
@pytest.mark.parametrize("resonating", [True, False], ids=["resonating", "leaky"])
def test_attend_fire_is_attend_then_the_neuron(monkeypatch, alone, filtered, resonating):
    from ripe_mambaspike.ops.membrane_attention import triton_fire as attention_fire

    monkeypatch.setattr(attention_fire, "ENOUGH_PROGRAMS", 1 if alone else 1 << 30)
    inputs = draw(2, 4, 35, 20, affine=filtered)
    neuron = neuron_of(20, resonating)
    coefficient = torch.linspace(0.1, 0.9, 20) if filtered else None
    given = {name: None if t is None else t.float() for name, t in inputs.items()}
    weights = AttentionWeights(*(given[name] for name in NAMES[5:]))
    first = (given["potential"], given["spikes"].to(torch.uint8), *(given[name] for name in NAMES[2:5]))
    fired, operand, attention = attend_fire(*first, weights, neuron, coefficient, keep_attention=True)
    assert fired.dtype == torch.uint8

    exact = AttentionWeights(*(inputs[name] for name in NAMES[5:]))
    current, wanted_attention = attend_reference(*(inputs[name] for name in NAMES[:5]), exact)
    doubled = Neuron(*(None if p is None else p.double() for p in neuron))
    wanted, potential, _ = norm_fire_reference(current, None, None, doubled, None)
    assert relative(attention, wanted_attention) < 1e-5
    assert_fired(fired, wanted, potential, neuron.threshold)
    spikes = fired.float()
    before = torch.cat([torch.zeros_like(spikes[:, :1]), spikes[:, :-1]], 1)
    ratio = 0 if coefficient is None else coefficient
    assert relative(operand, ((1 + ratio) * spikes - ratio * before).double()) < 1e-6
    assert 0.05 < fired.float().mean() < 0.95


@pytest.mark.parametrize("alone", [True, False], ids=["one kernel", "two"])
def test_attend_fire_relaxed(monkeypatch, alone):
    from ripe_mambaspike.ops.membrane_attention import triton_fire as attention_fire

    monkeypatch.setattr(attention_fire, "ENOUGH_PROGRAMS", 1 if alone else 1 << 30)
    inputs = draw(1, 3, 17, 16, spikes="relaxed")
    neuron, coefficient = neuron_of(16, True), torch.linspace(0.1, 0.9, 16)
    given = {name: t.float() for name, t in inputs.items()}
    weights = AttentionWeights(*(given[name] for name in NAMES[5:]))
    first = tuple(given[name] for name in NAMES[:5])
    fired, operand, nothing = attend_fire(*first, weights, neuron, coefficient, relaxed=True, sharpness=1.5)
    assert nothing.shape == (0,)
    exact = AttentionWeights(*(inputs[name] for name in NAMES[5:]))
    current, _ = attend_reference(*(inputs[name] for name in NAMES[:5]), exact)
    doubled = Neuron(*(p.double() for p in neuron))
    wanted = norm_fire_reference(current, None, None, doubled, coefficient.double(), relaxed=True, sharpness=1.5)
    assert relative(fired, wanted[0]) < 1e-5
    assert relative(operand, wanted[2]) < 1e-5


def test_attend_fire_in_one_kernel_or_two_fires_the_same_and_writes_everything(monkeypatch, poisoned_empty):
    from ripe_mambaspike.ops.membrane_attention import triton_fire as attention_fire

    given = {name: t.float() for name, t in draw(1, 4, 35, 16).items()}
    neuron, coefficient = neuron_of(16, True), torch.linspace(0.1, 0.9, 16)
    weights = AttentionWeights(*(given[name] for name in NAMES[5:]))
    first = (given["potential"], given["spikes"].to(torch.uint8), *(given[name] for name in NAMES[2:5]))
    results = []
    for enough in (1, 1, 1 << 30):
        monkeypatch.setattr(attention_fire, "ENOUGH_PROGRAMS", enough)
        results.append(attend_fire(*first, weights, neuron, coefficient, keep_attention=True))
    for one, again, other in zip(*results, strict=True):
        assert one.float().isfinite().all()
        assert torch.equal(one, again)
        assert torch.equal(one, other) if one.dtype == torch.uint8 else relative(one, other.double()) < 1e-6


def test_the_gradient_over_a_handful_of_numbers_in_bfloat16():
    """It is computed in float32: within 1e-2 of float64, where the rounding of one number would be more."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    wide, square = (1, 2, 7, 2), (2, 2)
    potential, features, grad = (draw(*wide).bfloat16() for _ in range(3))
    query, key, value = (draw(*square).bfloat16() for _ in range(3))
    spikes = (torch.rand(wide, generator=generator) < 0.5).to(torch.uint8)
    gain = draw(2)
    arguments = (potential, spikes, features, None, None, query, key, value, gain, grad, None)
    given = torch.ops.ripe.attend_backward(*arguments)
    with kernels("plain"):
        exact = [t.double() if t is not None and t.is_floating_point() else t for t in arguments]
        expected = torch.ops.ripe.attend_backward(*exact)
    for index in (0, 1, 2, 5, 6, 7, 8):
        error = (given[index].double() - expected[index]).abs().max()
        assert error <= 1e-2 * expected[index].abs().max(), index
    assert [t.dtype for t in given[5:]] == [torch.bfloat16] * 3 + [torch.float32]
