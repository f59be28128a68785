"""The network's Mamba against token-by-token loops, and against two public implementations whose weights it loads."""

import pytest
import torch
from torch.func import functional_call

from ripe_mambaspike.nn.mamba import MAMBA_SIZES, STATES, TAPS, Mamba, MambaSizes
from ripe_mambaspike.ops.mamba_inner import MambaInnerInputs, MambaState
from ripe_mambaspike.ops.mamba_inner.reference import causal_conv, mamba_inner

B, WIDTH, INNER = 2, 6, 12
STATE_NAMES = ("conv", "ssm", "initial_state")


def draw(*shape, scale=1.0):
    return scale * torch.randn(*shape, dtype=torch.float64)


def mamba_inputs(length, state=True, conv_bias=True, sizes=MAMBA_SIZES):
    module = Mamba(WIDTH, sizes, conv_bias=conv_bias)
    weights = {name: draw(*p.shape, scale=0.5) for name, p in module.named_parameters()}
    states = {"conv": draw(B, TAPS - 1, INNER), "ssm": draw(B, INNER, STATES)} if state else {}
    return {"x": draw(B, length, WIDTH), **weights, **states}


def run_mamba(x, conv=None, ssm=None, **weights):
    state = None if conv is None else MambaState(conv, ssm)
    (inner, states), taps = weights["A_log"].shape, weights["conv1d.weight"].shape[2]
    module = Mamba(WIDTH, MambaSizes(states, taps, d_inner=inner), conv_bias="conv1d.bias" in weights)
    return functional_call(module, weights, (x, state))


def slow_conv(x, weight, bias=None, initial_state=None):
    """x [B, L, E] tap by tap, one token and one channel at a time."""
    taps = weight.shape[1]
    history = torch.zeros(B, taps - 1, x.shape[2]).to(x) if initial_state is None else initial_state
    seen = [*history.unbind(1), *x.unbind(1)]
    tokens = []
    for t in range(x.shape[1]):
        channels = [sum(weight[e, k] * seen[t + k][:, e] for k in range(taps)) for e in range(x.shape[2])]
        token = torch.stack(channels, 1)
        tokens.append(token if bias is None else token + bias)
    return torch.stack(tokens, 1), torch.stack(seen[-(taps - 1) :], 1)


def slow_mamba(x, conv=None, ssm=None, **w):
    def silu(v):
        return v / (1 + torch.exp(-v))

    in_proj, rank, (width, states) = w["in_proj.weight"], w["dt_proj.weight"].shape[1], w["A_log"].shape
    hidden = x.new_zeros(B, width, states) if ssm is None else ssm
    inner, conv = slow_conv(x @ in_proj[:width].T, w["conv1d.weight"][:, 0], w.get("conv1d.bias"), conv)
    inner, gate = silu(inner), silu(x @ in_proj[width:].T)
    tokens = []
    for t in range(x.shape[1]):
        now = inner[:, t]
        mixed = now @ w["x_proj.weight"].T
        step, into, out_of = mixed[:, :rank], mixed[:, rank : rank + states], mixed[:, rank + states :]
        delta = torch.log(1 + torch.exp(step @ w["dt_proj.weight"].T + w["dt_proj.bias"]))[..., None]
        hidden = torch.exp(-delta * torch.exp(w["A_log"])) * hidden + delta * into[:, None] * now[..., None]
        y = (hidden * out_of[:, None]).sum(-1) + w["D"] * now
        tokens.append((y * gate[:, t]) @ w["out_proj.weight"].T)
    return torch.stack(tokens, 1), (conv, hidden)


def conv_inputs(length):
    return {"x": draw(B, length, 5), "weight": draw(5, TAPS), "bias": draw(5), "initial_state": draw(B, TAPS - 1, 5)}


CASES = [
    pytest.param(causal_conv, slow_conv, conv_inputs, id="causal_conv"),
    pytest.param(run_mamba, slow_mamba, mamba_inputs, id="mamba"),
]
cases = pytest.mark.parametrize(("fn", "slow", "inputs"), CASES)


@pytest.mark.parametrize("length", [1, 2, 7, 33])
@cases
def test_equals_the_slow_reference(agree, fn, slow, inputs, length):
    agree(fn, slow, inputs(length), float32=1e-5)


@pytest.mark.parametrize("conv_bias", [False, True])
def test_without_a_state_and_without_a_bias(agree, conv_bias):
    agree(run_mamba, slow_mamba, mamba_inputs(7, False, conv_bias), float32=1e-5)


@pytest.mark.parametrize("sizes", [MambaSizes(d_state=5), MambaSizes(8, 2, 1), MambaSizes(3, 7, 3)])
def test_other_sizes(agree, sizes):
    agree(run_mamba, slow_mamba, mamba_inputs(9, state=False, sizes=sizes), float32=1e-5)


