"""φ of DS-MPA: the non-negative feature maps of linear attention, and the attention over each of them.

    elu        exp(min(z, 0)) + max(z, 0)    ELU(z) + 1, the paper's (Katharopoulos et al. 2020)
    relu       max(z, 0)                     Performer's generalized attention (Choromanski et al. 2021)
    softplus   log(1 + eᶻ)                   smooth, with a gradient everywhere
    exp        eᶻ                            positive features of the softmax kernel (Choromanski et al. 2021)

Any φ ≥ 0 keeps A in the hull of the values and zero. With `relu` the normalizer can be ε alone; A is then 0.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ripe_mambaspike.ops.graph_nodes import graph_node, keeps_node
from ripe_mambaspike.ops.shapes import at_least_float32


def positive_feature(z: Tensor) -> Tensor:
    """φ(z) = exp(min(z, 0)) + max(z, 0): ELU(z) + 1 without the cancellation that rounds it to 0 below −20."""
    if torch.compiler.is_exporting():
        return torch.exp(z.clamp(max=0)) + torch.relu(z)
    return _PositiveFeature.apply(z)


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": positive_feature,
    "relu": torch.relu,
    "softplus": F.softplus,
}
FEATURE_MAPS = (*FEATURES, "exp")  # names; `exp` would overflow on its own and has an attention that cannot


def featured_attention(query: Tensor, key: Tensor, value: Tensor, epsilon: float) -> Tensor:
    """`A = φ(Q)(φ(K)ᵀV) / (φ(Q)·Σφ(K) + ε)` of the features φ(Q), φ(K): [B, T, C, N] three times → [B, T, C, N]."""
    if keeps_node("attend"):
        attended: Tensor = attend_node(query, key, value, epsilon)
        return attended
    if torch.compiler.is_exporting():
        scale = normalizer_of(query, key.sum(-1, keepdim=True), epsilon)
        attention = batched_product(batched_product(key, value, transposed=1), query, transposed=0) / scale
        return _held(attention, value)
    return _ConvexAttention.apply(query, key, value, epsilon)


@graph_node("attend", lambda query, key, value, epsilon: torch.empty_like(query))
def attend_node(query: Tensor, key: Tensor, value: Tensor, epsilon: float) -> Tensor:
    """`featured_attention` without a gradient."""
    return featured_attention(query, key, value, epsilon)


def exponential_attention(query: Tensor, key: Tensor, value: Tensor, epsilon: float) -> Tensor:
    """The same with φ = exp, of Q and K themselves, finite for all finite ones.

    φ(K) is a softmax over the positions times its sum; the sums are added to the logits of φ(Q), whose largest one is
    taken off the numerator, the normalizer and ε alike.
    """
    wide = at_least_float32(key)
    logits = at_least_float32(query) + wide.logsumexp(-1, keepdim=True)
    peak = logits.amax(-2, keepdim=True).detach()
    weights = torch.exp(logits - peak)
    scale = weights.sum(-2, keepdim=True) + epsilon * torch.exp(-peak)
    mixed = batched_product(wide.softmax(-1).to(value.dtype), value, transposed=1)  # [C, C] for every step
    attention = batched_product(mixed, (weights / scale).to(value.dtype), transposed=0)
    held = _held(attention, value)
    return held if torch.compiler.is_exporting() else attention + (held - attention).detach()


def normalizer_of(query: Tensor, key_sum: Tensor, epsilon: float) -> Tensor:
    """`φ(Q)·Σφ(K) + ε` of the features φ(Q) [.., C, N] and the sums of φ(K) [.., C, 1]."""
    return (query * key_sum).sum(-2, keepdim=True) + epsilon


def batched_product(first: Tensor, second: Tensor, transposed: int | None = None) -> Tensor:
    """Matrix products over the leading dimensions, which are the same in both; one of the two (0, 1) may be transposed.

    Like `@`, but without reading sizes, which an export would specialize on.
    """
    pair = [first.flatten(0, -3), second.flatten(0, -3)]
    if transposed is not None:
        pair[transposed] = pair[transposed].transpose(1, 2)
    return torch.bmm(*pair).unflatten(0, first.shape[:-2])


def _held(attention: Tensor, value: Tensor) -> Tensor:
    """A, clamped to the hull of the values and zero."""
    low, high = value.amin(-1, keepdim=True).clamp(max=0), value.amax(-1, keepdim=True).clamp(min=0)
    return torch.minimum(torch.maximum(attention, low), high)


class _PositiveFeature(torch.autograd.Function):
    """φ' is 1 above zero and φ itself below, so min(φ, 1): only the output is saved."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        out = z.clamp(max=0).exp_().add_(torch.relu(z))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return grad * out.clamp(max=1)


class _ConvexAttention(torch.autograd.Function):
    """The quotient over features φ(Q), φ(K) and values, clamped to the hull of the values.

    Gradients ignore the clamp, which only removes rounding errors.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, epsilon: float) -> Tensor:
        mixed = batched_product(key, value, transposed=1)  # [C, C] for every step
        key_sum = key.sum(-1, keepdim=True).to(key.dtype)
        scale = normalizer_of(query, key_sum, epsilon)
        low, high = value.amin(-1, keepdim=True).clamp_(max=0), value.amax(-1, keepdim=True).clamp_(min=0)
        attention = batched_product(mixed, query, transposed=0).div_(scale).clamp_(low, high)
        ctx.save_for_backward(query, key, value, mixed, key_sum, scale, attention)
        return attention

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, key_sum, scale, attention = ctx.saved_tensors
        grad_numerator = (grad / scale).to(query.dtype)  # autocast may have left the scale in float32
        grad_scale = -(grad_numerator * attention).sum(-2, keepdim=True)
        grad_mixed = query @ grad_numerator.transpose(-1, -2)
        grad_key_sum = (query * grad_scale).sum(-1, keepdim=True)
        grad_query = torch.addcmul(mixed @ grad_numerator, key_sum, grad_scale)
        return grad_query, grad_mixed @ value + grad_key_sum, grad_mixed.transpose(-1, -2) @ key, None
