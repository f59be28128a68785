"""norm_fire and step_moments in C++ against their references in float64, at odd sizes."""

import pytest
import torch

from ripe_mambaspike.ops import norm_fire as neurons
from ripe_mambaspike.ops import step_moments as moments
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.norm_fire import Neuron

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=f"no C++ operators: {unavailable_reason()}")

SIZES = [(1, 1, 1, 2), (2, 10, 25, 3), (1, 16, 81, 32), (1, 10, 289, 96), (2, 3, 25, 384), (1, 2, 4096, 5)]
NAMES = ["x", "scale", "shift", "decay", "rotation", "gain", "threshold", "coefficient"]


def relative(given, expected):
    return ((given.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-30)).item()


def drawn(size, resonating, plain=False, seed=0):
    """Inputs in float64 that are exact in bfloat16 where they are activations."""
    torch.manual_seed(seed)
    steps, channels = size[1], size[3]
    inputs = {
        "x": torch.randn(size),
        "scale": None if plain else torch.rand(steps, channels) + 0.5,
        "shift": None if plain else 0.3 * torch.randn(steps, channels),
        "decay": 0.3 + 0.6 * torch.rand(channels),
        "rotation": torch.rand(channels) - 0.5 if resonating else None,
        "gain": torch.rand(channels) + 0.2,
        "threshold": torch.rand(channels) + 0.3,
        "coefficient": None if plain else torch.randn(channels),
    }
    return {name: None if t is None else t.bfloat16().double() for name, t in inputs.items()}


def computed(inputs, dtype, relaxed, native):
    """(outputs, gradients of all inputs that are there), the activations in dtype, the parameters float32 at least."""
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    given = {
        name: None if t is None else t.to(dtype if name == "x" else wide).requires_grad_() for name, t in inputs.items()
    }
    x, scale, shift, decay, rotation, gain, threshold, coefficient = given.values()
    neuron = Neuron(decay, rotation, gain, threshold)
    if native:
        with kernels("native"):
            fired = neurons.norm_fire(x, scale, shift, neuron, coefficient, relaxed=relaxed, sharpness=3.0)
        outputs = (fired.spikes, fired.potential, fired.operand)
        ends = (fired.carrier, fired.potential, fired.operand)
    else:
        outputs = ends = neurons.norm_fire_reference(
            x, scale, shift, neuron, coefficient, relaxed=relaxed, sharpness=3.0
        )
    generator = torch.Generator().manual_seed(7)
    cotangents = [torch.randn(x.shape, generator=generator).bfloat16().to(out.dtype) for out in ends]
    leaves = {name: t for name, t in given.items() if t is not None}
    with kernels("native"):
        grads = torch.autograd.grad(ends, list(leaves.values()), cotangents)
    return outputs, dict(zip(leaves, grads, strict=True))


def without_close_calls(inputs, relaxed):
    """Push the drive of every potential near its threshold away: rounding must not decide about a spike."""
    if relaxed:
        return inputs
    for _ in range(200):
        (_, potential, _), _ = computed(inputs, torch.float64, relaxed, native=False)
        near = ((potential - inputs["threshold"]).abs() < 2e-4).double()
        if not near.any():
            return inputs
        inputs["x"] = (inputs["x"] + 0.25 * near).bfloat16().double()
    raise AssertionError("some potential stays near its threshold")


