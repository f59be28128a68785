"""Batch normalization per time step, as one batch norm over T·C channels."""

import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-5  # added to every variance


def batch_norm_over_time(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    training: bool,
    momentum: float = 0.1,
    epsilon: float = EPSILON,
) -> Tensor:
    """Step t is normalized by its own statistics over (B, H, W). x [B, T, C, H, W]; the rest [T, C].

    In training the batch's statistics are used and `mean` and `variance`, when momentum > 0, move towards them.
    """
    used = not training or momentum > 0
    running_mean, running_var = (mean.flatten(), variance.flatten()) if used else (None, None)
    gamma, beta = weight.flatten(), bias.flatten()
    out = F.batch_norm(x.flatten(1, 2), running_mean, running_var, gamma, beta, training, momentum, epsilon)
    return out.view_as(x)


def affine_over_time(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """`scale_t x_t + shift_t`, what the norm becomes once its statistics are fixed.

    x [B, T, C, ...]; scale and shift [T, C], or [B, T, C] where rows are at different steps.
    """
    trailing = [1] * (x.ndim - 3)
    scale, shift = (value.reshape(*value.shape, *trailing) for value in (scale, shift))
    return shift.addcmul(x, scale).to(x.dtype)
