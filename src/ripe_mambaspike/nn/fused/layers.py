"""A convolution and the norm over time after it, as a kernel without bias and an affine per step.

The norm cancels a constant bias, so the bias never enters the convolution: it is part of the affine, or, with batch
statistics, only of the running mean.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.norm import TimeAffine, TimeBatchNorm, check_statistics, track_all
from ripe_mambaspike.nn.repconv import Branches, FusedConv, RepConv
from ripe_mambaspike.nn.sync_stats import joint_count, joint_moments, joint_spread
from ripe_mambaspike.ops.backend import backend
from ripe_mambaspike.ops.convolve import convolve
from ripe_mambaspike.ops.merge_branches import merge_branches
from ripe_mambaspike.ops.patch_moments import patch_moments
from ripe_mambaspike.ops.shapes import at_least_float32
from ripe_mambaspike.ops.step_affine import step_affine
from ripe_mambaspike.ops.step_moments import step_moments
from ripe_mambaspike.ops.winograd import winograd_weights

MIN_PATCHES = 2  # patches per element of a patch; the measured break-even


class Currents(NamedTuple):
    """The input of a neuron: `scale_t · values_t + shift_t`, with one row per step of two tables."""

    values: Tensor  # [B, T, H, W, C]
    scale: Tensor  # [S, C], float32; [1, C] where all steps share it
    shift: Tensor


@dataclass(frozen=True)
class Layer:
    """A convolution and its norm with everything fixed."""

    kernel: Tensor  # [C, C_in, 3, 3], channels-last
    scale: Tensor  # [T, C], float32
    shift: Tensor  # [T, C], float32
    stride: int
    winograd: Tensor | None = None  # the kernel transformed for Winograd's convolution, if used

    def __call__(self, operand: Tensor, mode: ForwardMode) -> Currents:
        return Currents(convolve(operand, self.kernel, self.stride, winograd=self.winograd), self.scale, self.shift)


def channels_together(kernel: Tensor, dtype: torch.dtype) -> Tensor:
    return kernel.to(dtype).contiguous(memory_format=torch.channels_last)


def affine_of(norm: Any) -> tuple[Tensor, Tensor]:
    """Scale and shift [T, C] of a norm with fixed statistics, float32."""
    if isinstance(norm, TimeAffine):
        return at_least_float32(norm.scale), at_least_float32(norm.shift)
    scale, shift = (value.to(norm.weight.dtype) for value in norm.scale_and_shift())
    return at_least_float32(scale), at_least_float32(shift)


def coefficient_of(conv: Any) -> Tensor | None:
    """λ [C] of a convolution's temporal filter, float32; None without a filter."""
    return None if conv.coefficient is None else at_least_float32(conv.coefficient)


def fixed_layer(conv: Any, norm: Any, dtype: torch.dtype) -> Layer:
    """The layer of a deployed convolution, or of a training one as it would be deployed."""
    if isinstance(conv, FusedConv):
        kernel, bias = conv.weight, conv.bias
    else:
        kernel, bias = (value.to(conv.branches[0].norm.weight.dtype) for value in conv.kernel_and_bias())
    scale, shift = affine_of(norm)
    together = channels_together(kernel, dtype)
    winograd = winograd_weights(together) if conv.stride == 1 else None
    return Layer(together, scale, shift + scale * at_least_float32(bias), conv.stride, winograd)


class BatchLayer:
    """With batch statistics: the branches' from the moments of the operand's patches, the norm's from the output.

    One convolution runs instead of seven. The branches' weights are read once, however many passes follow. With few
    patches on a CPU, running every branch is cheaper than computing moments.
    """

    def __init__(self, conv: RepConv, norm: TimeBatchNorm) -> None:
        self.conv, self.norm = conv, norm
        self.native = backend(norm.weight) == "native"
        self._branches: Branches | None = None

    def branches(self) -> Branches:
        if self._branches is None:  # small products: float64 is cheap on a GPU, not on a CPU
            dtype = torch.float32 if self.native else torch.float64
            self._branches = self.conv.stacked(dtype, native=self.native)
        return self._branches

    def __call__(self, operand: Tensor, mode: ForwardMode) -> Currents:
        conv = self.conv
        height, width = (-(-side // conv.stride) for side in operand.shape[2:4])
        count = joint_count(operand.shape[0] * operand.shape[1] * height * width)
        if self.native and operand.dtype == self.norm.weight.dtype and count < MIN_PATCHES * 9 * conv.in_channels:
            values = conv.each_branch(operand.flatten(0, 1).permute(0, 3, 1, 2), mode, shifted=False)
            values = values.permute(0, 2, 3, 1).contiguous().unflatten(0, operand.shape[:2])
            bias = torch.stack([branch.norm.bias for branch in conv.branches]).sum(0)
            return batch_affine(self.norm, values, bias, mode)
        mean, second = joint_moments(*patch_moments(operand, conv.stride))
        if self.native:
            kernel, bias = conv.batch_kernel_and_bias(self.branches(), mean, second, count, mode)
            kernel = channels_together(kernel, operand.dtype)
        else:
            merged = merge_branches(*self.branches(), mean, second, operand.dtype)
            track_all([branch.norm for branch in conv.branches], merged.means, merged.variances, count, mode)
            kernel, bias = merged.kernel.unflatten(1, (3, 3, -1)).permute(0, 3, 1, 2), merged.bias
        return batch_affine(self.norm, convolve(operand, kernel, conv.stride), bias, mode)


class SharedBatchLayer(BatchLayer):
    """With batch statistics shared by all steps, which are treated as samples of one step."""

    def __call__(self, operand: Tensor, mode: ForwardMode) -> Currents:
        values, scale, shift = super().__call__(operand.flatten(0, 1).unsqueeze(1), mode)
        return Currents(values.squeeze(1).unflatten(0, operand.shape[:2]), scale, shift)


def batch_affine(norm: TimeBatchNorm, values: Tensor, bias: Tensor, mode: ForwardMode) -> Currents:
    """The affine that normalizes these values by batch statistics; updates the running ones if tracked."""
    count = joint_count(values.shape[0] * values.shape[2] * values.shape[3])
    check_statistics(count)
    mean, variance = joint_spread(*step_moments(values.flatten(2, 3)))
    scale, shift = step_affine(mean, variance, at_least_float32(norm.weight), at_least_float32(norm.bias), bias)
    if mode.track_statistics:
        norm.track(mean + bias.to(mean.dtype), variance, count, mode)
    return Currents(values, scale, shift)
