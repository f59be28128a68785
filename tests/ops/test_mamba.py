"""Mamba against token-by-token loops, and against two public implementations."""

import pytest
import torch

from ripe_mambaspike.ops import mamba
from ripe_mambaspike.ops.mamba_inner import MambaState
from ripe_mambaspike.ops.mamba_inner.reference import MambaWeights, causal_conv

B, WIDTH, INNER, RANK, STATES, TAPS = 2, 6, 12, 2, 4, 4
FIELDS = MambaWeights._fields


def draw(*shape, scale=1.0):
    return scale * torch.randn(*shape, dtype=torch.float64)


def weights(prefix="", conv_bias=True):
    shapes = {
        "in_proj": (2 * INNER, WIDTH),
        "conv1d_weight": (INNER, TAPS),
        "conv1d_bias": (INNER,),
        "x_proj": (RANK + 2 * STATES, INNER),
        "dt_proj": (INNER, RANK),
        "dt_bias": (INNER,),
        "A_log": (INNER, STATES),
        "D": (INNER,),
        "out_proj": (WIDTH, INNER),
    }
    return {prefix + n: draw(*s, scale=0.5) for n, s in shapes.items() if conv_bias or n != "conv1d_bias"}


def states(prefix=""):
    return {prefix + "conv": draw(B, TAPS - 1, INNER), prefix + "ssm": draw(B, INNER, STATES)}


def take(given, prefix=""):
    """(weights, state or None) out of named tensors."""
    state = MambaState(given[prefix + "conv"], given[prefix + "ssm"]) if prefix + "conv" in given else None
    return MambaWeights(*(given.get(prefix + name) for name in FIELDS)), state


def slow_conv(x, weight, bias=None, initial_state=None):
    """x [B, L, E] tap by tap, one token and one channel at a time."""
    history = torch.zeros(B, TAPS - 1, x.shape[2]).to(x) if initial_state is None else initial_state
    seen = [*history.unbind(1), *x.unbind(1)]
    tokens = []
    for t in range(x.shape[1]):
        channels = [sum(weight[e, k] * seen[t + k][:, e] for k in range(TAPS)) for e in range(x.shape[2])]
        token = torch.stack(channels, 1)
        tokens.append(token if bias is None else token + bias)
    return torch.stack(tokens, 1), torch.stack(seen[-(TAPS - 1) :], 1)


def slow_mamba(x, w, state=None):
    def silu(v):
        return v / (1 + torch.exp(-v))

    recent, hidden = (None, x.new_zeros(B, INNER, STATES)) if state is None else state
    inner, recent = slow_conv(x @ w.in_proj[:INNER].T, w.conv1d_weight, w.conv1d_bias, recent)
    inner, gate = silu(inner), silu(x @ w.in_proj[INNER:].T)
    tokens = []
    for t in range(x.shape[1]):
        now = inner[:, t]
        mixed = now @ w.x_proj.T
        step, into, out_of = mixed[:, :RANK], mixed[:, RANK : RANK + STATES], mixed[:, RANK + STATES :]
        delta = torch.log(1 + torch.exp(step @ w.dt_proj.T + w.dt_bias))[..., None]
        hidden = torch.exp(-delta * torch.exp(w.A_log)) * hidden + delta * into[:, None] * now[..., None]
        y = (hidden * out_of[:, None]).sum(-1) + w.D * now
        tokens.append((y * gate[:, t]) @ w.out_proj.T)
    return torch.stack(tokens, 1), (recent, hidden)


def mamba_inputs(length, state=True, conv_bias=True):
    return {"x": draw(B, length, WIDTH)} | weights(conv_bias=conv_bias) | (states() if state else {})


def one_way(fn):
    return lambda x, **given: fn(x, *take(given))


def conv_inputs(length):
    return {
        "x": draw(B, length, 5),
        "weight": draw(5, TAPS),
        "bias": draw(5),
        "initial_state": draw(B, TAPS - 1, 5),
    }


CASES = [
    pytest.param(causal_conv, slow_conv, conv_inputs, id="causal_conv"),
    pytest.param(one_way(mamba), one_way(slow_mamba), mamba_inputs, id="mamba"),
]
cases = pytest.mark.parametrize(("fn", "slow", "inputs"), CASES)


