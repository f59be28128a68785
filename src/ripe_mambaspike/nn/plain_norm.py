"""PyTorch's batch norm, with the same numbers, saved without its counter of batches, which is no weight."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ripe_mambaspike.nn.sync_stats import joint_count, joint_spread, stats_sync
from ripe_mambaspike.ops.shapes import at_least_float32


class PlainBatchNorm(_BatchNorm):
    """A batch norm over all dimensions but the second, for inputs [N, C, ...] of any number of dimensions."""

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(channels, eps, momentum)
        self.register_buffer("num_batches_tracked", torch.tensor(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or stats_sync() is None:
            return super().forward(x)
        wide = at_least_float32(x)
        count = joint_count(x.numel() // x.shape[1])
        variance, mean = torch.var_mean(wide, [0, *range(2, x.ndim)], correction=0)
        mean, variance = joint_spread(mean, variance)
        self._track(mean.detach(), variance.detach() * (count / (count - 1)))
        scale = self.weight * torch.rsqrt(variance + self.eps)
        shape = (1, -1, *[1] * (x.ndim - 2))
        return (wide * scale.view(shape) + (self.bias - mean * scale).view(shape)).to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance, momentum)

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *given: Any) -> None:
        nn.Module._load_from_state_dict(self, state_dict, prefix, *given)  # PyTorch's own would ask for the counter
