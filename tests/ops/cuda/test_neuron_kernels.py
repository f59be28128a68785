"""The norm, neuron and moments kernels against the float64 reference: outputs, every gradient, odd sizes and edges."""

import pytest
import torch

from ripe_mambaspike.ops.norm_fire import (
    Neuron,
    norm_fire,
    norm_fire_reference,
    spikes_as,
)
from ripe_mambaspike.ops.step_moments import step_moments, step_moments_reference


def draw(shape, *, resonating=False, normed=True, filtered=True, seed=0):
    """Inputs of norm_fire by name, float32, None where absent; about a third of the steps fire."""
    _, steps, _, channels = shape
    generator = torch.Generator().manual_seed(seed)

    def uniform(low, high, *size):
        return low + (high - low) * torch.rand(size, generator=generator)

    return {
        "x": torch.randn(shape, generator=generator) + 0.3,
        "scale": uniform(0.5, 1.5, steps, channels) if normed else None,
        "shift": uniform(-0.2, 0.4, steps, channels) if normed else None,
        "decay": uniform(0.3, 0.9, channels),
        "rotation": uniform(0.1, 0.5, channels) if resonating else None,
        "gain": uniform(0.5, 1.2, channels),
        "threshold": uniform(0.4, 1.1, channels),
        "coefficient": uniform(-0.3, 0.6, channels) if filtered else None,
    }


def evaluate(inputs, *, fused, dtype, relaxed=False, keep_potential=True, sharpness=2.0, expanded=False):
    """(outputs, gradients) by name; the loss weighs spikes, potential and operand at random (or just sums them)."""
    leaves = {n: None if t is None else t.detach().to(dtype).requires_grad_() for n, t in inputs.items()}
    x, scale, shift, decay, rotation, gain, threshold, coefficient = leaves.values()
    neuron = Neuron(decay, rotation, gain, threshold)
    options = {"relaxed": relaxed, "sharpness": sharpness}
    if fused:
        fired = norm_fire(x, scale, shift, neuron, coefficient, keep_potential=keep_potential, **options)
        assert fired.spikes.dtype == (dtype if relaxed else torch.uint8)
        spikes, potential, operand = spikes_as(fired.spikes, fired.carrier), fired.potential, fired.operand
    else:
        spikes, potential, operand = norm_fire_reference(x, scale, shift, neuron, coefficient, **options)
    outputs = {"spikes": spikes, "operand": operand} | ({"potential": potential} if keep_potential else {})
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=dtype)
    for output in outputs.values():
        weight = torch.randn(output.shape, generator=generator).to(dtype)
        loss = loss + (output if expanded else output * weight).sum()
    loss.backward()
    return {n: o.detach() for n, o in outputs.items()}, {n: t.grad for n, t in leaves.items() if t is not None}


def assert_near(actual, expected, tolerance=1e-5):
    """Every tensor within the tolerance, the largest difference over the largest magnitude."""
    assert actual.keys() == expected.keys()
    for name, wanted in expected.items():
        given = actual[name]
        assert given.shape == wanted.shape, name
        assert given.isfinite().all(), name
        difference = (given.double() - wanted.double()).abs().max()
        assert difference <= tolerance * wanted.abs().max(), f"{name}: off by {difference} of {wanted.abs().max()}"


def check(inputs, **options):
    outputs, gradients = evaluate(inputs, fused=True, dtype=torch.float32, **options)
    expected, expected_gradients = evaluate(inputs, fused=False, dtype=torch.float64, **options)
    assert_near(outputs, expected)
    assert_near(gradients, expected_gradients)
    return outputs


@pytest.mark.parametrize("relaxed", [False, True], ids=["hard", "relaxed"])
@pytest.mark.parametrize("resonating", [False, True], ids=["leaky", "resonating"])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("filtered", [False, True], ids=["unfiltered", "filtered"])
def test_outputs_and_gradients(relaxed, resonating, normed, filtered):
    inputs = draw((2, 7, 5, 3), resonating=resonating, normed=normed, filtered=filtered)
    outputs = check(inputs, relaxed=relaxed)
    assert relaxed or 0.1 < outputs["spikes"].mean() < 0.9


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 2),
        (1, 2, 3, 5),
        (1, 10, 1, 3),
        (2, 8, 4, 32),
        (2, 16, 25, 2),
        (1, 5, 81, 32),
        (1, 3, 9, 96),
        (1, 2, 2, 384),
        (2, 11, 33, 20),
    ],
    ids=str,
)
@pytest.mark.parametrize("resonating", [False, True], ids=["leaky", "resonating"])
def test_sizes(shape, resonating):
    check(draw(shape, resonating=resonating, seed=3))


def test_sharpness():
    check(draw((1, 6, 4, 2)), sharpness=5.0)
    check(draw((1, 6, 4, 2), resonating=True), sharpness=0.7, relaxed=True)


def test_without_potential():
    inputs = draw((2, 6, 5, 3))
    check(inputs, keep_potential=False)
    neuron = Neuron(*(inputs[name] for name in ("decay", "rotation", "gain", "threshold")))
    fired = norm_fire(inputs["x"], inputs["scale"], inputs["shift"], neuron, None, keep_potential=False)
    assert fired.potential.shape == (0,)
    assert torch.equal(fired.operand, fired.spikes.float())


