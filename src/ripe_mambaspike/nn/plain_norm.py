"""PyTorch's batch norm, with the same numbers, saved without its counter of batches, which is no weight."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ripe_mambaspike.nn.sync_stats import joint_count, joint_spread, stats_sync
from ripe_mambaspike.ops.shapes import at_least_float32


class PlainBatchNorm(_BatchNorm):
    """A batch norm over all dimensions but the second, for inputs [N, C, ...] of any number of dimensions.

    `momentum` None means a cumulative average. Inside `sync_batch_stats` the statistics are those of all processes.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: int  # type: ignore[assignment]

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(channels, eps, momentum)
        del self.num_batches_tracked
        self.num_batches_tracked = 0

    def reset_running_stats(self) -> None:
        self.running_mean.zero_()
        self.running_var.fill_(1)
        if "num_batches_tracked" not in self._buffers:  # it is one while PyTorch's own __init__ runs
            self.num_batches_tracked = 0

    def forward(self, x: Tensor) -> Tensor:
        mean, variance, weight, bias = self.running_mean, self.running_var, self.weight, self.bias
        if not self.training:
            return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, self.eps)
        self.num_batches_tracked += 1
        momentum = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        if stats_sync() is None:
            return F.batch_norm(x, mean, variance, weight, bias, True, momentum, self.eps)
        return self._normalize_synced(x, momentum)

    def _normalize_synced(self, x: Tensor, momentum: float) -> Tensor:
        wide = at_least_float32(x)
        count = joint_count(x.numel() // x.shape[1])
        variance, mean = torch.var_mean(wide, [0, *range(2, x.ndim)], correction=0)
        mean, variance = joint_spread(mean, variance)
        with torch.no_grad():
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        shape = (1, -1, *[1] * (x.ndim - 2))
        return (wide * scale.view(shape) + (self.bias - mean * scale).view(shape)).to(x.dtype)

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *given: Any) -> None:
        nn.Module._load_from_state_dict(self, state_dict, prefix, *given)  # PyTorch's own would ask for the counter
