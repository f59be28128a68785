"""DS-MPA: the bound, the feature map, the saturating gate it is compared with, and its complexity."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ripe_mambaspike.nn.attention import ATTENTIONS, MembraneAttention
from ripe_mambaspike.ops.membrane_attention.feature_maps import positive_feature
from ripe_mambaspike.ops.membrane_attention.reference import EPSILON, convex_attention, project, sigmoid_attention
from ripe_mambaspike.ops.tdm import shift
from ripe_mambaspike.studies.claims.random_network import generator, random_binary, random_normal, relative_error
from ripe_mambaspike.studies.claims.verdict import Claim, exact, fact, number

VARIANTS = {"ds-mpa": "full", "low-rank": "low-rank", "grouped": "grouped"}


def attention_claims() -> Iterator[Claim]:
    return chain(_bounds(), _raw_spikes(), _mixing(), _feature_map(), _saturation(), _complexity())


def plain_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Eq. (dsmpa-attn) over all pairs of positions, without the operator's clamp against rounding."""
    weights = positive_feature(query).transpose(-1, -2) @ positive_feature(key)  # [.., i, j]
    return value @ weights.transpose(-1, -2) / (weights.sum(-1) + EPSILON).unsqueeze(-2)


def excess(attention: Tensor, value: Tensor) -> float:
    """The largest distance of A from the hull of its channel's values and zero; 0 if inside."""
    low, high = value.aminmax(dim=-1, keepdim=True)
    outside = torch.maximum(low.clamp(max=0) - attention, attention - high.clamp(min=0))
    return float(outside.clamp(min=0).max())


@torch.no_grad()
def _bounds() -> Iterator[Claim]:
    """Three parameterizations at the three stage widths, as in Table q6-lowrank."""
    passed = 0
    for kind, name in VARIANTS.items():
        for width in (32, 64, 128):
            error, outside = _one_bound(kind, width)
            passed += (holds := outside <= 1e-12 and error <= 1e-12)
            yield fact(
                "attention.bound.{name}.{width}",
                f"at most {outside:.1e} outside; the operator agrees to {error:.1e}",
                holds,
                name=name,
                width=width,
            )
    yield fact("attention.bound.all", f"{passed}/9", passed == 9)


