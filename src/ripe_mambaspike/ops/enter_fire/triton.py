# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""From binned events to the first neuron: a program owns some output positions and walks through the steps.

The 3×3×2 patch of every position is one row of a matrix with 18 (padded to 32) columns, gathered straight from the
events, normalized and filtered in registers, and multiplied with the kernel. Occupancy is limited by registers. So the
columns are permuted to give each thread neighbouring channels (`_channel_of_column`), and the loop over steps is a
`while`: with `for`, the compiler keeps the neuron's state in two layouts, the product's and the stored one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.enter_fire import EnterFireInputs, empty_enter_fire, normalized
from ripe_mambaspike.ops.norm_fire.triton_step import as_stored, fire_step, initial, store_final
from ripe_mambaspike.ops.triton_launch import Synchronous, ceil_div, contiguous, neuron_state, next_power_of_2

PATCH = 18  # 3 × 3 taps of 2 channels
PADDED = 32
BUSY_POSITIONS = 16 * 12 * 132  # positions that keep a large GPU busy
REGISTERS = 168  # per thread, so that twelve warps fit


@triton.jit
def _channel_of_column(column, COLUMNS: tl.constexpr):
    """The channel computed in a column of the product.

    A thread holds two neighbouring columns of every eight; the permutation makes its channels neighbours.
    """
    return column % 8 // 2 * (COLUMNS // 4) + column // 8 * 2 + column % 2


