"""The levels of the hierarchy: how wide each is, how it pools, and the sizes of its block.

The flat stacks of the study are levels of one width that never pool. `flat` has the last level's width and many more
parameters; the width of `flat-matched` is solved so that it has as many parameters as the hierarchy it replaces.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from ripe_mambaspike.nn.mamba import MAMBA_SIZES, MambaSizes, step_rank

TOLERANCE = 1e-3  # of the hierarchy's parameters, that a matched stack may have more or fewer


class Level(NamedTuple):
    """One level's width, the width before it, the pooling ratio, and whether it has a transition and a block."""

    before: int
    width: int
    ratio: int
    transition: bool
    sizes: MambaSizes = MAMBA_SIZES
    mixes: bool = True


class FlatStack(NamedTuple):
    """The width of a matched flat stack, and the inner channels of each of its blocks."""

    width: int
    inner: tuple[int, ...]


def plan_levels(
    widths: tuple[int, ...],
    ratios: tuple[int, ...],
    mixer: str,
    entry: int | None = None,
    sizes: MambaSizes = MAMBA_SIZES,
) -> list[Level]:
    """`entry` is the width of the bridge's tokens, by default the first level's; if it differs, a transition leads in.

    With `flat`, widen to the last width at once and never pool. With `flat-matched`, the same at the matched width, and
    one more transition to the last width, which the head reads.
    """
    entry = widths[0] if entry is None else entry
    if mixer == "flat":
        last = widths[-1]
        rest = [Level(last, last, 1, False, sizes) for _ in widths[1:]]
        return [Level(entry, last, 1, entry != last, sizes), *rest]
    if mixer == "flat-matched":
        width, inner = matched_flat_stack(widths, entry, sizes)
        first, *rest = (Level(width, width, 1, False, sizes._replace(d_inner=channels)) for channels in inner)
        head = Level(width, widths[-1], 1, True, mixes=False)
        return [first._replace(before=entry, transition=True), *rest, head]
    before = (entry, *widths[:-1])
    shapes = enumerate(zip(before, widths, ratios, strict=True))
    return [Level(*shape, index > 0 or entry != widths[0], sizes) for index, shape in shapes]


def block_parameters(width: int, sizes: MambaSizes = MAMBA_SIZES) -> int:
    """The parameters of a bidirectional block: its norm, two Mambas and the Linear that merges them."""
    inner, rank = sizes.inner(width), step_rank(width)
    per_channel = 3 * width + sizes.d_conv + 1 + 2 * rank + 1 + 3 * sizes.d_state + 1
    return 2 * inner * per_channel + 2 * width * width + 3 * width


def transition_parameters(before: int, width: int) -> int:
    """The parameters of a transition's Linear and LayerNorm."""
    return before * width + 3 * width


@lru_cache
def matched_flat_stack(widths: tuple[int, ...], entry: int, sizes: MambaSizes = MAMBA_SIZES) -> FlatStack:
    """A flat stack of as many blocks and, with its transitions, as many parameters as the levels of these widths.

    For every width the inner channels are chosen that come closest. Of the widths whose count is within the tolerance,
    the one is taken whose inner channels are closest to expand · width; if there is none, the closest count.
    """
    levels = plan_levels(widths, (1,) * len(widths), "mamba", entry, sizes)
    target = sum(block_parameters(level.width, sizes) for level in levels)
    target += sum(transition_parameters(level.before, level.width) for level in levels if level.transition)
    count, last = len(widths), widths[-1]

    def transitions(width: int) -> int:
        return transition_parameters(entry, width) + transition_parameters(width, last)

    nominal = 1  # the largest width that is not too large with expand · width inner channels
    while transitions(2 * nominal) + count * block_parameters(2 * nominal, sizes) <= target:
        nominal *= 2
    for step in (2**power for power in reversed(range(nominal.bit_length()))):
        if transitions(nominal + step) + count * block_parameters(nominal + step, sizes) <= target:
            nominal += step

    found: list[tuple[float, int, FlatStack]] = []
    for width in range(max(1, 3 * nominal // 4), 5 * nominal // 4 + 2):
        without, each = (block_parameters(width, sizes._replace(d_inner=inner)) for inner in (0, 1))
        wanted = (target - transitions(width) - count * without) / (each - without)
        total = max(count, round(wanted))
        error = abs(wanted - total) * (each - without)
        inner = tuple(total // count + (index < total % count) for index in range(count))
        found.append((abs(math.log(total / (count * sizes.expand * width))), round(error), FlatStack(width, inner)))
    within = [one for one in found if one[1] <= TOLERANCE * target]
    return min(within)[2] if within else min(found, key=lambda one: one[1])[2]