def _one_bound(kind: str, width: int) -> tuple[float, float]:
    """Error of the operator against the plain formula, and how far the formula is outside the hull."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(width)
        module = ATTENTIONS[kind](width).double()
    assert isinstance(module, MembraneAttention)
    rng = generator(width)
    potential, spikes = 4 * random_normal(rng, 1, 3, width, 8, 8), random_binary(rng, 1, 3, width, 8, 8)
    (_, attention), _ = module(potential, spikes, torch.ones_like(spikes))
    query, key, value = module.projections()
    values = project(shift(spikes.flatten(3))[0], value)
    plain = plain_attention(project(potential.flatten(3), query), project(potential.flatten(3), key), values)
    return relative_error(attention.flatten(3), plain), excess(plain, values)


def _raw_spikes() -> Iterator[Claim]:
    rng = generator(1)
    query, key = 5 * random_normal(rng, 2, 2, 16, 50), 5 * random_normal(rng, 2, 2, 16, 50)
    spikes = random_binary(rng, 2, 2, 16, 50)
    plain = plain_attention(query, key, spikes)
    low, high = (float(v) for v in plain.aminmax())
    projected = plain_attention(query, key, random_normal(rng, 16, 16) @ spikes)
    outside = float(projected.min()) < 0 or float(projected.max()) > 1
    unbounded = excess(sigmoid_attention(query, key, spikes), spikes)
    yield fact("attention.bound.binary", f"[{low:.4f}, {high:.4f}]", low >= 0 and high <= 1)
    yield fact("attention.bound.projected", f"[{float(projected.min()):.3f}, {float(projected.max()):.3f}]", outside)
    yield fact("attention.sigmoid.unbounded", f"up to {unbounded:.1f} outside the hull", unbounded > 0)


def _mixing() -> Iterator[Claim]:
    """The entries of A that depend on one entry of V."""
    rng = generator(2)
    query, key, value = (random_normal(rng, 1, 1, 6, 9) for _ in range(3))
    touched = value.clone()
    touched[..., 2, 4] += 1
    moved = (convex_attention(query, key, touched) - convex_attention(query, key, value))[0, 0].abs() > 1e-12
    channels, positions = int(moved.any(1).sum()), int(moved.any(0).sum())
    yield fact(
        "attention.mixes-channels",
        f"one value reaches {channels} of 6 channels and {positions} of 9 positions",
        channels > 1 and positions == 1,
    )


def _feature_map() -> Iterator[Claim]:
    deep = torch.tensor([-20.0])
    literal, ours = float(F.elu(deep) + 1), float(positive_feature(deep))
    z = torch.linspace(-80, 1000, 4001, requires_grad=True)
    (slope,) = torch.autograd.grad(positive_feature(z).sum(), z)
    wide = torch.linspace(-30, 30, 601, dtype=torch.float64)
    error = relative_error(positive_feature(wide), F.elu(wide) + 1)
    yield exact("attention.phi.form", error)
    yield fact("attention.phi.literal", f"φ = {literal:.1e}", literal > 0)
    yield fact("attention.phi.safe", f"φ = {ours:.1e}", ours > 0)
    yield fact(
        "attention.phi.slope", f"at least {float(slope.min()):.1e} on [−80, 1000] in float32", bool((slope > 0).all())
    )
    yield fact(
        "attention.phi.positive-slope",
        f"{float(slope[z > 0].min()):g} to {float(slope[z > 0].max()):g}",
        bool((slope[z > 0] == 1).all()),
    )


def _saturation() -> Iterator[Claim]:
    ends = torch.tensor([-20.0, 20.0], dtype=torch.float64, requires_grad=True)
    (gate,) = torch.autograd.grad(torch.sigmoid(ends).sum(), ends)
    (feature,) = torch.autograd.grad(positive_feature(ends).sum(), ends)
    yield fact(
        "attention.gate.saturates", f"{float(gate[0]):.1e} at −20, {float(gate[1]):.1e} at 20", float(gate.max()) < 1e-8
    )
    yield fact("attention.phi.positive-tail", f"φ' = {float(feature[1]):g} at 20", float(feature[1]) > 0.1)
    yield fact(
        "attention.phi.negative-tail",
        f"φ' = {float(feature[0]):.1e}, σ' = {float(gate[0]):.1e} at −20",
        float(feature[0]) > 10 * float(gate[0]),
    )


class _LargestTensorMode(TorchDispatchMode):
    """Records the number of elements of the largest tensor created inside."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return out


def _attention_flops(positions: int, channels: int) -> int:
    query, key, value = (torch.zeros(1, 1, channels, positions) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        convex_attention(query, key, value)
    return int(counter.get_total_flops())


def _softmax_flops(positions: int, channels: int) -> int:
    query, key, value = (torch.zeros(1, channels, positions) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        torch.bmm(value, torch.bmm(query.transpose(1, 2), key).softmax(-1).transpose(1, 2))
    return int(counter.get_total_flops())


def _complexity() -> Iterator[Claim]:
    base = _attention_flops(256, 32)
    ratio = _softmax_flops(256, 128) / _attention_flops(256, 128)
    longer, wider = _attention_flops(512, 32) / base, _attention_flops(256, 64) / base
    with _LargestTensorMode() as seen:
        convex_attention(*(torch.zeros(1, 1, 32, 1024) for _ in range(3)))
    products = [n * c * c for n, c in ((4096, 32), (1024, 64), (256, 128))]
    yield number("attention.linear", longer)
    yield number("attention.quadratic", wider)
    yield fact(
        "attention.memory",
        f"largest tensor {seen.elements:,} at N = 1024, C = 32 (N² is {1024**2:,})",
        seen.elements <= 1024 * 32,
    )
    yield number("attention.ratio", ratio)
    yield fact(
        "attention.constant",
        ", ".join(f"{p / 1e6:.3f} M" for p in products),
        len(set(products)) == 1 and round(products[0] / 1e6, 2) == 4.19,
    )
