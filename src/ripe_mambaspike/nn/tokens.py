"""Which tokens enter the scan: all of them, or for the study the k most salient positions."""

import torch
from torch import Tensor, nn

from ripe_mambaspike.nn.state import State, Step


class TokenSelection(nn.Module):
    """Score = a·(total spikes) + b·exp(−first spike time) of the last stage, a = b = 1 frozen but counted."""

    def __init__(self, keep: int | None) -> None:
        super().__init__()
        self.keep = keep
        self.activity = nn.Parameter(torch.ones(()), requires_grad=False)
        self.earliness = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(
        self, spikes: Tensor, initial_state: State | None = None, first_step: Step = 0
    ) -> tuple[Tensor | None, State]:
        """Spikes [B, T, C, H, W] → the score of every position so far [B, N] (None where all are kept), state."""
        if self.keep is None:
            return None, {}
        counts = spikes.detach().float().sum(2).flatten(2)  # [B, T, N]
        steps = torch.arange(counts.shape[1], device=counts.device)
        steps = steps + first_step if isinstance(first_step, int) else steps + first_step.unsqueeze(1)
        early = torch.exp(-steps.to(counts.dtype)).unsqueeze(-1)  # [T, 1] or [B, T, 1]
        earliness = torch.where(counts > 0, early, torch.zeros_like(early)).amax(1)
        count = counts.sum(1)
        if initial_state:
            before = initial_state["earliness"]
            count, earliness = initial_state["count"] + count, torch.maximum(before, earliness)
        return self.score(count, earliness), {"count": count, "earliness": earliness}

    def score(self, count: Tensor, earliness: Tensor) -> Tensor:
        """Of every position [B, N], by its spikes and by how early the first one was."""
        return self.activity * count + self.earliness * earliness

    def select(self, scores: Tensor) -> Tensor:
        """The positions kept, in raster order and the same for every step: [B, N] → [B, k]."""
        if torch.compiler.is_exporting():
            return _highest(scores, self.keep or 0)
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, : self.keep]  # ties: the first
        return best.sort(1).values


def _highest(scores: Tensor, keep: int) -> Tensor:
    """`select` by counting the higher scores of every position: other runtimes have no stable sort."""
    index = torch.arange(scores.shape[1], device=scores.device)
    own, other = scores.unsqueeze(2), scores.unsqueeze(1)
    higher = (other > own) | ((other == own) & (index < index.unsqueeze(1)))
    rank = higher.to(torch.int64).sum(2)
    kept = torch.where(rank < keep, index, scores.shape[1])
    return torch.topk(kept, keep, dim=1, largest=False, sorted=True).values


def keep_tokens(tokens: Tensor, indices: Tensor | None) -> Tensor:
    """tokens [B, T, N, d] at the positions [B, k] → [B, T, k, d]; all of them without indices."""
    if indices is None:
        return tokens
    wanted = indices[:, None, :, None].expand(-1, tokens.shape[1], -1, tokens.shape[3])
    return tokens.gather(2, wanted)
