# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""From binned events to the first neuron: a program owns some output positions and walks through the steps.

The 3×3×2 patch of every position is one row of a matrix with 18 (padded to 32) columns, gathered straight from the
events, normalised and filtered in registers, and multiplied with the kernel.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.cuda.neuron_step import fire_step

PATCH = 18  # 3 × 3 taps of 2 channels
PADDED = 32


@triton.jit
def _enter_fire_kernel(
    x,
    entry_scale,
    entry_shift,
    filtered,
    kernel,
    scale,
    shift,
    decay,
    rotation,
    gain,
    threshold,
    coefficient,
    spikes,
    potential,
    operand,
    sharpness,
    height,
    width,
    out_width,
    positions,
    STEPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    RELAXED: tl.constexpr,
    PADDED: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    resonating: tl.constexpr = rotation is not None
    blocks = tl.cdiv(positions, ROWS)
    sample = (tl.program_id(0) // blocks).to(tl.int64)
    place = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    known = place < positions
    entry = tl.arange(0, PADDED)  # tap · 2 + polarity
    tap = entry // 2
    polarity = entry % 2
    # Patches stand upright, [entry, position]: neighbouring threads then read neighbouring pixels.
    row = (place // out_width * 2)[None, :] + (tap // 3 - 1)[:, None]
    column = (place % out_width * 2)[None, :] + (tap % 3 - 1)[:, None]
    inside = known[None, :] & (entry < 18)[:, None] & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = polarity[:, None] * (height * width) + row * width + column

    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real_channel = channel < CHANNELS
    weights = tl.load(
        kernel + channel[None, :] * 18 + entry[:, None],
        mask=(entry < 18)[:, None] & real_channel[None, :],
        other=0.0,
    )
    decays = tl.load(decay + channel, mask=real_channel, other=0.0)[None, :]
    rotations = 0.0
    if resonating:
        rotations = tl.load(rotation + channel, mask=real_channel, other=0.0)[None, :]
    gains = tl.load(gain + channel, mask=real_channel, other=0.0)[None, :]
    thresholds = tl.load(threshold + channel, mask=real_channel, other=0.0)[None, :]
    following = 0.0
    if coefficient is not None:
        following = tl.load(coefficient + channel, mask=real_channel, other=0.0)[None, :]
    now = 1.0
    before = 0.0
    if filtered is not None:
        before = tl.load(filtered + polarity)[:, None]
        now = 1.0 + before

    written = known[:, None] & real_channel[None, :]
    target = place[:, None] * CHANNELS + channel[None, :]
    real = tl.zeros((ROWS, COLUMNS), tl.float32)
    imag = tl.zeros((ROWS, COLUMNS), tl.float32)
    last_spike = tl.zeros((ROWS, COLUMNS), tl.float32)
    last = tl.zeros((PADDED, ROWS), tl.float32)
    frame = x + sample * STEPS * 2 * height * width
    events = tl.load(frame + source, mask=inside, other=0.0)
    for step in range(STEPS):
        slope = tl.load(entry_scale + step * 2 + polarity)[:, None]
        offset = tl.load(entry_shift + step * 2 + polarity)[:, None]
        normed = tl.where(inside, tl.fma(events.to(tl.float32), slope, offset), 0.0)
        # The next step's events are on their way while this one's are computed.
        frame += 2 * height * width
        events = tl.load(frame + source, mask=inside & (step + 1 < STEPS), other=0.0)
        patch = (normed * now - last * before).to(weights.dtype)
        last = normed
        current = tl.dot(tl.trans(patch), weights, input_precision="ieee").to(kernel.dtype.element_ty)
        scales = tl.load(scale + step * CHANNELS + channel, mask=real_channel, other=0.0)[None, :]
        shifts = tl.load(shift + step * CHANNELS + channel, mask=real_channel, other=0.0)[None, :]
        drive = tl.fma(current.to(tl.float32), scales, shifts)
        spike, charge, real, imag = fire_step(
            drive, real, imag, decays, rotations, gains, thresholds, sharpness, resonating, RELAXED
        )
        base = (sample * STEPS + step) * positions * CHANNELS
        tl.store(spikes + base + target, spike.to(spikes.dtype.element_ty), mask=written)
        tl.store(potential + base + target, charge.to(potential.dtype.element_ty), mask=written)
        emitted = tl.fma(following, spike - last_spike, spike)
        tl.store(operand + base + target, emitted.to(operand.dtype.element_ty), mask=written)
        last_spike = spike


def block_for(positions: int) -> tuple[int, int]:
    """(positions, warps) of a program."""
    return (32, 4) if positions >= 32 * 128 else (16, 4)


def enter_fire(
    x: Tensor,
    entry_scale: Tensor,
    entry_shift: Tensor,
    filtered: Tensor | None,
    kernel: Tensor,
    scale: Tensor,
    shift: Tensor,
    decay: Tensor,
    rotation: Tensor | None,
    gain: Tensor,
    threshold: Tensor,
    coefficient: Tensor | None,
    relaxed: bool,
    sharpness: float,
) -> tuple[Tensor, Tensor, Tensor]:
    samples, steps, _, height, width = x.shape
    rows, columns = -(-height // 2), -(-width // 2)
    channels = kernel.shape[0]
    shape = (samples, steps, rows, columns, channels)
    spikes = x.new_empty(shape, dtype=kernel.dtype if relaxed else torch.uint8)
    potential, operand = (x.new_empty(shape, dtype=kernel.dtype) for _ in range(2))
    block, warps = block_for(samples * rows * columns)
    wide = min(64, max(16, triton.next_power_of_2(channels)))
    grid = (samples * triton.cdiv(rows * columns, block), triton.cdiv(channels, wide))
    taps = kernel.permute(0, 2, 3, 1).contiguous()  # [C, tap, polarity]
    parameters = (scale, shift, decay, rotation, gain, threshold, coefficient)
    _enter_fire_kernel[grid](
        x.contiguous(),
        entry_scale.contiguous(),
        entry_shift.contiguous(),
        filtered,
        taps,
        *(None if p is None else p.contiguous() for p in parameters),
        spikes,
        potential,
        operand,
        sharpness,
        height,
        width,
        columns,
        rows * columns,
        STEPS=steps,
        CHANNELS=channels,
        RELAXED=relaxed,
        PADDED=PADDED,
        COLUMNS=wide,
        ROWS=block,
        num_warps=warps,
    )
    return spikes, potential, operand