@pytest.mark.parametrize("length", [1, 2, 7, 33])
@cases
def test_equals_the_slow_reference(agree, fn, slow, inputs, length):
    agree(fn, slow, inputs(length), float32=1e-5)


@pytest.mark.parametrize("conv_bias", [False, True])
def test_without_a_state_and_without_a_bias(agree, conv_bias):
    agree(one_way(mamba), one_way(slow_mamba), mamba_inputs(7, False, conv_bias), float32=1e-5)


@cases
def test_same_bits_whatever_the_memory_held(reproducible, fn, slow, inputs):
    reproducible(fn, inputs(33))


@pytest.mark.parametrize("sizes", [(1, 2, 1, 29), (16, 17)])
def test_pieces_of_the_convolution_equal_one_call(agree_in_float32, over_time, sizes):
    def in_pieces(x, weight, bias, initial_state):
        return over_time(lambda x, state: causal_conv(x, weight, bias, state), [x], sizes, initial_state)

    agree_in_float32(in_pieces, causal_conv, conv_inputs(33))


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("sizes", [(1, 2, 1, 29), (16, 17)])
def test_pieces_of_one_direction_equal_one_call(agree_in_float32, over_time, sizes, state):
    def in_pieces(x, **given):
        w, initial = take(given)
        return over_time(lambda x, state: mamba(x, w, state), [x], sizes, initial)

    agree_in_float32(in_pieces, one_way(mamba), mamba_inputs(33, state), tolerance=4e-6)


@cases
def test_bfloat16(close_in_bfloat16, fn, slow, inputs):
    """Without states; the hidden state of the scan is float32, what the convolution remembers is its input."""
    given = {k: v for k, v in inputs(33).items() if not k.endswith(("conv", "ssm", "initial_state"))}

    def outputs_alone(**leaves):
        return fn(**leaves)[0]

    def conv(x, weight, bias):
        return causal_conv(x, weight, bias)[0]

    close_in_bfloat16(conv if fn is causal_conv else outputs_alone, given, 4e-2, gradient_tolerance=8e-2)


def test_the_hidden_state_and_the_decay_are_float32_for_bfloat16_inputs():
    given = {name: tensor.bfloat16() for name, tensor in mamba_inputs(7, state=False).items()}
    y, state = one_way(mamba)(**given)
    expected, wide = one_way(mamba)(**given | {"A_log": given["A_log"].float()})
    assert state.ssm.dtype == torch.float32
    assert torch.equal(state.ssm, wide.ssm)
    assert torch.equal(y, expected)


def test_no_loop_over_the_tokens(count_operations):
    given = mamba_inputs(1, state=False)
    longer = [given | {"x": draw(1, length, WIDTH)} for length in (4096, 16384)]
    short, long = (count_operations(one_way(mamba), inputs, backward=False) for inputs in longer)
    assert 0 < long - short <= 30


def copied(block):
    """The weights of a public implementation; they share these names."""
    return MambaWeights(
        block.in_proj.weight,
        block.conv1d.weight[:, 0],
        block.conv1d.bias,
        block.x_proj.weight,
        block.dt_proj.weight,
        block.dt_proj.bias,
        block.A_log,
        block.D,
        block.out_proj.weight,
    )


def assert_equals_public(block):
    """Outputs, and the gradients of the input and of every parameter through both."""
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x = torch.randn(2, 37, 8, requires_grad=True)
    expected, (actual, _) = block(x), mamba(x, copied(block))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    cotangent = torch.randn_like(expected)
    leaves = [x, *block.parameters()]
    pairs = zip(*(torch.autograd.grad(out, leaves, cotangent) for out in (actual, expected)), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * max(1.0, theirs.abs().max().item()))


@pytest.mark.parametrize("pscan", [False, True])
def test_equals_mambapy(pscan):
    public = pytest.importorskip("mambapy.mamba")
    config = public.MambaConfig(d_model=8, n_layers=1, d_state=4, dt_rank=3, pscan=pscan, use_cuda=False)
    block = public.MambaBlock(config)
    assert_equals_public(block)


def test_equals_transformers():
    public = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    config = public.MambaConfig(
        hidden_size=8, state_size=4, time_step_rank=3, expand=2, num_hidden_layers=1, use_mambapy=False
    )
    block = public.MambaMixer(config, layer_idx=0)
    assert_equals_public(block)
