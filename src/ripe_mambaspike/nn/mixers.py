"""Token mixers of a level: Mamba, or, for the study, other blocks of the same size.

A mixer is a module made for a token width that maps [B, L, d] → [B, L, d]; the residual around it is the hierarchy's.
To add one, write such a class with `@register_mixer("name")`. Its attribute `causal` may be the class of a block that
reads only earlier tokens, with `forward_with_state(x, state) -> (y, state)`.

The study's blocks have one free size per level. It is chosen so that together they have as many parameters as the Mamba
blocks they replace: the widest level first, and its remainder from rounding is added to the next level's target.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.nn.levels import Level, block_parameters
from ripe_mambaspike.nn.mamba import MAMBA_SIZES, BidirectionalMamba, MambaSizes
from ripe_mambaspike.nn.registry import Registry

HEADS = 4
TAPS = 7

MIXERS = Registry("mixer")
register_mixer = MIXERS.register
register_mixer("mamba")(BidirectionalMamba)


@register_mixer("flat-matched")
@register_mixer("flat")
def flat_mamba(width: int, sizes: MambaSizes = MAMBA_SIZES) -> nn.Module:
    """Mamba at one width without pooling; see `nn.levels.plan_levels`."""
    return BidirectionalMamba(width, sizes)


MAMBA_MIXERS = ("mamba", "flat", "flat-matched")  # made of Mamba blocks, of the sizes that the config gives


@register_mixer("none")
def no_mixer(width: int) -> nn.Module:
    """No block at all; `make_blocks` leaves it out."""
    return nn.Identity()


class TransformerBlock(nn.Module):
    """Pre-norm softmax attention over all tokens, then a GELU network of `hidden` units."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = HEADS
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inputs(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        heads = (part.transpose(1, 2) for part in (query, key, value))
        mixed = self.output(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return mixed + self.contract(F.gelu(self.expand(self.norm(x + mixed))))


class GRUBlock(nn.Module):
    """A bidirectional GRU of `hidden` units a direction, merged by one Linear."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gru = nn.GRU(width, hidden, batch_first=True, bidirectional=True)
        self.merge = nn.Linear(2 * hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_exporting():
            return self.merge(self.gru(self.norm(x))[0])
        weights = [getattr(self.gru, name) for name in self.gru._flat_weights_names]  # also if they are parametrized
        start = x.new_zeros(2, x.shape[0], self.gru.hidden_size)
        return self.merge(torch.gru(self.norm(x), start, weights, True, 1, 0.0, False, True, True)[0])


class ConvBlock(nn.Module):
    """A depthwise convolution over the tokens between two Linears, `hidden` channels wide."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand, self.contract = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.conv = nn.Conv1d(hidden, hidden, TAPS, padding=TAPS // 2, groups=hidden)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.conv(self.expand(self.norm(x)).transpose(1, 2)).transpose(1, 2)
        return self.contract(F.gelu(mixed))


ARMS: dict[str, Callable[[int, int], nn.Module]] = {
    "transformer": TransformerBlock,
    "gru": GRUBlock,
    "conv1d": ConvBlock,
}
for _name in ARMS:
    register_mixer(_name)(ARMS[_name])


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def matched_sizes(arm: str, widths: tuple[int, ...], sizes: MambaSizes = MAMBA_SIZES) -> tuple[int, ...]:
    """The free size of every level such that the total parameter count matches that of the Mamba blocks."""
    with torch.device("meta"):
        missing = 0
        found = []
        for width in reversed(widths):
            missing += block_parameters(width, sizes)
            best = _closest(lambda hidden, width=width: parameter_count(ARMS[arm](width, hidden)), missing)  # type: ignore[misc]
            missing -= parameter_count(ARMS[arm](width, best))
            found.append(best)
    return tuple(reversed(found))


def make_blocks(mixer: str, levels: Sequence[Level], *, causal: bool = False) -> list[nn.Module]:
    """The blocks of these levels, none for `none`; with `causal` their causal versions."""
    if mixer == "none":
        return []
    if mixer in ARMS and not causal:
        widths = tuple(level.width for level in levels)
        free = matched_sizes(mixer, widths, levels[0].sizes)
        return [MIXERS.make(mixer, *shape) for shape in zip(widths, free, strict=True)]
    shapes = [(level.width, level.sizes) if mixer in MAMBA_MIXERS else (level.width,) for level in levels]
    return [MIXERS[mixer].causal(*shape) if causal else MIXERS.make(mixer, *shape) for shape in shapes]


def causal_mixers() -> list[str]:
    """The names of mixers that support causal networks."""
    return [name for name, kind in MIXERS.items() if name == "none" or getattr(kind, "causal", None) is not None]


def _closest(count: Callable[[int], int], target: int) -> int:
    """The size whose count (increasing in the size) is closest to the target."""
    high = 1
    while count(high) < target:
        high *= 2
    low = high // 2 or 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < target else (low, middle)
    return min((low, high), key=lambda hidden: abs(count(hidden) - target))
