"""Spikes of all scales as pooled firing rates on one grid: the mean of all steps so far, and its change.

    r_t = (s_1 + … + s_t) / t                            cumulative, for clips
    r_t = Σ_k keep^(t−k) s_k / Σ_k keep^(t−k)            leaky, for causal networks: older steps count less

Glossary: B samples, T steps, scale i with spikes [B, T, H_i, W_i, C_i], a grid of h × w cells. Cells are those of
adaptive average pooling (from ⌊i·H/h⌋ up to ⌈(i+1)·H/h⌉, they may overlap). `reference.py` has the rates themselves.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.operator import Operator
from ripe_mambaspike.ops.shapes import sum_dtype


class RateState(NamedTuple):
    """Of one scale."""

    count: Tensor  # type: ignore[assignment]  # spikes so far, averaged over the cell, decayed if leaky [B, h, w, C]
    weight: Tensor | None  # decayed count of the steps so far [B], float64; None for cumulative rates
    rows: Tensor | None = None  # as in `norm_fire.FireState`


class PooledRatesInputs(NamedTuple):
    spikes: list[Tensor]
    grad_proxies: list[Tensor]
    rows: int
    columns: int
    counts: list[Tensor]  # the initial state: a count of each scale, or none
    first_step: Tensor | None  # steps before these, of every sample [B] int64
    output_final_state: bool
    state_rows: Tensor | None = None  # of the counts, one a sample: they are then updated in place, by C++ alone


class PooledRatesBackwardInputs(NamedTuple):
    grad: Tensor  # [B, T, h, w, 2 ΣC_i]
    channels: list[int]
    heights: list[int]
    widths: list[int]


def pooled_rates(
    spikes: list[Tensor],
    grad_proxies: list[Tensor],
    grid: tuple[int, int],
    *,
    keep: float | None = None,
    first_step: int | Tensor = 0,
    initial_state: list[RateState] | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, list[RateState] | None]:
    """Rates and their changes of every scale on the grid: [B, T, H_i, W_i, C_i] → [B, T, h, w, 2 ΣC_i].

    Channels come scale by scale, the rates of a scale before its changes; in the proxies' precision, summed in float32.
    `keep` makes the rates leaky. `first_step`: steps that the state has seen, an int or one per sample [B].
    """
    rows = initial_state[0].rows if initial_state else None
    if keep is not None:
        if rows is not None:
            raise InputError.expected("state_rows", "none with leaky rates", "some")
        return _leaky(spikes, grad_proxies, grid, keep, initial_state, output_final_state)
    counts = [] if initial_state is None else [one.count for one in initial_state]
    steps = None
    if initial_state is not None:
        given = torch.as_tensor(first_step, device=spikes[0].device)
        steps = given.expand(len(spikes[0])).contiguous()
    inputs = PooledRatesInputs(spikes, grad_proxies, *grid, counts, steps, output_final_state, rows)
    rates, finals = POOLED_RATES(inputs)
    return rates, [RateState(one, None) for one in finals] if output_final_state else None


def _leaky(
    spikes: list[Tensor],
    grad_proxies: list[Tensor],
    grid: tuple[int, int],
    keep: float,
    initial_state: list[RateState] | None,
    output_final_state: bool,
) -> tuple[Tensor, list[RateState] | None]:
    """Leaky rates: the operator pools each step on its own, and plain PyTorch averages over time.

    The pooled maps are small.
    """
    from ripe_mambaspike.ops.pooled_rates.reference import leaky_rates

    steps, proxies = ([one.flatten(0, 1).unsqueeze(1) for one in group] for group in (spikes, grad_proxies))
    pooled = POOLED_RATES(PooledRatesInputs(steps, proxies, *grid, [], None, False))[0].squeeze(1)
    pooled = pooled.unflatten(0, spikes[0].shape[:2])
    parts, states = [], []
    given: list[RateState | None] = [*initial_state] if initial_state else [None] * len(spikes)
    for part, one in zip(pooled.split([2 * scale.shape[-1] for scale in spikes], -1), given, strict=True):
        now = part.chunk(2, -1)[0]  # for a single step, the change equals the rate
        rates, state = leaky_rates(now if now.dtype == torch.float64 else now.float(), keep, one, dim=-1)
        parts.append(rates)
        states.append(state)
    return torch.cat(parts, -1).to(pooled.dtype), states if output_final_state else None


def empty_pooled_rates(i: PooledRatesInputs) -> tuple[Tensor, list[Tensor]]:
    """All outputs, uninitialized."""
    like = i.grad_proxies[0]
    shape = (*i.spikes[0].shape[:2], i.rows, i.columns)
    rates = like.new_empty(*shape, 2 * sum(one.shape[-1] for one in i.spikes))
    grid = (shape[0], i.rows, i.columns)
    counts = [like.new_empty((*grid, one.shape[-1]), dtype=sum_dtype(like)) for one in i.spikes]
    return rates, counts if i.output_final_state else []


def _context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    shapes = [one.shape for one in inputs[0]]
    ctx.sizes = [[shape[i] for shape in shapes] for i in (4, 2, 3)]


def _gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    grads = POOLED_RATES_BACKWARD(PooledRatesBackwardInputs(grad.contiguous(), *ctx.sizes))
    return [None] * len(grads), grads, None, None, [], None, None, None


POOLED_RATES = Operator("pooled_rates", PooledRatesInputs, ("rates", "counts[]"), empty_pooled_rates)
POOLED_RATES.registered.register_autograd(_gradient, setup_context=_context)
POOLED_RATES_BACKWARD = Operator(
    "pooled_rates_backward",
    PooledRatesBackwardInputs,
    ("grads[]",),
    lambda i: [
        i.grad.new_empty(*i.grad.shape[:2], *size) for size in zip(i.heights, i.widths, i.channels, strict=True)
    ],
)
