"""Fused operators: what the network computes between two matrix products, each in one call.

Every operator is registered with PyTorch (`torch.ops.ripe.*`) with its shapes and its gradient, has a reference in
plain PyTorch beside it, and is computed by Triton kernels (`ops/cuda`) or C++ (`ops/native`).

Layout: a step's channels lie together, `[B, T, P, C]` contiguous with P = H·W positions in raster order. Activations
are float32 or bfloat16, per-channel parameters float32.

Spikes travel as bytes (as numbers of the activations' precision when relaxed). Bytes carry no gradient, so each spike
tensor has a *carrier* beside it: a tensor of the same shape that holds nothing (all its strides are 0) and through
which alone the gradient flows. Whoever reads the spikes takes both.
"""

from ripe_mambaspike.ops.fused.attention import attend, attend_fire
from ripe_mambaspike.ops.fused.entry import enter_fire
from ripe_mambaspike.ops.fused.joined import joined_tokens, pooled_spikes  # noqa: F401  (Triton's alone)
from ripe_mambaspike.ops.fused.mamba import mamba_inner
from ripe_mambaspike.ops.fused.neurons import Neuron, norm_fire, spikes_as, step_moments
from ripe_mambaspike.ops.fused.patches import patch_moments
from ripe_mambaspike.ops.fused.rates import pooled_rates
from ripe_mambaspike.ops.fused.row_norm import row_norm

__all__ = [
    "Neuron",
    "attend",
    "attend_fire",
    "enter_fire",
    "mamba_inner",
    "norm_fire",
    "patch_moments",
    "pooled_rates",
    "row_norm",
    "spikes_as",
    "step_moments",
]
