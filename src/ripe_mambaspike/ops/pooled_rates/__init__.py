"""Spikes of all scales as pooled cumulative rates on one grid."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.backend import run
from ripe_mambaspike.ops.pooled_rates.reference import cumulative_rates


def pooled_rates(spikes: list[Tensor], carriers: list[Tensor], grid: tuple[int, int]) -> Tensor:
    """Rates and their changes of every scale on the grid: [B, T, H_i, W_i, C_i] → [B, T, h, w, 2 ΣC_i].

    Channels come scale by scale, the rates of a scale before its changes. Cells are those of adaptive average pooling
    (from ⌊i·H/h⌋ up to ⌈(i+1)·H/h⌉, they may overlap). In the carriers' precision, summed in float32.
    """
    out: Tensor = torch.ops.ripe.pooled_rates(spikes, carriers, *grid)
    return out


def pooled_rates_reference(spikes: list[Tensor], grid: tuple[int, int]) -> Tensor:
    """The same in plain PyTorch, spikes as numbers."""
    parts = []
    for one in spikes:
        pooled = F.adaptive_avg_pool2d(one.permute(0, 1, 4, 2, 3).flatten(0, 1), grid).unflatten(0, one.shape[:2])
        parts.append(cumulative_rates(pooled)[0])
    return torch.cat(parts, 2).permute(0, 1, 3, 4, 2)


@torch.library.custom_op("ripe::pooled_rates", mutates_args=())
def _pooled_rates(spikes: list[Tensor], carriers: list[Tensor], rows: int, columns: int) -> Tensor:
    out: Tensor = run("pooled_rates", "pooled_rates", carriers[0], spikes, rows, columns)
    return out


@_pooled_rates.register_fake
def _(spikes: list[Tensor], carriers: list[Tensor], rows: int, columns: int) -> Tensor:
    channels = 2 * sum(one.shape[-1] for one in spikes)
    return carriers[0].new_empty(*spikes[0].shape[:2], rows, columns, channels)


@torch.library.custom_op("ripe::pooled_rates_backward", mutates_args=())
def _pooled_rates_backward(grad: Tensor, channels: list[int], heights: list[int], widths: list[int]) -> list[Tensor]:
    return list(run("pooled_rates", "pooled_rates_backward", grad, channels, heights, widths))


@_pooled_rates_backward.register_fake
def _(grad: Tensor, channels: list[int], heights: list[int], widths: list[int]) -> list[Tensor]:
    sizes = zip(heights, widths, channels, strict=True)
    return [grad.new_empty(*grad.shape[:2], *size) for size in sizes]


def _context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    shapes = [one.shape for one in inputs[0]]
    ctx.sizes = [[shape[i] for shape in shapes] for i in (4, 2, 3)]


def _gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grads = torch.ops.ripe.pooled_rates_backward(grad.contiguous(), *ctx.sizes)
    return [None] * len(grads), grads, None, None


_pooled_rates.register_autograd(_gradient, setup_context=_context)
