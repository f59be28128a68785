"""The fused operators by their references, in any precision: what `kernels("plain")` computes with.

Slow, and only for comparison: it shows that the network over the fused operators is the network, in float64 to the
last digits, whatever the kernels do.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.ops.enter_fire import enter_fire_reference
from ripe_mambaspike.ops.mamba_inner import InnerWeights, mamba_inner_reference
from ripe_mambaspike.ops.membrane_attention import AttentionWeights, attend_reference
from ripe_mambaspike.ops.norm_fire import Neuron, norm_fire_reference
from ripe_mambaspike.ops.operator import nothing_like
from ripe_mambaspike.ops.patch_moments import patch_moments_reference
from ripe_mambaspike.ops.pooled_rates import pooled_rates_reference
from ripe_mambaspike.ops.row_norm import row_norm_reference
from ripe_mambaspike.ops.step_moments import step_moments_reference

Grads = tuple[Tensor | None, ...]


def norm_fire(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *tensors, relaxed, sharpness, keep_potential = arguments
    spikes, potential, operand = _fire(relaxed, sharpness)(x, *tensors)
    return _data(spikes, relaxed), potential if keep_potential else nothing_like(x), operand.clone()


def norm_fire_backward(x: Tensor, *arguments: Any) -> list[Tensor]:
    *tensors, grad_spikes, grad_potential, grad_operand, relaxed, sharpness = arguments
    return _gradients(_fire(relaxed, sharpness), (x, *tensors), (grad_spikes, grad_potential, grad_operand))


def step_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return step_moments_reference(x)


def step_moments_backward(x: Tensor, mean: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
    return _gradients(step_moments_reference, (x,), (grad_mean, grad_variance))[0]


def attend(potential: Tensor, spikes: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *tensors, keep_attention = arguments
    out, attention = _attend(potential, spikes.to(potential.dtype), *tensors)
    return out, attention if keep_attention else nothing_like(out)


def attend_backward(potential: Tensor, spikes: Tensor, *arguments: Any) -> list[Tensor]:
    *tensors, grad_out, grad_attention = arguments
    return _gradients(_attend, (potential, spikes.to(potential.dtype), *tensors), (grad_out, grad_attention))


def attend_fire(potential: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *attention_arguments, decay, rotation, drive, threshold, coefficient, relaxed, sharpness, keep = arguments
    out, attention = attend(potential, *attention_arguments, keep)
    neuron = (None, None, decay, rotation, drive, threshold, coefficient)
    spikes, _, operand = norm_fire(out, *neuron, relaxed, sharpness, False)
    return spikes, operand, attention


def pooled_rates(like: Tensor, spikes: list[Tensor], rows: int, columns: int) -> Tensor:
    return pooled_rates_reference([one.to(like.dtype) for one in spikes], (rows, columns)).contiguous()


def pooled_rates_backward(grad: Tensor, channels: list[int], heights: list[int], widths: list[int]) -> list[Tensor]:
    sizes = zip(heights, widths, channels, strict=True)
    spikes = [grad.new_zeros(*grad.shape[:2], *size) for size in sizes]
    grid = (grad.shape[2], grad.shape[3])
    return _gradients(lambda *s: (pooled_rates_reference(list(s), grid),), spikes, (grad,))


def mamba_inner(inputs: Tensor, *weights: Any) -> Tensor:
    return mamba_inner_reference(inputs, InnerWeights(*weights))


def mamba_inner_backward(inputs: Tensor, *arguments: Any) -> list[Tensor]:
    *weights, grad = arguments
    return _gradients(lambda x, *w: (mamba_inner_reference(x, InnerWeights(*w)),), (inputs, *weights), (grad,))


def enter_fire(x: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    entry_scale, entry_shift, filtered, kernel, scale, shift, *neuron, coefficient, relaxed, sharpness = arguments
    spikes, potential, operand = enter_fire_reference(
        x,
        (entry_scale, entry_shift),
        filtered,
        kernel,
        (scale, shift),
        Neuron(*neuron),
        coefficient,
        relaxed=relaxed,
        sharpness=sharpness,
    )
    return _data(spikes, relaxed).contiguous(), potential.contiguous(), operand.clone()


def row_norm(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return row_norm_reference(x, weight, bias, dtype)


def row_norm_backward(x: Tensor, weight: Tensor, grad: Tensor) -> list[Tensor]:
    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
        return (row_norm_reference(x, weight, bias, x.dtype),)

    return _gradients(norm, (x, weight, torch.zeros_like(weight)), (grad.to(x.dtype),))


def patch_moments(x: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    return patch_moments_reference(x, stride)


def patch_moments_backward(x: Tensor, grad_mean: Tensor, grad_second: Tensor, stride: int) -> Tensor:
    return _gradients(lambda t: patch_moments_reference(t, stride), (x,), (grad_mean, grad_second))[0]


def _fire(relaxed: bool, sharpness: float) -> Callable[..., tuple[Tensor, ...]]:
    def fire(x: Tensor, scale: Any, shift: Any, decay: Tensor, rotation: Any, gain: Tensor, v: Tensor, c: Any) -> Any:
        neuron = Neuron(decay, rotation, gain, v)
        return norm_fire_reference(x, scale, shift, neuron, c, relaxed=relaxed, sharpness=sharpness)

    return fire


def _attend(potential: Tensor, spikes: Tensor, features: Tensor, scale: Any, shift: Any, *weights: Tensor) -> Any:
    out, attention = attend_reference(potential, spikes, features, scale, shift, AttentionWeights(*weights))
    return out.contiguous(), attention.contiguous()


def _data(spikes: Tensor, relaxed: bool) -> Tensor:
    return spikes if relaxed else spikes.to(torch.uint8)


def _gradients(function: Callable[..., Any], inputs: Any, grads: Any) -> list[Tensor]:
    """Of every input, an empty tensor for None; outputs whose gradient is None do not count."""
    with ThreadPoolExecutor(1) as apart:  # inside an operator autograd is off; a thread of its own has it
        return apart.submit(_differentiate, function, inputs, grads).result()


def _differentiate(function: Callable[..., Any], inputs: Any, grads: Any) -> list[Tensor]:
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    wanted = [(out, grad) for out, grad in zip(function(*leaves), grads, strict=True) if grad is not None]
    outputs, cotangents = zip(*wanted, strict=True)
    real = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(outputs, real, cotangents, materialize_grads=True, allow_unused=True))
    return [nothing_like(inputs[0]) if leaf is None else next(found) for leaf in leaves]
