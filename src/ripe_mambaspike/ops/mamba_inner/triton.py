"""The inside of a bidirectional Mamba in Triton: convolution, one matrix product, and the scan with its gate."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.mamba_inner.triton_conv import convolve, convolve_backward
from ripe_mambaspike.ops.mamba_inner.triton_scan import ScanInputs, groups_of, scan, scan_backward
from ripe_mambaspike.ops.mamba_inner.triton_scan_plan import Sizes, cut_of, sizes_of

FEW = 16  # tokens


def mamba_inner(
    inputs: Tensor,
    conv: Tensor,
    conv_bias: Tensor | None,
    x_proj: Tensor,
    dt_proj: Tensor,
    dt_bias: Tensor,
    decay: Tensor,
    skip: Tensor,
) -> Tensor:
    """inputs [B, L, D, 2E] → y·silu(gate) [B, L, D, E]."""
    if _few(inputs):
        weights = (conv, conv_bias, x_proj.float(), dt_proj, dt_bias, decay, skip)
        return mamba_inner(inputs.float(), *weights).to(inputs.dtype)
    sizes = sizes_of(inputs, conv, dt_proj, decay)
    given = _given(inputs, conv, conv_bias, x_proj, dt_proj, dt_bias, decay, skip, sizes)
    return scan(given, sizes, cut_of(sizes))


def mamba_inner_backward(
    inputs: Tensor,
    conv: Tensor,
    conv_bias: Tensor | None,
    x_proj: Tensor,
    dt_proj: Tensor,
    dt_bias: Tensor,
    decay: Tensor,
    skip: Tensor,
    grad: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients of inputs and of every weight, in the order of the arguments; nothing but those was kept."""
    if _few(inputs):
        weights = (conv, conv_bias, x_proj.float(), dt_proj, dt_bias, decay, skip)
        found = list(mamba_inner_backward(inputs.float(), *weights, grad.float()))
        found[0], found[3] = found[0].to(inputs.dtype), found[3].to(x_proj.dtype)
        return tuple(found)
    sizes = sizes_of(inputs, conv, dt_proj, decay)
    given = _given(inputs, conv, conv_bias, x_proj, dt_proj, dt_bias, decay, skip, sizes)
    grad_inputs = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    grads = scan_backward(given, grad.contiguous(), grad_inputs, sizes, cut_of(sizes, groups_of(sizes)))

    rows = sizes.batch * sizes.length
    grad_proj = grads.proj.view(sizes.directions, rows, sizes.width)
    grad_u = torch.baddbmm(grads.u.view(sizes.directions, rows, sizes.channels), grad_proj, x_proj)
    flat = given.u.view(sizes.directions, rows, sizes.channels)
    # one product a direction: batched ones do not split their long sums
    grad_x_proj = torch.stack([part.t() @ u for part, u in zip(grad_proj, flat, strict=True)])
    grad_conv, grad_conv_bias = convolve_backward(given.inputs, conv, conv_bias, grad_u, grad_inputs, sizes)
    return (
        grad_inputs,
        grad_conv,
        grad_conv_bias,
        grad_x_proj,
        grads.dt_proj,
        grads.dt_bias,
        grads.decay,
        grads.skip,
    )


def _few(inputs: Tensor) -> bool:
    """So few tokens in bfloat16 that the rounding of one is not averaged away; float32 costs nothing then."""
    return inputs.dtype == torch.bfloat16 and inputs.shape[0] * inputs.shape[1] < FEW


def _given(
    inputs: Tensor,
    conv: Tensor,
    conv_bias: Tensor | None,
    x_proj: Tensor,
    dt_proj: Tensor,
    dt_bias: Tensor,
    decay: Tensor,
    skip: Tensor,
    sizes: Sizes,
) -> ScanInputs:
    """What the scan reads: the convolution and its projection come first."""
    inputs = inputs.contiguous()
    u = convolve(inputs, conv, conv_bias, sizes)
    proj = torch.bmm(u.view(sizes.directions, -1, sizes.channels), x_proj.transpose(1, 2))
    return ScanInputs(u, proj, inputs, dt_proj, dt_bias, decay, skip)
