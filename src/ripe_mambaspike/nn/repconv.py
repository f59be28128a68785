"""The backbone's convolution in its three forms: many branches, one kernel, two accumulate-only kernels.

Every form reads [B, T, C_in, H, W] before the temporal filter, owns that filter, and returns its last input as state.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.modified import find_modification, known
from ripe_mambaspike.nn.norm import BatchNorm, standard_norm, track_all
from ripe_mambaspike.nn.state import State
from ripe_mambaspike.ops.norm import EPSILON
from ripe_mambaspike.ops.stack_branches import StackBranchesInputs, stack_branches
from ripe_mambaspike.ops.tdm import shift, tdm

Filtered = tuple[Tensor, State]  # output, and the last input as state


class Branch(nn.Module):
    """A chain of bias-free convolutions, or none, and a batch norm; equivalent to one 3×3 kernel."""

    def __init__(self, in_channels: int, channels: int, kernels: tuple[tuple[int, int], ...], stride: int) -> None:
        super().__init__()
        self.stride = stride
        widths = [in_channels] + [channels] * len(kernels)
        convs = nn.ModuleList(
            nn.Conv2d(
                before,
                after,
                kernel,
                stride=stride if kernel is kernels[-1] else 1,
                padding=(kernel[0] // 2, kernel[1] // 2),
                bias=False,
            )
            for before, after, kernel in zip(widths, widths[1:], kernels, strict=False)
        )
        self.convs: Sequence[nn.Conv2d] = convs  # type: ignore[assignment]
        self.norm = BatchNorm(channels)
        self.taps = _taps(kernels[-1]) if kernels else _taps((1, 1))

    def forward(self, x: Tensor, mode: ForwardMode, *, shifted: bool = True) -> Tensor:
        for conv in self.convs:
            x = conv(x)
        return self.norm(x, mode, shifted=shifted)

    def variance(self, kernel: Tensor, covariance: Tensor) -> Tensor:
        """kᵀ Σ k of its kernel [C, 9 C_in], Σ [9, C_in, 9, C_in], over its own taps only."""
        taps = list(self.taps)
        if len(taps) < 9:
            covariance, kernel = covariance[taps][:, :, taps], kernel.unflatten(1, (9, -1))[:, taps].flatten(1)
        return _spread(kernel, covariance.flatten(2, 3).flatten(0, 1))

    def kernel(self, in_channels: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """The branch before its norm as one kernel [C, C_in, 3, 3]."""
        weights = [conv.weight.to(dtype) for conv in self.convs]
        first = F.pad(weights[-1], [(3 - size) // 2 for size in weights[-1].shape[:1:-1] for _ in range(2)])
        if len(weights) == 2:
            first = torch.einsum("omhw,mi->oihw", first, weights[0][:, :, 0, 0])
        return first


def _taps(kernel: tuple[int, int]) -> tuple[int, ...]:
    """The indices, in raster order, of the nine taps that a centered kernel covers."""
    rows, columns = (range(1 - size // 2, 2 + size // 2) for size in kernel)
    return tuple(3 * row + column for row in rows for column in columns)


class Identity(Branch):
    """The input itself, normalized."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, (), 1)

    def variance(self, kernel: Tensor, covariance: Tensor) -> Tensor:
        return covariance[4, :, 4].diagonal()

    def kernel(self, in_channels: int, dtype: torch.dtype = torch.float64) -> Tensor:
        eye = torch.eye(in_channels, dtype=dtype, device=self.norm.weight.device)
        return F.pad(eye[:, :, None, None], (1, 1, 1, 1))


class AveragePool(Identity):
    """A 3×3 mean that includes the zero padding, normalized."""

    def forward(self, x: Tensor, mode: ForwardMode, *, shifted: bool = True) -> Tensor:
        return super().forward(F.avg_pool2d(x, 3, 1, 1, count_include_pad=True), mode, shifted=shifted)

    def variance(self, kernel: Tensor, covariance: Tensor) -> Tensor:
        return covariance.diagonal(dim1=1, dim2=3).mean((0, 1))

    def kernel(self, in_channels: int, dtype: torch.dtype = torch.float64) -> Tensor:
        eye = torch.eye(in_channels, dtype=dtype, device=self.norm.weight.device)
        return (eye / 9)[:, :, None, None].expand(-1, -1, 3, 3)


