"""First and second moments of a convolution's 3×3 patches.

They give the batch statistics of every bias-free branch over the same input by small matrix algebra: a branch that
equals the kernel k [9C] has the mean k·m and the mean square kᵀ S k. `algebra.py` explains the sums
at stride 1 and writes them in PyTorch; the Triton kernels do the same in few launches.
"""

from typing import NamedTuple

from torch import Tensor

from ripe_mambaspike.ops.operator import Operator
from ripe_mambaspike.ops.shapes import sum_dtype


class PatchMomentsInputs(NamedTuple):
    x: Tensor  # [B, T, H, W, C]
    stride: int


def patch_moments(x: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """x [B, T, H, W, C] → mean patch [9C] and mean of patch·patchᵀ [9C, 9C], float32, over samples, steps, positions.

    Patches are those of a 3×3 convolution with padding 1 at every output position; a patch is laid out tap by tap in
    raster order, the channels of a tap together.
    """
    mean, second = PATCH_MOMENTS(PatchMomentsInputs(x, stride))
    return mean, second


def _empty(i: PatchMomentsInputs) -> tuple[Tensor, Tensor]:
    size, dtype = 9 * i.x.shape[-1], sum_dtype(i.x)
    return i.x.new_empty(size, dtype=dtype), i.x.new_empty(size, size, dtype=dtype)


def or_zeros(i: PatchMomentsInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
    """Both gradients, zeros for those that are None."""
    mean, second = (like.zero_() if grad is None else grad for grad, like in zip(grads, _empty(i), strict=True))
    return mean, second


PATCH_MOMENTS = Operator("patch_moments", PatchMomentsInputs, ("mean", "second"), _empty, gradients=("x",))
