"""The batch norm modules against PyTorch's own, one for every step."""

import copy

import pytest
import torch
from tests.nn.ways import WAYS

from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.norm import BatchNorm, SharedNorm, TimeAffine, TimeBatchNorm

STEPS, CHANNELS = 4, 3
STATISTICS = ("running_mean", "running_var")


def clip(steps=STEPS):
    x = torch.randn(3, steps, CHANNELS, 5, 4, dtype=torch.float64)
    return x * torch.linspace(0.5, 3, steps).reshape(-1, 1, 1, 1) + torch.arange(steps).reshape(-1, 1, 1, 1)


def statistics(norm):
    return {name: getattr(norm, name).clone() for name in STATISTICS}


@pytest.fixture
def time_norm(randomize):
    return randomize(TimeBatchNorm(STEPS, CHANNELS).double())


@WAYS
def test_bntt_is_one_batch_norm_a_step(time_norm, twin_norm, same, training, mode):
    time_norm.train(training)
    twins = [twin_norm(time_norm, step) for step in range(STEPS)]
    for _ in range(3):
        x = clip().requires_grad_()
        cotangent = torch.randn_like(x)
        out = time_norm(x, mode)
        expected = torch.stack([twin(x[:, t]) for t, twin in enumerate(twins)], 1)
        same(out, expected)
        wanted = torch.autograd.grad(expected, [x, *(p for twin in twins for p in twin.parameters())], cotangent)
        actual = torch.autograd.grad(out, [x, time_norm.weight, time_norm.bias], cotangent)
        same(actual[0], wanted[0])
        same(actual[1], torch.stack(wanted[1::2]))
        same(actual[2], torch.stack(wanted[2::2]))
    for name in STATISTICS:
        same(getattr(time_norm, name), torch.stack([getattr(twin, name) for twin in twins]))


def test_bntt_starts_as_the_specification_says():
    norm = TimeBatchNorm(STEPS, CHANNELS)
    assert norm.weight.shape == norm.running_mean.shape == (STEPS, CHANNELS)
    assert (norm.weight == 1).all()
    assert (norm.bias == 0).all()
    assert (norm.running_mean == 0).all()
    assert (norm.running_var == 1).all()
    assert norm.momentum == 0.1


@pytest.mark.parametrize(("first", "steps"), [(0, 1), (0, 3), (1, 2), (3, 1)])
def test_fewer_steps_touch_only_their_own_statistics(time_norm, twin_norm, same, first, steps):
    twins = [twin_norm(time_norm, step) for step in range(first, first + steps)]
    before = statistics(time_norm)
    x = clip(steps)
    same(time_norm(x, first_step=first), torch.stack([twin(x[:, t]) for t, twin in enumerate(twins)], 1))
    touched = torch.zeros(STEPS, dtype=torch.bool)
    touched[first : first + steps] = True
    for name in STATISTICS:
        moved = (getattr(time_norm, name) != before[name]).any(1)
        assert torch.equal(moved, touched), name
    assert time_norm.weight.grad is None


@pytest.mark.parametrize("kind", ["time", "plain"])
def test_an_untracked_pass_uses_the_batch_and_moves_nothing(randomize, same, kind):
    norm = randomize(TimeBatchNorm(STEPS, CHANNELS) if kind == "time" else BatchNorm(CHANNELS)).double()
    x = clip() if kind == "time" else clip().flatten(0, 1)
    before = statistics(norm)
    untracked = norm(x, ForwardMode(track_statistics=False))
    for name in STATISTICS:
        assert torch.equal(getattr(norm, name), before[name])
    same(untracked, norm(x))
    assert not torch.equal(norm.running_mean, before["running_mean"])
    norm.eval()
    same(norm(x, ForwardMode(track_statistics=False)), norm(x))
    assert not torch.allclose(norm(x), untracked)


