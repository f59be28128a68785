"""φ and ε of DS-MPA: every feature map position by position, its bounds, and numbers that would overflow."""

import pytest
import torch

from ripe_mambaspike.ops.membrane_attention.feature_maps import FEATURE_MAPS
from ripe_mambaspike.ops.membrane_attention.reference import convex_attention

B, T, C, N = 2, 3, 4, 9
SLOW = {
    "elu": lambda z: torch.where(z > 0, z + 1, torch.exp(z.clamp(max=0))),
    "relu": lambda z: torch.where(z > 0, z, 0 * z),
    "softplus": lambda z: torch.log(1 + torch.exp(z)),
    "exp": torch.exp,
}
MAPS = pytest.mark.parametrize("feature_map", FEATURE_MAPS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def qkv(shape=(B, T, C, N), scale=1.0):
    return {name: scale * torch.randn(shape, dtype=torch.float64) for name in ("query", "key", "value")}


def attending(feature_map, epsilon=1e-5):
    return lambda **given: convex_attention(**given, feature_map=feature_map, epsilon=epsilon)


def slow_attending(feature_map, epsilon=1e-5):
    def slow(query, key, value):
        columns = []
        for i in range(query.shape[-1]):
            total, weight = 0.0, epsilon
            for j in range(key.shape[-1]):
                score = (SLOW[feature_map](query[..., i]) * SLOW[feature_map](key[..., j])).sum(-1, keepdim=True)
                total, weight = total + score * value[..., j], weight + score
            columns.append(total / weight)
        return torch.stack(columns, -1)

    return slow


def test_the_maps_are_these():
    assert set(FEATURE_MAPS) == set(SLOW)


@MAPS
@pytest.mark.parametrize("epsilon", [1e-5, 0.3])
def test_equals_the_slow_reference(agree, feature_map, epsilon):
    agree(attending(feature_map, epsilon), slow_attending(feature_map, epsilon), qkv(), float32=4e-6)


@MAPS
def test_same_bits_whatever_the_memory_held(reproducible, feature_map):
    reproducible(attending(feature_map), qkv())


@MAPS
def test_bfloat16(close_in_bfloat16, feature_map):
    close_in_bfloat16(attending(feature_map), qkv(), 4e-2, gradient_tolerance=0.2)


@MAPS
@DTYPES
@pytest.mark.parametrize("scale", [1e-3, 30.0, 1e4])
def test_stays_finite_and_in_the_hull_of_the_values(feature_map, dtype, scale):
    given = {name: tensor.to(dtype) for name, tensor in qkv(scale=scale).items()}
    leaves = {name: tensor.requires_grad_() for name, tensor in given.items()}
    attention = attending(feature_map)(**leaves)
    value = given["value"].detach()
    assert (attention >= value.amin(-1, keepdim=True).clamp(max=0)).all()
    assert (attention <= value.amax(-1, keepdim=True).clamp(min=0)).all()
    attention.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves.values())


def test_exp_equals_its_limit_where_it_would_overflow():
    """The key of the largest channel of a query's features takes all."""
    query, key = torch.full((1, 1, 2, 1), -200.0), torch.full((1, 1, 2, 3), -200.0)
    query[0, 0, 1], key[0, 0, 1, 2] = 500.0, 300.0
    value = torch.tensor([[[[1.0, 2.0, 3.0], [-1.0, 0.5, 0.25]]]])
    attention = convex_attention(query, key, value, feature_map="exp")
    torch.testing.assert_close(attention.flatten(), torch.tensor([3.0, 0.25]))


@pytest.mark.parametrize("feature_map", ["relu", "exp"])
def test_without_features_the_attention_is_zero(feature_map):
    """ReLU of negative numbers is 0, and e^−1000 rounds to it: ε alone is left in the normalizer."""
    query, key = (torch.full((1, 1, 2, 3), -1e3, requires_grad=True) for _ in range(2))
    attention = convex_attention(query, key, torch.randn(1, 1, 2, 3), feature_map=feature_map)
    assert not attention.any()
    attention.sum().backward()
    assert not query.grad.any()
    assert not key.grad.any()


@MAPS
def test_autocast_gives_gradients_in_the_inputs_precision(feature_map):
    given = {name: tensor.float().requires_grad_() for name, tensor in qkv().items()}
    with torch.autocast("cpu", torch.bfloat16):
        projected = {name: tensor @ torch.eye(N) for name, tensor in given.items()}
        attention = attending(feature_map)(**projected)
    attention.float().square().sum().backward()
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in given.items()}
    attending(feature_map)(**exact).square().sum().backward()
    for name, leaf in given.items():
        assert leaf.grad.dtype == torch.float32
        scale = max(1.0, exact[name].grad.abs().max().item())
        assert (leaf.grad - exact[name].grad).abs().max() < 0.15 * scale, name