@triton.jit
def _restore_channel_order(product, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Undo the permutation of `_channel_of_column`; no data moves between threads."""
    groups = tl.reshape(product, (ROWS, COLUMNS // 8, 4, 2))
    return tl.reshape(tl.permute(groups, (0, 2, 1, 3)), (ROWS, COLUMNS))


@triton.jit
def _load_channels(pointer, channel, CHANNELS: tl.constexpr, EVEN: tl.constexpr):
    return tl.load(pointer + channel, mask=EVEN | (channel < CHANNELS), other=0.0)[None, :]


@triton.jit
def _load_polarities(pointer, positive):
    return tl.where(positive, tl.load(pointer + 1), tl.load(pointer))


@Synchronous
@triton.jit
def _enter_fire_kernel(
    x, entry_scale, entry_shift, filtered, kernel, scale, shift, decay, rotation, gain, threshold, coefficient, spikes,
    potential, operand, sharpness,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr, RELAXED: tl.constexpr,
    PATCH: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    PER_SAMPLE: tl.constexpr = False, last_input=None,
    membrane=None, membrane_imag=None, last_spikes=None, final_membrane=None, final_imag=None, final_spikes=None,
):  # fmt: skip
    """ROWS output positions of one sample by COLUMNS channels, through all steps.

    PER_SAMPLE: scales and shifts are [B, T, …] instead of [T, …]. last_input: the normalized events of the step before
    the first [B, 2, H, W], float32; then the neuron's state before the first step [B, P, C], and where to write the one
    after the last. Each may be None: for zeros, and to leave it out.
    """
    RESONATING: tl.constexpr = rotation is not None
    OUT_WIDTH: tl.constexpr = (WIDTH + 1) // 2
    POSITIONS: tl.constexpr = (HEIGHT + 1) // 2 * OUT_WIDTH
    BLOCKS: tl.constexpr = (POSITIONS + ROWS - 1) // ROWS
    EVEN_ROWS: tl.constexpr = POSITIONS % ROWS == 0
    EVEN: tl.constexpr = CHANNELS % COLUMNS == 0
    # From the last sample to the first, so that the next kernel starts with those still in the cache.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    sample = (program // BLOCKS).to(tl.int64)
    position = program % BLOCKS * ROWS + tl.arange(0, ROWS)
    known = EVEN_ROWS | (position < POSITIONS)

    entry = tl.arange(0, PADDED)  # tap · 2 + polarity
    tap = entry // 2
    positive = (entry % 2 == 1)[None, :]
    row = (position // OUT_WIDTH * 2)[:, None] + (tap // 3 - 1)[None, :]
    column = (position % OUT_WIDTH * 2)[:, None] + (tap % 3 - 1)[None, :]
    inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH) & (entry < PATCH)[None, :] & known[:, None]
    # In 64 bits, so that a thread's pixels are one address plus constants.
    center = (position // OUT_WIDTH * (2 * WIDTH) + position % OUT_WIDTH * 2).to(tl.int64)
    beside = entry % 2 * (HEIGHT * WIDTH) + (tap // 3 - 1) * WIDTH + (tap % 3 - 1)
    source = center[:, None] + beside.to(tl.int64)[None, :]

    column = tl.arange(0, COLUMNS)
    channel = tl.program_id(1) * COLUMNS + column
    dealt = tl.program_id(1) * COLUMNS + _channel_of_column(column, COLUMNS)
    weights = tl.load(
        kernel + dealt[None, :] * PATCH + entry[:, None],
        mask=(entry < PATCH)[:, None] & (dealt < CHANNELS)[None, :],
        other=0.0,
    )
    before = 0.0
    if filtered is not None:
        before = _load_polarities(filtered, positive)

    written = known[:, None] & (EVEN | (channel < CHANNELS)[None, :])
    target = position.to(tl.int64)[:, None] * CHANNELS + channel.to(tl.int64)[None, :]
    target = tl.max_contiguous(target, (1, COLUMNS // 4))  # at most what a thread holds contiguously
    if PER_SAMPLE:
        entry_scale += sample * (STEPS * 2)
        entry_shift += sample * (STEPS * 2)
        scale += sample * (STEPS * CHANNELS)
        shift += sample * (STEPS * CHANNELS)
    owned = sample * (POSITIONS * CHANNELS) + target
    real = initial(membrane, owned, written)
    imag = initial(membrane_imag, owned, written)
    last_spike = initial(last_spikes, owned, written)
    last = initial(last_input, sample * (2 * HEIGHT * WIDTH) + source, inside)
    first_frame = x + sample * (STEPS * 2 * HEIGHT * WIDTH)
    base = sample * (STEPS * POSITIONS * CHANNELS)
    events = tl.load(first_frame + source, mask=inside, other=0.0)
    step = 0
    while step < STEPS:
        slope = _load_polarities(entry_scale + step * 2, positive)
        offset = _load_polarities(entry_shift + step * 2, positive)
        scales = _load_channels(scale + step * CHANNELS, channel, CHANNELS, EVEN)
        shifts = _load_channels(shift + step * CHANNELS, channel, CHANNELS, EVEN)
        normed = tl.where(inside, tl.fma(events.to(tl.float32), slope, offset), 0.0)
        # Prefetch the next step's events.
        frame = first_frame + tl.minimum(step + 1, STEPS - 1) * (2 * HEIGHT * WIDTH)
        events = tl.load(frame + source, mask=inside, other=0.0)
        patch = normed
        if filtered is not None:
            patch = tl.fma(normed, 1.0 + before, -(last * before))
        last = normed
        product = tl.dot(patch.to(weights.dtype), weights, input_precision="ieee").to(kernel.dtype.element_ty)
        current = _restore_channel_order(product, ROWS, COLUMNS)
        # The neuron's constants are reloaded at every step: they are cached, and registers are scarce.
        decays = _load_channels(decay, channel, CHANNELS, EVEN)
        rotations = 0.0
        if RESONATING:
            rotations = _load_channels(rotation, channel, CHANNELS, EVEN)
        gains = _load_channels(gain, channel, CHANNELS, EVEN)
        thresholds = _load_channels(threshold, channel, CHANNELS, EVEN)
        drive = tl.fma(current.to(tl.float32), scales, shifts)
        spike, charge, real, imag = fire_step(
            drive, real, imag, decays, rotations, gains, thresholds, sharpness, RESONATING, RELAXED
        )
        tl.store(spikes + base + target, as_stored(spike, spikes, RELAXED), mask=written)
        tl.store(potential + base + target, charge.to(potential.dtype.element_ty), mask=written)
        emitted = spike
        if coefficient is not None:
            emitted = tl.fma(_load_channels(coefficient, channel, CHANNELS, EVEN), spike - last_spike, spike)
        tl.store(operand + base + target, emitted.to(operand.dtype.element_ty), mask=written)
        last_spike = spike
        base += POSITIONS * CHANNELS
        step += 1
    store_final(final_membrane, owned, real, written)
    store_final(final_imag, owned, imag, written)
    store_final(final_spikes, owned, last_spike, written)


def entry_block(positions: int, dtype: torch.dtype) -> tuple[int, int]:
    """(positions, warps) of a program: one warp if positions fill the GPU and tensor cores are used, else four."""
    if dtype.itemsize == 2:
        return (16, 1) if positions >= BUSY_POSITIONS else (16, 4)
    return (32, 4) if positions >= 32 * 128 else (16, 4)


def enter_fire(i: EnterFireInputs) -> tuple[Tensor, ...]:
    x, kernel = i.x.contiguous(), i.kernel
    outputs = empty_enter_fire(i)
    spikes, potential, operand, final_input, *finals = outputs
    samples, steps, _, height, width = x.shape
    rows, columns = -(-height // 2), -(-width // 2)
    channels = kernel.shape[0]
    block, warps = entry_block(samples * rows * columns, kernel.dtype)
    wide = min(32, max(16, next_power_of_2(channels)))
    grid = (samples * ceil_div(rows * columns, block), ceil_div(channels, wide))
    taps = kernel.permute(0, 2, 3, 1).contiguous()  # [C, tap, polarity]
    _enter_fire_kernel[grid](
        *(x, i.entry_scale.contiguous(), i.entry_shift.contiguous(), i.filter_coefficient, taps),
        *contiguous(i.scale, i.shift, *i.firing[:5]),
        *(spikes, potential, operand, i.firing.sharpness),
        HEIGHT=height,
        WIDTH=width,
        STEPS=steps,
        CHANNELS=channels,
        RELAXED=i.firing.relaxed,
        PATCH=PATCH,
        PADDED=PADDED,
        COLUMNS=wide,
        ROWS=block,
        last_input=None if i.last_input is None else i.last_input.contiguous(),
        **neuron_state(i.scale, i.initial_state, finals),
        num_warps=warps,
        maxnreg=REGISTERS if kernel.dtype.itemsize == 2 else None,
    )
    if final_input.numel():
        final_input.copy_(normalized(x[:, -1:], i.entry_scale[..., -1:, :], i.entry_shift[..., -1:, :])[:, 0])
    return outputs
