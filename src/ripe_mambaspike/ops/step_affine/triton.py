# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The affine of a norm on a GPU, in one launch forward and one backward."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ripe_mambaspike.ops.norm import EPSILON
from ripe_mambaspike.ops.step_affine import StepAffineInputs
from ripe_mambaspike.ops.triton_launch import ceil_div

BLOCK = 256


@triton.jit
def step_affine_kernel(
    mean, variance, weight, beta, bias, scale, shift, size, channels, EPS: tl.constexpr, BLOCK: tl.constexpr
):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = element < size
    inverse = 1.0 / tl.sqrt_rn(tl.load(variance + element, mask=known, other=1.0) + EPS)
    factor = tl.load(weight + element, mask=known, other=0.0) * inverse
    constant = tl.load(bias + element % channels, mask=known, other=0.0).to(tl.float32)
    center = tl.load(mean + element, mask=known, other=0.0)
    level = tl.load(beta + element, mask=known, other=0.0) - (center + constant) * factor + constant * factor
    tl.store(scale + element, factor, mask=known)
    tl.store(shift + element, level, mask=known)


@triton.jit
def step_affine_backward_kernel(
    mean,
    variance,
    weight,
    given_scale,
    given_shift,
    grad_mean,
    grad_variance,
    grad_weight,
    grad_beta,
    size,  # elements of the steps that were taken
    rows,  # of all steps
    HAS_SCALE: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = element < size
    inverse = 1.0 / tl.sqrt_rn(tl.load(variance + element, mask=known, other=1.0) + EPS)
    gain = tl.load(weight + element, mask=known, other=0.0)
    center = tl.load(mean + element, mask=known, other=0.0)
    of_scale = tl.zeros((BLOCK,), tl.float32)
    of_shift = tl.zeros((BLOCK,), tl.float32)
    if HAS_SCALE:
        of_scale = tl.load(given_scale + element, mask=known, other=0.0).to(tl.float32)
    if HAS_SHIFT:
        of_shift = tl.load(given_shift + element, mask=known, other=0.0).to(tl.float32)
    through = of_scale - center * of_shift
    tl.store(grad_mean + element, -gain * inverse * of_shift, mask=known)
    tl.store(grad_variance + element, -0.5 * through * gain * inverse * inverse * inverse, mask=known)
    tl.store(grad_weight + element, through * inverse, mask=element < rows)  # 0 for steps that were not taken
    tl.store(grad_beta + element, of_shift, mask=element < rows)


def step_affine(i: StepAffineInputs) -> tuple[Tensor, Tensor]:
    scale, shift = torch.empty_like(i.mean), torch.empty_like(i.mean)
    step_affine_kernel[(ceil_div(i.mean.numel(), BLOCK),)](
        *(one.contiguous() for one in i), scale, shift, i.mean.numel(), i.mean.shape[1], EPS=EPSILON, BLOCK=BLOCK
    )
    return scale, shift


def step_affine_backward(
    i: StepAffineInputs, grads: tuple[Tensor | None, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, variance, weight = i.mean.contiguous(), i.variance.contiguous(), i.weight.contiguous()
    given = [mean if grad is None else grad.contiguous() for grad in grads]
    found = [torch.empty_like(one) for one in (mean, variance, weight, weight)]
    step_affine_backward_kernel[(ceil_div(weight.numel(), BLOCK),)](
        *(mean, variance, weight, *given, *found, mean.numel(), weight.numel()),
        HAS_SCALE=grads[0] is not None,
        HAS_SHIFT=grads[1] is not None,
        EPS=EPSILON,
        BLOCK=BLOCK,
    )
    return found[0], found[1], found[2], found[3]
