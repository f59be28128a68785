"""The inside of a Mamba block of one or two directions: convolution, step projection, scan and gate in one call.

Direction 0 runs forwards over the tokens, direction 1 backwards; nothing is flipped in memory. Names are mamba_ssm's.

Glossary: B samples, L tokens, D directions (one or two), E inner channels, K taps, R rank of the step projection, N
states a channel. `reference.py` has Mamba itself, `scan.py` the selective scan.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.operator import Operator, empty_if
from ripe_mambaspike.ops.shapes import sum_dtype


class InnerWeights(NamedTuple):
    """Float32, but for x_proj."""

    conv1d_weight: Tensor  # [D, E, K]
    conv1d_bias: Tensor | None  # [D, E]
    x_proj: Tensor  # [D, R + 2N, E], the activations' precision
    dt_proj: Tensor  # [D, E, R]
    dt_bias: Tensor  # [D, E]
    A: Tensor  # −exp(A_log), negative [D, E, N]
    D: Tensor  # [D, E]


class MambaState(NamedTuple):
    """Of one direction."""

    conv: Tensor  # the last K − 1 inputs of the convolution [B, K − 1, E], the activations' precision
    ssm: Tensor  # the scan's state [B, E, N], float32


class MambaInnerInputs(NamedTuple):
    inputs: Tensor  # [B, L, D, 2E]
    conv1d_weight: Tensor
    conv1d_bias: Tensor | None
    x_proj: Tensor
    dt_proj: Tensor
    dt_bias: Tensor
    A: Tensor
    D: Tensor
    conv_state: Tensor | None = None  # the initial state
    ssm_state: Tensor | None = None
    output_final_state: bool = False


def mamba_inner(
    inputs: Tensor,
    weights: InnerWeights,
    *,
    initial_state: MambaState | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, MambaState | None]:
    """inputs [B, L, D, 2E] (inner half, gate half) → y·silu(gate) [B, L, D, E], and the final state if requested.

    States are supported for one direction only (D = 1), and gradients only without states.
    """
    if inputs.shape[2] != 1 and (initial_state is not None or output_final_state):
        raise InputError.expected("initial_state", "one direction", inputs.shape[2])
    conv_state, ssm_state = initial_state or (None, None)
    out, ssm = MAMBA_INNER(MambaInnerInputs(inputs, *weights, conv_state, ssm_state, output_final_state))
    if not output_final_state:
        return out, None
    recent = inputs[:, :, 0, : inputs.shape[3] // 2]
    taps = weights.conv1d_weight.shape[2]
    before = recent.new_zeros(len(recent), taps - 1, recent.shape[2]) if initial_state is None else initial_state.conv
    return out, MambaState(torch.cat((before.to(recent.dtype), recent), 1)[:, recent.shape[1] :], ssm)


def empty_mamba_inner(i: MambaInnerInputs) -> tuple[Tensor, Tensor]:
    """Both outputs, uninitialized."""
    batch, length, directions, width = i.inputs.shape
    ssm = empty_if(i.output_final_state, i.inputs, (batch, *i.A.shape[1:]), sum_dtype(i.inputs))
    return i.inputs.new_empty(batch, length, directions, width // 2), ssm


MAMBA_INNER = Operator(
    "mamba_inner",
    MambaInnerInputs,
    ("out", "final_ssm"),
    empty_mamba_inner,
    gradients=("inputs", *InnerWeights._fields),
    state=("conv_state", "ssm_state", "output_final_state"),
)
