# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The gradient of the selective scan: states and co-states of a tile are recomputed in registers.

g_l = C_l dy_l + exp(Δ_{l+1} A) g_{l+1} is the scan's recurrence from the end. A tile passes the gradient of its initial
state to the tile before it; between chunks it is passed on like the states (`chunk_starts_kernel`).

Layout: u and grad_u [D, B, L, E], proj [D, B, L, R + 2N], inputs and grad_inputs [B, L, D, 2E], grad [B, L, D, E],
co-states [D·B, M, N, E] for M chunks, states before every tile [D·samples, tiles, N, E].
"""

import triton
import triton.language as tl

from ripe_mambaspike.ops.mamba_inner.triton_scan_parts import (
    LOG2_E,
    cells_of,
    channel_offsets,
    channel_tile,
    channels_of,
    powers_of,
    rates_of,
    row_of,
    state_tile,
    step_logits,
    steps_of,
    token_of,
    with_row,
)


@triton.jit
def costates_kernel(
    proj_ptr, inputs_ptr, grad_ptr, weight_ptr, bias_ptr, decay_ptr, leaves_ptr, batch, length, directions, channels,
    chunks,
    CHUNK: tl.constexpr, R: tl.constexpr, N: tl.constexpr, T: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The gradient of a chunk's initial state if none arrives from the chunk after it, leaves [D·B, M, N, E]."""
    part, block = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    direction, sample = tl.program_id(1) // batch, (tl.program_id(1) % batch).to(tl.int64)
    sequence = tl.program_id(1).to(tl.int64)
    channel = channels_of(block, 1, LANES)
    known = channel < channels
    row_index = tl.arange(0, T)[:, None, None, None]

    proj_ptr += sequence * length * (R + 2 * N)
    inputs_ptr += (sample * length * directions + direction) * 2 * channels + channels
    grad_ptr += (sample * length * directions + direction) * channels
    weight_ptr += direction * channels * R
    bias = tl.load(bias_ptr + direction * channels + channel, mask=known, other=0.0)
    rates = rates_of(decay_ptr + direction * channels * N, channel, channels, N)
    carried = tl.zeros([1, N, LANES], tl.float32)

    for offset in range(0, CHUNK, T):
        index = part * CHUNK + (CHUNK - T - offset) + tl.arange(0, T)
        met = index < length
        token = token_of(index, direction == 1, length)
        gate = channel_tile(inputs_ptr, token, directions * 2 * channels, channel, met, channels)
        grad = channel_tile(grad_ptr, token, directions * channels, channel, met, channels)
        out_of = state_tile(proj_ptr + R + N, token, R + 2 * N, met, N)
        logits = step_logits(proj_ptr, weight_ptr, bias, token, channel, met, channels, R, N)
        power = powers_of(steps_of(logits, channel, met, channels), rates)
        seen = out_of[:, None, :, None] * (grad * gate * tl.sigmoid(gate))[:, :, None, :]
        for k in tl.static_range(T):
            carried = row_of(power, row_index, T - 1 - k) * (row_of(seen, row_index, T - 1 - k) + carried)
    grid = cells_of(channel, channels, N)
    row = (sequence * chunks + part) * N * channels
    tl.store(leaves_ptr + row + grid, carried, mask=known[:, None, :])


