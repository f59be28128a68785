"""The second moments of every weight matrix's inputs, recorded while clips run through the network.

A deployed network multiplies by its matrices in a few kinds of calls. A TorchFunctionMode sees each such call with the
tensor that it reads (after temporal filtering, shifting or pooling), whatever module made it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.bridge import FoldedMixture
from ripe_mambaspike.nn.eval_mode import eval_mode
from ripe_mambaspike.ops.backend import kernels

PATCH_ELEMENTS = 2**24  # of patches unfolded at a time


@torch.no_grad()
def input_moments(model: RipeMambaSpike, clips: Iterable[Tensor]) -> dict[str, Tensor]:
    """Sums of x xᵀ [G, K, K] in float64 of the inputs of every parameter that multiplies them, by its name.

    `clips` are batches [B, T, 2, H, W] in the network's dtype. K is the number of inputs per output: a flattened row of
    the parameter. G is 1, or the groups of a parameter [groups, out, in].
    """
    recorder = _MomentRecorder(model)
    mixture = model.bridge.mixture
    handle = mixture.register_forward_pre_hook(recorder.record_mixture)
    try:
        with eval_mode(model), kernels("off"):  # the reference path, which uses plain PyTorch calls
            for batch in clips:
                with recorder:
                    model.run(batch)
    finally:
        handle.remove()
    return recorder.moments


class _MomentRecorder(TorchFunctionMode):
    """Records what is multiplied by a parameter, identified by its address so that views are recognized."""

    def __init__(self, model: RipeMambaSpike) -> None:
        super().__init__()
        self.names = {p.data_ptr(): name for name, p in model.named_parameters() if p.ndim > 1}
        scales = model.bridge.mixture.scales
        self.mixed = [f"bridge.mixture.scales.{index}.weight" for index in range(len(scales))]
        self.moments: dict[str, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reader = _READERS.get(func)
        if reader is not None:
            weight, inputs = reader(*args, **(kwargs or {}))
            name = self.names.get(weight.data_ptr())
            if name is not None:
                self.add(name, inputs())
        return func(*args, **(kwargs or {}))

    def record_mixture(self, mixture: FoldedMixture, inputs: tuple[Any, ...]) -> None:
        """Record the bridge's rates, since it folds norms and mixing weights into its kernels before the call."""
        for name, rates in zip(self.mixed, inputs[0], strict=True):
            self.add(name, _patch_moments(rates, 3, 1, 1))

    def add(self, name: str, moments: Tensor) -> None:
        self.moments[name] = self.moments[name] + moments if name in self.moments else moments


Read = tuple[Tensor, Callable[[], Tensor]]  # the weight, and a function that computes the moments of its inputs


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Read:
    return weight, lambda: _row_moments(x.flatten(0, -2))[None]


def _conv2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0) -> Read:
    return weight, lambda: _patch_moments(x, weight.shape[-1], stride, padding)


def _matmul(weight: Tensor, x: Tensor) -> Read:
    """weight [out, in] over x [.., in, N], or [groups, out, in] over x [B, T, groups, in, N]."""

    def moments() -> Tensor:
        if x.ndim == 5:
            return torch.stack([_row_moments(part.transpose(-1, -2).flatten(0, -2)) for part in x.unbind(-3)])
        return _row_moments(x.transpose(-1, -2).flatten(0, -2))[None]

    return weight, moments


_READERS: dict[Any, Callable[..., Read]] = {
    F.linear: _linear,
    torch.conv2d: _conv2d,
    torch.bmm: _matmul,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
}


def _row_moments(rows: Tensor) -> Tensor:
    """[n, K] → [K, K]."""
    return (rows.T @ rows).double()


def _patch_moments(x: Tensor, side: int, stride: Any, padding: Any) -> Tensor:
    """Moments of a kernel's patches: x [B, C, H, W] → [1, C·side², C·side²], in the kernel's order."""
    size = x.shape[1] * side**2
    total = torch.zeros(size, size, dtype=torch.float64)
    for piece in x.split(max(1, PATCH_ELEMENTS // (x[0].numel() * side**2))):
        patches = F.unfold(piece, side, padding=padding, stride=stride)  # [b, K, L]
        total += _row_moments(patches.transpose(1, 2).flatten(0, 1))
    return total[None]
