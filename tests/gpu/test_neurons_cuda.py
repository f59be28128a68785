"""The norm, neuron and moments kernels on a GPU: both precisions, the networks' sizes, graphs, very large tensors."""

import pytest
import torch
from torch.utils import deterministic

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.norm_fire import (
    Neuron,
    norm_fire,
    norm_fire_reference,
    spikes_as,
    step_moments,
    step_moments_reference,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

SIZES = [(2, 16, 4096, 32), (1, 16, 1024, 64), (4, 10, 289, 96), (2, 10, 81, 384), (3, 16, 25, 128), (5, 1, 25, 3)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
EXACT = {torch.float32: torch.float64, torch.bfloat16: torch.float32}  # what each precision is compared with


@pytest.fixture(autouse=True)
def _triton():
    with kernels("triton"):
        yield


def arguments_of(inputs):
    x, scale, shift, decay, rotation, gain, threshold, coefficient = inputs.values()
    return x, scale, shift, Neuron(decay, rotation, gain, threshold), coefficient


def draw(shape, dtype, *, resonating=False, normed=True, filtered=True, apart=1e-4):
    """Inputs of norm_fire by name, None where absent; no potential closer to its threshold than `apart`."""
    _, steps, _, channels = shape
    generator = torch.Generator("cuda").manual_seed(0)

    def uniform(low, high, *size):
        return low + (high - low) * torch.rand(size, generator=generator, device="cuda")

    def activity():
        return torch.randn(shape, generator=generator, device="cuda").add(0.3).to(dtype)

    inputs = {
        "x": activity(),
        "scale": uniform(0.5, 1.5, steps, channels) if normed else None,
        "shift": uniform(-0.2, 0.4, steps, channels) if normed else None,
        "decay": uniform(0.3, 0.9, channels),
        "rotation": uniform(0.1, 0.5, channels) if resonating else None,
        "gain": uniform(0.5, 1.2, channels),
        "threshold": uniform(0.4, 1.1, channels),
        "coefficient": uniform(-0.3, 0.6, channels) if filtered else None,
    }
    while apart:
        doubled = {name: None if t is None else t.double() for name, t in inputs.items()}
        potential = norm_fire_reference(*arguments_of(doubled))[1]
        near = ((potential - doubled["threshold"]).abs() < apart).any(1, keepdim=True)
        if not near.any():
            break
        inputs["x"] = torch.where(near, activity(), inputs["x"])
    return inputs


def evaluate(inputs, *, fused, dtype, precision, relaxed=False, keep_potential=True):
    """(outputs, gradients) by name, x in `dtype` and parameters in `precision`; weights are exact in bfloat16."""
    leaves = {
        name: None if t is None else t.detach().to(dtype if name == "x" else precision).requires_grad_()
        for name, t in inputs.items()
    }
    if fused:
        fired = norm_fire(*arguments_of(leaves), relaxed=relaxed, keep_potential=keep_potential)
        spikes, potential, operand = spikes_as(fired.spikes, fired.carrier), fired.potential, fired.operand
    else:
        spikes, potential, operand = norm_fire_reference(*arguments_of(leaves), relaxed=relaxed)
    outputs = {"spikes": spikes, "operand": operand} | ({"potential": potential} if keep_potential else {})
    generator = torch.Generator("cuda").manual_seed(1)
    weights = [
        torch.randn(output.shape, generator=generator, device="cuda").bfloat16().to(output.dtype)
        for output in outputs.values()
    ]
    torch.autograd.backward(list(outputs.values()), weights)
    return {n: o.detach() for n, o in outputs.items()}, {n: t.grad for n, t in leaves.items() if t is not None}


def fused_of(inputs, **options):
    return evaluate(inputs, fused=True, dtype=inputs["x"].dtype, precision=torch.float32, **options)


def assert_near(actual, expected, tolerance):
    """Every tensor within the tolerance, the largest difference over the largest magnitude."""
    assert actual.keys() == expected.keys()
    for name, wanted in expected.items():
        assert actual[name].isfinite().all(), name
        difference = (actual[name].double() - wanted.double()).abs().max()
        assert difference <= tolerance * wanted.abs().max(), f"{name}: off by {difference} of {wanted.abs().max()}"


def assert_equal(actual, expected):
    for given, wanted in zip(actual, expected, strict=True):
        assert all(torch.equal(given[name], wanted[name]) for name in wanted)


def check(inputs, **options):
    dtype = inputs["x"].dtype
    outputs, gradients = fused_of(inputs, **options)
    exact = EXACT[dtype]
    expected, expected_gradients = evaluate(inputs, fused=False, dtype=exact, precision=exact, **options)
    assert_near(outputs, expected, TOLERANCE[dtype])
    assert_near(gradients, expected_gradients, TOLERANCE[dtype])
    return outputs


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("relaxed", [False, True], ids=["hard", "relaxed"])
@pytest.mark.parametrize("resonating", [False, True], ids=["leaky", "resonating"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_outputs_and_gradients(shape, resonating, relaxed, dtype):
    inputs = draw(shape, dtype, resonating=resonating, apart=0 if relaxed else 1e-4)
    outputs = check(inputs, relaxed=relaxed)
    assert relaxed or 0.1 < outputs["spikes"].float().mean() < 0.9


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("filtered", [False, True], ids=["unfiltered", "filtered"])
def test_absent_parameters_and_potential(normed, filtered, dtype):
    check(draw((2, 10, 289, 32), dtype, normed=normed, filtered=filtered), keep_potential=False)


@pytest.mark.parametrize("level", [-50.0, 50.0], ids=["silent", "saturated"])
def test_silent_and_saturated(level):
    inputs = draw((2, 16, 81, 32), torch.float32, apart=0)
    inputs["shift"] = inputs["shift"] + level
    assert (check(inputs)["spikes"] == (level > 0)).all()


@pytest.fixture
def nan_where_not_finite():
    before = deterministic.fill_uninitialized_memory, torch.are_deterministic_algorithms_enabled()
    deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    yield
    deterministic.fill_uninitialized_memory = before[0]
    torch.use_deterministic_algorithms(before[1])


@pytest.mark.parametrize("resonating", [False, True], ids=["leaky", "resonating"])
def test_reproducible_with_poisoned_memory(resonating, request):
    inputs = draw((4, 16, 1024, 96), torch.bfloat16, resonating=resonating, apart=0)
    first = fused_of(inputs)
    assert_equal(fused_of(inputs), first)
    request.getfixturevalue("poisoned")
    assert torch.empty(3, device="cuda").isnan().all()
    assert_equal(fused_of(inputs), first)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [*SIZES, (32, 10, 12544, 3), (64, 2, 4096, 32)], ids=str)
def test_moments(shape, dtype, request):
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(shape, generator=generator, device="cuda").add(0.5).to(dtype)
    weights = torch.randn(2, shape[1], shape[3], generator=generator, device="cuda")

    def evaluate_moments(fn, precision):
        leaf = x.detach().to(precision).requires_grad_()
        moments = fn(leaf)
        torch.autograd.backward(moments, [weight.to(moments[0].dtype) for weight in weights])
        return {"mean": moments[0].detach(), "variance": moments[1].detach(), "grad": leaf.grad}

    actual = evaluate_moments(step_moments, dtype)
    expected = evaluate_moments(step_moments_reference, torch.float64)
    assert actual["mean"].dtype == actual["variance"].dtype == torch.float32
    assert_near({"grad": actual.pop("grad")}, {"grad": expected.pop("grad")}, TOLERANCE[dtype])
    assert_near(actual, expected, 1e-5)  # also in bfloat16: only what is stored in it is rounded
    request.getfixturevalue("poisoned")
    again = evaluate_moments(step_moments, dtype)
    assert all(torch.equal(again[name], actual[name]) for name in actual)


def test_captured_in_a_graph():
    inputs = list(draw((2, 16, 1024, 32), torch.bfloat16, apart=0).values())
    grad = torch.randn_like(inputs[0])

    def compute():
        spikes, _, potential, operand = torch.ops.ripe.norm_fire(*inputs, False, 2.0, True)
        grads = torch.ops.ripe.norm_fire_backward(*inputs, None, grad, grad, False, 2.0)
        mean, variance = torch.ops.ripe.step_moments(inputs[0])
        back = torch.ops.ripe.step_moments_backward(inputs[0], mean, mean, variance)
        return spikes, potential, operand, *(grads[at] for at in (0, 1, 2, 3, 5, 6, 7)), mean, variance, back

    compute()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compute()
    inputs[0].copy_(torch.randn_like(grad))
    graph.replay()
    assert all(torch.equal(actual, expected) for actual, expected in zip(captured, compute(), strict=True))


def test_more_elements_than_32_bits_count():
    if torch.cuda.mem_get_info()[0] < 48 * 2**30:
        pytest.skip("wants 48 GiB")
    inputs = draw((1, 16, 4096, 1024), torch.bfloat16, apart=0)
    options = (False, 2.0, False)
    few = list(inputs.values())
    many = [few[0].expand(33, -1, -1, -1).contiguous(), *few[1:]]
    assert many[0].numel() > 2**31
    alone, together = (torch.ops.ripe.norm_fire(*given, *options) for given in (few, many))
    for at in (0, 3):
        assert torch.equal(together[at][-1], alone[at][0])
    grads = [torch.ops.ripe.norm_fire_backward(*given, None, None, given[0], *options[:2])[0] for given in (few, many)]
    assert torch.equal(grads[1][-1], grads[0][0])
    del together, grads
    for actual, expected in zip(step_moments(many[0]), step_moments(few[0]), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
