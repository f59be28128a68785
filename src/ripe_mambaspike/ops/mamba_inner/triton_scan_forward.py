# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"
"""The forward selective scan: from the tokens of a chunk to its states and outputs.

Chunks are first scanned from zero (`walk_kernel`); `chunk_starts_kernel` then computes every chunk's initial state, and
`outputs_kernel` scans all chunks again from there. A sequence of one chunk needs only the last kernel, half the work.
So a small batch first gets programs of fewer channels, and only then more chunks (`triton_scan_plan.forward_lanes`).

Layout: u [D, B, L, E], proj [D, B, L, R + 2N] (step, B, C), inputs [B, L, D, 2E], states [D·B, M, N, E] for M chunks.
"""

import triton
import triton.language as tl

from ripe_mambaspike.ops.mamba_inner.triton_scan_parts import (
    LOG2_E,
    cells_of,
    channel_tile,
    channels_of,
    powers_of,
    quick_softplus,
    rates_of,
    row_of,
    silu,
    state_tile,
    step_logits,
    steps_of,
    token_of,
    with_row,
)
from ripe_mambaspike.ops.norm_fire.triton_step import initial


@triton.jit
def walk_kernel(
    u_ptr, proj_ptr, weight_ptr, bias_ptr, decay_ptr, starts_ptr, states_ptr, sums_ptr, first_sample, samples, batch,
    length, channels, chunks, tiles,
    CHUNK: tl.constexpr, FROM_START: tl.constexpr, KEEP: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
    T: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Scan one chunk. KEEP: store the state before every tile, states [D·samples, tiles, N, E].

    Otherwise store the chunk's final state, states [D·B, M, N, E], and the sum of its steps, sums [D·B, M, E].
    """
    part, block = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    direction, sample = tl.program_id(1) // samples, first_sample + tl.program_id(1) % samples
    sequence = (direction * batch + sample).to(tl.int64)
    channel = channels_of(block, 1, LANES)
    flat = block * LANES + tl.arange(0, LANES)
    known = flat < channels
    row_index = tl.arange(0, T)[:, None, None, None]
    grid = cells_of(channel, channels, N)
    known_grid = (channel < channels)[:, None, :]

    u_ptr += sequence * length * channels
    proj_ptr += sequence * length * (R + 2 * N)
    weight_ptr += direction * channels * R
    bias = tl.load(bias_ptr + direction * channels + channel, mask=channel < channels, other=0.0)
    rates = rates_of(decay_ptr + direction * channels * N, channel, channels, N)
    if FROM_START:
        state = tl.load(starts_ptr + (sequence * chunks + part) * N * channels + grid, mask=known_grid, other=0.0)
    else:
        state = tl.zeros([1, N, LANES], tl.float32)
    total = tl.zeros([T, 1, LANES], tl.float32)

    for offset in range(0, CHUNK, T):
        begin = part * CHUNK + offset
        if KEEP:
            row = (tl.program_id(1).to(tl.int64) * tiles + begin // T) * N * channels
            tl.store(states_ptr + row + grid, state, mask=known_grid & (begin < length))
        index = begin + tl.arange(0, T)
        met = index < length
        token = token_of(index, direction == 1, length)
        u = channel_tile(u_ptr, token, channels, channel, met, channels)
        into = state_tile(proj_ptr + R, token, R + 2 * N, met, N)
        logits = step_logits(proj_ptr, weight_ptr, bias, token, channel, met, channels, R, N)
        step = steps_of(logits, channel, met, channels)
        total += step
        power = powers_of(step, rates)
        drive = into[:, None, :, None] * (step * u)[:, :, None, :]
        for k in tl.static_range(T):
            state = row_of(power, row_index, k) * state + row_of(drive, row_index, k)
    if not KEEP:
        tl.store(states_ptr + (sequence * chunks + part) * N * channels + grid, state, mask=known_grid)
        sums = tl.sum(tl.sum(total, 0), 0)
        tl.store(sums_ptr + (sequence * chunks + part) * channels + flat, sums, mask=known)


@triton.jit
def chunk_starts_kernel(
    leaves_ptr,
    sums_ptr,
    decay_ptr,
    starts_ptr,
    batch,
    channels,
    CHUNKS: tl.constexpr,
    REVERSE: tl.constexpr,
    N: tl.constexpr,
    PREFETCH: tl.constexpr,
    BLOCK: tl.constexpr,
    initial_ptr=None,  # the state before the first token [D·B, E, N]; None for zeros
):
    """Every chunk's initial state, starts [D·B, M, N, E], from the final states of scans from zero and their step sums.

    REVERSE goes from the last chunk to the first, for the co-states.
    """
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # state · E + channel
    known = cell < N * channels
    channel = cell % channels
    sequence = tl.program_id(1).to(tl.int64)
    direction = tl.program_id(1) // batch
    leaves_ptr += sequence * CHUNKS * N * channels
    starts_ptr += sequence * CHUNKS * N * channels
    sums_ptr += sequence * CHUNKS * channels
    rates = tl.load(decay_ptr + (direction * channels + channel) * N + cell // channels, mask=known, other=0.0)
    rates *= LOG2_E

    carried = initial(initial_ptr, sequence * channels * N + channel * N + cell // channels, known)
    for begin in range(0, CHUNKS, PREFETCH):
        leaves = ()
        sums = ()
        for k in tl.static_range(PREFETCH):  # issue all loads before the first is used
            part = token_of(begin + k, REVERSE, CHUNKS)
            there = known & (begin + k < CHUNKS)
            leaves = leaves + (tl.load(leaves_ptr + part * N * channels + cell, mask=there, other=0.0),)
            sums = sums + (tl.load(sums_ptr + part * channels + channel, mask=there, other=0.0),)
        for k in tl.static_range(PREFETCH):
            part = token_of(begin + k, REVERSE, CHUNKS)
            there = known & (begin + k < CHUNKS)
            tl.store(starts_ptr + part * N * channels + cell, carried, mask=there)
            carried = tl.exp2(sums[k] * rates) * carried + leaves[k]


@triton.jit
def _read(u_ptr, proj_ptr, inputs_ptr, token, met, known, channel, D, E, R: tl.constexpr, N: tl.constexpr):
    """u and gate [T, 1, LANES], the step's R parts [T, 1, LANES] each, B and C [T, N] of some tokens.

    The parts are the same for every channel, but loaded for each: then the compiler distributes the steps over lanes
    instead of computing them in every lane.
    """
    there = met[:, None, None] & known[None]
    u = tl.load(u_ptr + token[:, None, None] * E + channel[None], mask=there, other=0.0).to(tl.float32)
    gate = tl.load(inputs_ptr + token[:, None, None] * (D * 2 * E) + channel[None], mask=there, other=0.0).to(
        tl.float32
    )
    parts = ()
    rows = tl.broadcast_to(token[:, None, None] * (R + 2 * N), u.shape)
    for rank in tl.static_range(R):
        parts = parts + (tl.load(proj_ptr + rows + rank, mask=there, other=0.0).to(tl.float32),)
    into = state_tile(proj_ptr + R, token, R + 2 * N, met, N)
    out_of = state_tile(proj_ptr + R + N, token, R + 2 * N, met, N)
    return u, gate, parts, into, out_of


@triton.jit
def _steps(parts, weights, bias, met, known, R: tl.constexpr):
    """The steps Δ [T, 1, LANES], zero where there is no token."""
    logits = parts[0] * weights[0][None] + bias[None]
    for rank in tl.static_range(1, R):
        logits += parts[rank] * weights[rank][None]
    return tl.where(met[:, None, None] & known[None], quick_softplus(logits), 0.0)


@triton.jit
def _by_channel(channel, N: tl.constexpr):
    """Offsets [G, N, LANES] of the states of the program's channels in [E, N]."""
    return channel[:, None, :] * N + tl.arange(0, N)[None, :, None]


@triton.jit
def outputs_kernel(
    u_ptr,
    proj_ptr,
    inputs_ptr,
    weight_ptr,
    bias_ptr,
    decay_ptr,
    skip_ptr,
    starts_ptr,
    out_ptr,
    batch,
    length,
    chunks,
    D: tl.constexpr,
    E: tl.constexpr,
    CHUNK: tl.constexpr,
    FROM_START: tl.constexpr,
    EVEN: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
    T: tl.constexpr,
    LANES: tl.constexpr,
    initial_ptr=None,  # the state before the first token [D·B, E, N], for a single chunk
    final_ptr=None,  # where to write the state after the last token [D·B, E, N]; None to leave it out
):
    """(Σ C h + skip·u)·silu(gate) of one chunk, into out [B, L, D, E]. EVEN: no masks are needed."""
    part, block = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    direction, sample = tl.program_id(1) // batch, (tl.program_id(1) % batch).to(tl.int64)
    sequence = tl.program_id(1).to(tl.int64)
    reverse = direction == 1
    channel = channels_of(block, 1, LANES)
    known = (channel < E) | EVEN
    row_index = tl.arange(0, T)[:, None, None, None]

    u_ptr += sequence * length * E
    proj_ptr += sequence * length * (R + 2 * N)
    inputs_ptr += (sample * length * D + direction) * 2 * E + E
    out_ptr += (sample * length * D + direction) * E
    bias = tl.load(bias_ptr + direction * E + channel, mask=known, other=0.0)
    skip = tl.load(skip_ptr + direction * E + channel, mask=known, other=0.0)
    weights = ()
    for rank in tl.static_range(R):
        weights = weights + (tl.load(weight_ptr + (direction * E + channel) * R + rank, mask=known, other=0.0),)
    rates = rates_of(decay_ptr + direction * E * N, channel, E, N)
    if FROM_START:
        grid = cells_of(channel, E, N)
        row = (sequence * chunks + part) * N * E
        state = tl.load(starts_ptr + row + grid, mask=known[:, None, :], other=0.0)
    elif initial_ptr is not None:
        state = tl.load(initial_ptr + sequence * E * N + _by_channel(channel, N), mask=known[:, None, :], other=0.0)
    else:
        state = tl.zeros([1, N, LANES], tl.float32)

    first = part * CHUNK
    index = first + tl.arange(0, T)
    met = (index < length) | EVEN
    token = token_of(index, reverse, length)
    u, gate, parts, into, out_of = _read(u_ptr, proj_ptr, inputs_ptr, token, met, known, channel, D, E, R, N)
    step = _steps(parts, weights, bias, met, known, R)
    for offset in range(0, CHUNK, T):
        # prefetch the next tile; after the last one, that one again
        index = first + tl.minimum(offset + T, CHUNK - T) + tl.arange(0, T)
        met = (index < length) | EVEN
        ahead = token_of(index, reverse, length)
        next_u, next_gate, parts, next_into, next_out_of = _read(
            u_ptr, proj_ptr, inputs_ptr, ahead, met, known, channel, D, E, R, N
        )
        power = powers_of(step, rates)
        states = into[:, None, :, None] * (step * u)[:, :, None, :]
        for k in tl.static_range(T):
            state = row_of(power, row_index, k) * state + row_of(states, row_index, k)
            states = with_row(states, row_index, k, state)
        seen = tl.sum(states * out_of[:, None, :, None], 2) + skip[None] * u
        out = seen * silu(gate)
        there = ((first + offset + tl.arange(0, T) < length) | EVEN)[:, None, None] & known[None]
        offsets = token[:, None, None] * (D * E) + channel[None]
        tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=there)
        step = _steps(parts, weights, bias, met, known, R)
        u, gate, into, out_of, token = next_u, next_gate, next_into, next_out_of, ahead
    if final_ptr is not None:
        last = known[:, None, :] & (part == chunks - 1)
        tl.store(final_ptr + sequence * E * N + _by_channel(channel, N), state, mask=last)
