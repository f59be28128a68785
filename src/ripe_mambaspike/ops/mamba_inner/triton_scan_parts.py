# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Helpers shared by the kernels of the selective scan.

A program owns a block of channels and walks over the tokens in tiles. Numbers per token and channel are tiles
[T, G, LANES], those per state [T, G, N, LANES]: a channel to each lane of a warp, and its states N, the tokens T and
the channel groups G within a thread. Where a program of the forward pass has 8 or 16 channels, 4 or 2 lanes share the
states of one. So the recurrence over a tile never leaves a thread, and taking or placing one row of a tile (`row_of`,
`with_row`), written as a selection over all of them, costs nothing once compiled.

Tokens are indexed in the order in which a direction visits them; direction 1 starts at the last. Past the last token
the step is zero, which leaves every state as it is.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def row_of(tile, row_index, index):
    """Row `index` of a float32 tile [T, G, N, LANES], row_index [T, 1, 1, 1]; as integers, whose zeros fold away."""
    bits = tl.where(row_index == index, tile.to(tl.int32, bitcast=True), 0)
    return tl.sum(bits, 0).to(tl.float32, bitcast=True)


@triton.jit
def with_row(tile, row_index, index, row):
    """The tile with `row` [G, N, LANES] as row `index`."""
    return tl.where(row_index == index, row[None], tile)


@triton.jit
def channels_of(block, G: tl.constexpr, LANES: tl.constexpr):
    """The channels of a program [G, LANES]."""
    return block * G * LANES + tl.arange(0, G)[:, None] * LANES + tl.arange(0, LANES)[None, :]


@triton.jit
def rates_of(decay_ptr, channel, channels, N: tl.constexpr):
    """A·log₂e [G, N, LANES] from decay [E, N], for powers of two."""
    state = tl.arange(0, N)[None, :, None]
    known = (channel < channels)[:, None, :]
    return tl.load(decay_ptr + channel[:, None, :] * N + state, mask=known, other=0.0) * LOG2_E


@triton.jit
def cells_of(channel, channels, N: tl.constexpr):
    """Offsets [G, N, LANES] of the states of the program's channels in [N, E].

    The hints make each lane load and store the channel it computes with: not aligned, so that no thread takes several
    channels at once, and the middle dimension goes before the first once the lanes are full. The compiler would
    otherwise move states between threads at every token.
    """
    offsets = tl.arange(0, N)[None, :, None] * channels + channel[:, None, :]
    return tl.multiple_of(tl.max_contiguous(offsets, [1, 2, 32]), [1, 1, 1])


@triton.jit
def channel_offsets(token, stride, channel):
    """Offsets [T, G, LANES] of the tokens' channels, tokens `stride` apart, with the same hints."""
    offsets = token[:, None, None] * stride + channel[None]
    return tl.multiple_of(tl.max_contiguous(offsets, [1, 2, 32]), [1, 1, 1])


@triton.jit
def softplus(x):
    """log(1 + eˣ) to rounding also where it is tiny: 2 artanh(p / (2 + p)) with p = e^−|x|, as a series."""
    power = tl.exp(-tl.abs(x))
    part = power / (2.0 + power)  # at most 1/3
    square = part * part
    series = 1.0 / 13.0
    series = series * square + 1.0 / 11.0
    series = series * square + 1.0 / 9.0
    series = series * square + 1.0 / 7.0
    series = series * square + 1.0 / 5.0
    series = series * square + 1.0 / 3.0
    series = series * square + 1.0
    return tl.maximum(x, 0.0) + 2.0 * part * series


@triton.jit
def quick_softplus(x):
    """The same within 2e-7 for the outputs alone, as max(x, 0) + log(1 + p).

    log(1 + p) / p is a minimax polynomial on [0, 1], with an error of 3e-8 and no division. Gradients of large decays
    depend on the last bits of a step, so they use the exact version.
    """
    power = tl.exp2(tl.abs(x) * -LOG2_E)
    series = 0.005232546800008849
    series = series * power - 0.029504657975462624
    series = series * power + 0.07822502551964917
    series = series * power - 0.1366316925118385
    series = series * power + 0.1910597203425767
    series = series * power - 0.24842973807816912
    series = series * power + 0.33319095850193337
    series = series * power - 0.49999493105013804
    series = series * power + 0.9999999698807152
    return tl.maximum(x, 0.0) + power * series


@triton.jit
def silu(x):
    """x / (1 + e⁻ˣ); the square of a reciprocal root takes two instructions, a division five."""
    root = tl.rsqrt(1.0 + tl.exp2(x * -LOG2_E))
    return x * root * root


@triton.jit
def channel_tile(pointer, token, stride, channel, met, channels, SPREAD: tl.constexpr = False):
    """Numbers per token and channel [T, G, LANES] in float32, zero where there are none.

    SPREAD: a channel to each lane from the start.
    """
    there = met[:, None, None] & (channel < channels)[None]
    offsets = token[:, None, None] * stride + channel[None]
    if SPREAD:
        offsets = channel_offsets(token, stride, channel)
    return tl.load(pointer + offsets, mask=there, other=0.0).to(tl.float32)


@triton.jit
def state_tile(pointer, token, stride, met, N: tl.constexpr):
    """Numbers per token and state [T, N] in float32."""
    offsets = token[:, None] * stride + tl.arange(0, N)[None, :]
    return tl.load(pointer + offsets, mask=met[:, None], other=0.0).to(tl.float32)


@triton.jit
def step_logits(proj_ptr, weight_ptr, bias, token, channel, met, channels, R: tl.constexpr, N: tl.constexpr):
    """What the softplus makes a step of [T, G, LANES]: the step part of proj times weight [E, R], plus the bias."""
    logits = tl.zeros([token.shape[0], channel.shape[0], channel.shape[1]], tl.float32) + bias[None]
    for rank in range(R):  # not static_range: in a loop that LLVM unrolls, work is not repeated by every warp
        part = tl.load(proj_ptr + token * (R + 2 * N) + rank, mask=met, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + channel * R + rank, mask=channel < channels, other=0.0)
        logits += part[:, None, None] * weight[None]
    return logits


@triton.jit
def steps_of(logits, channel, met, channels):
    """The steps Δ [T, G, LANES], zero past the end."""
    return tl.where(met[:, None, None] & (channel < channels)[None], softplus(logits), 0.0)


@triton.jit
def powers_of(step, rates):
    """exp(Δ A) [T, G, N, LANES]."""
    return tl.exp2(step[:, :, None, :] * rates[None])


@triton.jit
def token_of(index, reverse, length):
    """The memory index of the tokens that a direction visits at `index`."""
    return tl.where(reverse, length - 1 - index, index)
