"""The accumulate-only convolution in C++."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.cpp.call import call, dense
from ripe_mambaspike.ops.sparse_conv import SUMS, AccumulateConvInputs, refuse_other_bytes

VECTOR = 64  # bytes
MAX_VECTORS = 8  # vectors of output channels summed together
OPERATORS = {
    torch.float32: "accumulate_conv",
    torch.float64: "accumulate_conv_doubles",
    torch.int32: "accumulate_conv_bytes",
}


def accumulate_conv(i: AccumulateConvInputs) -> tuple[Tensor, int]:
    batch, steps, height, width = i.spikes.shape[:4]
    channels, dtype = i.weight_now.shape[0], SUMS.get(i.weight_now.dtype, torch.float32)
    table = arranged(i.weight_now, i.weight_before) if i.table is None else i.table
    shape = (batch, steps, (height - 1) // i.stride + 1, (width - 1) // i.stride + 1, channels)
    out = torch.empty(shape, dtype=dtype)
    result = torch.zeros(2, dtype=torch.int64)
    sizes = torch.tensor([*i.spikes.shape, channels, i.stride, table.shape[4]])
    dual = i.weight_before is not None
    given = (dense(i.spikes), dense(i.initial_state), table, dense(i.bias, dtype))
    call(OPERATORS[dtype], sizes, dual, *given, out, result)
    additions, wrong = result.tolist()
    if wrong:
        refuse_other_bytes()
    return out, additions


def arranged(weight_now: Tensor, weight_before: Tensor | None) -> Tensor:
    """The table of weight rows [blocks, 6 or 3, 3, Cin, block]: by row of taps (now, then before), tap, input channel.

    The kernel for the previous step is subtracted, so it is stored negated. A block is a part of the output channels,
    a multiple of the vector size; the last one is padded with zeros.
    """
    kept = weight_now.dtype if weight_now.dtype in SUMS else torch.float32
    lanes = VECTOR // SUMS.get(weight_now.dtype, torch.float32).itemsize
    channels = weight_now.shape[0]
    vectors = -(-channels // lanes)
    blocks = -(-vectors // MAX_VECTORS)
    block = -(-vectors // blocks) * lanes
    both = [weight_now] if weight_before is None else [weight_now, -weight_before]
    rows = torch.cat([weight.detach().to(kept).permute(2, 3, 1, 0) for weight in both])
    return F.pad(rows, (0, blocks * block - channels)).unflatten(3, (blocks, block)).movedim(3, 0).contiguous()
