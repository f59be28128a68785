"""The baseline against its description, one step after another."""

import pytest
import torch
import torch.nn.functional as F


def slow_encoder_layer(layer, x, pool):
    """3×3 conv, pool, and Leaky: u ← 0.97 u + drive + recurrent(spikes before) − (u > 1)."""
    potential, spike, spikes = None, None, []
    for x_t in x.unbind(1):
        drive = F.conv2d(x_t, layer.conv.weight, layer.conv.bias, padding=1)
        drive = F.max_pool2d(drive, 2) if pool else drive
        if potential is None:
            potential, spike = torch.zeros_like(drive), torch.zeros_like(drive)
        reset = (potential > 1).to(drive.dtype)
        recurrent = F.conv2d(spike, layer.recurrent.weight, layer.recurrent.bias)
        potential = 0.97 * potential + drive + recurrent - reset
        spike = (potential > 1).to(drive.dtype)
        spikes.append(spike)
    return torch.stack(spikes, 1)


def slow_mamba(m, x):
    """One token at a time."""
    batch, length, _ = x.shape
    inner, states, taps = m.out_proj.weight.shape[1], m.A_log.shape[1], m.conv1d.weight.shape[2]
    rank = m.dt_proj.weight.shape[1]
    hidden = x.new_zeros(batch, inner, states)
    history = [x.new_zeros(batch, inner)] * (taps - 1)
    out = []
    for t in range(length):
        u, gate = (x[:, t] @ m.in_proj.weight.T).split(inner, -1)
        history.append(u)
        u = sum(history[-taps + k] * m.conv1d.weight[:, 0, k] for k in range(taps))
        u = F.silu(u if m.conv1d.bias is None else u + m.conv1d.bias)
        projected = u @ m.x_proj.weight.T
        delta = F.softplus(projected[:, :rank] @ m.dt_proj.weight.T + m.dt_proj.bias)
        into, out_of = projected[:, rank : rank + states], projected[:, rank + states :]
        decay = torch.exp(delta[..., None] * -torch.exp(m.A_log))
        hidden = decay * hidden + (delta * u)[..., None] * into[:, None]
        y = (hidden * out_of[:, None]).sum(-1) + m.D * u
        out.append((y * F.silu(gate)) @ m.out_proj.weight.T)
    return torch.stack(out, 1)


def slow_forward(model, x):
    for layer, pool in zip(model.encoder, (True, True, False), strict=True):
        x = slow_encoder_layer(layer, x, pool)
    rates = torch.stack([x[:, max(0, t - 4) : t + 1].mean(1) for t in range(x.shape[1])], 1)
    if model.config.pool_size is not None:
        rates = F.adaptive_avg_pool2d(rates.flatten(0, 1), model.config.pool_size).unflatten(0, x.shape[:2])
    tokens = rates.flatten(2) @ model.input_proj.weight.T + model.input_proj.bias
    for block in model.blocks:
        width = (tokens.shape[-1],)
        tokens = tokens + slow_mamba(block.mamba, F.layer_norm(tokens, width, block.norm.weight, block.norm.bias))
    pooled = F.layer_norm(tokens.mean(1), tokens.shape[-1:], model.norm.weight, model.norm.bias)
    return pooled @ model.head.weight.T + model.head.bias


@torch.no_grad()
def loud(model):
    for layer in model.encoder:
        layer.conv.weight.mul_(3)
        layer.conv.bias.add_(0.2)
    return model.double().eval()


@pytest.mark.parametrize(
    "fields", [{}, {"conv_bias": True}, {"pool_size": 2}, {"rate_window": 5, "time_steps": 3}], ids=str
)
def test_forward(tiny_baseline, events, fields):
    model = loud(tiny_baseline(**fields))
    x = events(13, 18, steps=model.config.time_steps, samples=3, dtype=torch.float64)
    with torch.no_grad():
        out, expected = model.run(x), slow_forward(model, x)
    assert (out.rates > 0.02).all()
    assert out.logits.shape == (3, 1, 3)
    torch.testing.assert_close(out.logits[:, 0], expected, rtol=1e-11, atol=1e-11)


def test_fewer_steps_than_the_window(tiny_baseline, events):
    model = loud(tiny_baseline())
    x = events(13, 18, steps=2, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[:, 0], slow_forward(model, x), rtol=1e-11, atol=1e-11)


def test_every_parameter_learns(tiny_baseline, events):
    model = loud(tiny_baseline())
    model(events(13, 18, steps=7, samples=3, dtype=torch.float64)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_prediction_is_one_class_a_clip(tiny_baseline, events):
    model = loud(tiny_baseline())
    x = events(13, 18, samples=4, dtype=torch.float64)
    with torch.no_grad():
        assert model.predict(x).tolist() == slow_forward(model, x).argmax(-1).tolist()


def test_bfloat16(tiny_baseline, events):
    out = tiny_baseline().bfloat16()(events(13, 18, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()
