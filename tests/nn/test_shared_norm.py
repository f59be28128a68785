"""The norm that all steps share: PyTorch's own over samples and steps together."""

import pytest
import torch
from tests.nn.ways import WAYS
from tests.raising import raises

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.nn.calibrate import recalibrate
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.norm import SharedAffine, SharedNorm

CHANNELS = 3


def clip(steps=4):
    x = torch.randn(3, steps, CHANNELS, 5, 4, dtype=torch.float64)
    return x * torch.linspace(0.5, 3, steps).reshape(-1, 1, 1, 1) + torch.arange(steps).reshape(-1, 1, 1, 1)


@pytest.fixture
def norm(randomize):
    return randomize(SharedNorm(CHANNELS).double())


@WAYS
def test_is_one_batch_norm_over_samples_and_steps(norm, twin_norm, same, training, mode):
    norm.train(training)
    twin = twin_norm(norm, 0)
    for steps in (4, 1, 9):
        x = clip(steps).requires_grad_()
        cotangent = torch.randn_like(x)
        out, expected = norm(x, mode), twin(x.flatten(0, 1)).view_as(x)
        same(out, expected)
        wanted = torch.autograd.grad(expected, [x, *twin.parameters()], cotangent)
        given = torch.autograd.grad(out, [x, norm.weight, norm.bias], cotangent)
        same([grad.squeeze(0) if grad.shape[0] == 1 else grad for grad in given], list(wanted))
    same(norm.running_mean[0], twin.running_mean)
    same(norm.running_var[0], twin.running_var)


def test_pieces_equal_the_whole_once_statistics_are_fixed(norm):
    norm.eval()
    x = clip(6)
    pieces = [norm(piece, first_step=first) for first, piece in zip((0, 1, 4), x.split((1, 3, 2), 1), strict=True)]
    assert torch.equal(torch.cat(pieces, 1), norm(x))


def test_deploys_as_a_scale_and_a_shift_a_channel(norm, same):
    affine = SharedAffine(CHANNELS).double()
    assert affine.scale.shape == affine.shift.shape == (1, CHANNELS)
    with torch.no_grad():
        for parameter, value in zip((affine.scale, affine.shift), norm.scale_and_shift(), strict=True):
            parameter.copy_(value)
    x = clip(7)
    same(affine(x), norm.eval()(x, ForwardMode(literal=True)))
    assert torch.equal(affine(x[:, 5:], first_step=5), affine(x)[:, 5:])


def test_an_untracked_pass_moves_nothing(norm, same):
    before = norm.running_mean.clone(), norm.running_var.clone()
    untracked = norm(clip(), ForwardMode(track_statistics=False))
    assert torch.equal(norm.running_mean, before[0])
    assert torch.equal(norm.running_var, before[1])
    same(untracked.mean((0, 1, 3, 4)), norm.bias[0])


def test_recalibration_reaches_it(norm, same):
    batches = [clip(), clip()]
    recalibrate(norm, batches)
    same(norm.running_mean[0], torch.stack([x.mean((0, 1, 3, 4)) for x in batches]).mean(0))
    same(norm.running_var[0], torch.stack([x.var((0, 1, 3, 4)) for x in batches]).mean(0))


def test_one_number_alone_is_refused(norm):
    with raises(InputError, "x"):
        norm(torch.zeros(1, 1, CHANNELS, 1, 1, dtype=torch.float64))
    norm(torch.zeros(1, 2, CHANNELS, 1, 1, dtype=torch.float64))  # two steps are two numbers