@pytest.mark.parametrize("length", [1, 2, 7, 33])
def test_the_operators_two_directions_equal_the_slow_reference(agree, length):
    """The second one runs from the last token to the first; a step projection of rank 3."""
    shapes = {
        "conv1d_weight": (INNER, TAPS), "conv1d_bias": (INNER,), "x_proj": (3 + 2 * 5, INNER), "dt_proj": (INNER, 3),
        "dt_bias": (INNER,), "A_log": (INNER, 5), "D": (INNER,),
    }  # fmt: skip
    given = {name: draw(2, *shape, scale=0.5) for name, shape in shapes.items()}
    projections = {"in_proj.weight": torch.eye(2 * INNER).double(), "out_proj.weight": torch.eye(INNER).double()}
    module_names = ("conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "A_log", "D")

    def fast(inputs, **weights):
        return mamba_inner(MambaInnerInputs(inputs, A=-torch.exp(weights.pop("A_log")), **weights))[0]

    def slow(inputs, conv1d_weight, **weights):
        outs = []
        for direction, x in enumerate(inputs.unbind(2)):
            here = [one[direction] for one in (conv1d_weight.unsqueeze(2), *weights.values())]
            order = list(range(length))[:: -1 if direction else 1]
            out, _ = slow_mamba(x[:, order], **projections, **dict(zip(module_names, here, strict=True)))
            outs.append(out[:, order])
        return torch.stack(outs, 2)

    agree(fast, slow, {"inputs": draw(B, length, 2, 2 * INNER), **given}, float32=1e-5)


@cases
def test_same_bits_whatever_the_memory_held(reproducible, fn, slow, inputs):
    reproducible(fn, inputs(33))


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("sizes", [(1, 2, 1, 29), (16, 17)])
@cases
def test_pieces_equal_one_call(agree_in_float32, over_time, fn, slow, inputs, sizes, state):
    def in_pieces(x, **given):
        if fn is causal_conv:
            before = given.pop("initial_state", None)
            return over_time(lambda x, state: causal_conv(x, **given, initial_state=state), [x], sizes, before)
        before = (given.pop("conv", None), given.pop("ssm", None))
        return over_time(lambda x, state: run_mamba(x, *state, **given), [x], sizes, before)

    given = {k: v for k, v in inputs(33).items() if state or k not in STATE_NAMES}
    agree_in_float32(in_pieces, fn, given, tolerance=4e-6)


@cases
def test_bfloat16(close_in_bfloat16, fn, slow, inputs):
    """Without states; the hidden state of the scan is float32, what the convolution remembers is its input."""
    given = {k: v for k, v in inputs(33).items() if k not in STATE_NAMES}
    close_in_bfloat16(lambda **leaves: fn(**leaves)[0], given, 4e-2, gradient_tolerance=8e-2)


def test_the_hidden_state_and_the_decay_are_float32_for_bfloat16_inputs():
    given = {name: tensor.bfloat16() for name, tensor in mamba_inputs(7, state=False).items()}
    y, state = run_mamba(**given)
    expected, wide = run_mamba(**given | {"A_log": given["A_log"].float()})
    assert state.ssm.dtype == torch.float32
    assert torch.equal(state.ssm, wide.ssm)
    assert torch.equal(y, expected)


def test_no_loop_over_the_tokens(count_operations):
    given = mamba_inputs(1, state=False)
    longer = [given | {"x": draw(1, length, WIDTH)} for length in (1024, 4096)]
    short, long = (count_operations(run_mamba, inputs, backward=False) for inputs in longer)
    assert 0 < long - short <= 30


def assert_equals_public(block, sizes=MAMBA_SIZES):
    """A state dict loads as it is; outputs, and the gradients of the input and of every parameter, are the same."""
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ours = Mamba(8, sizes)
    ours.load_state_dict(block.state_dict())
    x = torch.randn(2, 37, 8, requires_grad=True)
    expected, (actual, _) = block(x), ours(x)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    cotangent = torch.randn_like(expected)
    theirs = dict(block.named_parameters())
    ordered = [theirs[name] for name, _ in ours.named_parameters()]
    given = torch.autograd.grad(actual, [x, *ours.parameters()], cotangent)
    for one, other in zip(given, torch.autograd.grad(expected, [x, *ordered], cotangent), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1.0, other.abs().max().item()))


@pytest.mark.parametrize("sizes", [MAMBA_SIZES, MambaSizes(8, 3, 1)], ids=["default", "other"])
@pytest.mark.parametrize("pscan", [False, True])
def test_equals_mambapy(pscan, sizes):
    public = pytest.importorskip("mambapy.mamba")
    own = {"d_state": sizes.d_state, "d_conv": sizes.d_conv, "expand_factor": sizes.expand}
    config = public.MambaConfig(d_model=8, n_layers=1, dt_rank=1, pscan=pscan, use_cuda=False, **own)
    assert_equals_public(public.MambaBlock(config), sizes)


@pytest.mark.slow
def test_equals_transformers():
    public = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    config = public.MambaConfig(
        hidden_size=8, state_size=STATES, time_step_rank=1, expand=2, num_hidden_layers=1, use_mambapy=False
    )
    assert_equals_public(public.MambaMixer(config, layer_idx=0))
