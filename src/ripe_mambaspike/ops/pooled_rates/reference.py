"""Firing rates so far and their changes in plain PyTorch, and the pooled operator."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.graph_nodes import graph_node, keeps_node
from ripe_mambaspike.ops.operator import differentiate, spikes_as
from ripe_mambaspike.ops.pooled_rates import PooledRatesBackwardInputs, PooledRatesInputs, RateState
from ripe_mambaspike.ops.shapes import at_least_float32, like_input, packed


def pooled_rates(i: PooledRatesInputs) -> tuple[Tensor, list[Tensor]]:
    """(rates [B, T, h, w, 2 ΣC_i], final counts)."""
    first = 0 if i.first_step is None else i.first_step
    states: list[Tensor | None] = [*i.counts] or [None] * len(i.spikes)
    parts, counts = [], []
    for spikes, proxy, count in zip(i.spikes, i.grad_proxies, states, strict=True):
        numbers = spikes_as(spikes, proxy)
        images = numbers.permute(0, 1, 4, 2, 3).flatten(0, 1)
        pooled = F.adaptive_avg_pool2d(images, (i.rows, i.columns)).unflatten(0, spikes.shape[:2])
        given = None if count is None else count.permute(0, 3, 1, 2)
        rates, final = cumulative_rates(pooled, given, first_step=first)
        parts.append(rates)
        counts.append(final.permute(0, 2, 3, 1))
    return torch.cat(parts, 2).permute(0, 1, 3, 4, 2), counts if i.output_final_state else []


def pooled_rates_backward(i: PooledRatesBackwardInputs) -> list[Tensor]:
    sizes = zip(i.heights, i.widths, i.channels, strict=True)
    spikes = [i.grad.new_zeros(*i.grad.shape[:2], *size) for size in sizes]
    rows, columns = i.grad.shape[2:4]

    def rates(*proxies: Tensor) -> Tensor:
        return pooled_rates(PooledRatesInputs(spikes, [*proxies], rows, columns, [], None, False))[0]

    return differentiate(rates, spikes, (i.grad,))


def pool_to_grid(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Means over the cells of a coarser grid, as adaptive pooling divides it: [B', C, H, W] → [B', C, h, w]."""
    height, width = x.shape[-2:]
    if torch.compiler.is_exporting():
        from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import

        if all(statically_known_true(one == other) for one, other in zip((height, width), grid, strict=True)):
            return x
        return pool_node(x, *grid) if keeps_node("pool") else _pool_by_products(x, grid)
    if height % grid[0] == 0 and width % grid[1] == 0:  # the same cells by a faster function
        return F.avg_pool2d(x, (height // grid[0], width // grid[1]))
    return F.adaptive_avg_pool2d(x, grid)


@graph_node("pool", lambda x, height, width: x.new_empty(*x.shape[:2], height, width))
def pool_node(x: Tensor, height: int, width: int) -> Tensor:
    """`pool_to_grid` to another size."""
    return pool_to_grid(x, (height, width))


def _pool_by_products(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """The same for symbolic sizes: two products with matrices that average over the cells of a side."""
    images, channels, height, width = x.shape
    rows, columns = _cells(height, grid[0], x), _cells(width, grid[1], x)
    narrow = (x.flatten(0, 2) @ columns.transpose(0, 1)).reshape(images * channels, height, grid[1])
    low = packed(narrow.transpose(1, 2)).flatten(0, 1) @ rows.transpose(0, 1)
    return packed(low.reshape(images, channels, grid[1], grid[0]).transpose(2, 3))


def _cells(size: int, count: int, like: Tensor) -> Tensor:
    """The weight of each of `size` pixels in each of `count` cells [count, size]: 1/n for the n pixels of a cell."""
    cell = torch.arange(count, device=like.device)
    start = torch.div(cell * size, count, rounding_mode="trunc")
    stop = torch.div((cell + 1) * size + (count - 1), count, rounding_mode="trunc")
    pixel = torch.arange(size, device=like.device)
    inside = (pixel >= start.unsqueeze(1)) & (pixel < stop.unsqueeze(1))
    return inside.to(like.dtype) / (stop - start).to(like.dtype).unsqueeze(1)


def cumulative_rates(
    spikes: Tensor, initial_state: Tensor | None = None, *, first_step: int | Tensor = 0
) -> tuple[Tensor, Tensor]:
    """`r_t = (s_1 + … + s_t)/t` and `δ_t = r_t − r_{t−1}`, stacked: [B, T, C, ...] → [B, T, 2C, ...].

    The state is the count of the spikes so far [B, C, ...]; `first_step` steps came before, an int or one a sample [B].
    """
    if keeps_node("rates") and initial_state is None and isinstance(first_step, int) and first_step == 0:
        rates, total = rates_node(spikes)
        return rates, total
    counts = at_least_float32(spikes).cumsum(1)
    steps, trailing = spikes.shape[1], [1] * (spikes.ndim - 2)
    before = torch.zeros_like(counts[:, :1])
    first = first_step if isinstance(first_step, Tensor) else torch.tensor(first_step, device=spikes.device)
    first = first.to(counts.dtype).reshape(-1, 1, *trailing)
    if initial_state is not None:
        counts = counts + initial_state.unsqueeze(1)
        before = initial_state.unsqueeze(1) / first.clamp(min=1)  # zeros if no step came before
    time = first + torch.arange(1, steps + 1, device=spikes.device, dtype=counts.dtype).reshape(-1, *trailing)
    rate = counts / time
    change = rate - torch.cat((before, rate[:, :-1]), 1)
    return like_input(torch.cat((rate, change), 2), spikes.dtype), counts[:, -1]


def _empty_rates(spikes: Tensor) -> tuple[Tensor, Tensor]:
    shape = list(spikes.shape)
    shape[2] *= 2
    return spikes.new_empty(shape), torch.empty_like(at_least_float32(spikes[:, 0]))


@graph_node("rates", _empty_rates)
def rates_node(spikes: Tensor) -> tuple[Tensor, Tensor]:
    """`cumulative_rates` from the first step on."""
    rates, total = cumulative_rates(spikes)
    return rates, total.clone()


def leaky_rates(
    spikes: Tensor, keep: float, initial_state: RateState | None = None, *, dim: int = 2
) -> tuple[Tensor, RateState]:
    """`r_t = Σ_k keep^(t−k) s_k / Σ_k keep^(t−k)` and `δ_t = r_t − r_{t−1}`, stacked in `dim`: [B, T, C, ...] → 2C.

    The weighted mean of all steps so far, older ones counting less. The weights always sum to one, so the first rates
    are not biased; keep = 1 is `cumulative_rates`. Step by step, so that pieces are bit-identical to the whole.
    """
    wide = at_least_float32(spikes)
    if initial_state is None or initial_state.weight is None:
        total, weight = torch.zeros_like(wide[:, 0]), wide.new_zeros(wide.shape[0], dtype=torch.float64)
    else:
        total, weight = initial_state.count, initial_state.weight
    trailing = [1] * (total.ndim - 1)
    rate = total / weight.to(total.dtype).clamp(min=1).reshape(-1, *trailing)  # the weight is at least 1 after a step
    rates, changes = [], []
    for now in wide.unbind(1):
        before = rate
        total, weight = torch.add(now, total, alpha=keep), keep * weight + 1
        rate = total / weight.to(total.dtype).reshape(-1, *trailing)
        rates.append(rate)
        changes.append(rate - before)
    both = torch.cat((torch.stack(rates, 1), torch.stack(changes, 1)), dim)
    return like_input(both, spikes.dtype), RateState(total, weight)


def windowed_rate(spikes: Tensor, window: int) -> Tensor:
    """The baseline's rate: mean over the last `window` steps, or all if there are fewer. [B, T, ...] → same."""
    counts = at_least_float32(spikes).cumsum(1)
    older = torch.cat((torch.zeros_like(counts[:, :window]), counts[:, :-window]), 1)[:, : counts.shape[1]]
    length = torch.arange(1, spikes.shape[1] + 1, device=spikes.device, dtype=counts.dtype).clamp(max=window)
    return like_input((counts - older) / length.reshape(-1, *([1] * (spikes.ndim - 2))), spikes.dtype)
