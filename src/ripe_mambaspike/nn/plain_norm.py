"""PyTorch's batch norm, with the same numbers, saved without its counter of batches, which is no weight."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class PlainBatchNorm(_BatchNorm):
    """A batch norm over all dimensions but the second, for inputs [N, C, ...] of any number of dimensions."""

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(channels, eps, momentum)
        self.register_buffer("num_batches_tracked", torch.tensor(0), persistent=False)

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *given: Any) -> None:
        nn.Module._load_from_state_dict(self, state_dict, prefix, *given)  # PyTorch's own would ask for the counter
