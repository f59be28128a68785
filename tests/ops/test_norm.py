"""The batch norm per time step against one loop over steps and channels."""

import pytest
import torch

from ripe_mambaspike.ops.norm import affine_over_time, batch_norm_over_time

B, T, C, H, W = SHAPE = (2, 5, 3, 5, 7)


def inputs():
    per_step = {name: torch.randn(T, C).double() for name in ("weight", "bias")}
    return {"x": 2 * torch.randn(SHAPE).double() + 0.5} | per_step


def statistics(steps=T):
    return torch.randn(steps, C).double(), torch.rand(steps, C).double() + 0.5


def each_step_and_channel(x, weight, bias, moments):
    """`moments(t, c) → (mean, variance)` for every step and channel."""
    steps = []
    for t in range(x.shape[1]):
        channels = []
        for c in range(x.shape[2]):
            mean, variance = moments(t, c)
            channels.append(weight[t, c] * (x[:, t, c] - mean) / (variance + 1e-5).sqrt() + bias[t, c])
        steps.append(torch.stack(channels, 1))
    return torch.stack(steps, 1)


def slow_training(x, weight, bias):
    def moments(t, c):
        values = x[:, t, c]
        mean = values.sum() / values.numel()
        return mean, ((values - mean) ** 2).sum() / values.numel()

    return each_step_and_channel(x, weight, bias, moments)


@pytest.mark.parametrize("momentum", [0.0, 0.1])
def test_training_equals_the_slow_reference(agree, momentum):
    mean, variance = statistics()

    def norm(x, weight, bias):
        held = (mean.to(x.dtype), variance.to(x.dtype))
        return batch_norm_over_time(x, *held, weight, bias, training=True, momentum=momentum)

    agree(norm, slow_training, inputs())


def test_evaluation_equals_the_slow_reference(agree):
    mean, variance = statistics()

    def norm(x, weight, bias):
        return batch_norm_over_time(x, mean.to(x.dtype), variance.to(x.dtype), weight, bias, training=False)

    def slow(x, weight, bias):
        return each_step_and_channel(x, weight, bias, lambda t, c: (mean[t, c], variance[t, c]))

    agree(norm, slow, inputs())


@pytest.mark.parametrize("momentum", [0.1, 0.5])
def test_running_statistics_move_towards_the_batch(momentum):
    given = inputs()
    mean, variance = statistics()
    before_mean, before_variance = mean.clone(), variance.clone()
    batch_norm_over_time(**given, mean=mean, variance=variance, training=True, momentum=momentum)
    for t in range(T):
        for c in range(C):
            values = given["x"][:, t, c]
            expected = (1 - momentum) * before_mean[t, c] + momentum * values.mean()
            torch.testing.assert_close(mean[t, c], expected, rtol=1e-12, atol=1e-12)
            expected = (1 - momentum) * before_variance[t, c] + momentum * values.var(unbiased=True)
            torch.testing.assert_close(variance[t, c], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("training", "momentum"), [(True, 0.0), (False, 0.1)])
def test_running_statistics_stay_when_they_should(training, momentum):
    mean, variance = statistics()
    copies = mean.clone(), variance.clone()
    batch_norm_over_time(**inputs(), mean=mean, variance=variance, training=training, momentum=momentum)
    assert torch.equal(mean, copies[0])
    assert torch.equal(variance, copies[1])


def test_fewer_steps_use_and_move_the_first_ones_alone():
    given = inputs()
    mean, variance = statistics()
    whole_mean, whole_variance, before = mean.clone(), variance.clone(), mean.clone()
    whole = batch_norm_over_time(**given, mean=whole_mean, variance=whole_variance, training=True)
    few = {name: tensor[:3] for name, tensor in given.items()} | {"x": given["x"][:, :3]}
    out = batch_norm_over_time(**few, mean=mean[:3], variance=variance[:3], training=True)
    torch.testing.assert_close(out, whole[:, :3], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mean[:3], whole_mean[:3], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(variance[:3], whole_variance[:3], rtol=1e-12, atol=1e-12)
    assert torch.equal(mean[3:], before[3:])


def test_the_affine_form_equals_its_slow_reference_and_the_fixed_norm(agree):
    mean, variance = statistics()

    def slow(x, scale, shift):
        return torch.stack(
            [torch.stack([scale[t, c] * x[:, t, c] + shift[t, c] for c in range(C)], 1) for t in range(T)], 1
        )

    given = inputs()
    agree(affine_over_time, slow, {"x": given["x"], "scale": given["weight"], "shift": given["bias"]})
    scale = given["weight"] / (variance + 1e-5).sqrt()
    fixed = batch_norm_over_time(**given, mean=mean, variance=variance, training=False)
    out = affine_over_time(given["x"], scale, given["bias"] - mean * scale)
    torch.testing.assert_close(out, fixed, rtol=1e-12, atol=1e-12)


def training_norm(x, weight, bias):
    held = (torch.zeros(T, C), torch.ones(T, C))
    return batch_norm_over_time(x, *(h.to(weight.dtype) for h in held), weight, bias, training=True)


def affine(x, weight, bias):
    return affine_over_time(x, weight, bias)


@pytest.mark.parametrize("fn", [training_norm, affine])
def test_same_bits_whatever_the_memory_held(reproducible, fn):
    reproducible(fn, inputs())


@pytest.mark.parametrize("fn", [training_norm, affine])
def test_bfloat16(close_in_bfloat16, fn):
    close_in_bfloat16(fn, inputs(), 1e-2)
