"""What may stand in the place of the three Mamba blocks: arms of the same budget for the study.

Each arm has one free size a level. It is chosen so that the arms together have as many parameters as the Mamba
blocks they replace: the widest level first, and what its rounding leaves over is made good by the next.
All blocks map [B, L, d] → [B, L, d]; the residual around them is the hierarchy's.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.nn.mamba import BidirectionalMamba, CausalMamba

HEADS = 4
TAPS = 7


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
        weights = [getattr(self.gru, name) for name in self.gru._flat_weights_names]  # also where they are parametrized
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

MIXERS = ("mamba", *ARMS, "none", "flat")


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def matched_sizes(arm: str, widths: tuple[int, ...]) -> tuple[int, ...]:
    """The free size of every level, so that the arm's levels together match the Mamba blocks at these widths."""
    with torch.device("meta"):
        owed = 0
        sizes = []
        for width in reversed(widths):
            owed += size(BidirectionalMamba(width))
            best = _closest(lambda hidden, width=width: size(ARMS[arm](width, hidden)), owed)  # type: ignore[misc]
            owed -= size(ARMS[arm](width, best))
            sizes.append(best)
    return tuple(reversed(sizes))


def make_blocks(mixer: str, widths: tuple[int, ...], *, causal: bool = False) -> list[nn.Module]:
    """The blocks of every level, none for `none`; of Mamba with `causal` the forward scan alone."""
    if mixer == "none":
        return []
    if causal:
        assert mixer == "mamba", mixer
        return [CausalMamba(width) for width in widths]
    if mixer in ("mamba", "flat"):
        return [BidirectionalMamba(width) for width in widths]
    return [ARMS[mixer](width, hidden) for width, hidden in zip(widths, matched_sizes(mixer, widths), strict=True)]


def _closest(count: Callable[[int], int], target: int) -> int:
    """The size whose count, which grows with it, comes closest to the target."""
    high = 1
    while count(high) < target:
        high *= 2
    low = high // 2 or 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < target else (low, middle)
    return min((low, high), key=lambda hidden: abs(count(hidden) - target))