@WAYS
def test_batch_norm_is_pytorchs(randomize, twin_norm, same, training, mode):
    norm = randomize(BatchNorm(CHANNELS)).double().train(training)
    twin = twin_norm(norm)
    for _ in range(3):
        x = clip().flatten(0, 1).requires_grad_()
        cotangent = torch.randn_like(x)
        out, expected = norm(x, mode), twin(x)
        same(out, expected)
        actual = torch.autograd.grad(out, [x, *norm.parameters()], cotangent)
        same(list(actual), list(torch.autograd.grad(expected, [x, *twin.parameters()], cotangent)))
    same(norm.running_mean, twin.running_mean)
    same(norm.running_var, twin.running_var)


def test_fixed_statistics_are_a_scale_and_a_shift(time_norm, same):
    time_norm.eval()
    literal = ForwardMode(literal=True)
    affine = TimeAffine(STEPS, CHANNELS).double()
    with torch.no_grad():
        for parameter, value in zip((affine.scale, affine.shift), time_norm.scale_and_shift(), strict=True):
            parameter.copy_(value)
    x = clip()
    same(affine(x), time_norm(x, literal))
    same(affine(x[:, 1:3], first_step=1), time_norm(x, literal)[:, 1:3])
    same(time_norm(x[:, 1:3], first_step=1), time_norm(x, literal)[:, 1:3])


def test_scale_and_shift_are_computed_in_float64(randomize):
    norm = randomize(BatchNorm(CHANNELS))
    scale, shift = norm.scale_and_shift()
    assert scale.dtype == shift.dtype == torch.float64
    expected = norm.weight.double() / (norm.running_var.double() + 1e-5).sqrt()
    torch.testing.assert_close(scale, expected.detach(), rtol=1e-15, atol=0)


OVER = {BatchNorm: (0, 2, 3), TimeBatchNorm: (0, 3, 4), SharedNorm: (0, 1, 3, 4)}  # what statistics are over


@pytest.fixture(params=OVER, ids=lambda kind: kind.__name__)
def norm(request):
    return request.param(STEPS, CHANNELS) if request.param is TimeBatchNorm else request.param(CHANNELS)


def batch(norm, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (4, CHANNELS, 5, 5) if isinstance(norm, BatchNorm) else (4, STEPS, CHANNELS, 5, 5)
    return 3 + 2 * torch.randn(shape, generator=generator)


def test_it_is_a_batch_norm_for_pytorch(norm):
    assert isinstance(norm, torch.nn.modules.batchnorm._BatchNorm)
    assert set(norm.state_dict()) == {"weight", "bias", "running_mean", "running_var"}
    twin = copy.deepcopy(norm)
    twin.load_state_dict({name: value + 1 for name, value in norm.state_dict().items()})
    with pytest.raises(TypeError):  # it has no numbers for each step, and would be called without them
        torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(norm))


def test_running_statistics_do_not_contain_their_initial_values(norm):
    norm.train()
    weighed, total = 0.0, 0.0
    for seed in range(4):
        x = batch(norm, seed)
        norm(x)
        weighed, total = 0.9 * weighed + x.mean(OVER[type(norm)]), 0.9 * total + 1
        torch.testing.assert_close(norm.running_mean, (weighed / total).view_as(norm.running_mean))
    assert norm.num_batches_tracked == 4


def test_without_warm_up_the_plain_momentum_is_used(norm):
    norm.train()
    norm(batch(norm), ForwardMode(warm_up=False))
    assert float(norm.running_var.min()) > 0.9
    before = norm.running_mean.clone()
    norm.momentum = 0
    norm(batch(norm))
    assert torch.equal(norm.running_mean, before)
    norm.momentum = 0.1
    norm(batch(norm), ForwardMode(track_statistics=False))
    assert (norm.num_batches_tracked, torch.equal(norm.running_mean, before)) == (1, True)


def test_statistics_from_a_file_are_not_forgotten_at_once(norm):
    measured = copy.deepcopy(norm)
    measured.load_state_dict({**norm.state_dict(), "running_mean": norm.running_mean + 5})
    fresh = copy.deepcopy(norm)
    fresh.load_state_dict(norm.state_dict())
    for one in (measured, fresh):
        one.train()(batch(norm))
    assert float((measured.running_mean - 4.8).abs().max()) < 0.2
    assert float((fresh.running_mean - 3).abs().max()) < 1.5
