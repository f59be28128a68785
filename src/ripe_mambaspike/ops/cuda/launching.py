"""How kernels with matrix products are launched: without Hopper's asynchronous products.

Compiled to those (Triton 3.6 on an H200), products of a computed operand, 64 channels wide and more, gave sums that
were wrong and changed from run to run. Triton has an environment variable against them, which it reads while it
compiles; it is set for our launches alone. What another thread compiles at that very moment is slower, not wrong.
"""

import os
from collections.abc import Callable
from typing import Any

SWITCH = "DISABLE_MMA_V3"


class Synchronous:
    """A kernel whose products are the ordinary ones, launched like any other: kernel[grid](…)."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.__doc__ = kernel.__doc__

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        launch = self.kernel[grid]

        def under_switch(*arguments: Any, **options: Any) -> None:
            before = os.environ.get(SWITCH)
            os.environ[SWITCH] = "1"
            try:
                launch(*arguments, **options)
            finally:
                if before is None:
                    os.environ.pop(SWITCH, None)
                else:
                    os.environ[SWITCH] = before

        return under_switch
