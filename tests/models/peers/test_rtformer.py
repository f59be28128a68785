"""RTFormer: its count, its norm and its attention with loops, and what every network must do."""

import pytest
import torch
import torch.nn.functional as F
from tests.models.peers import peer_checks as checks
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.peers.rtformer import RtformerTemporalNorm
from ripe_mambaspike.models.registry import meta_model, model_config
from ripe_mambaspike.nn.calibrate import recalibrate

NAME = "rtformer"
SMALL = {"width": 16, "num_heads": 4, "depth": 1, "in_size": (32, 32), "time_steps": 4, "num_classes": 3}


def small(**overrides):
    return create_model(NAME, seed=0, **{**SMALL, **overrides})


def test_the_count():
    """The paper's Table 1 prints none; 2.6 M is about a Spikformer of the same sizes."""
    embedding = 9 * (2 * 32 + 32 * 64 + 64 * 128 + 128 * 256 + 256**2) + 2 * (32 + 64 + 128 + 256 + 256)
    core = (9 + 1 + 2 * 2) * 256 + 256**2 + 2 * 256
    mlp = 2 * 256 * 1024 + 2 * (1024 + 256)
    count = embedding + 2 * (4 * core + mlp) + 256 * 11 + 11
    checks.assert_count(meta_model(model_config(NAME)), count)
    assert count == 2_592_523


class TestInCommon(checks.CommonTests):
    name, fields, steps = NAME, SMALL, 1


@pytest.mark.parametrize("size", [(32, 32), (34, 48)])
def test_any_size_and_number_of_steps(size):
    model = checks.livelier(small()).eval()
    with torch.no_grad():
        assert model(torch.rand(1, 6, 2, *size)).shape == (1, 1, 3)


@pytest.mark.parametrize("window", [1, 3, 9])
def test_the_norm_with_loops(window):
    norm = RtformerTemporalNorm(5, window).double().train()
    x = torch.randn(3, 6, 5, 4, 2, dtype=torch.float64) * torch.arange(1, 7).view(-1, 1, 1, 1) + 2
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_(-1, 1)
        expected, means, variances = torch.empty_like(x), [], []
        for t in range(6):
            seen = x[:, max(0, t - window + 1) : t + 1].transpose(1, 2).transpose(0, 1).flatten(1)  # [C, …]
            means.append(seen.mean(1))
            variances.append(seen.var(1, correction=0))
            mean, variance, weight, bias = (
                one.view(-1, 1, 1) for one in (means[-1], variances[-1], norm.weight, norm.bias)
            )
            expected[:, t] = (x[:, t] - mean) / (variance + 1e-5).sqrt() * weight + bias
        torch.testing.assert_close(norm(x), expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(norm.running_mean, 0.1 * sum(means) / 6, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * sum(variances) / 6, rtol=1e-9, atol=1e-9)
        norm.eval()
        by_hand = checks.norm_by_hand(norm, x.flatten(0, 1)).view_as(x)
        torch.testing.assert_close(norm(x), by_hand, rtol=1e-9, atol=1e-9)


def test_the_norm_reads_earlier_steps_alone():
    norm = RtformerTemporalNorm(2, 2).train()
    x = torch.randn(2, 5, 2, 3, 3)
    changed = x.clone()
    changed[:, 3] += 7
    differs = [not torch.equal(a, b) for a, b in zip(norm(x).unbind(1), norm(changed).unbind(1), strict=True)]
    assert differs == [False, False, False, True, True]


def test_statistics_can_be_estimated_again():
    model = small()
    batches = [checks.loud_clips(model, seed=seed) for seed in range(3)]
    norm, seen = model.embedding[0].norm, []
    norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    assert recalibrate(model, batches) == 3
    alone = RtformerTemporalNorm(2, 4).train()
    alone.momentum = 1.0
    means = []
    for x in seen:
        alone(x)
        means.append(alone.running_mean.clone())
    torch.testing.assert_close(norm.running_mean, sum(means) / 3)


def test_the_attention_with_loops():
    model = checks.livelier(small()).eval().double()
    attention, x = model.blocks[0].attention, torch.rand(2, 4, 16, 2, 3, dtype=torch.float64).round()

    def core(part, x):
        images, total = x.flatten(0, 1), 0
        for branch, padding in zip(part.branches, (1, 0), strict=True):
            out = F.conv2d(images, branch.conv.weight, padding=padding, groups=16)
            total = total + checks.norm_by_hand(branch.norm, out)
        mixed = torch.einsum("oi,nihw->nohw", part.mix.conv.weight[:, :, 0, 0], total)
        return checks.leaky_by_hand(checks.norm_by_hand(part.mix.norm, mixed).view_as(x))

    with torch.no_grad():
        query, key, value = (core(part, x).flatten(3) for part in (attention.query, attention.key, attention.value))
        read = torch.zeros_like(value)
        for b in range(2):
            for t in range(4):
                for head in range(4):
                    part = slice(4 * head, 4 * head + 4)
                    q, k, v = (one[b, t, part].T for one in (query, key, value))
                    read[b, t, part] = 0.25 * ((q @ k.T) @ v).T
        sums = checks.leaky_by_hand(read.view_as(x), threshold=0.5)
        assert 0 < sums.mean() < 1
        assert torch.equal(attention(x), core(attention.projection, sums))


def test_against_its_description():
    """The embedding and the block around the attention."""
    model = checks.livelier(small()).eval().double()
    events = checks.loud_clips(model, dtype=torch.float64)

    def layer(part, x, padding):
        images = checks.norm_by_hand(part.norm, F.conv2d(x.flatten(0, 1), part.conv.weight, padding=padding))
        return checks.leaky_by_hand(images.unflatten(0, x.shape[:2]))

    with torch.no_grad():
        x = events
        for part in model.embedding:
            spikes = layer(part, x, 1)
            x = F.max_pool3d(spikes.transpose(1, 2), (1, 3, 3), (1, 2, 2), (0, 1, 1)).transpose(1, 2)
        x = x + layer(model.position, x, 1)
        block = model.blocks[0]
        x = x + block.attention(x)
        x = x + layer(block.contract, layer(block.expand, x, 0), 0)
        logits = x.mean((1, 3, 4)) @ model.head.weight.T + model.head.bias
        torch.testing.assert_close(model(events)[:, 0], logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("field", "value"), [("width", 20), ("num_heads", 5), ("window", 0)])
def test_invalid_fields(field, value):
    with raises(ConfigError, field):
        small(**{field: value})
