"""One training step, and its optimizer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import Model, modified_error
from ripe_mambaspike.models.memory import explain_model_memory
from ripe_mambaspike.nn.attention import MembraneAttention
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.hierarchy import Hierarchy
from ripe_mambaspike.nn.mamba import Mamba
from ripe_mambaspike.nn.modified import Modification, overridden_method
from ripe_mambaspike.nn.neurons import NEURONS
from ripe_mambaspike.nn.norm import BatchNorm, TimeAffine, TimeBatchNorm
from ripe_mambaspike.nn.repconv import DualKernelConv, FusedConv, RepConv
from ripe_mambaspike.train.objective import LossTerms, LossWeights, objective

Batch = tuple[Tensor, Tensor]  # clips [B, T, 2, H, W] and their targets
DecayRule = Literal["kernels", "release"]
BETAS = (0.9, 0.999)
MAX_GRAD_NORM = 1.0
# No weight decay: all parameters of these modules and of neurons, whatever their shape …
UNDECAYED_MODULES = (nn.LayerNorm, BatchNorm, TimeBatchNorm, TimeAffine)
# … these names, and every parameter with fewer than two dimensions, such as biases.
UNDECAYED_NAMES: tuple[tuple[tuple[type[nn.Module], ...], frozenset[str]], ...] = (
    ((RepConv, FusedConv, DualKernelConv), frozenset({"coefficient"})),
    ((MembraneAttention,), frozenset({"gain"})),
    ((Mamba,), frozenset({"A_log", "D"})),
)


@dataclass(frozen=True)
class StepSettings:
    """Settings of one training step."""

    sharpness: float = 2.0  # α of the surrogate gradient and of the relaxation
    weights: LossWeights = field(default_factory=LossWeights)
    passes: Literal[1, 2] = 2  # the hard pass alone, or also the relaxed one
    autocast: bool = False  # products in bfloat16
    clip_grad_norm: float = MAX_GRAD_NORM  # largest norm of the whole gradient

    def __post_init__(self) -> None:
        if self.passes not in (1, 2):
            raise ConfigError.expected("passes", "1 (hard) or 2 (hard and relaxed)", self.passes)


def compute_loss(model: Model, x: Tensor, targets: Tensor, settings: StepSettings) -> LossTerms:
    """Both forward passes over the clips [B, T, 2, H, W], and the loss.

    The relaxed pass keeps the hard one's tokens and uses batch statistics without updating the running ones.
    """
    alpha = settings.sharpness
    own = overridden_method(model, {"forward": model.package_methods["forward"]})
    if own is not None:  # the passes are taken by run_passes
        raise modified_error(Modification("", own), "training_step")
    with torch.autocast(x.device.type, torch.bfloat16, enabled=settings.autocast):
        modes = [ForwardMode(sharpness=alpha, warm_up=False)]  # statistics are re-estimated before every evaluation
        if settings.passes == 2:
            modes.append(ForwardMode(relaxed=True, sharpness=alpha, track_statistics=False))
        hard, *rest = model.run_passes(x, modes)
    return objective(hard, rest[0] if rest else None, targets, settings.weights)


def training_step(model: Model, optimizer: Optimizer, x: Tensor, targets: Tensor, settings: StepSettings) -> LossTerms:
    """Zero, compute and clip the gradient, then update the weights; returns the detached terms of the loss."""
    return accumulated_step(model, optimizer, [(x, targets)], settings)


def accumulated_step(model: Model, optimizer: Optimizer, batches: Sequence[Batch], settings: StepSettings) -> LossTerms:
    """The same over several batches, whose gradients are accumulated as for one batch; only norms see single batches.

    Batches are weighted by their number of clips, so that a smaller last batch counts less.
    """
    optimizer.zero_grad(set_to_none=True)
    clips = sum(len(x) for x, _ in batches)
    shares = [len(x) / clips for x, _ in batches]
    found = [add_gradient(model, *batch, settings, share) for batch, share in zip(batches, shares, strict=True)]
    terms = found[0] if len(found) == 1 else weighted_terms(found, shares)
    return terms._replace(norm=update_weights(model, optimizer, settings.clip_grad_norm))


def weighted_terms(found: Sequence[LossTerms], shares: Sequence[float]) -> LossTerms:
    """The weighted sum of all terms."""
    columns = zip(*found, strict=True)
    means = [
        None if column[0] is None else sum(share * term for share, term in zip(shares, column, strict=True))
        for column in columns
    ]
    return LossTerms(*means)  # type: ignore[arg-type]


def add_gradient(model: Model, x: Tensor, targets: Tensor, settings: StepSettings, share: float = 1.0) -> LossTerms:
    """Accumulate the gradient of `share` times the loss; returns the detached terms of the loss."""
    with explain_model_memory(model, x, settings.passes, torch.bfloat16 if settings.autocast else None):
        terms = compute_loss(model, x, targets, settings)
        (terms.loss if share == 1.0 else terms.loss * share).backward()
    return terms.detach()


def update_weights(model: nn.Module, optimizer: Optimizer, max_norm: float) -> Tensor:
    """Clip the gradient and take an optimizer step; returns the norm before clipping. Skips a non-finite gradient."""
    norm = nn.utils.clip_grad_norm_(_summation_order(model), max_norm)
    if isinstance(optimizer, AdamW) and optimizer.defaults.get("fused"):
        optimizer.found_inf = (~torch.isfinite(norm)).to(torch.float32)  # type: ignore[attr-defined]
        optimizer.step()
    elif torch.isfinite(norm):
        optimizer.step()
    return norm


def _summation_order(model: nn.Module) -> list[nn.Parameter]:
    """All parameters, a Mamba's A_log and D before its out_proj.

    The last bit of the gradient's norm depends on the order of its terms, and a run's bits depend on it. This is the
    order with which the published results were made.
    """
    ordered: list[nn.Parameter] = []
    held: dict[str, list[nn.Parameter]] = {}  # A_log and D by their module's name
    for name, parameter in model.named_parameters():
        module, _, last = name.rpartition(".")
        if last in ("A_log", "D"):
            held.setdefault(module, []).append(parameter)
        else:
            if name.endswith("out_proj.weight"):
                ordered += held.pop(name.removesuffix(".out_proj.weight"), [])
            ordered.append(parameter)
    return ordered + [parameter for rest in held.values() for parameter in rest]


def make_optimizer(
    model: nn.Module,
    lr: float | Tensor,
    weight_decay: float,
    decay_rule: DecayRule = "kernels",
    tdm_lr_scale: float = 1.0,
    body_lr_scale: float = 1.0,
) -> AdamW:
    """AdamW over the learned parameters, in groups: with weight decay, without, and TDM's λ.

    λ has its own group if its learning rate differs by the factor `tdm_lr_scale`. With `body_lr_scale` all groups are
    divided into the head's parameters and the others, whose learning rate has this factor. Fused; on a CUDA device
    capturable in a graph (with the learning rate as a tensor, to change it later).
    """
    decayed, kept = split_by_decay(model, decay_rule)
    on_cuda = all(parameter.is_cuda for parameter in (*decayed, *kept))
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": weight_decay}]
    if tdm_lr_scale != 1.0:
        convolutions = (RepConv, FusedConv, DualKernelConv)
        apart = [p for module, name, p in _learned(model) if name == "coefficient" and isinstance(module, convolutions)]
        kept = [p for p in kept if not any(p is other for other in apart)]
        groups.append({"params": apart, "weight_decay": 0.0, "lr": lr * tdm_lr_scale, "lr_scale": tdm_lr_scale})
    groups.append({"params": kept, "weight_decay": 0.0})
    if body_lr_scale != 1.0:
        head: Any = model.head
        groups = list(_with_slower_body(groups, {id(p) for p in head.parameters()}, lr, body_lr_scale))
    return AdamW([g for g in groups if g["params"]], lr, BETAS, fused=True, capturable=on_cuda)


def _with_slower_body(
    groups: Sequence[dict[str, Any]], head: set[int], lr: float | Tensor, scale: float
) -> Iterator[dict[str, Any]]:
    """Each group as two: the head's parameters as they are, the others with a learning rate `scale` times as high."""
    for group in groups:
        slower = {"lr": group.get("lr", lr) * scale, "lr_scale": group.get("lr_scale", 1.0) * scale}
        yield {**group, "params": [p for p in group["params"] if id(p) in head]}
        yield {**group, **slower, "params": [p for p in group["params"] if id(p) not in head]}


def split_by_decay(model: nn.Module, rule: DecayRule = "kernels") -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The learned parameters with weight decay (matrices and kernels) and those without.

    The rule "release" decays what the public release does by mismatched names: the attention's gain too, but nothing
    inside a block of the hierarchy, its merge projection included (1,137,312 of dvsgesture's parameters).
    """
    in_block: set[int] = set()
    for module in model.modules():
        if isinstance(module, (Hierarchy, Mamba)):
            in_block |= {id(p) for p in (module.blocks if isinstance(module, Hierarchy) else module).parameters()}
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for module, name, parameter in _learned(model):
        decays = _decays(module, name, parameter)
        if rule == "release":
            gain = isinstance(module, MembraneAttention) and name == "gain"
            decays = gain or (decays and id(parameter) not in in_block)
        (decayed if decays else kept).append(parameter)
    return decayed, kept


def _learned(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield module, name, parameter


def _decays(module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    neurons = tuple(kind for kind in NEURONS.values() if isinstance(kind, type))
    if parameter.ndim < 2 or isinstance(module, (*UNDECAYED_MODULES, *neurons)):
        return False
    return not any(isinstance(module, kinds) and name in names for kinds, names in UNDECAYED_NAMES)
