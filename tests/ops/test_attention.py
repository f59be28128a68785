"""DS-MPA and its controls, position by position; and the bounds the paper claims, without tolerance."""

import math

import pytest
import torch
from torch.nn.functional import elu

from ripe_mambaspike.ops.membrane_attention.reference import (
    convex_attention,
    ds_mpa,
    normalizer,
    positive_feature,
    project,
    sigmoid_attention,
    sigmoid_gate,
)

B, T, C, N = 2, 5, 3, 15


def draw(*shape, scale=1.0):
    return scale * torch.randn(*shape, dtype=torch.float64)


def qkv():
    return {name: draw(B, T, C, N) for name in ("query", "key", "value")}


def ds_mpa_inputs(state=True):
    inputs = {"potential": draw(B, T, C, N), "features": draw(B, T, C, N), "gain": draw(C)}
    inputs["spikes"] = (torch.rand(B, T, C, N) < 0.4).double()
    inputs |= {name: draw(C, C) for name in ("w_query", "w_key", "w_value")}
    return inputs | ({"state": (torch.rand(B, C, N) < 0.4).double()} if state else {})


def slow_feature(z):
    return torch.where(z > 0, z + 1, torch.exp(torch.where(z > 0, torch.zeros_like(z), z)))


def slow_convex(query, key, value):
    """One query at a time: the weighted mean of the values over its positions, and a little zero."""
    columns = []
    for i in range(query.shape[-1]):
        total, weight = 0.0, 1e-5
        for j in range(key.shape[-1]):
            score = (slow_feature(query[..., i]) * slow_feature(key[..., j])).sum(-1, keepdim=True)
            total = total + score * value[..., j]
            weight = weight + score
        columns.append(total / weight)
    return torch.stack(columns, -1)


def slow_sigmoid(query, key, value):
    columns = []
    for i in range(query.shape[-1]):
        scores = [(query[..., i] * key[..., j]).sum(-1, keepdim=True) for j in range(key.shape[-1])]
        columns.append(sum(value[..., j] / (1 + torch.exp(-score)) for j, score in enumerate(scores)))
    return torch.stack(columns, -1)


def slow_ds_mpa(attend, potential, spikes, features, gain, w_query, w_key, w_value, state=None):
    def mix(weight, x):
        return torch.stack([sum(weight[o, c] * x[:, c] for c in range(C)) for o in range(C)], 1)

    previous = torch.zeros_like(spikes[:, 0]) if state is None else state
    out, maps = [], []
    for t in range(potential.shape[1]):
        attention = attend(mix(w_query, potential[:, t]), mix(w_key, potential[:, t]), mix(w_value, previous))
        scaled = torch.stack([gain[c] * attention[:, c] for c in range(C)], 1)
        out.append(features[:, t] + scaled * features[:, t])
        maps.append(attention)
        previous = spikes[:, t]
    return (torch.stack(out, 1), torch.stack(maps, 1)), previous


def fast_ds_mpa(attend, potential, spikes, features, gain, w_query, w_key, w_value, state=None):
    factors = [(w,) for w in (w_query, w_key, w_value)]
    return ds_mpa(potential, spikes, features, *factors, gain, attend=attend, initial_state=state)


def slow_gate(potential, features, weight, bias):
    rows = [bias[o] + sum(weight[o, c] * potential[:, :, c] for c in range(C)) for o in range(C)]
    gate = 1 / (1 + torch.exp(-torch.stack(rows, 2)))
    return gate * features, gate


def gate_inputs():
    return {"potential": draw(B, T, C, N), "features": draw(B, T, C, N), "weight": draw(C, C), "bias": draw(C)}


