"""The accumulate-only convolution in plain PyTorch: by the same additions, and by dense convolutions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.sparse_conv import SUMS, AccumulateConvInputs, refuse_other_bytes
from ripe_mambaspike.ops.tdm import shift

SPIKES_PER_LOOKUP = 2**16


def accumulate_conv(i: AccumulateConvInputs) -> tuple[Tensor, int]:
    """The same additions: spikes as a list, and for each tap their weights added where they belong."""
    batch, steps, height, width, _ = i.spikes.shape
    channels, dtype = i.weight_now.shape[0], SUMS.get(i.weight_now.dtype, torch.float32)
    rows, columns = ((size - 1) // i.stride + 1 for size in (height, width))
    out = torch.zeros(batch * steps * rows * columns, channels, dtype=dtype, device=i.spikes.device)
    additions = 0
    for seen, weight in _kernels(i, dtype):
        taps = weight.permute(2, 3, 1, 0)  # [3, 3, Cin, C]
        for piece in seen.flatten(0, 1).nonzero().split(SPIKES_PER_LOOKUP):
            image, row, column, channel = piece.unbind(1)
            for tap in range(9):
                down, across = row + 1 - tap // 3, column + 1 - tap % 3  # input position of the output's center
                inside = (down >= 0) & (across >= 0) & (down < rows * i.stride) & (across < columns * i.stride)
                reached = (inside & (down % i.stride == 0) & (across % i.stride == 0)).nonzero().squeeze(1)
                target = ((image * rows + down // i.stride) * columns + across // i.stride)[reached]
                out.index_add_(0, target, taps[tap // 3, tap % 3][channel[reached]])
                additions += channels * len(reached)
    out = out.unflatten(0, (batch, steps, rows, columns))
    return (out if i.bias is None else out + i.bias.to(dtype)), additions


def dense_conv(i: AccumulateConvInputs) -> tuple[Tensor, int]:
    """The same by dense convolutions."""
    dtype = SUMS.get(i.weight_now.dtype, torch.float32)
    within = torch.float64 if dtype == torch.int32 else dtype  # products of integers are exact in float64
    out, additions = i.spikes.new_zeros((), dtype=within), 0
    for seen, weight in _kernels(i, within):
        images = seen.flatten(0, 1).movedim(-1, 1)
        out = out + F.conv2d(images.to(within), weight, None, i.stride, 1)
        taps = weight.new_ones(1, 1, 3, 3, dtype=torch.float64)
        reached = F.conv2d(images.sum(1, keepdim=True).double(), taps, None, i.stride, 1)
        additions += weight.shape[0] * int(reached.sum())
    out = out.movedim(1, -1).unflatten(0, i.spikes.shape[:2])
    return (out if i.bias is None else out + i.bias.to(within)).to(dtype).contiguous(), additions


def _kernels(i: AccumulateConvInputs, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """The input of each kernel and its weights; those for the previous step are negated."""
    for given in (i.spikes, i.initial_state):
        if given is not None and given.numel() and given.max() > 1:
            refuse_other_bytes()
    now = (i.spikes, i.weight_now.detach().to(dtype))
    if i.weight_before is None:
        return [now]
    return [now, (shift(i.spikes, i.initial_state)[0], -i.weight_before.detach().to(dtype))]
