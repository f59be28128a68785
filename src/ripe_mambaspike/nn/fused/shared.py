"""Norms that all steps share, as those of a causal network, where the operators want an affine for every step."""

from torch import Tensor

from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.fused.layers import BatchLayer, Currents


def every_step(value: Tensor, steps: int) -> Tensor:
    """A norm's scale or shift for so many steps [T, C]: the first ones of many, or the one that all share."""
    return value[:steps].expand(steps, -1).contiguous()  # kernels read one row a step


class SharedBatchLayer(BatchLayer):
    """With batch statistics over all steps together: every step is a sample of the one that the norm has."""

    def __call__(self, operand: Tensor, mode: ForwardMode) -> Currents:
        values, scale, shift = super().__call__(operand.flatten(0, 1).unsqueeze(1), mode)
        return Currents(values.squeeze(1).unflatten(0, operand.shape[:2]), scale, shift)
