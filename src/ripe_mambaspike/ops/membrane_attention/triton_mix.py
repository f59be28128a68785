# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Sums over the positions of a step: G = φ(K)ᵀ S with S the previous spikes, and the mixture M that queries read.

The numerator φ(K)ᵀV is G W_Vᵀ: the values are never formed. Attention is a mean of the values, close to their plain
mean c = W_V r (r: the spikes' rates), so the mixture is kept without it: M = (G − k rᵀ) W_Vᵀ with k = Σφ(K), and

    A = c + (φ(Q) M − ε c) / (φ(Q)·k + ε).

Only the difference from the mean is rounded then; the same holds for the gradients, which are differences.
While G is summed the rates are not known yet: in float32 their estimate from the first positions is subtracted, so that
what is summed is already a difference, and the remainder is subtracted at the end. In bfloat16 nothing is subtracted,
and the tensor cores also sum over positions, which avoids moving data between threads.
Without a state the first step has no spikes before it: the T − 1 *later* steps are computed, [B·(T − 1), ...].
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention.triton_plan import (
    FLOAT32_PRODUCTS,
    MAX_PARTIALS,
    AttentionInputs,
    TilePlan,
    plan_tiles,
)
from ripe_mambaspike.ops.membrane_attention.triton_tiles import (
    load_matrix,
    load_row,
    load_tile,
    positive,
    spikes_like,
    store_matrix,
    store_row,
)
from ripe_mambaspike.ops.triton_launch import Synchronous, ceil_div

BUSY_STEPS = 64  # with at least as many, small programs fill the GPU
BUSY_PROGRAMS = 1920
ESTIMATED_FROM = tl.constexpr(32)  # positions of which the rates are estimated


class KeyMixture(NamedTuple):
    """Of every later step."""

    mixed: Tensor  # M [pairs, C, C], the activations' precision
    sums: Tensor  # [pairs, 3, C] float32: k, r and c
    gathered: Tensor  # G [pairs, C, C] float32; empty unless requested


def mixture(given: AttentionInputs, keep: bool = False) -> KeyMixture:
    """G (if requested), and M with its sums, of every step that has previous spikes."""
    potential, spikes, key, value, later = given.potential, given.spikes, given.key, given.value, given.mixtures
    _, steps, positions, channels = potential.shape
    cut = gathering(later, potential)
    mixed = potential.new_empty(later, channels, channels)
    sums = potential.new_empty(later, 3, channels, dtype=torch.float32)
    gathered = sums.new_empty((later, channels, channels) if keep else 0)
    if later == 0:
        return KeyMixture(mixed, sums, gathered)
    single = cut.chunks == 1
    partial = gathered if single else sums.new_empty(later, cut.chunks, channels, channels)
    partial_sums = sums if single else sums.new_empty(later, cut.chunks, 2, channels)
    modes = {"PRECISION": FLOAT32_PRODUCTS, "SHIFTED": given.shifted, "KEEP": keep}
    side = 1 if potential.dtype == torch.float32 else 16
    arguments = (potential, spikes, key, value, partial, partial_sums, mixed, steps, positions)
    sizes = cut.sizes(channels)
    _gather[later, cut.chunks](*arguments, SINGLE=single, SIDE=side, num_stages=cut.stages, **sizes, **modes)
    if not single:
        rows = 16 if later < 128 else min(cut.width, 64)
        arguments = (spikes, partial, partial_sums, value, mixed, sums, gathered, steps, positions)
        sizes = {"C": channels, "WIDTH": cut.width, "CHUNKS": cut.chunks, "ROWS": rows, "num_warps": cut.warps}
        _mix[later, ceil_div(channels, rows)](*arguments, **sizes, **modes)
    return KeyMixture(mixed, sums, gathered)


def gathering(later: int, x: Tensor) -> TilePlan:
    """How _gather splits `later` steps of x, tuned by measurement: with many steps, small programs of few warps."""
    cut = plan_tiles(later, x, least=32, most=MAX_PARTIALS, tile=8192)
    if x.dtype == torch.float32 or cut.width > 64 or later < BUSY_STEPS:
        return cut._replace(stages=1 if cut.width <= 32 else cut.stages)
    blocks = ceil_div(x.shape[2], 64)
    span = ceil_div(blocks, min(blocks, ceil_div(BUSY_PROGRAMS, later)))
    narrow = cut.width <= 32
    return TilePlan(64, ceil_div(blocks, span), span, cut.width, 1 if narrow else 2, 1 if narrow else 2)


@triton.jit
def _without_mean(gathered, key_sum, excess, weight, PRECISION: tl.constexpr):
    """(G − k rᵀ) W_Vᵀ for some rows of G, and by how much r exceeds the offset that was subtracted there."""
    centered = gathered - key_sum[:, None] * excess[None, :]
    return tl.dot(centered.to(weight.dtype), tl.trans(weight), input_precision=PRECISION)


@triton.jit
def _mean_value(rates, weight):
    return tl.sum(weight.to(tl.float32) * rates[None, :], 1)


@triton.jit
def _spike_offset(before, like, positions, channels, C: tl.constexpr):
    """The offset subtracted from spikes: the rates of the first positions; zero in bfloat16, whose sums are coarser."""
    if like.dtype.element_ty == tl.float32:
        rows = tl.arange(0, ESTIMATED_FROM)
        spikes = load_tile(before, rows, positions, channels, C).to(tl.float32)
        offset = tl.div_rn(tl.sum(spikes, 1), tl.minimum(positions, ESTIMATED_FROM) * 1.0)
    else:
        offset = tl.zeros(channels.shape, tl.float32)
    return offset


@triton.jit
def _step_and_source(later, steps, SHIFTED: tl.constexpr):
    """(the step that a mixture belongs to, the step in memory that holds its previous spikes)."""
    if SHIFTED:
        pair = later
        source = later
    else:
        pair = later + later // (steps - 1) + 1
        source = pair - 1
    return pair, source


@Synchronous
@triton.jit
def _gather(
    potential, spikes, key, value, gathered, sums, mixed, steps, positions,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, SINGLE: tl.constexpr,
    KEEP: tl.constexpr, SIDE: tl.constexpr, SHIFTED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Partial G, k and Σs of a chunk of a later step's positions; M if it is the only chunk."""
    later = tl.program_id(0)
    chunk = tl.program_id(1)
    pair, source = _step_and_source(later, steps, SHIFTED)
    channels = tl.arange(0, WIDTH)
    here = potential + pair.to(tl.int64) * positions * C
    before = spikes + source.to(tl.int64) * positions * C
    weight = load_matrix(key, channels, channels, C)
    offset = _spike_offset(before, potential, positions, channels, C)
    total = tl.zeros([WIDTH, WIDTH], tl.float32)
    key_sums = tl.zeros([WIDTH, SIDE], tl.float32)
    spike_sums = tl.zeros([SIDE, WIDTH], tl.float32)
    for index in range(SPAN):
        rows = (chunk * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
        u = load_tile(here, rows, positions, channels, C)
        s = spikes_like(load_tile(before, rows, positions, channels, C), u)
        features = positive(tl.dot(weight, u, input_precision=PRECISION))
        if SIDE == 1:
            features = tl.where((rows < positions)[None, :], features, 0.0)
            key_sums += tl.sum(features, 1)[:, None]
            spike_sums += tl.sum(s, 1)[None, :]
            total = tl.dot(features, tl.trans(s - offset[:, None]), total, input_precision=PRECISION)
        else:  # tensor cores sum over positions as well, so no data moves between threads
            features = features.to(u.dtype)
            met = tl.where(rows < positions, 1.0, 0.0).to(u.dtype)
            key_sums = tl.dot(features, tl.broadcast_to(met[:, None], [BLOCK, SIDE]), key_sums)
            spike_sums = tl.dot(tl.full([SIDE, BLOCK], 1.0, u.dtype), tl.trans(s), spike_sums)
            total = tl.dot(features, tl.trans(s), total)
    key_sum = tl.sum(key_sums, 1) / SIDE
    spike_sum = tl.sum(spike_sums, 0) / SIDE
    if SINGLE:
        rates = tl.div_rn(spike_sum, positions * 1.0)
        weight = load_matrix(value, channels, channels, C)
        product = _without_mean(total, key_sum, rates - offset, weight, PRECISION)
        store_matrix(mixed + later.to(tl.int64) * C * C, channels, channels, product, C)
        store_row(sums + later * 3 * C, channels, key_sum, C)
        store_row(sums + (later * 3 + 1) * C, channels, rates, C)
        store_row(sums + (later * 3 + 2) * C, channels, _mean_value(rates, weight), C)
    else:
        slot = later.to(tl.int64) * tl.num_programs(1) + chunk
        store_row(sums + slot * 2 * C, channels, key_sum, C)
        store_row(sums + (slot * 2 + 1) * C, channels, spike_sum, C)
    if SINGLE and KEEP:
        total += key_sum[:, None] * offset[None, :]
    if KEEP or not SINGLE:
        slot = later.to(tl.int64) * tl.num_programs(1) + chunk
        store_matrix(gathered + slot * C * C, channels, channels, total, C)


@Synchronous
@triton.jit
def _mix(
    spikes, partial, partial_sums, value, mixed, sums, gathered, steps, positions,
    C: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
    KEEP: tl.constexpr, SHIFTED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some rows of a later step's M from all chunks' partial sums."""
    later = tl.program_id(0)
    channels = tl.arange(0, WIDTH)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    key_sum = tl.zeros([ROWS], tl.float32)
    spike_sum = tl.zeros([WIDTH], tl.float32)
    for chunk in range(CHUNKS):
        slot = later.to(tl.int64) * CHUNKS + chunk
        total += load_matrix(partial + slot * C * C, rows, channels, C)
        key_sum += load_row(partial_sums + slot * 2 * C, rows, C)
        spike_sum += load_row(partial_sums + (slot * 2 + 1) * C, channels, C)
    _, source = _step_and_source(later, steps, SHIFTED)
    offset = _spike_offset(spikes + source.to(tl.int64) * positions * C, mixed, positions, channels, C)
    rates = tl.div_rn(spike_sum, positions * 1.0)
    weight = load_matrix(value, channels, channels, C)
    product = _without_mean(total, key_sum, rates - offset, weight, PRECISION)
    store_matrix(mixed + later.to(tl.int64) * C * C, rows, channels, product, C)
    store_row(sums + later * 3 * C, rows, key_sum, C)
    if tl.program_id(1) == 0:
        store_row(sums + (later * 3 + 1) * C, channels, rates, C)
        store_row(sums + (later * 3 + 2) * C, channels, _mean_value(rates, weight), C)
    if KEEP:
        total += key_sum[:, None] * offset[None, :]
        store_matrix(gathered + later.to(tl.int64) * C * C, rows, channels, total, C)
