"""The Triton scan on a GPU: real tiles and sizes, both precisions, and in a CUDA graph."""

import pytest
import torch
import torch.nn.functional as F
from comparing import relative

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.mamba_inner import InnerWeights, mamba_inner, mamba_inner_reference
from ripe_mambaspike.ops.mamba_inner.reference import causal_conv
from ripe_mambaspike.ops.mamba_inner.scan import selective_scan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

# batch, length, directions, channels, taps, rank, states
SMALL = [
    (1, 1, 1, 6, 4, 1, 4),
    (2, 1, 2, 6, 4, 2, 16),
    (1, 7, 2, 32, 4, 3, 16),
    (2, 33, 2, 64, 3, 2, 4),
    (2, 130, 1, 96, 4, 6, 16),
    (1, 130, 2, 40, 4, 3, 16),
    (1, 70, 2, 128, 1, 4, 32),
    (1, 50, 2, 33, 2, 2, 64),
    (1, 300, 2, 768, 4, 24, 16),
]
LARGE = [
    (1, 4096, 2, 64, 4, 2, 16),
    (1, 1024, 2, 256, 4, 8, 16),
    (64, 512, 2, 64, 4, 2, 16),
    (8, 784, 2, 384, 4, 12, 16),
]
MANY = [  # 64 sequences and more are not cut: 8, 16 and 32 channels a warp
    (64, 256, 2, 128, 4, 4, 16),
    (64, 128, 2, 256, 4, 8, 16),
    (64, 130, 2, 72, 4, 3, 16),
    (64, 67, 2, 130, 4, 5, 32),
]


def drawn(batch, length, directions, channels, taps, rank, states, dtype=torch.float32, biased=True):
    """inputs and the weights, in the precision they have in a network."""
    torch.manual_seed(0)
    each = (directions, channels)
    tensors = [
        torch.randn(batch, length, directions, 2 * channels),
        torch.randn(*each, taps) * 0.5,
        torch.randn(*each) * 0.1 if biased else None,
        torch.randn(directions, rank + 2 * states, channels) / channels**0.5,
        torch.randn(*each, rank) * 0.5,
        torch.randn(*each) - 3.0,
        -torch.arange(1, states + 1).expand(*each, states) * (1 + 0.1 * torch.rand(*each, states)),
        torch.randn(*each),
    ]
    tensors = [None if tensor is None else tensor.float().cuda() for tensor in tensors]
    tensors[0], tensors[3] = tensors[0].to(dtype), tensors[3].to(dtype)
    return tensors


def evaluated(fn, tensors, dtype=None):
    """The output and the gradient of every tensor; all are computed in `dtype` where one is given."""
    leaves = [None if t is None else t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors]
    out = fn(leaves[0], InnerWeights(*leaves[1:]))
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(out)
    return [out.detach(), *torch.autograd.grad(out, [leaf for leaf in leaves if leaf is not None], cotangent)]


def check(tensors, precision, tolerance):
    with kernels("off"):
        expected = evaluated(mamba_inner_reference, tensors, precision)
    names = ["out", "inputs", *InnerWeights._fields]
    if tensors[2] is None:
        names.remove("conv_bias")
    errors = {}
    given_dtypes = [tensors[0].dtype, *(t.dtype for t in tensors if t is not None)]
    for name, given, wanted, dtype in zip(names, evaluated(mamba_inner, tensors), expected, given_dtypes, strict=True):
        assert given.dtype == dtype, name
        assert given.isfinite().all(), name
        errors[name] = relative(given, wanted) if wanted.any() else given.abs().max().item()
    assert max(errors.values()) < tolerance, errors


@pytest.mark.parametrize("sizes", SMALL + LARGE + MANY, ids=str)
def test_float32(sizes):
    check(drawn(*sizes), torch.float64, 1e-5)


@pytest.mark.parametrize("sizes", SMALL + LARGE, ids=str)
def test_bfloat16(sizes):
    check(drawn(*sizes, dtype=torch.bfloat16), torch.float32, 1e-2)