@pytest.mark.parametrize("level", [-50.0, 50.0], ids=["silent", "saturated"])
@pytest.mark.parametrize("resonating", [False, True], ids=["leaky", "resonating"])
def test_silent_and_saturated(level, resonating):
    inputs = draw((1, 4, 6, 4), resonating=resonating)
    inputs["shift"] = inputs["shift"] + level
    if resonating:
        inputs["rotation"] = inputs["rotation"] * 0.1  # too slow to turn the state's sign within four steps
    outputs = check(inputs)
    assert (outputs["spikes"] == (level > 0)).all()


def test_fires_at_the_threshold():
    ones = torch.ones(2)
    x = torch.tensor([1.0, 1.0 - 2**-24]).view(1, 1, 1, 2)
    fired = norm_fire(x, None, None, Neuron(ones * 0.5, None, ones, ones), None)
    assert fired.spikes.flatten().tolist() == [1, 0]


def test_expanded_gradients():
    """The gradient of a plain sum is one number read everywhere."""
    check(draw((2, 4, 5, 3)), expanded=True)


@pytest.mark.parametrize("wanted", ["spikes", "potential", "operand"])
def test_one_gradient_alone(wanted):
    inputs = draw((2, 6, 5, 3))

    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(inputs["x"].transpose(1, 3).shape, generator=generator).transpose(1, 3)  # not contiguous

    def gradients(dtype):
        leaves = {n: t.detach().to(dtype).requires_grad_() for n, t in inputs.items() if t is not None}
        neuron = Neuron(leaves["decay"], None, leaves["gain"], leaves["threshold"])
        arguments = (leaves["x"], leaves["scale"], leaves["shift"], neuron, leaves["coefficient"])
        if dtype == torch.float32:
            fired = norm_fire(*arguments)
            outputs = (spikes_as(fired.spikes, fired.carrier), fired.potential, fired.operand)
        else:
            outputs = norm_fire_reference(*arguments)
        output = outputs[("spikes", "potential", "operand").index(wanted)]
        grads = torch.autograd.grad(output, list(leaves.values()), weight.to(dtype), allow_unused=True)
        return {n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(leaves.items(), grads, strict=True)}

    assert_near(gradients(torch.float32), gradients(torch.float64))


@pytest.fixture
def poisoned_bytes(poisoned_empty, monkeypatch):
    """From here to the end of the test, uninitialized memory is NaN, and 255 where there is none."""
    allocate = torch.empty_like

    def allocate_poison(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        return tensor if tensor.is_floating_point() else tensor.fill_(255)

    monkeypatch.setattr(torch, "empty_like", allocate_poison)


@pytest.mark.parametrize("resonating", [False, True], ids=["leaky", "resonating"])
def test_reproducible_with_poisoned_memory(resonating, request):
    inputs = draw((2, 11, 7, 3), resonating=resonating)
    first, second = (evaluate(inputs, fused=True, dtype=torch.float32) for _ in range(2))
    request.getfixturevalue("poisoned_bytes")
    assert torch.empty(3).isnan().all()
    assert (torch.empty_like(torch.ones(3, dtype=torch.uint8)) == 255).all()
    nan_where_not_finite = evaluate(inputs, fused=True, dtype=torch.float32)
    for again in (second, nan_where_not_finite):
        for actual, expected in zip(again, first, strict=True):
            assert all(torch.equal(actual[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 2), (1, 3, 2, 3), (3, 2, 25, 32), (2, 2, 25, 96), (5, 1, 130, 20), (1, 2, 3, 384)], ids=str
)
@pytest.mark.parametrize("level", [0.0, 1000.0])
def test_moments(shape, level, request):
    generator = torch.Generator().manual_seed(0)
    x = level + torch.randn(shape, generator=generator)
    weights = torch.randn(2, shape[1], shape[3], generator=generator)

    def evaluate_moments(fn, dtype):
        leaf = x.detach().to(dtype).requires_grad_()
        moments = fn(leaf)
        (grad,) = torch.autograd.grad(sum((m * w).sum() for m, w in zip(moments, weights, strict=True)), leaf)
        return {"mean": moments[0].detach(), "variance": moments[1].detach(), "grad": grad}

    actual = evaluate_moments(step_moments, torch.float32)
    expected = evaluate_moments(step_moments_reference, torch.float64)
    # x − mean loses what the mean's own rounding takes
    assert_near(actual, expected, 1e-5 if level == 0 else 1e-4)
    request.getfixturevalue("poisoned_empty")
    again = evaluate_moments(step_moments, torch.float32)
    assert all(torch.equal(again[name], actual[name]) for name in actual)


def test_moments_of_a_constant():
    mean, variance = step_moments(torch.full((2, 3, 9, 4), 0.1))
    torch.testing.assert_close(mean, torch.full((3, 4), 0.1), rtol=1e-6, atol=0)
    assert (variance < 1e-14).all()


@pytest.mark.parametrize("resonating", [False, True], ids=["leaky", "resonating"])
def test_registration(resonating):
    inputs = draw((2, 3, 4, 2), resonating=resonating)
    leaves = [None if t is None else t.requires_grad_() for t in inputs.values()]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.ripe.norm_fire.default, (*leaves, False, 2.0, True), test_utils=tests)
    x = inputs["x"]
    plain = [None if t is None else t.detach() for t in leaves]
    grads = (None, x.detach(), x.detach())
    torch.library.opcheck(torch.ops.ripe.norm_fire_backward.default, (*plain, *grads, False, 2.0), test_utils=tests)
    torch.library.opcheck(torch.ops.ripe.step_moments.default, (x,), test_utils=tests)