OPERATORS = [
    pytest.param(convex_attention, slow_convex, qkv, id="convex"),
    pytest.param(sigmoid_attention, slow_sigmoid, qkv, id="sigmoid"),
    pytest.param(sigmoid_gate, slow_gate, gate_inputs, id="gate"),
    pytest.param(
        lambda **k: fast_ds_mpa(convex_attention, **k),
        lambda **k: slow_ds_mpa(slow_convex, **k),
        ds_mpa_inputs,
        id="ds_mpa",
    ),
    pytest.param(
        lambda **k: fast_ds_mpa(sigmoid_attention, **k),
        lambda **k: slow_ds_mpa(slow_sigmoid, **k),
        ds_mpa_inputs,
        id="ds_mpa-sigmoid",
    ),
]
operators = pytest.mark.parametrize(("fn", "slow", "inputs"), OPERATORS)


@operators
def test_equals_the_slow_reference(agree, fn, slow, inputs):
    agree(fn, slow, inputs())


@operators
def test_same_bits_whatever_the_memory_held(reproducible, fn, slow, inputs):
    reproducible(fn, inputs())


@operators
def test_bfloat16(close_in_bfloat16, fn, slow, inputs):
    close_in_bfloat16(fn, inputs(), 4e-2)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3)])
@pytest.mark.parametrize("state", [False, True])
def test_pieces_with_carried_state_equal_one_call(agree_in_float32, over_time, sizes, state):
    def whole(**given):
        return fast_ds_mpa(convex_attention, **given)

    def in_pieces(potential, spikes, features, state=None, **weights):
        def piece(u, s, x, state):
            return whole(potential=u, spikes=s, features=x, state=state, **weights)

        return over_time(piece, [potential, spikes, features], sizes, state)

    agree_in_float32(in_pieces, whole, ds_mpa_inputs(state))


def test_the_first_step_passes_features_unchanged():
    inputs = {name: tensor.float() for name, tensor in ds_mpa_inputs(state=False).items()}
    (out, attention), _ = fast_ds_mpa(convex_attention, **inputs)
    assert torch.equal(out[:, 0], inputs["features"][:, 0])
    assert not attention[:, 0].any()
    assert not torch.equal(out[:, 1], inputs["features"][:, 1])


@pytest.mark.parametrize(("dtype", "z"), [(torch.float32, -20.0), (torch.bfloat16, -10.0)])
def test_the_feature_stays_positive_where_elu_cancels(dtype, z):
    z = torch.tensor([z], dtype=dtype)
    assert (elu(z) + 1).item() == 0
    assert positive_feature(z).item() > 0
    torch.testing.assert_close(positive_feature(z).double(), z.double().exp(), rtol=1e-2, atol=0)


def test_the_feature_is_elu_plus_one_and_smooth_at_zero():
    z = torch.tensor([-30.0, -3.0, -1e-3, 0.0, 1e-3, 3.0, 1e4], dtype=torch.float64, requires_grad=True)
    value = positive_feature(z)
    expected = [math.exp(v) if v < 0 else v + 1 for v in z.tolist()]
    torch.testing.assert_close(value.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    (slope,) = torch.autograd.grad(value.sum(), z)
    expected = torch.tensor([min(1.0, math.exp(min(v, 0.0))) for v in z.tolist()], dtype=torch.float64)
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=0)
    assert slope[3] == 1


def extremes(kind, dtype):
    """Potentials up to 1e4, and values of both signs, one sign, or spikes."""
    shape = (4, 3, 8, 33)
    fixed = {"low": -1e4, "high": 1e4}
    query, key = (
        torch.full(shape, fixed[kind]) if kind in fixed else torch.empty(shape).uniform_(-1e4, 1e4) for _ in range(2)
    )
    if kind == "scales":
        query, key = (torch.randn(shape) * 10 ** torch.empty(shape).uniform_(-4, 4) for _ in range(2))
        query, key = query.clamp(-1e4, 1e4), key.clamp(-1e4, 1e4)
    value = torch.randn(shape)
    value[0] = value[0].abs()
    value[1] = -value[1].abs()
    value[2] = (value[2] > 0).float()
    value[3, 0] = 0.3
    return query.to(dtype), key.to(dtype), value.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["low", "high", "random", "scales"])