@triton.jit
def gradients_kernel(
    u_ptr, proj_ptr, inputs_ptr, grad_ptr, weight_ptr, bias_ptr, decay_ptr, skip_ptr, states_ptr, ends_ptr,
    grad_inputs_ptr, grad_u_ptr, grad_proj_ptr, sums_ptr, first_sample, samples, batch, length, directions, channels,
    chunks, tiles,
    CHUNK: tl.constexpr, FROM_END: tl.constexpr, R: tl.constexpr, RANKS: tl.constexpr, N: tl.constexpr,
    T: tl.constexpr, G: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """All gradients of one chunk's scan; RANKS is R or the next power of two.

    The gate half of grad_inputs, and grad_u without the part that comes through proj. A block of channels adds its own
    grad_proj [blocks, D, B, L, R + 2N], a chunk its own sums [D, B, M, N + 2 + R, E]: the gradients of decay, skip,
    step bias and step weight, in this order.
    """
    part, block = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    direction, local_sample = tl.program_id(1) // samples, tl.program_id(1) % samples
    sample = (first_sample + local_sample).to(tl.int64)
    sequence = direction * batch + sample
    channel = channels_of(block, G, LANES)
    known = channel < channels
    row_index = tl.arange(0, T)[:, None, None, None]
    state_index = tl.arange(0, N)
    rank = tl.arange(0, RANKS)
    width: tl.constexpr = R + 2 * N

    u_ptr += sequence * length * channels
    grad_u_ptr += sequence * length * channels
    proj_ptr += sequence * length * width
    grad_proj_ptr += (block.to(tl.int64) * batch * directions + sequence) * length * width
    gates = (sample * length * directions + direction) * 2 * channels + channels
    inputs_ptr += gates
    grad_inputs_ptr += gates
    grad_ptr += (sample * length * directions + direction) * channels
    weight_ptr += direction * channels * R
    states_ptr += tl.program_id(1).to(tl.int64) * tiles * N * channels
    sums_ptr += (sequence * chunks + part) * (N + 2 + R) * channels
    bias = tl.load(bias_ptr + direction * channels + channel, mask=known, other=0.0)
    skip = tl.load(skip_ptr + direction * channels + channel, mask=known, other=0.0)
    rates = rates_of(decay_ptr + direction * channels * N, channel, channels, N)
    ranked = (rank < R)[None, :, None] & known[:, None, :]
    weight = tl.load(weight_ptr + channel[:, None, :] * R + rank[None, :, None], mask=ranked, other=0.0)

    grid = cells_of(channel, channels, N)
    if FROM_END:
        row = (sequence * chunks + part) * N * channels
        carried = tl.load(ends_ptr + row + grid, mask=known[:, None, :], other=0.0)
    else:
        carried = tl.zeros([G, N, LANES], tl.float32)
    decay_sum = tl.zeros([G, N, LANES], tl.float32)
    weight_sum = tl.zeros([G, RANKS, LANES], tl.float32)
    skip_sum = tl.zeros([T, G, LANES], tl.float32)
    bias_sum = tl.zeros([T, G, LANES], tl.float32)

    for offset in range(0, CHUNK, T):
        begin = part * CHUNK + (CHUNK - T - offset)
        index = begin + tl.arange(0, T)
        met = index < length
        token = token_of(index, direction == 1, length)
        u = channel_tile(u_ptr, token, channels, channel, met, channels, True)
        gate = channel_tile(inputs_ptr, token, directions * 2 * channels, channel, met, channels, True)
        grad = channel_tile(grad_ptr, token, directions * channels, channel, met, channels, True)
        into = state_tile(proj_ptr + R, token, width, met, N)
        out_of = state_tile(proj_ptr + R + N, token, width, met, N)
        kept_there = known[:, None, :] & (begin < length)
        state = tl.load(states_ptr + (begin // T) * N * channels + grid, mask=kept_there, other=0.0)
        logits = step_logits(proj_ptr, weight_ptr, bias, token, channel, met, channels, R, N)
        step = steps_of(logits, channel, met, channels)
        power = powers_of(step, rates)

        # the states again: what each token keeps of the state before it, and adds
        drive = (step * u)[:, :, None, :]
        added = into[:, None, :, None] * drive
        kept = power
        for k in tl.static_range(T):
            left = row_of(power, row_index, k) * state
            state = left + row_of(added, row_index, k)
            kept = with_row(kept, row_index, k, left)
        states = kept + added

        # through the gate
        opened = tl.sigmoid(gate)
        seen = tl.sum(states * out_of[:, None, :, None], 2) + skip[None] * u
        grad_gate = grad * seen * opened * (1.0 + gate * (1.0 - opened))
        grad_seen = grad * gate * opened
        skip_sum += grad_seen * u
        there = met[:, None, None] & known[None]
        offsets = channel_offsets(token, directions * 2 * channels, channel)
        tl.store(grad_inputs_ptr + offsets, grad_gate.to(grad_inputs_ptr.dtype.element_ty), mask=there)
        grads = grad_proj_ptr + token[:, None] * width
        grad_out_of = tl.sum(tl.sum(states * grad_seen[:, :, None, :], 1), 2)
        tl.store(grads + R + N + state_index[None, :], grad_out_of, mask=met[:, None])

        # the co-states
        costates = out_of[:, None, :, None] * grad_seen[:, :, None, :]
        for k in tl.static_range(T):
            costate = row_of(costates, row_index, T - 1 - k) + carried
            carried = row_of(power, row_index, T - 1 - k) * costate
            costates = with_row(costates, row_index, T - 1 - k, costate)

        grad_into = tl.sum(tl.sum(costates * drive, 1), 2)
        tl.store(grads + R + state_index[None, :], grad_into, mask=met[:, None])
        grad_drive = tl.sum(costates * into[:, None, :, None], 2)
        exponents = costates * kept  # the gradient of Δ A
        decay_sum += tl.sum(exponents * step[:, :, None, :], 0)
        grad_step = grad_drive * u + tl.sum(exponents * rates[None], 2) / LOG2_E
        grad_logits = tl.where(there, grad_step * tl.sigmoid(logits), 0.0)
        bias_sum += grad_logits
        ranks = (rank < R)[None, :] & met[:, None]
        parts = tl.load(proj_ptr + token[:, None] * width + rank[None, :], mask=ranks, other=0.0).to(tl.float32)
        weight_sum += tl.sum(parts[:, None, :, None] * grad_logits[:, :, None, :], 0)

        grad_u = grad_drive * step + grad_seen * skip[None]
        offsets = channel_offsets(token, channels, channel)
        tl.store(grad_u_ptr + offsets, grad_u.to(grad_u_ptr.dtype.element_ty), mask=there)
        grad_parts = tl.sum(tl.sum(grad_logits[:, :, None, :] * weight[None], 1), 2)
        tl.store(grads + rank[None, :], grad_parts, mask=ranks)

    tl.store(sums_ptr + grid, decay_sum, mask=known[:, None, :])
    tl.store(sums_ptr + N * channels + channel, tl.sum(skip_sum, 0), mask=known)
    tl.store(sums_ptr + (N + 1) * channels + channel, tl.sum(bias_sum, 0), mask=known)
    ranked_grid = (N + 2 + rank[None, :, None]) * channels + channel[:, None, :]
    tl.store(sums_ptr + ranked_grid, weight_sum, mask=ranked)
