"""The sequence part: blocks at growing widths over shrinking token grids, and the head that reads them."""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.nn.levels import plan_levels
from ripe_mambaspike.nn.mamba import MAMBA_SIZES, CausalMamba, MambaSizes
from ripe_mambaspike.nn.mixers import make_blocks
from ripe_mambaspike.nn.state import State, below, prefixed


def pool_tokens(tokens: Tensor, ratio: int) -> Tensor:
    """Mean of `ratio` adjacent tokens inside a step; a remainder at the end is averaged on its own.

    [B, T, k, d] → [B, T, ⌈k / ratio⌉, d].
    """
    if ratio == 1:
        return tokens
    if torch.compiler.is_exporting():
        return _pool_padded(tokens, ratio)
    whole = tokens.shape[2] // ratio * ratio
    pooled = tokens[:, :, :whole].unflatten(2, (-1, ratio)).mean(3) if whole else tokens[:, :, :0]
    if whole == tokens.shape[2]:
        return pooled
    return torch.cat((pooled, tokens[:, :, whole:].mean(2, keepdim=True)), 2)


def _pool_padded(tokens: Tensor, ratio: int) -> Tensor:
    """`pool_tokens` without branching on the number of tokens, which may be a symbol."""
    batch, steps, count, width = tokens.shape
    cells = (count + ratio - 1) // ratio
    padded = F.pad(tokens, (0, 0, 0, cells * ratio - count))
    first = torch.arange(cells, device=tokens.device) * ratio
    members = (count - first).clamp(max=ratio).to(tokens.dtype)
    return padded.reshape(batch, steps, cells, ratio, width).sum(3) / members.unsqueeze(1)


def drop_path(x: Tensor, rate: float, training: bool) -> Tensor:
    """Drop x for a random share of the samples, and scale the others up (stochastic depth)."""
    if not training or rate == 0:
        return x
    kept = torch.empty(x.shape[0], *([1] * (x.ndim - 1)), dtype=x.dtype, device=x.device).bernoulli_(1 - rate)
    return x * kept / (1 - rate)


class Transition(nn.Module):
    """Pool, widen, normalize."""

    def __init__(self, before: int, after: int, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio
        self.widen = nn.Linear(before, after)
        self.norm = nn.LayerNorm(after)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.widen(pool_tokens(tokens, self.ratio)))


class Hierarchy(nn.Module):
    """Tokens [B, T, k, d_m] through every level: [B, T, k', d_last]. Blocks see the whole T·k sequence in order.

    d_m is `entry`, by default the first of the widths; if it differs, the first level has a transition, too.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        ratios: tuple[int, ...],
        mixer: str,
        drop_rate: float,
        *,
        causal: bool = False,
        entry: int | None = None,
        sizes: MambaSizes = MAMBA_SIZES,
    ) -> None:
        super().__init__()
        levels = plan_levels(widths, ratios, mixer, entry, sizes)
        self.norm = nn.LayerNorm(levels[0].before)
        self.first_ratio = 1 if levels[0].transition else levels[0].ratio  # a transition pools itself
        self.transitions = nn.ModuleList(
            Transition(level.before, level.width, level.ratio) if level.transition else nn.Identity()
            for level in levels
        )
        mixing = [level for level in levels if level.mixes]
        self.blocks = nn.ModuleList(make_blocks(mixer, mixing, causal=causal))
        last = max(1, len(mixing) - 1)
        self.drop_rates = [drop_rate * index / last for index in range(len(mixing))]

    def forward(self, tokens: Tensor) -> Tensor:
        return self._climb(tokens, lambda level, sequence: self.blocks[level](sequence))

    def forward_with_state(self, tokens: Tensor, initial_state: State | None = None) -> tuple[Tensor, State]:
        """For a causal network: run the next steps from the state of the earlier ones. Pieces equal one call.

        Tokens are ordered by step. Only the scan reads other steps, and only earlier ones.
        """
        final: State = {}

        def mix(level: int, sequence: Tensor) -> Tensor:
            name, block = f"blocks.{level}", cast("CausalMamba", self.blocks[level])
            mixed, left = block.forward_with_state(sequence, below(initial_state, name))
            final.update(prefixed(name, left))
            return mixed

        return self._climb(tokens, mix), final

    def _climb(self, tokens: Tensor, mix: Callable[[int, Tensor], Tensor]) -> Tensor:
        tokens = pool_tokens(self.norm(tokens), self.first_ratio)
        for level, transition in enumerate(self.transitions):
            tokens = transition(tokens)
            if level < len(self.blocks):
                sequence = tokens.flatten(1, 2)
                mixed = drop_path(mix(level, sequence), self.drop_rates[level], self.training)
                tokens = (sequence + mixed).view_as(tokens)
        return tokens


def linear_head(width: int, num_classes: int) -> nn.Module:
    """The last layer: a Linear, or an Identity for embeddings."""
    return nn.Linear(width, num_classes) if num_classes else nn.Identity()


def make_head(width: int, num_classes: int, hidden: int | None) -> nn.Module:
    """A Linear, or with `hidden` Linear → LayerNorm → GELU → Linear."""
    if hidden is None:
        return linear_head(width, num_classes)
    return nn.Sequential(nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.GELU(), linear_head(hidden, num_classes))