@pytest.mark.parametrize("sizes", MANY, ids=str)
def test_many_sequences_in_bfloat16(sizes):
    """An output goes with the fourth power of u, held in bfloat16: among many tokens that alone can do 1e-2."""
    tensors = drawn(*sizes, dtype=torch.bfloat16)
    with kernels("off"):
        expected = evaluated(mamba_inner_reference, tensors, torch.float32)
        rounded = evaluated(inner_with_u_in_bfloat16, tensors, torch.float32)
    for given, near, wanted in zip(evaluated(mamba_inner, tensors), rounded, expected, strict=True):
        assert relative(given, wanted) < max(1e-2, 1.5 * relative(near, wanted))


def inner_with_u_in_bfloat16(inputs, weights):
    """The reference, u rounded; its gradient passes."""
    outs = []
    for direction in range(inputs.shape[2]):
        conv, bias, x_proj, dt_proj, dt_bias, decay, skip = (weight[direction] for weight in weights)
        here = inputs[:, :, direction].flip(1) if direction else inputs[:, :, direction]
        inner, gate = here.chunk(2, -1)
        u = F.silu(causal_conv(inner, conv, bias)[0])
        u = u + (u.bfloat16().float() - u).detach()
        step, into, out_of = F.linear(u, x_proj).split((dt_proj.shape[1], *[decay.shape[1]] * 2), -1)
        y = selective_scan(u, F.softplus(F.linear(step, dt_proj, dt_bias)), decay, into, out_of, skip)[0] * F.silu(gate)
        outs.append(y.flip(1) if direction else y)
    return torch.stack(outs, 2)


def test_without_the_convolutions_bias():
    check(drawn(*SMALL[3], biased=False), torch.float64, 1e-5)


@pytest.mark.parametrize("chunk", [16, 32, 96, 4096])
def test_any_chunks(chunk, monkeypatch):
    from ripe_mambaspike.ops.mamba_inner import triton as mamba
    from ripe_mambaspike.ops.mamba_inner import triton_scan_plan as scan_plan

    monkeypatch.setattr(mamba, "cut_of", lambda sizes, groups=1: scan_plan.cut_in(sizes, chunk))
    check(drawn(2, 330, 2, 64, 4, 2, 16), torch.float64, 1e-5)


def test_samples_in_turn_when_scratch_is_short(monkeypatch):
    from ripe_mambaspike.ops.mamba_inner import triton_scan_plan as scan_plan

    monkeypatch.setattr(scan_plan, "SCRATCH", 1)
    check(drawn(3, 100, 2, 64, 4, 2, 16), torch.float64, 1e-5)


@pytest.mark.parametrize(
    ("step", "decay"), [(-12.0, 1.0), (30.0, 1.0), (3.0, 100.0), (0.0, 1e-4), (-14.0, 50.0)], ids=str
)
def test_extreme_steps_and_decays(step, decay):
    tensors = drawn(1, 200, 2, 64, 4, 2, 16)
    tensors[5] += 3.0 + step
    tensors[6] *= decay
    check(tensors, torch.float64, 1e-5)


@pytest.mark.parametrize("batch", [1, 64], ids=["many chunks", "one chunk"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_same_bits_twice_and_over_poisoned_memory(batch, dtype, request):
    tensors = drawn(batch, 600, 2, 64, 4, 2, 16, dtype=dtype)
    first, second = evaluated(mamba_inner, tensors), evaluated(mamba_inner, tensors)
    request.getfixturevalue("poisoned_empty")
    for one, two, three in zip(first, second, evaluated(mamba_inner, tensors), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.parametrize("batch", [1, 64])
def test_captured_in_a_graph(batch):
    tensors = drawn(batch, 512, 2, 64, 4, 2, 16, dtype=torch.bfloat16)
    weights = InnerWeights(*tensors[1:])
    expected = mamba_inner(tensors[0], weights)  # compiles the kernels
    fixed = torch.zeros_like(tensors[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mamba_inner(fixed, weights)
    fixed.copy_(tensors[0])
    graph.replay()
    assert torch.equal(out, expected)
