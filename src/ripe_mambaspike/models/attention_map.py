"""Where a network attends, as one map that can be drawn."""

from torch import Tensor

FLAT = 0.01  # of the step's mean |attention|; a place that differs by less counts as background


def attention_contrast(attention: Tensor) -> Tensor:
    """How far each place departs from the step's median place, mean over channels: [..., C, h, w] → [..., h, w].

    Zero is background. The attention's own values would not do: DS-MPA gives every resting position the same mean of
    the values, which is far from zero, so that the background would be drawn as strongly as what moves.
    """
    flat = attention.float().flatten(-2)
    contrast = (flat - flat.median(-1, keepdim=True).values).abs().mean(-2)
    level = flat.abs().mean((-2, -1)).unsqueeze(-1)
    return contrast.where(contrast > FLAT * level, contrast * 0).unflatten(-1, attention.shape[-2:])
