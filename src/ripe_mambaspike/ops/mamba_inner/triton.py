"""The inside of a bidirectional Mamba in Triton: convolution, one matrix product, and the scan with its gate."""

import torch
from torch import Tensor

from ripe_mambaspike.ops.mamba_inner import MambaInnerInputs, empty_mamba_inner
from ripe_mambaspike.ops.mamba_inner.triton_conv import convolve_backward, convolve_tokens
from ripe_mambaspike.ops.mamba_inner.triton_scan import ScanInputs, groups_of, scan, scan_backward
from ripe_mambaspike.ops.mamba_inner.triton_scan_plan import Sizes, cut_of, sizes_of

MIN_TOKENS = 32  # tokens


def mamba_inner(i: MambaInnerInputs) -> tuple[Tensor, Tensor]:
    """(y·silu(gate) [B, L, D, E], final state of the scan)."""
    if _needs_float32(i.inputs):
        out, ssm = mamba_inner(i._replace(inputs=i.inputs.float(), x_proj=i.x_proj.float()))
        return out.to(i.inputs.dtype), ssm
    sizes = sizes_of(i.inputs, i.conv1d_weight, i.dt_proj, i.A)
    ssm = empty_mamba_inner(i)[1]
    states = (None if i.ssm_state is None else i.ssm_state.contiguous(), ssm if i.output_final_state else None)
    return scan(_scan_inputs(i, sizes), sizes, cut_of(sizes), *states), ssm


def mamba_inner_backward(i: MambaInnerInputs, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """The gradients of the inputs and of every weight, in the order of the arguments; everything else is recomputed."""
    grad = grads[0]
    assert grad is not None
    if _needs_float32(i.inputs):
        wide = i._replace(inputs=i.inputs.float(), x_proj=i.x_proj.float())
        found = list(mamba_inner_backward(wide, (grad.float(), None)))
        found[0], found[3] = found[0].to(i.inputs.dtype), found[3].to(i.x_proj.dtype)
        return tuple(found)
    sizes = sizes_of(i.inputs, i.conv1d_weight, i.dt_proj, i.A)
    given = _scan_inputs(i, sizes)
    grad_inputs = torch.empty_like(i.inputs, memory_format=torch.contiguous_format)
    scanned = scan_backward(given, grad.contiguous(), grad_inputs, sizes, cut_of(sizes, groups_of(sizes)))

    rows = sizes.batch * sizes.length
    grad_proj = scanned.proj.view(sizes.directions, rows, sizes.width)
    grad_u = torch.baddbmm(scanned.u.view(sizes.directions, rows, sizes.channels), grad_proj, i.x_proj)
    flat = given.u.view(sizes.directions, rows, sizes.channels)
    # one product per direction: batched ones do not split their long sums
    grad_x_proj = torch.stack([part.t() @ u for part, u in zip(grad_proj, flat, strict=True)])
    grad_conv, grad_conv_bias = convolve_backward(
        given.inputs, i.conv1d_weight, i.conv1d_bias, grad_u, grad_inputs, sizes
    )
    return grad_inputs, grad_conv, grad_conv_bias, grad_x_proj, *scanned[2:]


def _needs_float32(inputs: Tensor) -> bool:
    """Whether there are so few bfloat16 tokens that rounding errors do not average out; float32 costs nothing then."""
    return inputs.dtype == torch.bfloat16 and inputs.shape[0] * inputs.shape[1] < MIN_TOKENS


def _scan_inputs(i: MambaInnerInputs, sizes: Sizes) -> ScanInputs:
    """The scan's inputs: the result of the convolution, and its projection."""
    inputs = i.inputs.contiguous()
    before = None if i.conv_state is None else i.conv_state.to(inputs.dtype).contiguous()
    u = convolve_tokens(inputs, i.conv1d_weight, i.conv1d_bias, sizes, before)
    proj = torch.bmm(u.view(sizes.directions, -1, sizes.channels), i.x_proj.transpose(1, 2))
    return ScanInputs(u, proj, inputs, i.dt_proj, i.dt_bias, i.A, i.D)
