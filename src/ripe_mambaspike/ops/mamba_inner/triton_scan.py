"""Calls of the scan's kernels, forwards and backwards."""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.ops.mamba_inner.triton_scan_backward import costates_kernel, gradients_kernel
from ripe_mambaspike.ops.mamba_inner.triton_scan_forward import chunk_starts_kernel, outputs_kernel, walk_kernel
from ripe_mambaspike.ops.mamba_inner.triton_scan_plan import (
    LANES,
    ChunkPlan,
    Sizes,
    backward_tile,
    forward_held,
    forward_lanes,
    forward_tile,
    samples_at_once,
)
from ripe_mambaspike.ops.triton_launch import ceil_div, next_power_of_2

CELLS_PER_PROGRAM = 128  # of states [N, E], in chunk_starts_kernel
WARPS = 1  # one warp holds all states of its channels, so that their sum stays within it


class ScanInputs(NamedTuple):
    """The inputs of the scan, forward and backward."""

    u: Tensor  # [D, B, L, E]
    proj: Tensor  # [D, B, L, R + 2N]
    inputs: Tensor  # [B, L, D, 2E]; the gate half
    dt_proj: Tensor  # [D, E, R]
    dt_bias: Tensor  # [D, E]
    decay: Tensor  # [D, E, N]
    skip: Tensor  # [D, E]


class ScanGradients(NamedTuple):
    u: Tensor  # without the part that comes through proj
    proj: Tensor
    dt_proj: Tensor
    dt_bias: Tensor
    decay: Tensor
    skip: Tensor


def groups_of(sizes: Sizes) -> int:
    """Channels per thread in the backward pass: two if there are many, so that sums over them start within a thread."""
    return 1 if sizes.channels < 8 * LANES else 2


def scan(
    given: ScanInputs,
    sizes: Sizes,
    plan: ChunkPlan,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
) -> Tensor:
    """y·silu(gate) [B, L, D, E]. States [D·B, E, N] float32: the initial one is read, the final one filled."""
    lanes = forward_lanes(sizes)
    tile = forward_tile(sizes.states, lanes, forward_held(sizes, plan))
    out = given.inputs.new_empty(sizes.batch, sizes.length, sizes.directions, sizes.channels)
    starts = _forward_starts(given, sizes, plan, lanes, tile, initial_state)[0] if plan.chunks > 1 else out
    outputs_kernel[(sizes.blocks(lanes=lanes) * plan.chunks, sizes.sequences)](
        *given,
        *(starts, out, sizes.batch, sizes.length, plan.chunks),
        D=sizes.directions,
        E=sizes.channels,
        CHUNK=plan.chunk,
        FROM_START=plan.chunks > 1,
        EVEN=sizes.length % plan.chunk == 0 and sizes.channels % lanes == 0,
        R=sizes.rank,
        N=sizes.states,
        T=tile,
        LANES=lanes,
        initial_ptr=None if plan.chunks > 1 else initial_state,
        final_ptr=final_state,
        num_warps=WARPS,
    )
    return out


def scan_backward(given: ScanInputs, grad: Tensor, grad_inputs: Tensor, sizes: Sizes, plan: ChunkPlan) -> ScanGradients:
    """Fill the gate half of grad_inputs; all other gradients. grad [B, L, D, E]."""
    groups = groups_of(sizes)
    blocks, many = sizes.blocks(groups), plan.chunks > 1
    grad_u = torch.empty_like(given.u)
    parts = given.decay.new_empty(blocks, *given.proj.shape)
    sums = given.decay.new_empty(
        sizes.directions, sizes.batch, plan.chunks, sizes.states + 2 + sizes.rank, sizes.channels
    )
    starts, steps = _forward_starts(given, sizes, plan, LANES, forward_tile(sizes.states)) if many else (sums, sums)
    ends = _backward_ends(given, grad, steps, sizes, plan) if many else sums
    tile = backward_tile(sizes.states)
    tiles = ceil_div(sizes.length, tile)
    at_once = samples_at_once(sizes)
    states = given.decay.new_empty(sizes.directions * at_once, tiles, sizes.states, sizes.channels)
    for first in range(0, sizes.batch, at_once):
        samples = min(at_once, sizes.batch - first)
        _scan_chunks(given, starts, states, sums, sizes, plan, tile, (first, samples), tiles)
        gradients_kernel[(blocks * plan.chunks, sizes.directions * samples)](
            *(given.u, given.proj, given.inputs, grad, *given[3:]),
            *(states, ends, grad_inputs, grad_u, parts, sums, first, samples),
            *(sizes.batch, sizes.length, sizes.directions, sizes.channels, plan.chunks, tiles),
            CHUNK=plan.chunk,
            FROM_END=many,
            R=sizes.rank,
            RANKS=next_power_of_2(sizes.rank),
            N=sizes.states,
            T=tile,
            G=groups,
            LANES=LANES,
            num_warps=WARPS,
        )
    total = torch.sum(sums, (1, 2)).transpose(1, 2)  # [D, E, N + 2 + R]
    grad_decay, grad_skip, grad_bias, grad_weight = total.split((sizes.states, 1, 1, sizes.rank), 2)
    return ScanGradients(
        grad_u,
        (parts[0] if blocks == 1 else torch.sum(parts, 0)).to(given.proj.dtype),
        grad_weight.clone(memory_format=torch.contiguous_format),
        grad_bias.squeeze(2).clone(memory_format=torch.contiguous_format),
        grad_decay.clone(memory_format=torch.contiguous_format),
        grad_skip.squeeze(2).clone(memory_format=torch.contiguous_format),
    )


