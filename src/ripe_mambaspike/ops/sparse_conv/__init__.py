"""The accumulate-only convolution, Prop. (ac-tdm), driven by the spikes themselves.

    out_t = W_now * s_t − W_before * s_{t−1} + b

A spike is 0 or 1, so no product is needed: each spike adds a row of weights to every output it reaches. The time is
proportional to the number of spikes, the result equals the dense convolution up to rounding, and the additions are
counted. float64 weights are summed in float64, int8 ones in int32 (then the result is exact), all others in float32.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.backend import backend, implementation

SUMS = {torch.float64: torch.float64, torch.int8: torch.int32}  # by the weights' dtype; float32 for any other


class AccumulateConvInputs(NamedTuple):
    spikes: Tensor  # bytes 0 or 1 [B, T, H, W, Cin]
    weight_now: Tensor  # [C, Cin, 3, 3]
    weight_before: Tensor | None
    bias: Tensor | None  # [C]
    stride: int = 1  # or 2
    initial_state: Tensor | None = None  # the spikes of the step before the first [B, H, W, Cin]
    table: Tensor | None = None  # `arranged_weights(weight_now, weight_before)`, to reuse between calls


def accumulate_conv(
    spikes: Tensor,
    weight_now: Tensor,
    weight_before: Tensor | None,
    bias: Tensor | None,
    stride: int = 1,
    initial_state: Tensor | None = None,
    table: Tensor | None = None,
) -> tuple[Tensor, int]:
    """spikes [B, T, H, W, Cin] → (out [B, T, H', W', C], additions); shapes as in `AccumulateConvInputs`.

    Padding is 1. Without a state nothing came before. An addition is one spike at one tap inside the image for one
    output channel, of either kernel.
    """
    i = AccumulateConvInputs(spikes, weight_now, weight_before, bias, stride, initial_state, table)
    _check(i)
    kind = "native" if backend(spikes, torch.float32) == "native" else "plain"
    made: tuple[Tensor, int] = implementation(kind, __name__, "accumulate_conv")(i)
    return made


def arranged_weights(weight_now: Tensor, weight_before: Tensor | None) -> Tensor | None:
    """The weights as the C++ operator reads them; None if it is not used."""
    if backend(weight_now, torch.float32) != "native":
        return None
    table: Tensor = implementation("native", __name__, "arranged")(weight_now, weight_before)
    return table


def _check(i: AccumulateConvInputs) -> None:
    spikes, now = i.spikes, i.weight_now
    _expect(spikes.dtype == torch.uint8 and spikes.ndim == 5, "spikes", "bytes [B, T, H, W, Cin]", spikes)
    _expect(i.stride in (1, 2), "stride", "1 or 2", i.stride)
    wanted = (now.shape[0], spikes.shape[4], 3, 3)
    for name, weight in (("weight_now", now), ("weight_before", i.weight_before)):
        if weight is not None:
            _expect(weight.shape == wanted and weight.dtype == now.dtype, name, f"{now.dtype} {list(wanted)}", weight)
    if i.weight_before is not None and now.dtype == torch.int8:
        _expect(not i.weight_before.eq(-128).any(), "weight_before", "−127 to 127", "−128, which has no negative")
    if i.bias is not None:
        _expect(i.bias.shape == now.shape[:1], "bias", f"[{now.shape[0]}]", i.bias)
        whole = now.dtype != torch.int8 or not i.bias.is_floating_point()
        _expect(whole, "bias", "integers with int8 weights", i.bias)
    if i.initial_state is not None:
        shape = (spikes.shape[0], *spikes.shape[2:])
        right = i.initial_state.dtype == torch.uint8 and i.initial_state.shape == shape
        _expect(right, "initial_state", f"bytes {list(shape)}", i.initial_state)


def _expect(right: bool, field: str, wanted: str, given: object) -> None:
    if not right:
        found = f"{given.dtype} {list(given.shape)}" if isinstance(given, Tensor) else given
        raise InputError.expected(field, wanted, str(found))


def refuse_other_bytes() -> None:
    raise InputError.expected("spikes", "bytes 0 or 1", "one above 1")
