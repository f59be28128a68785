# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The branches of a convolution as one kernel on a GPU: two matrix products and few launches, all in float64.

A layer of a small network has little to compute here; what counts is how many kernels are launched.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.merge_branches import MergeBranchesInputs
from ripe_mambaspike.ops.norm import EPSILON
from ripe_mambaspike.ops.triton_launch import next_power_of_2


@triton.jit
def _wide(x):
    """In float64; PTX has no conversion between that and bfloat16."""
    return x if x.dtype == tl.float64 else x.to(tl.float32).to(tl.float64)


@triton.jit
def _patch(mean, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """(columns, which of them there are, the mean patch)."""
    column = tl.arange(0, BLOCK)
    known = column < SIZE
    return column, known, tl.load(mean + column, mask=known, other=0.0).to(tl.float64)


@triton.jit
def covariance_kernel(mean, second, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """A row of S − m mᵀ."""
    row = tl.program_id(0)
    column, known, patch = _patch(mean, SIZE, BLOCK)
    offsets = row.to(tl.int64) * SIZE + column
    own = tl.load(mean + row).to(tl.float64)
    value = tl.load(second + offsets, mask=known, other=0.0).to(tl.float64) - own * patch
    tl.store(out + offsets, value, mask=known)


@triton.jit
def _read(kernels, products, weight, patch, entry, offsets, known, EPS: tl.constexpr):
    """One channel of one branch: kernel, its product, mean, variance before it is clamped, 1/σ, and the norm's gain."""
    kernel = tl.load(kernels + offsets, mask=known, other=0.0).to(tl.float64)
    product = tl.load(products + offsets, mask=known, other=0.0).to(tl.float64)
    variance = tl.sum(kernel * product, 0)
    inverse = 1.0 / tl.sqrt(tl.maximum(variance, 0.0) + tl.full((), EPS, tl.float64))
    gain = tl.load(weight + entry).to(tl.float64)
    return kernel, product, tl.sum(kernel * patch, 0), variance, inverse, gain


@triton.jit
def merge_kernel(
    kernels,  # [branches, C, K]
    products,  # the same times the covariance
    weight,
    shift,
    mean,
    merged,
    bias,
    means,
    variances,
    channels,
    EPS: tl.constexpr,
    BRANCHES: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One output channel: the statistics of every branch, and the sum of the scaled kernels."""
    channel = tl.program_id(0)
    column, known, patch = _patch(mean, SIZE, BLOCK)
    total = tl.zeros((BLOCK,), tl.float64)
    constant = tl.zeros((), tl.float64)
    for branch in tl.static_range(BRANCHES):
        entry = branch * channels + channel
        offsets = entry.to(tl.int64) * SIZE + column
        kernel, _, average, variance, inverse, gain = _read(
            kernels, products, weight, patch, entry, offsets, known, EPS
        )
        scale = gain * inverse
        total += scale * kernel
        constant += tl.load(shift + entry).to(tl.float64) - average * scale
        tl.store(means + entry, average)
        tl.store(variances + entry, tl.maximum(variance, 0.0))
    if merged.dtype.element_ty != tl.float64:
        total = total.to(tl.float32)
    tl.store(merged + channel.to(tl.int64) * SIZE + column, total, mask=known)
    tl.store(bias + channel, constant)


@triton.jit
def branch_gradients_kernel(
    kernels,  # [branches, C, K]
    products,  # the same times the covariance
    weight,
    mean,
    grad_merged,  # [C, K]
    grad_bias,
    grad_means,
    grad_variances,
    grad_kernels,
    weighted,  # the kernels times the gradients of their variances
    grad_weight,
    grad_shift,
    grad_averages,  # of the means, through all that they enter
    channels,
    EPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MEANS: tl.constexpr,
    HAS_VARIANCES: tl.constexpr,
    BRANCHES: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One output channel."""
    channel = tl.program_id(0)
    column, known, patch = _patch(mean, SIZE, BLOCK)
    zero = tl.zeros((), tl.float64)
    given = _wide(tl.load(grad_merged + channel.to(tl.int64) * SIZE + column, mask=known, other=0.0))
    given_bias = zero
    if HAS_BIAS:
        given_bias = tl.load(grad_bias + channel).to(tl.float64)
    for branch in tl.static_range(BRANCHES):
        entry = branch * channels + channel
        offsets = entry.to(tl.int64) * SIZE + column
        kernel, product, average, variance, inverse, gain = _read(
            kernels, products, weight, patch, entry, offsets, known, EPS
        )
        grad_scale = tl.sum(given * kernel, 0) - average * given_bias
        of_variance = -0.5 * grad_scale * gain * inverse * inverse * inverse
        of_average = -gain * inverse * given_bias
        if HAS_VARIANCES:
            of_variance += tl.load(grad_variances + entry).to(tl.float64)
        if HAS_MEANS:
            of_average += tl.load(grad_means + entry).to(tl.float64)
        of_variance = tl.where(variance >= 0.0, of_variance, zero)
        back = gain * inverse * given + 2.0 * of_variance * product + of_average * patch
        tl.store(grad_kernels + offsets, back, mask=known)
        tl.store(weighted + offsets, of_variance * kernel, mask=known)
        tl.store(grad_weight + entry, grad_scale * inverse)
        tl.store(grad_shift + entry, given_bias)
        tl.store(grad_averages + entry, of_average)


@triton.jit
def moment_gradients_kernel(
    mean, grad_covariance, through_means, grad_mean, grad_second, HAS_MEANS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of the second moment's gradient, and one element of the mean's."""
    row = tl.program_id(0)
    column, known, patch = _patch(mean, SIZE, BLOCK)
    offsets = row.to(tl.int64) * SIZE + column
    along = tl.load(grad_covariance + offsets, mask=known, other=0.0)
    across = tl.load(grad_covariance + column.to(tl.int64) * SIZE + row, mask=known, other=0.0)
    total = -tl.sum((along + across) * patch, 0)
    if HAS_MEANS:
        total += tl.load(through_means + row)
    tl.store(grad_mean + row, total)
    tl.store(grad_second + offsets, along, mask=known)


def merge_branches(i: MergeBranchesInputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    kernels = i.kernels.contiguous()
    branches, channels, size = kernels.shape
    merged = kernels.new_empty((channels, size), dtype=i.dtype)
    bias = kernels.new_empty(channels)
    means, variances = (kernels.new_empty((branches, channels)) for _ in range(2))
    mean = i.mean.contiguous()
    merge_kernel[(channels,)](
        *(kernels, _products(i, kernels), i.weight.contiguous(), i.shift.contiguous(), mean),
        *(merged, bias, means, variances, channels),
        EPS=EPSILON,
        BRANCHES=branches,
        SIZE=size,
        BLOCK=next_power_of_2(size),
        num_warps=_warps(size),
    )
    return merged, bias, means, variances


def merge_branches_backward(
    i: MergeBranchesInputs, grads: tuple[Tensor | None, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    kernels = i.kernels.contiguous()
    branches, channels, size = kernels.shape
    given, of_bias, of_means, of_variances = (None if grad is None else grad.contiguous() for grad in grads)
    if given is None:
        given = kernels.new_zeros((channels, size))
    grad_kernels = torch.empty_like(kernels)
    weighted = torch.empty_like(kernels, dtype=torch.float64)
    grad_weight, grad_shift = torch.empty_like(i.weight), torch.empty_like(i.shift)
    averages = kernels.new_empty((branches, channels), dtype=torch.float64)
    mean = i.mean.contiguous()
    constants = {"SIZE": size, "BLOCK": next_power_of_2(size), "num_warps": _warps(size)}
    branch_gradients_kernel[(channels,)](
        *(kernels, _products(i, kernels), i.weight.contiguous(), mean, given),
        *(kernels if grad is None else grad for grad in (of_bias, of_means, of_variances)),
        *(grad_kernels, weighted, grad_weight, grad_shift, averages, channels),
        EPS=EPSILON,
        HAS_BIAS=of_bias is not None,
        HAS_MEANS=of_means is not None,
        HAS_VARIANCES=of_variances is not None,
        BRANCHES=branches,
        **constants,
    )
    flat = kernels.double().flatten(0, 1)
    covariance = torch.mm(flat.t(), weighted.flatten(0, 1))
    has_means = of_bias is not None or of_means is not None
    through = torch.mv(flat.t(), averages.flatten()) if has_means else covariance
    grad_mean, grad_second = torch.empty_like(mean), torch.empty_like(i.second)
    moment_gradients_kernel[(size,)](
        mean, covariance, through, grad_mean, grad_second, HAS_MEANS=has_means, **constants
    )
    return grad_kernels, grad_weight, grad_shift, grad_mean, grad_second


def _products(i: MergeBranchesInputs, kernels: Tensor) -> Tensor:
    """The kernels times the patches' covariance [branches · C, K]."""
    size = kernels.shape[-1]
    covariance = kernels.new_empty((size, size), dtype=torch.float64)
    covariance_kernel[(size,)](
        i.mean.contiguous(), i.second.contiguous(), covariance, SIZE=size, BLOCK=next_power_of_2(size),
        num_warps=_warps(size),
    )  # fmt: skip
    return torch.mm(kernels.double().flatten(0, 1), covariance)


def _warps(size: int) -> int:
    return 4 if size <= 1024 else 8