def _forward_starts(
    given: ScanInputs, sizes: Sizes, plan: ChunkPlan, lanes: int, tile: int, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Every chunk's initial state [D·B, M, N, E], and the sum of its steps [D·B, M, E]."""
    leaves = given.decay.new_empty(sizes.sequences, plan.chunks, sizes.states, sizes.channels)
    sums = given.decay.new_empty(sizes.sequences, plan.chunks, sizes.channels)
    _scan_chunks(given, None, leaves, sums, sizes, plan, tile, (0, sizes.batch), lanes=lanes)
    return _chunk_starts(leaves, sums, given.decay, sizes, plan, initial_state), sums


def _backward_ends(given: ScanInputs, grad: Tensor, sums: Tensor, sizes: Sizes, plan: ChunkPlan) -> Tensor:
    """The gradient of every chunk's final state, from the chunks after it [D·B, M, N, E]."""
    leaves = given.decay.new_empty(sizes.sequences, plan.chunks, sizes.states, sizes.channels)
    costates_kernel[(sizes.blocks() * plan.chunks, sizes.sequences)](
        *(given.proj, given.inputs, grad, *given[3:6], leaves),
        *(sizes.batch, sizes.length, sizes.directions, sizes.channels, plan.chunks),
        CHUNK=plan.chunk,
        R=sizes.rank,
        N=sizes.states,
        T=forward_tile(sizes.states),
        LANES=LANES,
        num_warps=WARPS,
    )
    return _chunk_starts(leaves, sums, given.decay, sizes, plan, reverse=True)


def _scan_chunks(
    given: ScanInputs,
    starts: Tensor | None,
    states: Tensor,
    sums: Tensor,
    sizes: Sizes,
    plan: ChunkPlan,
    tile: int,
    samples: tuple[int, int],
    tiles: int = 0,
    lanes: int = LANES,
) -> None:
    """Scan all chunks of some samples (first, count); with `tiles` the state before every tile is stored."""
    walk_kernel[(sizes.blocks(lanes=lanes) * plan.chunks, sizes.directions * samples[1])](
        *(given.u, given.proj, *given[3:6], sums if starts is None else starts, states, sums),
        *(*samples, sizes.batch, sizes.length, sizes.channels, plan.chunks, tiles),
        CHUNK=plan.chunk,
        FROM_START=starts is not None and plan.chunks > 1,
        KEEP=tiles > 0,
        R=sizes.rank,
        N=sizes.states,
        T=tile,
        LANES=lanes,
        num_warps=WARPS,
    )


def _chunk_starts(
    leaves: Tensor,
    sums: Tensor,
    decay: Tensor,
    sizes: Sizes,
    plan: ChunkPlan,
    initial_state: Tensor | None = None,
    *,
    reverse: bool = False,
) -> Tensor:
    starts = torch.empty_like(leaves)
    chunk_starts_kernel[(ceil_div(sizes.states * sizes.channels, CELLS_PER_PROGRAM), sizes.sequences)](
        *(leaves, sums, decay, starts, sizes.batch, sizes.channels),
        CHUNKS=plan.chunks,
        REVERSE=reverse,
        N=sizes.states,
        PREFETCH=min(16, next_power_of_2(plan.chunks)),
        BLOCK=CELLS_PER_PROGRAM,
        initial_ptr=initial_state,
        num_warps=4,
    )
    return starts