class _FilteredConv(nn.Module):
    """Base of the three forms: the sizes, and the temporal filter before the kernel."""

    def __init__(self, in_channels: int, channels: int, stride: int, tdm_enabled: bool) -> None:
        super().__init__()
        self.in_channels, self.channels, self.stride = in_channels, channels, stride
        self.coefficient = nn.Parameter(torch.zeros(in_channels)) if tdm_enabled else None

    def filter(self, x: Tensor, initial_state: State | None) -> Filtered:
        if self.coefficient is None:
            return x, {}
        out, last = tdm(x, self.coefficient, _last_input(initial_state, x))
        return out, {"input": last}

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A 3×3 kernel over every step: [B, T, C_in, H, W] → [B, T, C, H', W']."""
        return F.conv2d(x.flatten(0, 1), weight, bias, self.stride, 1).unflatten(0, x.shape[:2])


class Branches(NamedTuple):
    """The branches of a RepConv, stacked."""

    kernels: Tensor  # each as one kernel, tap by tap [branches, C, 9 C_in]
    weight: Tensor  # of the norms [branches, C]
    shift: Tensor  # of the norms [branches, C]


class RepConv(_FilteredConv):
    """The training form: 3×3, 1×1, 1×3, 3×1, 1×1→3×3 and, where shapes allow, identity and average pool."""

    def __init__(
        self, in_channels: int, channels: int, stride: int, *, tdm_enabled: bool = True, branches: bool = True
    ) -> None:
        super().__init__(in_channels, channels, stride, tdm_enabled)
        chains: list[tuple[tuple[int, int], ...]] = [((3, 3),)]
        if branches:
            chains += [((1, 1),), ((1, 3),), ((3, 1),), ((1, 1), (3, 3))]
        modules = nn.ModuleList(Branch(in_channels, channels, chain, stride) for chain in chains)
        if branches and in_channels == channels and stride == 1:
            modules.extend((Identity(channels), AveragePool(channels)))
        self.branches: Sequence[Branch] = modules  # type: ignore[assignment]

    def forward(self, x: Tensor, mode: ForwardMode = HARD, initial_state: State | None = None) -> Filtered:
        filtered, final_state = self.filter(x, initial_state)
        if (
            not mode.literal
            and find_modification(self, self.branches, BRANCHES) is None
            and not self.branches[0].norm.training
        ):
            weight, bias = (value.to(self.branches[0].norm.weight.dtype) for value in self.kernel_and_bias())
            return self.convolve(filtered, weight, bias), final_state
        return self.each_branch(filtered.flatten(0, 1), mode).unflatten(0, x.shape[:2]), final_state

    def each_branch(self, x: Tensor, mode: ForwardMode, *, shifted: bool = True) -> Tensor:
        """The branches one by one, with their norms, summed: [B', C_in, H, W] → [B', C, H', W']."""
        out = self.branches[0](x, mode, shifted=shifted)
        for branch in self.branches[1:]:
            out = out + branch(x, mode, shifted=shifted)
        return out

    def kernel_and_bias(self) -> tuple[Tensor, Tensor]:
        """The kernel and bias that equal the sum of all branches, Eqs. (fuse-W, fuse-b), in float64."""
        kernels, biases = [], []
        for branch in self.branches:
            scale, shift_ = branch.norm.scale_and_shift()
            kernels.append(branch.kernel(self.in_channels) * scale[:, None, None, None])
            biases.append(shift_)
        return torch.stack(kernels).sum(0), torch.stack(biases).sum(0)

    def stacked(self, dtype: torch.dtype, *, native: bool) -> Branches:
        """All branches stacked, in the dtype of the statistics; `native` on a CPU, where that takes no operator."""
        if native:
            kernels = torch.stack([branch.kernel(self.in_channels, dtype) for branch in self.branches])
            kernels = kernels.permute(0, 1, 3, 4, 2).flatten(2)
        else:
            weights: list[Any] = [conv.weight for branch in self.branches for conv in branch.convs]
            square, point, row, column, first, last = (weights + [None] * 5)[:6]
            pooled = isinstance(self.branches[-1], AveragePool)
            kernels = stack_branches(StackBranchesInputs(square, point, row, column, first, last, pooled, dtype))
        weight, shift = (
            torch.stack([getattr(branch.norm, name) for branch in self.branches]).to(dtype)
            for name in ("weight", "bias")
        )
        return Branches(kernels, weight, shift)

    def batch_kernel_and_bias(
        self, branches: Branches, mean: Tensor, second: Tensor, count: int, mode: ForwardMode
    ) -> tuple[Tensor, Tensor]:
        """The kernel and bias that equal the sum of all branches with the statistics of a batch, on a CPU.

        Like the operator `merge_branches`, with fewer products: every branch has its own taps. mean [9 C_in] and second
        [9 C_in, 9 C_in] are the moments of the batch's `count` patches.
        """
        kernels, weight, shift = branches
        mean, second = mean.to(kernels.dtype), second.to(kernels.dtype)
        covariance = torch.addr(second, mean, mean, alpha=-1)
        means = kernels @ mean
        by_tap = covariance.unflatten(0, (9, -1)).unflatten(2, (9, -1))
        parts = zip(self.branches, kernels, strict=True)
        variances = torch.stack([branch.variance(kernel, by_tap) for branch, kernel in parts]).clamp(min=0)
        track_all([branch.norm for branch in self.branches], means, variances, count, mode)
        scale = weight * torch.rsqrt(variances + EPSILON)
        fused = (scale[..., None] * kernels).sum(0)  # [C, 9 C_in], ordered by tap
        return fused.unflatten(1, (3, 3, -1)).permute(0, 3, 1, 2), (shift - means * scale).sum(0)


def _chain_fits(branch: Branch) -> bool:
    """Whether `Branch.kernel` describes its convolutions completely."""
    convs: Any = branch.__dict__["_modules"]["convs"].__dict__["_modules"].values()
    left = len(convs)
    for conv in convs:
        left -= 1
        size, stride = conv.kernel_size, 1 if left else branch.stride
        plain = (conv.stride, conv.padding) == ((stride, stride), (size[0] // 2, size[1] // 2)) and as_plain(conv)
        if not plain or (left and size != (1, 1)):
            return False
    return True


def as_plain(conv: nn.Conv2d) -> bool:
    """Whether a convolution is fully described by its kernel, stride and padding."""
    whole = conv.groups == 1 and conv.dilation == (1, 1) and conv.padding_mode == "zeros"
    return whole and conv.__dict__["_parameters"]["bias"] is None


# The branches that a RepConv can merge into one kernel.
BRANCHES = known(
    (nn.ModuleList, Branch, Identity, AveragePool, nn.Conv2d, BatchNorm),
    {Branch: _chain_fits, BatchNorm: standard_norm},
)


def _spread(kernels: Tensor, covariance: Tensor) -> Tensor:
    """The variance kᵀ Σ k of every kernel [..., C, K], Σ [K, K]."""
    return ((kernels @ covariance) * kernels).sum(-1)


class FusedConv(_FilteredConv):
    """The deployed form: one 3×3 kernel and bias after the temporal filter."""

    def __init__(self, in_channels: int, channels: int, stride: int, *, tdm_enabled: bool = True) -> None:
        super().__init__(in_channels, channels, stride, tdm_enabled)
        self.weight = nn.Parameter(torch.empty(channels, in_channels, 3, 3))
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, x: Tensor, mode: ForwardMode = HARD, initial_state: State | None = None) -> Filtered:
        filtered, final_state = self.filter(x, initial_state)
        return self.convolve(filtered, self.weight, self.bias), final_state


class DualKernelConv(_FilteredConv):
    """The accumulate-only form, Prop. (ac-tdm): `W_now * x_t − W_before * x_{t−1} + b` over the spikes themselves.

    The coefficient is stored beside the kernels (W_now = W(1+λ), W_before = Wλ) so that the filter can be read; no
    computation uses it.
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__(in_channels, channels, stride, tdm_enabled=True)
        assert self.coefficient is not None
        self.coefficient.requires_grad_(False)
        self.weight_now = nn.Parameter(torch.empty(channels, in_channels, 3, 3))
        self.weight_before = nn.Parameter(torch.zeros(channels, in_channels, 3, 3))
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.kaiming_uniform_(self.weight_now, a=5**0.5)

    def forward(self, x: Tensor, mode: ForwardMode = HARD, initial_state: State | None = None) -> Filtered:
        before, last = shift(x, _last_input(initial_state, x))
        now = self.convolve(x, self.weight_now, self.bias)
        return now - self.convolve(before, self.weight_before, None), {"input": last}


def _last_input(state: State | None, x: Tensor) -> Tensor | None:
    return state["input"].to(x.dtype) if state else None
