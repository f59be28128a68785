# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""X + γ A X, every step and block of positions on its own."""

import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.membrane_attention.triton_mix import KeyMixture
from ripe_mambaspike.ops.membrane_attention.triton_plan import FLOAT32_PRODUCTS, AttentionInputs, plan_tiles
from ripe_mambaspike.ops.membrane_attention.triton_tiles import (
    attention_of,
    is_first,
    load_affine,
    load_matrix,
    load_row,
    load_tile,
    mixture_of,
    norm_row,
    store_modulated,
)
from ripe_mambaspike.ops.triton_launch import Synchronous


def modulate(given: AttentionInputs, mixture: KeyMixture, keep_attention: bool) -> tuple[Tensor, Tensor]:
    """(modulated features, A or an empty tensor) [B, T, P, C]."""
    potential, features = given.potential, given.features
    _, steps, positions, channels = potential.shape
    out = features.new_empty(features.shape)
    attention = features.new_empty(features.shape if keep_attention else 0)
    cut = plan_tiles(given.pairs, potential, tile=8192)
    arguments = (potential, features, *given.affine(), given.query, given.gain, mixture.mixed, mixture.sums)
    modes = {"KEEP": keep_attention, "PRECISION": FLOAT32_PRODUCTS, "num_stages": cut.stages, **given.modes()}
    _modulate[given.pairs, cut.chunks](*arguments, out, attention, steps, positions, **cut.sizes(channels), **modes)
    return out, attention


@Synchronous
@triton.jit
def _modulate(
    potential, features, scale, shift, query, gain, mixed, sums, out, kept, steps, positions,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, AFFINE: tl.constexpr,
    PER_SAMPLE: tl.constexpr, SHIFTED: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A chunk of a step's positions."""
    pair = tl.program_id(0)
    chunk = tl.program_id(1)
    step = pair % steps
    later = mixture_of(pair, steps, SHIFTED)
    base = pair.to(tl.int64) * positions * C
    channels = tl.arange(0, WIDTH)
    scales, shifts = load_affine(scale, shift, norm_row(pair, step, PER_SAMPLE), channels, C, AFFINE)
    gains = load_row(gain, channels, C)
    if is_first(step, SHIFTED):
        nothing = tl.zeros([WIDTH, BLOCK], tl.float32)
        for index in range(SPAN):
            rows = (chunk * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
            x = load_tile(features + base, rows, positions, channels, C).to(tl.float32)
            store_modulated(
                out + base, kept + base, rows, positions, channels, x, nothing, scales, shifts, gains, C, KEEP
            )
    else:
        weight = load_matrix(query, channels, channels, C)
        mixture = load_matrix(mixed + later.to(tl.int64) * C * C, channels, channels, C)
        key_sum = load_row(sums + later * 3 * C, channels, C)
        center = load_row(sums + (later * 3 + 2) * C, channels, C)
        for index in range(SPAN):
            rows = (chunk * SPAN + index) * BLOCK + tl.arange(0, BLOCK)
            u = load_tile(potential + base, rows, positions, channels, C)
            x = load_tile(features + base, rows, positions, channels, C).to(tl.float32)
            attention = attention_of(u, weight, mixture, key_sum, center, PRECISION)
            store_modulated(
                out + base, kept + base, rows, positions, channels, x, attention, scales, shifts, gains, C, KEEP
            )
