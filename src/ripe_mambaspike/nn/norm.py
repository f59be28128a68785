"""Batch norms whose running statistics are updated or not per call, and their deployed forms."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.state import Step
from ripe_mambaspike.nn.sync_stats import joint_count, joint_spread, stats_sync
from ripe_mambaspike.ops.norm import EPSILON, affine_over_time, batch_norm_over_time
from ripe_mambaspike.ops.operator import select_steps
from ripe_mambaspike.ops.shapes import at_least_float32

Affine = tuple[Tensor, Tensor]  # weight (or scale) and bias (or shift) of a norm
MOMENTUM = 0.1
LOADED_BATCHES = 10**9  # num_batches_tracked of statistics from a file


def check_statistics(count: int) -> None:
    """Statistics of a step are over `count` numbers a channel."""
    if count == 1:
        wanted = "more samples or a larger input for the statistics of training"
        raise InputError.expected("x", wanted, "one sample on a 1×1 grid")


def is_captured(x: Tensor) -> bool:
    """Whether operations on x are currently being captured as a CUDA graph."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


class _Statistics(_BatchNorm):
    """γ = 1, β = 0, running mean 0 and variance 1 of the given shape, whose last side are the channels.

    A subclass of `_BatchNorm`, so that `torch.optim.swa_utils.update_bn` finds it. `num_batches_tracked` is a plain int
    that is not saved. `momentum` None means a cumulative average; otherwise an exponential one, corrected for the
    initial 0 and 1, which a short run would not forget.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: int  # type: ignore[assignment]

    def __init__(self, *shape: int) -> None:
        nn.Module.__init__(self)  # PyTorch's own __init__ would create vectors
        self.num_features, self.affine, self.track_running_stats = shape[-1], True, True
        self.eps, self.momentum = EPSILON, MOMENTUM
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.num_batches_tracked = 0

    def reset_running_stats(self) -> None:
        self.running_mean.zero_()
        self.running_var.fill_(1)
        self.num_batches_tracked = 0

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *given: Any) -> None:
        """Load without `num_batches_tracked`; statistics that were measured count as converged."""
        nn.Module._load_from_state_dict(self, state_dict, prefix, *given)
        mean, variance = (state_dict.get(f"{prefix}running_{name}") for name in ("mean", "var"))
        if mean is not None and variance is not None and not mean.is_meta:
            self.num_batches_tracked = LOADED_BATCHES if bool(mean.any()) or bool((variance != 1).any()) else 0

    def next_momentum(self, mode: ForwardMode, first: int = 0) -> float:
        """The weight of the current batch's statistics, for steps from `first` on; counts the batch.

        A captured or compiled pass is replayed unchanged, so it uses the plain momentum.
        """
        momentum = self.momentum
        if not mode.track_statistics or momentum == 0:
            return 0.0
        if momentum is not None and (torch.compiler.is_compiling() or is_captured(self.running_mean)):
            return momentum
        self.num_batches_tracked += first == 0  # later pieces of a recording belong to the same batch
        if momentum is not None and not mode.warm_up:
            return momentum
        count = max(1, self.num_batches_tracked)
        return 1 / count if momentum is None else momentum / (1 - (1 - momentum) ** count)

    @torch.no_grad()
    def track(self, mean: Tensor, variance: Tensor, count: int, mode: ForwardMode, first: int = 0) -> None:
        """Update the running statistics of the steps from `first` on by those of a batch of `count` values each."""
        momentum = self.next_momentum(mode, first)
        if momentum > 0:
            unbiased = variance * (count / (count - 1))
            for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
                running[first : first + len(value)].lerp_(value.to(running.dtype), momentum)

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """With fixed statistics the norm is `scale · x + shift`; computed in float64."""
        mean, variance = self.running_mean.double(), self.running_var.double()
        scale = self.weight.double() / torch.sqrt(variance + self.eps)
        return scale, self.bias.double() - mean * scale

    def normalize_synced(self, x: Tensor, mode: ForwardMode, first: int = 0, *, shifted: bool = True) -> Tensor:
        """Normalize x [B, C, H, W] or [B, T', C, H, W] (steps from `first` on) by the statistics of all processes."""
        count = joint_count(x.shape[0] * x.shape[-2] * x.shape[-1])
        check_statistics(count)
        wide = at_least_float32(x)
        variance, mean = torch.var_mean(wide, (0, -2, -1), correction=0)
        mean, variance = joint_spread(mean, variance)
        self.track(mean, variance, count, mode, first)
        weight, bias = (value[first : first + len(mean)].to(wide.dtype) for value in (self.weight, self.bias))
        scale = weight * torch.rsqrt(variance + self.eps)
        shift = bias - mean * scale if shifted else -mean * scale
        return torch.addcmul(shift[..., None, None], wide, scale[..., None, None]).to(x.dtype)


@torch.no_grad()
def track_all(norms: Sequence["BatchNorm"], means: Tensor, variances: Tensor, count: int, mode: ForwardMode) -> None:
    """`track` for several norms over the same values, in a few calls: means and variances [norms, C]."""
    momenta = [norm.next_momentum(mode) for norm in norms]
    if any(momenta):
        running = [norm.running_mean for norm in norms] + [norm.running_var for norm in norms]
        values = torch.cat((means, variances * (count / (count - 1)))).to(running[0].dtype).unbind()
        if len(set(momenta)) == 1:
            torch._foreach_lerp_(running, list(values), momenta[0])
        else:
            for held, value, momentum in zip(running, values, momenta * 2, strict=True):
                held.lerp_(value, momentum)


class BatchNorm(_Statistics):
    """Over everything but the channels: x [B', C, H, W]."""

    def forward(self, x: Tensor, mode: ForwardMode = HARD, *, shifted: bool = True) -> Tensor:
        """Without `shifted` the caller adds the bias."""
        if self.training and stats_sync() is not None:
            return self.normalize_synced(x, mode, shifted=shifted)
        momentum = self.next_momentum(mode) if self.training else 0.0
        tracked = not self.training or momentum > 0
        mean, variance = (self.running_mean, self.running_var) if tracked else (None, None)
        bias = self.bias if shifted else None
        return F.batch_norm(x, mean, variance, self.weight, bias, self.training, momentum, self.eps)


class TimeBatchNorm(_Statistics):
    """BNTT: step t has its own statistics and affine. x [B, T', C, H, W] with any T' up to T."""

    def __init__(self, steps: int, channels: int) -> None:
        super().__init__(steps, channels)

    def forward(self, x: Tensor, mode: ForwardMode = HARD, first_step: Step = 0) -> Tensor:
        if not self.training and not mode.literal:
            rows: Any = (select_steps(value, first_step, x.shape[1]) for value in self.scale_and_shift())
            return affine_over_time(x, *(value.to(self.weight.dtype) for value in rows))
        if not isinstance(first_step, int):
            raise InputError.expected("first_step", "an int in training or a literal pass", "a tensor")
        steps = slice(first_step, first_step + x.shape[1])
        if self.training and stats_sync() is not None:
            return self.normalize_synced(x, mode, first_step)
        if self.training:
            check_statistics(x.shape[0] * x.shape[3] * x.shape[4])
        return batch_norm_over_time(
            x,
            self.running_mean[steps],
            self.running_var[steps],
            self.weight[steps],
            self.bias[steps],
            training=self.training,
            momentum=self.next_momentum(mode, first_step) if self.training else 0.0,
            epsilon=self.eps,
        )


class SharedNorm(TimeBatchNorm):
    """One norm for all steps, of a causal network: statistics over (B, T', H, W), and T' may be any number."""

    def __init__(self, channels: int) -> None:
        super().__init__(1, channels)

    def forward(self, x: Tensor, mode: ForwardMode = HARD, first_step: Step = 0) -> Tensor:
        return as_one_step(super().forward, x, mode)


def standard_norm(norm: _Statistics) -> bool:
    """Whether it normalizes as the fused operators do."""
    return norm.eps == EPSILON and norm.affine and norm.track_running_stats


class TimeAffine(nn.Module):
    """A deployed BNTT: two numbers per step and channel, no statistics."""

    def __init__(self, steps: int, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(steps, channels))
        self.shift = nn.Parameter(torch.zeros(steps, channels))

    def forward(self, x: Tensor, mode: ForwardMode = HARD, first_step: Step = 0) -> Tensor:
        rows: Any = (select_steps(value, first_step, x.shape[1]) for value in (self.scale, self.shift))
        return affine_over_time(x, *rows)


class SharedAffine(TimeAffine):
    """A deployed norm that all steps share: two numbers per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__(1, channels)

    def forward(self, x: Tensor, mode: ForwardMode = HARD, first_step: Step = 0) -> Tensor:
        return affine_over_time(x, self.scale, self.shift)  # one row for all steps


def norm_affine(norm: nn.LayerNorm) -> Affine:
    """Weight and bias [d] of a LayerNorm as the operators read them, float32."""
    return at_least_float32(norm.weight), at_least_float32(norm.bias)


def as_one_step(norm: Callable[[Tensor, ForwardMode], Tensor], x: Tensor, mode: ForwardMode) -> Tensor:
    """Apply a norm of one step to all steps [B, T', ...] as samples of that step."""
    return norm(x.flatten(0, 1).unsqueeze(1), mode).squeeze(1).unflatten(0, x.shape[:2])
