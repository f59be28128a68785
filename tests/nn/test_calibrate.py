"""Running statistics re-estimated: the mean over batches of each batch's own statistics."""

import pytest
import torch
from tests.raising import raises
from torch import nn

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.calibrate import recalibrate
from ripe_mambaspike.nn.norm import BatchNorm, TimeBatchNorm


class Net(nn.Module):
    """A BNTT and a batch norm behind it; remembers in which mode it was run."""

    def __init__(self):
        super().__init__()
        self.first, self.second = TimeBatchNorm(3, 2), BatchNorm(2)
        self.modes = []

    def forward(self, x):
        self.modes.append(self.training)
        return self.second(self.first(x).flatten(0, 1).square())


def batches(count=4):
    return [(1 + i) * torch.randn(5, 3, 2, 4, 4, dtype=torch.float64) + i for i in range(count)]


def batch_statistics(x, dims):
    return x.mean(dims), x.var(dims, unbiased=True)


def expected_statistics(data, weight, bias):
    """Mean over the batches, of both norms, by hand."""
    first, second = [], []
    for x in data:
        mean, variance = batch_statistics(x, (0, 3, 4))
        first.append((mean, variance))
        biased = x.var((0, 3, 4), unbiased=False)
        out = (x - mean[..., None, None]) / (biased[..., None, None] + 1e-5).sqrt()
        out = out * weight[..., None, None] + bias[..., None, None]
        second.append(batch_statistics(out.flatten(0, 1).square(), (0, 2, 3)))
    return [[torch.stack(part).mean(0) for part in zip(*seen, strict=True)] for seen in (first, second)]


@pytest.mark.parametrize("count", [1, 4])
def test_statistics_are_the_mean_over_the_batches(randomize, same, count):
    net = randomize(Net().double())
    data = batches(count)
    recalibrate(net, data)
    expected = expected_statistics(data, net.first.weight.detach(), net.first.bias.detach())
    for norm, (mean, variance) in zip((net.first, net.second), expected, strict=True):
        same(norm.running_mean, mean)
        same(norm.running_var, variance)


@pytest.mark.parametrize("training", [True, False])
def test_mode_and_momentum_are_restored(training):
    net = Net().double().train(training)
    net.second.momentum = 0.3
    recalibrate(net, batches())
    assert net.modes == [False] * 4, "only the norms are in training while statistics are measured"
    assert [part.training for part in net.modules()] == [training] * 3
    assert (net.first.momentum, net.second.momentum) == (0.1, 0.3)


def test_mode_and_momentum_are_restored_after_an_error():
    net = Net().double()

    def fail(x):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        recalibrate(net, batches(), run=fail)
    assert net.first.training
    assert net.first.momentum == 0.1


def test_the_given_function_is_run():
    net = Net().double()
    seen = []
    recalibrate(net, batches(2), run=lambda x: seen.append(net(x)))
    assert len(seen) == 2
    assert not seen[0].requires_grad


def test_drop_path_stays_off():
    model = create_model("nmnist", stage_channels=(4, 4, 4), embed_dims=(4, 8, 8), time_steps=3, drop_path_rate=0.9)
    data = [synthetic_clip(3, 18, 18, samples=4, seed=s) for s in range(2)]
    logits = []
    recalibrate(model, data, run=lambda x: logits.append(model(x)))
    recalibrate(model, data, run=lambda x: logits.append(model(x)))
    assert torch.equal(torch.stack(logits[:2]), torch.stack(logits[2:]))
    assert model.training


def test_loaders_of_clips_and_labels():
    plain, pairs, data = Net().double(), Net().double(), batches(3)
    assert recalibrate(plain, data) == recalibrate(pairs, [(x, None) for x in data]) == 3
    assert all(map(torch.equal, plain.state_dict().values(), pairs.state_dict().values()))


def test_max_batches_limits_the_batches():
    few, first, data = Net().double(), Net().double(), batches(3)
    assert recalibrate(few, iter(data), max_batches=2) == 2
    recalibrate(first, data[:2])
    assert all(map(torch.equal, few.state_dict().values(), first.state_dict().values()))


@pytest.mark.parametrize("loader", [[], [{"clips": None}], [("text",)], [()]])
def test_loaders_without_clips(loader):
    with raises(InputError, "loader"):
        recalibrate(Net().double(), loader)


def test_statistics_are_restored_after_an_error():
    net = Net().double()
    recalibrate(net, batches(2))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}

    def broken():
        yield batches(1)[0] + 7
        raise KeyError

    with pytest.raises(KeyError):
        recalibrate(net, broken())
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())
    assert net.first.num_batches_tracked == 2


def test_a_network_without_statistics():
    with raises(ConfigError, "model"):
        recalibrate(torch.nn.Linear(2, 2), batches(1))
