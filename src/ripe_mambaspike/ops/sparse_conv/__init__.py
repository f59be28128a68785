"""The accumulate-only convolution, Prop. (ac-tdm), driven by the spikes themselves.

    out_t = W_now * s_t − W_before * s_{t−1} + b

A spike is 0 or 1, so no product is needed: each spike adds a row of weights to every output it reaches. The time goes
with the number of spikes, the result is the dense convolution's to rounding, and the additions are counted as made.
Weights of float64 are added up in float64, int8 ones in int32 (and then the result is exact), all others in float32.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.backend import backend, implementation
from ripe_mambaspike.ops.tdm import shift

SUMS = {torch.float64: torch.float64, torch.int8: torch.int32}  # by the weights' precision; float32 for any other
PIECE = 2**16  # spikes whose weights are looked up together where there is no C++ operator


def accumulate_conv(
    spikes: Tensor,
    weight_now: Tensor,
    weight_before: Tensor | None,
    bias: Tensor | None,
    stride: int = 1,
    initial_state: Tensor | None = None,
    table: Tensor | None = None,
) -> tuple[Tensor, int]:
    """spikes [B, T, H, W, Cin] of bytes 0 or 1 → (out [B, T, H', W', C], additions).

    weights [C, Cin, 3, 3], bias [C], padding 1, stride 1 or 2. The state is the spikes of the step before the first
    [B, H, W, Cin]; without one nothing came before. An addition is one spike at one tap inside the image for one
    output channel, of either kernel. `table` is `prepared(weight_now, weight_before)`, for those who call often.
    """
    _check(spikes, weight_now, weight_before, bias, stride, initial_state)
    if backend(spikes, torch.float32) == "native":
        natively = implementation("native", __name__, "accumulate_conv")
        made: tuple[Tensor, int] = natively(spikes, weight_now, weight_before, bias, stride, initial_state, table)
        return made
    return accumulate_conv_by_lists(spikes, weight_now, weight_before, bias, stride, initial_state)


def prepared(weight_now: Tensor, weight_before: Tensor | None) -> Tensor | None:
    """The weights as the C++ operator reads them; None where it is not used."""
    if backend(weight_now, torch.float32) != "native":
        return None
    table: Tensor = implementation("native", __name__, "arranged")(weight_now, weight_before)
    return table


def accumulate_conv_by_lists(
    spikes: Tensor,
    weight_now: Tensor,
    weight_before: Tensor | None,
    bias: Tensor | None,
    stride: int = 1,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, int]:
    """The same additions in plain PyTorch: spikes as a list, and for each tap their weights added where they belong."""
    _check_bytes(spikes, initial_state)
    batch, steps, height, width, _ = spikes.shape
    channels, dtype = weight_now.shape[0], SUMS.get(weight_now.dtype, torch.float32)
    rows, columns = ((size - 1) // stride + 1 for size in (height, width))
    out = torch.zeros(batch * steps * rows * columns, channels, dtype=dtype, device=spikes.device)
    additions = 0
    for seen, weight in _kernels(spikes, weight_now, weight_before, initial_state, dtype):
        taps = weight.permute(2, 3, 1, 0)  # [3, 3, Cin, C]
        for piece in seen.flatten(0, 1).nonzero().split(PIECE):
            image, row, column, channel = piece.unbind(1)
            for tap in range(9):
                down, across = row + 1 - tap // 3, column + 1 - tap % 3  # in input positions, of the output's middle
                inside = (down >= 0) & (across >= 0) & (down < rows * stride) & (across < columns * stride)
                reached = (inside & (down % stride == 0) & (across % stride == 0)).nonzero().squeeze(1)
                place = ((image * rows + down // stride) * columns + across // stride)[reached]
                out.index_add_(0, place, taps[tap // 3, tap % 3][channel[reached]])
                additions += channels * len(reached)
    out = out.unflatten(0, (batch, steps, rows, columns))
    return (out if bias is None else out + bias.to(dtype)), additions


def accumulate_conv_reference(
    spikes: Tensor,
    weight_now: Tensor,
    weight_before: Tensor | None,
    bias: Tensor | None,
    stride: int = 1,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, int]:
    """The same by dense convolutions."""
    _check_bytes(spikes, initial_state)
    dtype = SUMS.get(weight_now.dtype, torch.float32)
    within = torch.float64 if dtype == torch.int32 else dtype  # products of whole numbers are exact there
    out, additions = spikes.new_zeros((), dtype=within), 0
    for seen, weight in _kernels(spikes, weight_now, weight_before, initial_state, within):
        images = seen.flatten(0, 1).movedim(-1, 1)
        out = out + F.conv2d(images.to(within), weight, None, stride, 1)
        taps = weight.new_ones(1, 1, 3, 3, dtype=torch.float64)
        reached = F.conv2d(images.sum(1, keepdim=True).double(), taps, None, stride, 1)
        additions += weight.shape[0] * int(reached.sum())
    out = out.movedim(1, -1).unflatten(0, spikes.shape[:2])
    return (out if bias is None else out + bias.to(within)).to(dtype).contiguous(), additions


def _kernels(
    spikes: Tensor, weight_now: Tensor, weight_before: Tensor | None, initial_state: Tensor | None, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """What each kernel reads, and its weights; those for the step before are subtracted."""
    now = (spikes, weight_now.detach().to(dtype))
    if weight_before is None:
        return [now]
    return [now, (shift(spikes, initial_state)[0], -weight_before.detach().to(dtype))]


def _check(
    spikes: Tensor,
    weight_now: Tensor,
    weight_before: Tensor | None,
    bias: Tensor | None,
    stride: int,
    initial_state: Tensor | None,
) -> None:
    if spikes.dtype != torch.uint8 or spikes.ndim != 5:
        raise InputError(f"spikes are {spikes.dtype} {list(spikes.shape)}; bytes [B, T, H, W, Cin] are wanted")
    if stride not in (1, 2):
        raise InputError(f"stride is {stride}; 1 or 2 is wanted")
    for name, weight in (("weight_now", weight_now), ("weight_before", weight_before)):
        if weight is not None and weight.shape != (weight_now.shape[0], spikes.shape[4], 3, 3):
            raise InputError(
                f"{name} is {list(weight.shape)}; [C, {spikes.shape[4]}, 3, 3] is wanted, C as weight_now's"
            )
        if weight is not None and weight.dtype != weight_now.dtype:
            raise InputError(f"{name} is {weight.dtype}; {weight_now.dtype}, as weight_now, is wanted")
    if weight_before is not None and weight_before.dtype == torch.int8 and weight_before.eq(-128).any():
        raise InputError("weight_before holds −128, whose negative is no byte; −127 to 127 are wanted")
    if bias is not None and bias.shape != weight_now.shape[:1]:
        raise InputError(f"bias is {list(bias.shape)}; [{weight_now.shape[0]}] is wanted")
    if bias is not None and weight_now.dtype == torch.int8 and bias.is_floating_point():
        raise InputError(f"bias is {bias.dtype}; whole numbers are wanted with weights of bytes")
    if initial_state is not None:
        wanted = (spikes.shape[0], *spikes.shape[2:])
        if initial_state.dtype != torch.uint8 or initial_state.shape != wanted:
            given = f"{initial_state.dtype} {list(initial_state.shape)}"
            raise InputError(f"initial_state is {given}; bytes {list(wanted)} are wanted")


def _check_bytes(spikes: Tensor, initial_state: Tensor | None) -> None:
    for given in (spikes, initial_state):
        if given is not None and given.numel() and given.max() > 1:
            raise InputError("spikes hold a byte above 1; 0 or 1 is wanted")
