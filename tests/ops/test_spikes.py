"""The firing functions and their surrogate gradients."""

import math

import pytest
import torch

from ripe_mambaspike.ops.leaky_fire import leaky_fire
from ripe_mambaspike.ops.spikes import fire, fire_fast_sigmoid, firing_rate

DISTANCES = torch.tensor([-1e4, -3.0, -0.5, -1e-3, 0.0, 1e-3, 0.5, 3.0, 1e4], dtype=torch.float64)


def gradient(fn):
    distance = DISTANCES.clone().requires_grad_()
    cotangent = torch.linspace(-2, 3, len(DISTANCES), dtype=torch.float64)
    (grad,) = torch.autograd.grad(fn(distance), distance, cotangent)
    return grad / cotangent


def test_fires_at_the_threshold():
    assert fire(DISTANCES, 2.0).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]


def test_the_baseline_fires_above_the_threshold_only():
    assert fire_fast_sigmoid(DISTANCES).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("sharpness", [1.0, 2.0, 7.5])
def test_the_atan_surrogate(sharpness):
    slopes = [sharpness / (2 * (1 + (math.pi / 2 * sharpness * d) ** 2)) for d in DISTANCES.tolist()]
    expected = torch.tensor(slopes, dtype=torch.float64)
    torch.testing.assert_close(gradient(lambda d: fire(d, sharpness)), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("slope", [1.0, 25.0])
def test_the_fast_sigmoid_surrogate(slope):
    expected = torch.tensor([1 / (1 + slope * abs(d)) ** 2 for d in DISTANCES.tolist()], dtype=torch.float64)
    torch.testing.assert_close(gradient(lambda d: fire_fast_sigmoid(d, slope)), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_relaxed_is_a_sigmoid_with_its_true_gradient(sharpness):
    values = [1 / (1 + math.exp(min(700.0, -sharpness * d))) for d in DISTANCES.tolist()]
    expected = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(fire(DISTANCES, sharpness, relaxed=True), expected, rtol=1e-12, atol=1e-300)
    slope = sharpness * expected * (1 - expected)
    torch.testing.assert_close(gradient(lambda d: fire(d, sharpness, relaxed=True)), slope, rtol=1e-9, atol=1e-15)
    distance = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda d: fire(d, sharpness, relaxed=True), distance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("relaxed", [False, True])
def test_keeps_the_precision(dtype, relaxed):
    distance = DISTANCES.to(dtype).requires_grad_()
    spikes = fire(distance, 2.0, relaxed)
    (grad,) = torch.autograd.grad(spikes.sum(), distance)
    assert (spikes.dtype, grad.dtype) == (dtype, dtype)
    assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bfloat16_spikes_are_exact_and_its_slope_close(dtype):
    distance = torch.randn(1000).bfloat16()
    assert torch.equal(fire(distance, 2.0).float(), fire(distance.float(), 2.0))
    leaf = distance.to(dtype).requires_grad_()
    (grad,) = torch.autograd.grad(fire(leaf, 2.0).sum(), leaf)
    expected = 1 / (1 + (math.pi * distance.double()) ** 2)
    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-6
    torch.testing.assert_close(grad.double(), expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("fn", [lambda d: fire(d, 2.0), lambda d: fire(d, 2.0, True), fire_fast_sigmoid])
def test_same_bits_whatever_the_memory_held(reproducible, fn):
    reproducible(lambda distance: fn(distance), {"distance": torch.randn(2, 3, 5, 7)})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_firing_rate_has_the_gradient_of_the_mean_to_the_bit(dtype):
    torch.manual_seed(0)
    x, weights = torch.rand(3, 1003).to(dtype), torch.randn(3, 1003).to(dtype)
    grads = []
    for rate in (firing_rate, lambda spikes: spikes.mean(dtype=torch.float32)):
        leaf = x.clone().requires_grad_()
        spikes = leaf * 1
        value = rate(spikes)
        assert value.dtype == torch.float32
        ((spikes * weights).sum().float() + 0.1 * value).backward()
        grads.append((leaf.grad, value.detach()))
    assert torch.equal(grads[0][0], grads[1][0])
    assert torch.equal(grads[0][1], grads[1][1])


def test_a_firing_rate_alone_trains_a_neuron():
    """Its gradient is one number in memory, and the operators must read it as many."""
    grads = []
    for rate in (firing_rate, torch.mean):
        x = torch.linspace(-1, 3, 2 * 4 * 6).view(2, 4, 6).requires_grad_()
        rate(leaky_fire(x, torch.tensor(0.5), torch.tensor(1.0))[0]).backward()
        grads.append(x.grad)
    assert grads[0].abs().min() > 0
    torch.testing.assert_close(grads[0], grads[1])