@pytest.mark.parametrize("relaxed", [False, True], ids=["hard", "relaxed"])
@pytest.mark.parametrize("resonating", [False, True], ids=["leaky", "resonating"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=["f32", "bf16"])
def test_outputs_and_gradients(size, resonating, relaxed, dtype, tolerance):
    inputs = without_close_calls(drawn(size, resonating), relaxed)
    outputs, grads = computed(inputs, dtype, relaxed, native=True)
    wanted, wanted_grads = computed(inputs, torch.float64, relaxed, native=False)
    assert outputs[0].dtype == (dtype if relaxed else torch.uint8)
    assert outputs[1].dtype == outputs[2].dtype == dtype
    for given, expected in zip(outputs, wanted, strict=True):
        assert relative(given, expected) < tolerance
    assert list(grads) == list(wanted_grads)
    for name, grad in grads.items():
        assert grad.dtype == (dtype if name == "x" else torch.float32)
        assert relative(grad, wanted_grads[name]) < tolerance, name


def test_without_norm_and_filter():
    inputs = without_close_calls(drawn((2, 4, 25, 3), False, plain=True), False)
    outputs, grads = computed(inputs, torch.float32, False, native=True)
    wanted, wanted_grads = computed(inputs, torch.float64, False, native=False)
    for given, expected in zip(outputs, wanted, strict=True):
        assert relative(given, expected) < 1e-5
    for name, grad in grads.items():
        assert relative(grad, wanted_grads[name]) < 1e-5, name
    assert torch.equal(outputs[0].float(), outputs[2])


def test_the_potential_is_empty_unless_kept():
    inputs = {name: t if t is None else t.float() for name, t in drawn((1, 3, 25, 3), False).items()}
    x, scale, shift, decay, _, gain, threshold, coefficient = inputs.values()
    neuron = Neuron(decay, None, gain, threshold)
    with kernels("native"):
        kept = neurons.norm_fire(x, scale, shift, neuron, coefficient)
        bare = neurons.norm_fire(x, scale, shift, neuron, coefficient, keep_potential=False)
    assert bare.potential.numel() == 0
    assert torch.equal(bare.spikes, kept.spikes)
    assert torch.equal(bare.operand, kept.operand)
    assert 0 < kept.spikes.sum() < kept.spikes.numel()


@pytest.mark.parametrize("which", ["spikes", "potential", "operand"])
def test_a_gradient_that_comes_alone(which):
    inputs = without_close_calls(drawn((1, 5, 25, 3), True), False)
    grads = []
    for dtype in (torch.float32, torch.float64):
        x, scale, shift, decay, rotation, gain, threshold, coefficient = (t.to(dtype) for t in inputs.values())
        x.requires_grad_()
        neuron = Neuron(decay, rotation, gain, threshold)
        if dtype == torch.float32:
            with kernels("native"):
                fired = neurons.norm_fire(x, scale, shift, neuron, coefficient)
            ends = {"spikes": fired.carrier, "potential": fired.potential, "operand": fired.operand}
        else:
            names = ("spikes", "potential", "operand")
            ends = dict(zip(names, neurons.norm_fire_reference(x, scale, shift, neuron, coefficient), strict=True))
        cotangent = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        with kernels("native"):
            grads += torch.autograd.grad(ends[which], x, cotangent)
    assert relative(*grads) < 1e-5


def test_all_spikes_and_no_spikes():
    x = torch.zeros(1, 4, 25, 3)
    ones = torch.ones(3)
    for threshold, expected in ((-5 * ones, 1), (5 * ones, 0)):
        with kernels("native"):
            fired = neurons.norm_fire(x, None, None, Neuron(0.5 * ones, None, ones, threshold), 0.5 * ones)
        assert (fired.spikes == expected).all()
        assert torch.equal(fired.operand[:, 0], torch.full((1, 25, 3), 1.5 * expected))
        assert torch.equal(fired.operand[:, 1:], torch.full((1, 3, 25, 3), float(expected)))


@pytest.mark.parametrize("resonating", [False, True], ids=["leaky", "resonating"])
def test_same_bits_and_every_element_written(resonating, poisoned_empty):
    inputs = drawn((2, 5, 289, 32), resonating)
    results = [computed(inputs, torch.float32, False, native=True) for _ in range(2)]
    (outputs, grads), (again, grads_again) = results
    for one, two in zip((*outputs, *grads.values()), (*again, *grads_again.values()), strict=True):
        assert torch.isfinite(one).all()
        assert torch.equal(one, two)
    assert set(outputs[0].unique().tolist()) <= {0, 1}


def test_the_number_of_threads_changes_rounding_only():
    inputs = drawn((2, 5, 289, 32), False)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        outputs, grads = computed(inputs, torch.float32, False, native=True)
        torch.set_num_threads(3)
        again, grads_again = computed(inputs, torch.float32, False, native=True)
    finally:
        torch.set_num_threads(threads)
    for one, two in zip((*outputs, grads["x"]), (*again, grads_again["x"]), strict=True):
        assert torch.equal(one, two)
    for name, grad in grads.items():
        assert relative(grad, grads_again[name]) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_nan_stays_where_it_is(dtype):
    inputs = drawn((1, 4, 25, 3), False)
    inputs["x"][0, 1, 7, 2] = torch.nan
    (_, potential, operand), grads = computed(inputs, dtype, False, native=True)
    expected = torch.zeros(1, 4, 25, 3, dtype=torch.bool)
    expected[0, 1:, 7, 2] = True
    assert torch.equal(potential.isnan(), expected)
    assert operand.isfinite().all()
    assert grads["x"][0, 1, 7, 2].isnan()
    assert grads["x"].isnan().sum() <= 4
    assert grads["decay"].isnan().tolist() == [False, False, True]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=["f32", "bf16"])
def test_moments(size, dtype, tolerance):
    torch.manual_seed(0)
    x = (torch.randn(size) + torch.randn(size[-1])).to(dtype)
    wide = x.double().requires_grad_()
    wanted = moments.step_moments_reference(wide)
    cotangents = [torch.randn(size[1], size[3]) for _ in range(2)]
    expected = torch.autograd.grad(wanted, wide, [c.double() for c in cotangents])[0]
    x.requires_grad_()
    with kernels("native"):
        given = moments.step_moments(x)
        grad = torch.autograd.grad(given, x, cotangents)[0]
    assert [t.dtype for t in given] == [torch.float32] * 2
    assert grad.dtype == dtype
    for one, other in zip(given, wanted, strict=True):
        assert (one - other).abs().max() <= 1e-5 * max(other.abs().max().item(), 1e-30)
    assert relative(grad, expected) < tolerance


def test_the_variance_of_a_small_wobble_on_a_large_value():
    """A difference of two large sums would lose it."""
    torch.manual_seed(0)
    x = 1000 + 0.1 * torch.randn(2, 2, 4096, 3)
    with kernels("native"):
        mean, variance = moments.step_moments(x)
    wanted_mean, wanted = moments.step_moments_reference(x.double())
    assert relative(mean, wanted_mean) < 1e-6
    assert relative(variance, wanted) < 1e-4


def test_moments_do_not_depend_on_the_threads(poisoned_empty):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 289, 33)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            with kernels("native"):
                results.append(torch.stack(moments.step_moments(x)))
    finally:
        torch.set_num_threads(threads)
    assert results[0].isfinite().all()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
