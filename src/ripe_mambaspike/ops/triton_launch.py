"""How kernels are launched: device, block sizes, and matrix products without Hopper's asynchronous instructions.

With those (Triton 3.6 on an H200), products of a computed operand, 64 or more channels wide, gave wrong sums that
changed from run to run. Triton has an environment variable to disable them, which it reads while compiling; it is set
during our launches only. A kernel that another thread compiles at that moment is slower, not wrong.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

BUSY_PROGRAMS = 4 * 132  # programs that keep a large GPU busy
NO_WGMMA_VARIABLE = "DISABLE_MMA_V3"


class Synchronous:
    """A kernel compiled with synchronous matrix products, launched like any other: kernel[grid](…)."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.__doc__ = kernel.__doc__

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        launch = self.kernel[grid]

        def under_switch(*arguments: Any, **options: Any) -> None:
            before = os.environ.get(NO_WGMMA_VARIABLE)
            os.environ[NO_WGMMA_VARIABLE] = "1"
            try:
                launch(*arguments, **options)
            finally:
                if before is None:
                    os.environ.pop(NO_WGMMA_VARIABLE, None)
                else:
                    os.environ[NO_WGMMA_VARIABLE] = before

        return under_switch


def launch_beside(x: Tensor, run: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that launches kernels, with x's device as the current one, on which Triton launches."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return run(*arguments)
    with torch.cuda.device(x.get_device()):
        return run(*arguments)


def ceil_div(count: int, by: int) -> int:
    return -(-count // by)


def next_power_of_2(count: int) -> int:
    """The smallest power of two of at least `count`; Triton's own takes microseconds when called from Python."""
    return 1 << (count - 1).bit_length()


def contiguous(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if tensor is None else tensor.contiguous() for tensor in tensors)


def neuron_state(
    scale: Tensor | None, state: Sequence[Tensor | None] | None, finals: Sequence[Tensor], suffix: str = ""
) -> dict[str, Any]:
    """The kernel arguments for a neuron's initial and final state, and whether its norm differs between samples."""
    tensors = (*contiguous(*(state or (None,) * 3)[:3]), *(one if one.numel() else None for one in finals))
    names = ("membrane", "membrane_imag", "last_spikes", "final_membrane", "final_imag", "final_spikes")
    found = {f"{name}{suffix}": one for name, one in zip(names, tensors, strict=True)}
    return {"PER_SAMPLE": scale is not None and scale.ndim == 3, **found}


def flat_block(size: int, copies: int, dtype: torch.dtype) -> tuple[int, int]:
    """(elements, warps) per program over `copies` flat arrays: 16 bytes per thread, fewer if work is scarce."""
    return flat_block_of(size, copies, 16 // dtype.itemsize)


def flat_block_of(size: int, copies: int, each: int) -> tuple[int, int]:
    """The same with `each` elements per thread."""
    warps = 8
    while warps > 1 and ceil_div(size, 32 * each * warps) * copies < BUSY_PROGRAMS:
        warps //= 2
    return 32 * each * warps, warps


def tile_of(positions: int, channels: int, elements: int, per_warp: int) -> tuple[int, int, int]:
    """(rows, columns, warps) of a tile of positions by channels, both powers of two.

    At most 64 channels, so that a tile has many rows and partial sums are few; if possible with whole cache sectors, a
    number that divides the channels.
    """
    divisor = channels & -channels  # the largest power of two in it
    columns = min(64, divisor if divisor >= 32 else next_power_of_2(channels))
    rows = min(next_power_of_2(positions), elements // columns)
    return rows, columns, min(8, max(1, rows * columns // per_warp))
