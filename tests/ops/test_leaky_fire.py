"""The leaky neuron against a slow one, by its reference and by every kernel; layouts, states and edges."""

import math
from itertools import product

import pytest
import torch
from tests.ops.operator_cases import NATIVE
from tests.raising import raises

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.leaky_fire import leaky_fire, memory_order
from ripe_mambaspike.ops.spikes import SLOPES

B, T, N = 2, 6, 35
KINDS = list(product((True, False), (True, False), SLOPES))
kinds = pytest.mark.parametrize(("hard", "detached", "surrogate"), KINDS)
SHARPNESS, THRESHOLD = 1.5, 0.8


@pytest.fixture(autouse=True, params=[pytest.param("native", marks=NATIVE), "triton", "off"])
def _every_implementation(request):
    """Float64 is computed by the reference whatever the choice."""
    if request.param == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
    with kernels(request.param):
        yield


def slow_slope(surrogate, d):
    if surrogate == "atan":
        return SHARPNESS / 2 / (1 + (math.pi / 2 * SHARPNESS * d) ** 2)
    if surrogate == "sigmoid":
        return SHARPNESS * math.exp(-SHARPNESS * d) / (1 + math.exp(-SHARPNESS * d)) ** 2
    width = 1 / SHARPNESS
    return max(0.0, width - abs(d)) / width**2


class _SlowLeaky(torch.autograd.Function):
    """One element at a time, with Python's numbers, forward and backward by the equations."""

    @staticmethod
    def forward(ctx, x, decay, gain, state, hard, detached, surrogate):
        ctx.save_for_backward(x, decay, gain, state)
        ctx.kind = hard, detached, surrogate
        spikes, final = torch.zeros_like(x), torch.zeros_like(state)
        for b, n in product(range(x.shape[0]), range(x.shape[2])):
            v = state[b, n].item()
            for t in range(x.shape[1]):
                u = decay.item() * v + gain.item() * x[b, t, n].item()
                s = float(u >= THRESHOLD)
                v = u * (1 - s) if hard else u - THRESHOLD * s
                spikes[b, t, n] = s
            final[b, n] = v
        return spikes, final

    @staticmethod
    def backward(ctx, grad_spikes, grad_final):
        x, decay, gain, state = ctx.saved_tensors
        hard, detached, surrogate = ctx.kind
        grads = [torch.zeros_like(one) for one in (x, decay, gain, state)]
        for b, n in product(range(x.shape[0]), range(x.shape[2])):
            vs, us = [state[b, n].item()], []
            for t in range(x.shape[1]):
                us.append(decay.item() * vs[-1] + gain.item() * x[b, t, n].item())
                s = float(us[-1] >= THRESHOLD)
                vs.append(us[-1] * (1 - s) if hard else us[-1] - THRESHOLD * s)
            grad_v = grad_final[b, n].item()
            for t in reversed(range(x.shape[1])):
                slope, s = slow_slope(surrogate, us[t] - THRESHOLD), float(us[t] >= THRESHOLD)
                by_spike = 0.0 if detached else (-us[t] if hard else -THRESHOLD)
                grad_u = grad_spikes[b, t, n].item() * slope
                grad_u += grad_v * ((1 - s if hard else 1.0) + by_spike * slope)
                grads[0][b, t, n] = gain.item() * grad_u
                grads[1] += vs[t] * grad_u
                grads[2] += x[b, t, n].item() * grad_u
                grad_v = decay.item() * grad_u
            grads[3][b, n] = grad_v
        return *grads, None, None, None


def slow_leaky(x, decay, gain, state, kind):
    return _SlowLeaky.apply(x, decay, gain, state, *kind)


def run_leaky(x, decay, gain, state=None, kind=KINDS[0]):
    return leaky_fire(
        x, decay, gain, threshold=THRESHOLD, hard_reset=kind[0], detach_reset=kind[1], surrogate=kind[2],
        sharpness=SHARPNESS, initial_state=state,
    )  # fmt: skip


def of_kind(fn, *kind):
    return lambda **inputs: fn(**inputs, kind=kind)


def inputs(*shape, state=True):
    x = (1.5 * torch.randn(*shape) + 0.3).double()
    given = {"x": x, "decay": torch.tensor([0.7]).double(), "gain": torch.tensor(0.9).double()}
    return given | ({"state": torch.randn(shape[0], *shape[2:]).double()} if state else {})


@kinds
def test_equals_the_slow_one(agree, hard, detached, surrogate):
    given = inputs(B, T, N)
    spikes, _ = run_leaky(**given)
    assert 0.2 < spikes.mean() < 0.7
    agree(of_kind(run_leaky, hard, detached, surrogate), of_kind(slow_leaky, hard, detached, surrogate), given)


def test_starts_from_rest_without_a_state(agree):
    rest = torch.zeros(B, N, dtype=torch.float64)
    agree(run_leaky, lambda **free: slow_leaky(**free, state=rest, kind=KINDS[0]), inputs(B, T, N, state=False))


@kinds
@pytest.mark.parametrize("sizes", [(1,) * T, (2, 4)])
def test_pieces_with_carried_state_equal_one_call(agree_in_float32, over_time, hard, detached, surrogate, sizes):
    kind = hard, detached, surrogate

    def in_pieces(x, decay, gain, state):
        return over_time(lambda x, state: run_leaky(x, decay, gain, state, kind), [x], sizes, state)

    agree_in_float32(in_pieces, of_kind(run_leaky, *kind), inputs(B, T, N))


@kinds
def test_same_bits_whatever_the_memory_held(reproducible, hard, detached, surrogate):
    reproducible(of_kind(run_leaky, hard, detached, surrogate), inputs(B, T, N))


