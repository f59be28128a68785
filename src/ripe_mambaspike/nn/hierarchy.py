"""The sequence part: blocks at growing widths over shrinking token grids, and the head that reads them."""

import torch
from torch import Tensor, nn

from ripe_mambaspike.nn.mixers import make_blocks


def pool_tokens(tokens: Tensor, ratio: int) -> Tensor:
    """Mean of `ratio` adjacent tokens inside a step; those left over at the end are averaged on their own.

    [B, T, k, d] → [B, T, ⌈k / ratio⌉, d].
    """
    if ratio == 1:
        return tokens
    whole = tokens.shape[2] // ratio * ratio
    pooled = tokens[:, :, :whole].unflatten(2, (-1, ratio)).mean(3) if whole else tokens[:, :, :0]
    if whole == tokens.shape[2]:
        return pooled
    return torch.cat((pooled, tokens[:, :, whole:].mean(2, keepdim=True)), 2)


def drop_path(x: Tensor, rate: float, training: bool) -> Tensor:
    """Leave the whole of x out for a random share of the samples, and scale the others up."""
    if not training or rate == 0:
        return x
    kept = torch.empty(x.shape[0], *([1] * (x.ndim - 1)), dtype=x.dtype, device=x.device).bernoulli_(1 - rate)
    return x * kept / (1 - rate)


class Transition(nn.Module):
    """Pool, widen, normalise."""

    def __init__(self, before: int, after: int, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio
        self.widen = nn.Linear(before, after)
        self.norm = nn.LayerNorm(after)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.widen(pool_tokens(tokens, self.ratio)))


class Hierarchy(nn.Module):
    """Tokens [B, T, k, d_1] through every level: [B, T, k', d_last]. Blocks see the whole T·k sequence.

    `flat` widens to the last level's width at once and never pools; it is the study's flat stack.
    """

    def __init__(self, widths: tuple[int, ...], ratios: tuple[int, ...], mixer: str, drop_rate: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(widths[0])
        levels = widths
        if mixer == "flat":
            levels, ratios = (widths[-1],) * len(widths), (1,) * len(widths)
        self.first_ratio = ratios[0]
        before_levels = (widths[0], *levels[:-1])
        self.transitions = nn.ModuleList(
            Transition(before, after, ratio) if before != after or (level > 0 and mixer != "flat") else nn.Identity()
            for level, (before, after, ratio) in enumerate(zip(before_levels, levels, ratios, strict=True))
        )
        self.blocks = nn.ModuleList(make_blocks(mixer, levels))
        last = max(1, len(levels) - 1)
        self.drop_rates = [drop_rate * level / last for level in range(len(levels))]

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = pool_tokens(self.norm(tokens), self.first_ratio)
        for level, transition in enumerate(self.transitions):
            tokens = transition(tokens)
            if self.blocks:
                sequence = tokens.flatten(1, 2)
                mixed = drop_path(self.blocks[level](sequence), self.drop_rates[level], self.training)
                tokens = (sequence + mixed).view_as(tokens)
        return tokens


def make_head(width: int, classes: int, hidden: int | None) -> nn.Module:
    """A Linear, or with `hidden` a widening one: Linear → LayerNorm → GELU → Linear."""
    if hidden is None:
        return nn.Linear(width, classes)
    return nn.Sequential(nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, classes))
