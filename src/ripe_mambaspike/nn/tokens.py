"""Which tokens enter the scan: all of them, or for the study the k most salient positions."""

import torch
from torch import Tensor, nn


class TokenSelection(nn.Module):
    """Score = a·(total spikes) + b·exp(−first spike time) of the last stage, a = b = 1 frozen but counted."""

    def __init__(self, keep: int | None) -> None:
        super().__init__()
        self.keep = keep
        self.activity = nn.Parameter(torch.ones(()), requires_grad=False)
        self.earliness = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, spikes: Tensor) -> Tensor | None:
        """The positions kept, in raster order and the same for every step: [B, T, C, H, W] → [B, k]."""
        if self.keep is None:
            return None
        counts = spikes.detach().float().sum(2).flatten(2)  # [B, T, N]
        fired = counts > 0
        first = torch.where(fired.any(1), fired.float().argmax(1).float(), torch.inf)  # steps from 0
        score = self.activity * counts.sum(1) + self.earliness * torch.exp(-first)
        best = score.sort(dim=1, descending=True, stable=True).indices[:, : self.keep]  # of equals, the first
        return best.sort(1).values


def keep_tokens(tokens: Tensor, indices: Tensor | None) -> Tensor:
    """tokens [B, T, N, d] at the positions [B, k] → [B, T, k, d]; all of them without indices."""
    if indices is None:
        return tokens
    wanted = indices[:, None, :, None].expand(-1, tokens.shape[1], -1, tokens.shape[3])
    return tokens.gather(2, wanted)
