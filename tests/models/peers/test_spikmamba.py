"""SpikMamba: its counts, its attention and its Mamba with loops, and what every network must do."""

import pytest
import torch
import torch.nn.functional as F
from tests.models.peers import peer_checks as checks
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.peers import spikmamba
from ripe_mambaspike.models.registry import meta_model, model_config
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.mamba_inner import mamba_inner

NAME = "spikmamba"
SMALL = {"width": 16, "num_heads": 4, "depth": 2, "in_size": (32, 40), "time_steps": 4, "num_classes": 3}
PRINTED = 0.18  # millions, in the paper and in Table 1


def small(**overrides):
    return create_model(NAME, seed=0, **{**SMALL, **overrides})


def test_the_counts():
    """At the width that the paper names, the count is another."""
    checks.assert_count(meta_model(model_config(NAME)), 181_387, PRINTED)
    described = meta_model(model_config("spikmamba-256"))
    checks.assert_count(described, 2_322_955)
    assert described.attention[0].mlp[0].out_features == 1024


class TestInCommon(checks.CommonTests):
    name, fields, steps = NAME, SMALL, 1


def test_the_attention_with_loops():
    model = checks.livelier(small()).eval().double()
    layer = model.attention[1]
    values = torch.randn(2, 4, 20, 16, dtype=torch.float64)
    drive = values @ layer.query_key.weight.T + layer.query_key.bias
    drive = checks.norm_by_hand(layer.query_key_norm, drive.flatten(0, 2)).view_as(drive)
    spikes = checks.leaky_by_hand(drive)
    query, key = spikes[..., :16] + 1, spikes[..., 16:] + 1
    assert 0 < spikes.mean() < 1
    expected = torch.empty_like(values)
    for b in range(2):
        for t in range(4):
            for head in range(4):
                part = slice(4 * head, 4 * head + 4)
                q, k, v = (one[b, t, :, part] for one in (query, key, values))
                weights = q @ k.T
                expected[b, t, :, part] = (weights / weights.sum(1, keepdim=True)) @ v
    with torch.no_grad():
        torch.testing.assert_close(layer.attend(values), expected, rtol=1e-9, atol=1e-9)


def slow_direction(mamba, projected):
    """A selective scan, token by token: [L, 2E] → [L, E]."""
    inner, states = mamba.A_log.shape
    hidden = projected.new_zeros(inner, states)
    past = [projected.new_zeros(inner)] * 3
    out = []
    for token in projected:
        past.append(token[:inner])
        mixed = sum(past[-4 + tap] * mamba.conv1d.weight[:, 0, tap] for tap in range(4)) + mamba.conv1d.bias
        u = F.silu(mixed)
        step, into, read = (mamba.x_proj.weight @ u).split((mamba.rank, states, states))
        delta = F.softplus(mamba.dt_proj.weight @ step + mamba.dt_proj.bias)[:, None]
        hidden = torch.exp(-delta * torch.exp(mamba.A_log)) * hidden + delta * u[:, None] * into
        out.append((hidden @ read + mamba.D * u) * F.silu(token[inner:]))
    return torch.stack(out)


def test_the_mixer_token_by_token():
    mixer = small().mixer.double()
    x = torch.randn(1, 11, 16, dtype=torch.float64)
    with torch.no_grad():
        projected = x[0] @ mixer.in_proj.weight.T
        backward = slow_direction(mixer.backward_mamba, projected.flip(0)).flip(0)
        expected = (slow_direction(mixer.forward_mamba, projected) + backward) @ mixer.out_proj.weight.T
        torch.testing.assert_close(mixer(x)[0], expected, rtol=1e-9, atol=1e-9)


def test_the_fused_scans_equal_the_modules(monkeypatch):
    """In training, with all gradients; a hooked direction is called as a module."""
    mixer = small().mixer
    x = torch.randn(2, 11, 16, requires_grad=True)
    leaves = (x, *mixer.parameters())
    fused, called = [], []
    monkeypatch.setattr(spikmamba, "mamba_inner", lambda *inputs: fused.append(1) or mamba_inner(*inputs))
    with kernels("plain"):
        out = mixer(x)
        grads = torch.autograd.grad(out.square().sum(), leaves)
        assert len(fused) == 1
        hook = mixer.backward_mamba.register_forward_hook(lambda *_: called.append(1))
        expected = mixer(x)
        expected_grads = torch.autograd.grad(expected.square().sum(), leaves)
        assert (len(fused), len(called)) == (1, 1)
        hook.remove()
        mixer(x)
        assert len(fused) == 2
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grads, expected_grads, rtol=1e-3, atol=1e-5)


def test_the_embedding_by_hand():
    model = checks.livelier(small()).eval().double()
    embedding, events = model.embedding, checks.loud_clips(model, dtype=torch.float64)
    patches = events.unflatten(4, (5, 8)).unflatten(3, (4, 8)).permute(0, 1, 3, 5, 2, 4, 6).flatten(4).flatten(2, 3)
    drive = patches @ embedding.conv.weight.flatten(1).T + embedding.conv.bias
    drive = checks.norm_by_hand(embedding.norm, drive.flatten(0, 2)).view_as(drive)
    spikes = checks.leaky_by_hand(drive)
    expected = spikes + embedding.patch_position + embedding.step_position
    with torch.no_grad():
        torch.testing.assert_close(embedding(events), expected, rtol=1e-12, atol=1e-12)


def test_a_layer_by_hand():
    """Positions, gate and MLP around the attention."""
    model = checks.livelier(small()).eval().double()
    layer, tokens = model.attention[0], torch.randn(1, 2, 20, 16, dtype=torch.float64)

    def local(part, x):
        maps = x.transpose(2, 3).reshape(-1, 16, 4, 5)
        out = F.conv2d(maps, part.conv.weight, part.conv.bias, padding=1, groups=16)
        return out.reshape(1, 2, 16, 20).transpose(2, 3)

    with torch.no_grad():
        x = tokens + local(layer.first_position, tokens)
        normed = layer.first_norm(x)
        values = F.silu(local(layer.value_conv, layer.value(normed)))
        mixed = layer.attend(values) + local(layer.value_position, values)
        x = x + layer.out_proj(mixed * F.silu(layer.gate(normed)))
        x = x + local(layer.second_position, x)
        x = x + layer.mlp[2](F.gelu(layer.mlp[0](layer.second_norm(x))))
        torch.testing.assert_close(layer(tokens), x, rtol=1e-9, atol=1e-9)


def test_its_size_and_steps():
    model = small().eval()
    with torch.no_grad():
        assert model(torch.rand(1, 2, 2, 32, 40)).shape == (1, 1, 3)
    with raises(InputError, "x"):
        model(torch.rand(1, 5, 2, 32, 40))
    with raises(InputError, "x"):
        model(torch.rand(1, 4, 2, 40, 32))


@pytest.mark.parametrize(("field", "value"), [("num_heads", 5), ("patch_size", 33), ("depth", 0)])
def test_invalid_fields(field, value):
    with raises(ConfigError, field):
        small(**{field: value})
