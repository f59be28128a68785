"""Proposition (dual-kernel AC inference): a filter and a convolution are two kernels over the original spikes."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.deploy.fuse.convert import dual_kernel, fuse
from ripe_mambaspike.deploy.fuse.verify import compare_forms, probe
from ripe_mambaspike.errors import VerificationError
from ripe_mambaspike.models.flops import conv_macs, count_flops
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.repconv import DualKernelConv, FusedConv
from ripe_mambaspike.studies.claims.random_network import (
    generator,
    random_binary,
    random_network,
    random_normal,
    random_uniform,
    relative_error,
)
from ripe_mambaspike.studies.claims.verdict import Claim, ClaimSource

PROPOSITION = ClaimSource("dual-kernel", "Proposition 3 (dual-kernel AC inference)")
SECTION = ClaimSource("dual-kernel", "§5, accumulate-only inference")


def dual_kernel_claims() -> list[Claim]:
    return [*_unit(), *_network(), *_shares()]


@torch.no_grad()
def _unit() -> list[Claim]:
    rng = generator(0)
    fused, dual = FusedConv(6, 8, 2).double(), DualKernelConv(6, 8, 2).double()
    weight, bias = random_normal(rng, 8, 6, 3, 3), random_normal(rng, 8)
    coefficient = random_uniform(rng, 6, low=-2, high=2)
    scale = coefficient[:, None, None]
    fused.load_state_dict({"coefficient": coefficient, "weight": weight, "bias": bias})
    now, before = weight * (1 + scale), weight * scale
    dual.load_state_dict({"coefficient": coefficient, "weight_now": now, "weight_before": before, "bias": bias})
    x = random_binary(rng, 2, 5, 6, 9, 9)
    sequential, split = fused(x)[0], dual(x)[0]
    first = F.conv2d(x[:, 0], now, bias, 2, 1)
    return [
        PROPOSITION.exact(
            "dual.commutation",
            "Conv(W, TDM(x))_t equals W(1+λ) * x_t − Wλ * x_{t−1} + b",
            relative_error(split, sequential),
        ),
        PROPOSITION.exact(
            "dual.first-step",
            "At the first step only the kernel W(1+λ) acts",
            relative_error(split[:, 0], first),
        ),
    ]


def _network() -> list[Claim]:
    exact = "The whole network does the same with dual kernels"
    try:
        fused = fuse(random_network(seed=4), quiet=True)
        dual = dual_kernel(fused, quiet=True)
    except VerificationError as error:
        return [SECTION.fact("dual.network", exact, "exact", "verification failed", False, reason=str(error))]
    x = probe(fused, side=34)
    agreement = compare_forms(fused, dual, x)
    operands = _operands(fused, x)
    convertible = sum(isinstance(part, DualKernelConv) for part in dual.modules())
    all_binary = [bool(((operand == 0) | (operand == 1)).all()) for operand in operands]
    counted = count_parameters(model_config("cifar10dvs"))
    assert counted.dual_kernel is not None
    extra = counted.dual_kernel - counted.deployed
    return [
        SECTION.exact(
            "dual.network",
            exact,
            agreement.error,
            remark=f"{agreement.flips} of {agreement.spikes:,} spikes differ. The form stores {extra:,} weights more "
            f"({counted.dual_kernel:,} in all), which the paper does not say.",
        ),
        SECTION.fact(
            "dual.five-of-six",
            "The identity applies to five of the six backbone convolutions",
            "5 of 6",
            f"{convertible} of {len(operands)}",
            convertible == 5 and len(operands) == 6,
        ),
        SECTION.fact(
            "dual.operands",
            "Five convolutions read binary spikes; the first reads a real-valued tensor",
            "first real, five binary",
            ", ".join("binary" if flag else "real" for flag in all_binary),
            all_binary == [False] + [True] * 5,
        ),
    ]


@torch.no_grad()
def _operands(model: RipeMambaSpike, x: Tensor) -> list[Tensor]:
    """The input of every convolution before its temporal filter, in order."""
    seen: list[Tensor] = []
    convs = [part for part in model.modules() if isinstance(part, FusedConv)]
    hooks = [conv.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) for conv in convs]
    model(x)
    for hook in hooks:
        hook.remove()
    return seen


def _shares() -> list[Claim]:
    config = model_config("dvsgesture")
    backbone = count_flops(config).by_part["backbone"]
    first = 2 * config.time_steps * conv_macs(64 * 64, 2, 32)
    share = 100 * first / backbone
    return [
        SECTION.number("dual.first-share", "Share of the first convolution at 128²", "1.54 %", share),
        SECTION.number(
            "dual.eligible", "Share of backbone operations that can be accumulate-only", "98.5 %", 100 - share
        ),
    ]
