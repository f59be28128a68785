"""Change some samples of a batch and leave the others."""

from collections.abc import Callable

from torch import Tensor

from ripe_mambaspike.data.augment.checks import check_clips


def edit(x: Tensor, chosen: Tensor, change: Callable[..., Tensor], *parameters: Tensor, owned: bool = False) -> Tensor:
    """x with `change(part, *parameters of the part)` in place of the chosen samples; the others pay nothing.

    x [B, T, 2, H, W], chosen [B] bool and best on the CPU, parameters [B, …] beside it. An `owned` x is written to.
    """
    check_clips(x)
    index = chosen.nonzero().squeeze(1)
    if len(index) == 0:
        return x
    if len(index) == len(x):
        return change(x, *parameters)
    place = index.to(x.device, non_blocking=True)
    changed = change(x.index_select(0, place), *(parameter[index] for parameter in parameters))
    return x.index_copy_(0, place, changed) if owned else x.index_copy(0, place, changed)