def test_bfloat16_fires_as_float32_and_keeps_its_state_in_float32():
    x, decay, gain = torch.randn(B, T, N).bfloat16(), torch.tensor(0.7), torch.tensor(0.9)
    (spikes, final), (wanted, wanted_final) = (run_leaky(one, decay, gain) for one in (x, x.float()))
    assert (spikes.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(spikes.float(), wanted)
    assert torch.equal(final, wanted_final)


ORDERS = {  # of [B, T, C, H, W] in memory
    "as it is": (0, 1, 2, 3, 4),
    "channels last": (0, 1, 3, 4, 2),
    "time first": (1, 0, 2, 3, 4),
    "time first, channels last": (1, 0, 3, 4, 2),
    "time within the image": (0, 2, 1, 3, 4),
    "time last": (0, 2, 3, 4, 1),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_any_order_in_memory(order):
    """The spikes have the order of x, unless time is the fastest: then it comes first."""
    plain = inputs(2, 3, 4, 5, 3)
    given = {name: one.float() for name, one in plain.items()}
    x = given["x"].permute(order).contiguous().permute([order.index(dim) for dim in range(5)])
    state = given["state"].clone(memory_format=torch.channels_last)
    results = []
    for one in ({**given, "x": x, "state": state}, given):
        leaves = {name: value.detach().requires_grad_() for name, value in one.items()}
        spikes, final = run_leaky(**leaves)
        weights = [torch.linspace(-1, 2, out.numel()).view(out.shape) for out in (spikes, final)]
        grads = torch.autograd.grad([spikes, final], list(leaves.values()), weights)
        results.append((spikes, final, *grads))
    for out, wanted in zip(*results, strict=True):
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(results[0][0], results[1][0])
    kept = order if order[-1] != 1 else (1, 0, 2, 3, 4)
    assert results[0][0].permute(kept).is_contiguous()
    assert memory_order(results[0][0]) == list(kept)


@pytest.mark.parametrize(
    "shape", [(3, 4), (3, 1), (1, 1), (1, 4, 1), (2, 1, 5), (5, 3, 1, 1), (0, 4, 3), (2, 4, 0)], ids=str
)
def test_odd_shapes(shape):
    given = inputs(*shape, state=False)
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = {name: one.to(dtype).requires_grad_() for name, one in given.items()}
        spikes, final = run_leaky(**leaves)
        assert spikes.shape == shape
        assert final.shape == (shape[0], *shape[2:])
        grads = torch.autograd.grad(spikes.sum() + 2 * final.sum(), list(leaves.values()))
        found.append((spikes, final, *grads))
    for one, wanted in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-5, atol=1e-5)


def test_a_view_that_is_not_dense():
    """Every other element of a wider tensor, and one number read everywhere."""
    wide, decay, gain = torch.randn(2, 5, 12), torch.tensor(0.7), torch.tensor(0.9)
    for x in (wide[..., ::2], wide[:, :, :1].expand(-1, -1, 4), wide.flip(1)[:, ::2]):
        for one, wanted in zip(run_leaky(x, decay, gain), run_leaky(x.contiguous(), decay, gain), strict=True):
            assert torch.equal(one, wanted)


def test_fires_at_the_threshold_exactly():
    x = torch.tensor([1.0, 1.0 - 2**-24]).view(1, 1, 2)
    spikes, final = leaky_fire(x, torch.tensor(0.5), torch.tensor(1.0))
    assert spikes.flatten().tolist() == [1, 0]
    assert final.flatten().tolist() == [0, 1 - 2**-24]


def test_nan_stays_where_it_is():
    x = torch.randn(1, 4, 40)
    x[0, 1, 7] = torch.nan
    leaf = x.clone().requires_grad_()
    spikes, final = run_leaky(leaf, torch.tensor(0.7), torch.tensor(0.9))
    (grad,) = torch.autograd.grad(final.sum(), leaf)
    assert final.isnan().nonzero().tolist() == [[0, 7]]
    assert spikes.isfinite().all()
    assert spikes[0, 1:, 7].sum() == 0
    assert set(grad.isnan().nonzero()[:, 2].tolist()) <= {7}


def test_what_cannot_be_used_is_refused():
    x, one = torch.zeros(2, 3, 4), torch.tensor(0.5)
    with raises(ConfigError, field="surrogate"):
        leaky_fire(x, one, one, surrogate="step")
    for field, given in {
        "decay": (x, torch.zeros(4), one), "gain": (x, one, torch.zeros(2)), "x": (x[:, :0], one, one),
    }.items():  # fmt: skip
        with raises(InputError, field=field):
            leaky_fire(*given)
    with raises(InputError, field="x"):
        leaky_fire(torch.zeros(2, 3, 4, dtype=torch.int64), one, one)
    with raises(InputError, field="initial_state"):
        leaky_fire(x, one, one, initial_state=torch.zeros(4, 2))


def test_the_kernels_fire_as_the_reference():
    given = {name: one.float() for name, one in inputs(B, T, N).items()}
    spikes, final = run_leaky(**given)
    with kernels("plain"):
        wanted, wanted_final = run_leaky(**given)
    assert torch.equal(spikes, wanted)
    torch.testing.assert_close(final, wanted_final, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_compiled_in_one_graph():
    given = {name: one.float() for name, one in inputs(B, T, 3, 4).items()}
    found = []
    for fn in (run_leaky, torch.compile(run_leaky, fullgraph=True, backend="aot_eager")):
        leaves = {name: one.clone().requires_grad_() for name, one in given.items()}
        spikes, final = fn(**leaves)
        found.append((spikes, final, *torch.autograd.grad(spikes.sum() + final.sum(), list(leaves.values()))))
    for one, wanted in zip(*found, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-6, atol=1e-6)