def test_stays_in_the_hull_exactly(kind, dtype):
    query, key, value = extremes(kind, dtype)
    attention = convex_attention(query, key, value)
    weight = normalizer(query, key)
    assert weight.isfinite().all()
    assert (weight > 0).all()
    assert attention.dtype == dtype
    assert (attention >= value.amin(-1, keepdim=True).clamp(max=0)).all()
    assert (attention <= value.amax(-1, keepdim=True).clamp(min=0)).all()
    if kind == "low":
        assert not attention.any()
    if kind == "high":
        expected = value.double().mean(-1, keepdim=True).expand_as(attention)
        torch.testing.assert_close(attention.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["low", "high", "random", "scales"])
def test_ds_mpa_stays_in_the_hull_of_its_projected_spikes(kind, dtype):
    potential, _, features = extremes(kind, dtype)
    factors = [(torch.randn(8, 8, dtype=dtype),) for _ in range(3)]
    spikes, state = (torch.rand(4, 3, 8, 33) < 0.5).to(dtype), (torch.rand(4, 8, 33) < 0.5).to(dtype)
    (out, attention), _ = ds_mpa(potential, spikes, features, *factors, torch.ones(8, dtype=dtype), initial_state=state)
    value = project(torch.cat((state[:, None], spikes[:, :-1]), 1), factors[2])
    assert out.isfinite().all()
    assert (attention >= value.amin(-1, keepdim=True).clamp(max=0)).all()
    assert (attention <= value.amax(-1, keepdim=True).clamp(min=0)).all()


def unclamped_convex(query, key, value):
    query, key = slow_feature(query), slow_feature(key)
    mixed = value @ key.transpose(-1, -2)
    return mixed @ query / ((query * key.sum(-1, keepdim=True)).sum(-2, keepdim=True) + 1e-5)


def test_what_saturates_by_rounding_still_hands_the_gradient_on(evaluate):
    inputs = {name: tensor.float() for name, tensor in qkv().items()}
    inputs["query"] += 20
    inputs["value"][:, :, 0] = 0.1  # the exact A of this channel lies below 0.1 by less than float32 can hold
    beyond = unclamped_convex(**inputs)[:, :, 0] > inputs["value"][0, 0, 0, 0]
    assert beyond.float().mean() > 0.1
    (attention,), gradients = evaluate(convex_attention, inputs, torch.float32)
    assert (attention[:, :, 0] <= inputs["value"][0, 0, 0, 0]).all()
    (wanted,), expected = evaluate(unclamped_convex, inputs, torch.float64)
    torch.testing.assert_close(attention.double(), wanted, rtol=0, atol=1e-6)
    assert (expected["value"][:, :, 0].abs() > 1e-3).all(-1).any()
    for name, gradient in gradients.items():
        scale = expected[name].abs().max().item()
        torch.testing.assert_close(gradient.double(), expected[name], rtol=0, atol=4e-6 * scale)


def test_low_rank_factors_equal_their_product(agree_in_float32):
    inputs = {"x": draw(B, T, 8, N), "down": draw(2, 8), "up": draw(8, 2)}
    agree_in_float32(lambda x, down, up: project(x, (down, up)), lambda x, down, up: project(x, (up @ down,)), inputs)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_factors_equal_their_block_diagonal(agree_in_float32, groups):
    inputs = {"x": draw(B, T, 8, N), "factor": draw(groups, 8 // groups, 8 // groups)}

    def dense(x, factor):
        return torch.einsum("oc,btcn->bton", torch.block_diag(*factor), x)

    agree_in_float32(lambda x, factor: project(x, (factor,)), dense, inputs)


@pytest.mark.parametrize("block", [1, 8, 35, 512])
def test_sigmoid_attention_in_blocks_equals_the_direct_formula(agree_in_float32, block):
    def direct(query, key, value):
        return torch.einsum("btij,btcj->btci", torch.sigmoid(torch.einsum("btci,btcj->btij", query, key)), value)

    agree_in_float32(lambda **given: sigmoid_attention(**given, block=block), direct, qkv())
