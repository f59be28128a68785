"""Expansion of a deployed network to its training form: the inverse of fusing.

Fusing adds many branches and norms up to one kernel, so their values cannot be known from it. `expand` chooses values
that fuse to exactly the given kernels: the 1×1, 1×3, 3×1 and 1×1→3×3 branches each take a share of the taps that they
cover, the 3×3 branch takes the rest, and the identity and the average pool begin at 0. The result computes what the
deployed network does, and can be trained with its branches and batch statistics. It is not the network that was once
fused.

A norm has a scale and a shift to reproduce, for any statistics. Training uses those of the batch, so with `clips` the
norms get the statistics that these clips have there: then the training pass, too, begins near the deployed network.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.base import Model, require_unmodified
from ripe_mambaspike.models.form_agreement import LITERAL, verify, verify_rounding
from ripe_mambaspike.models.registry import meta_model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.bridge import FoldedProjection, RateProjection
from ripe_mambaspike.nn.norm import BatchNorm, SharedNorm, TimeAffine, TimeBatchNorm
from ripe_mambaspike.nn.repconv import Branch, FusedConv, RepConv
from ripe_mambaspike.ops.norm import EPSILON

SHARE = 1 / 8  # of a kernel's taps, for each of four branches beside the 3×3
MIN_VARIANCE = 1e-3  # of a norm; a channel that is silent in the clips may fire in others
SEED = 0  # of the first convolution of the 1×1→3×3 branch

Affines = dict[str, tuple[Tensor, Tensor]]  # scale and shift that each norm is to have, by its name


class NormStatistics(NamedTuple):
    """Mean and variance of a norm's input, of the norm's shape."""

    mean: Tensor
    variance: Tensor


Measured = dict[str, NormStatistics]  # by the norm's name


@torch.no_grad()
def expand(model: Model, clips: Iterable[Tensor] = ()) -> RipeMambaSpike:
    """The training form of a deployed network, in evaluation mode, verified in float64; the network is left as it is.

    clips: batches [B, T, 2, H, W] whose statistics the norms get; without them every norm has mean 0 and variance 1
    """
    if not isinstance(model, RipeMambaSpike):
        given = f"'{model.name}'" if isinstance(model, Model) else f"a {type(model).__name__}"
        raise ConfigError.expected("model", "a RIPE-MambaSpike network for expand", given)
    if model.config.form != "deployed":
        raise ConfigError.expected("form", "deployed for expand", f"{model.config.form} of '{model.name}'")
    require_unmodified(model, "expand")
    weights, affines = _taken_apart(model)
    plain = _assembled(model, weights, affines, {}, model.dtype)
    measured = measure_statistics(plain, clips)
    verify(model, _assembled(model, weights, affines, measured, torch.float64))
    expanded = _assembled(model, weights, affines, measured, model.dtype)
    verify_rounding(model, expanded)
    return expanded


@torch.no_grad()
def measure_statistics(model: RipeMambaSpike, clips: Iterable[Tensor]) -> Measured:
    """What goes into every norm of a training network in evaluation mode, over all clips; empty without clips."""
    sums: dict[str, list[Tensor]] = {}
    counts: dict[str, int] = {}

    def listen(name: str, norm: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def hear(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            x = given[0]
            per_step = isinstance(norm, TimeBatchNorm) and not isinstance(norm, SharedNorm)
            dims = (0, 3, 4) if per_step else (0, 1, 3, 4) if x.ndim == 5 else (0, 2, 3)
            variance, mean = torch.var_mean(x.double(), dims, correction=0)
            count = x.numel() // mean.numel()
            first, second = sums.setdefault(name, [torch.zeros_like(mean), torch.zeros_like(mean)])
            first += count * mean
            second += count * (variance + mean * mean)
            counts[name] = counts.get(name, 0) + count

        return norm.register_forward_pre_hook(hear)

    norms = {name: one for name, one in model.named_modules() if isinstance(one, BatchNorm | TimeBatchNorm)}
    hooks = [listen(name, norm) for name, norm in norms.items()]
    try:
        for batch in clips:
            if batch.ndim != 5 or not len(batch):
                raise InputError.expected("clips", "batches [B, T, 2, H, W]", tuple(batch.shape))
            model.front_end(batch.to(next(model.parameters())), LITERAL)
    finally:
        for hook in hooks:
            hook.remove()
    found: Measured = {}
    for name, (first, second) in sums.items():
        mean = first / counts[name]
        shape = norms[name].running_mean.shape
        found[name] = NormStatistics(mean.reshape(shape), (second / counts[name] - mean * mean).reshape(shape))
    return found


def _taken_apart(model: RipeMambaSpike) -> tuple[dict[str, Tensor], Affines]:
    """The convolutions of the training form, and the scale and shift of each of its norms, in float64."""
    source = dict(model.named_modules())
    weights = {name: value.detach().double() for name, value in model.state_dict().items()}
    affines: Affines = {}
    for name, new in meta_model(model.config, "training", model.name).named_modules():
        old = source.get(name)
        if isinstance(old, FusedConv) and isinstance(new, RepConv):
            for number, (branch, (kernels, scale)) in enumerate(_branches(old, new)):
                at = f"{name}.branches.{number}"
                shift = old.bias.double() if number == 0 else torch.zeros_like(scale)
                affines[f"{at}.norm"] = scale, shift
                weights |= {f"{at}.convs.{index}.weight": kernel for index, kernel in enumerate(kernels)}
                assert len(kernels) == len(branch.convs)
        elif isinstance(old, TimeAffine) and isinstance(new, TimeBatchNorm):
            affines[name] = old.scale.double(), old.shift.double()
        elif isinstance(old, FoldedProjection) and isinstance(new, RateProjection):
            affines[f"{name}.norm"] = old.scale.double(), old.shift.double()
            weights[f"{name}.conv.weight"] = old.weight.double()
    return weights, affines


def _branches(old: FusedConv, new: RepConv) -> list[tuple[Branch, tuple[list[Tensor], Tensor]]]:
    """Each branch of the new convolution with its kernels and the scale of its norm; they add up to the old kernel."""
    weight = old.weight.double()
    ones, zeros = weight.new_ones(old.channels), weight.new_zeros(old.channels)
    if len(new.branches) == 1:
        return [(new.branches[0], ([weight], ones))]
    shared = SHARE * weight
    point, row, column = shared[:, :, 1:2, 1:2], shared[:, :, 1:2], shared[:, :, :, 1:2]
    first = _orthonormal(old.channels, old.in_channels).to(weight)
    chain = torch.einsum("oihw,mi->omhw", shared, torch.linalg.pinv(first).T)
    rest = weight - torch.einsum("omhw,mi->oihw", chain, first)
    rest[:, :, 1:2, 1:2] -= point
    rest[:, :, 1:2] -= row
    rest[:, :, :, 1:2] -= column
    kernels = [[rest], [point], [row], [column], [first[:, :, None, None], chain]]
    made = [(one, ones) for one in kernels] + [(list[Tensor](), zeros)] * (len(new.branches) - len(kernels))
    return list(zip(new.branches, made, strict=True))


def _orthonormal(rows: int, columns: int) -> Tensor:
    """A random matrix with orthonormal columns, or rows if there are fewer of them."""
    generator = torch.Generator().manual_seed(SEED)
    tall = torch.randn(max(rows, columns), min(rows, columns), generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(tall).Q
    return basis if rows >= columns else basis.T


def _assembled(
    model: RipeMambaSpike, weights: dict[str, Tensor], affines: Affines, measured: Measured, dtype: torch.dtype
) -> RipeMambaSpike:
    """The training network of these weights, whose norms have the affines with the measured statistics."""
    tensors = dict(weights)
    for name, (scale, shift) in affines.items():
        given = measured.get(name)
        mean = torch.zeros_like(scale) if given is None else given.mean.to(scale)
        variance = torch.ones_like(scale) if given is None else given.variance.to(scale).clamp(min=MIN_VARIANCE)
        tensors[f"{name}.weight"] = scale * torch.sqrt(variance + EPSILON)
        tensors[f"{name}.bias"] = shift + mean * scale
        tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"] = mean, variance
    expanded = meta_model(model.config, "training", model.name)
    assert isinstance(expanded, RipeMambaSpike)
    kept = {name: tensors[name].to(dtype, copy=True).contiguous() for name in expanded.state_dict()}
    expanded.load_state_dict(kept, assign=True)
    for name, parameter in model.named_parameters():
        if name in kept:
            expanded.get_parameter(name).requires_grad_(parameter.requires_grad)
    expanded.labels = model.labels
    return expanded.eval()
