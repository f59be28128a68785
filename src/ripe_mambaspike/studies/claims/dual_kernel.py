"""Proposition (dual-kernel AC inference): a filter and a convolution are two kernels over the original spikes."""

from collections.abc import Iterator
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.deploy.fuse.convert import dual_kernel, fuse
from ripe_mambaspike.errors import VerificationError
from ripe_mambaspike.models.flops import conv_macs, count_flops
from ripe_mambaspike.models.form_agreement import compare_forms, probe
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
from ripe_mambaspike.studies.claims.verdict import Claim, exact, fact, number


def dual_kernel_claims() -> Iterator[Claim]:
    return chain(_unit(), _network(), _shares())


@torch.no_grad()
def _unit() -> Iterator[Claim]:
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
    yield exact("dual.commutation", relative_error(split, sequential))
    yield exact("dual.first-step", relative_error(split[:, 0], first))


def _network() -> Iterator[Claim]:
    try:
        fused = fuse(random_network(seed=4), quiet=True)
        dual = dual_kernel(fused, quiet=True)
    except VerificationError as error:
        yield fact("dual.network", "verification failed", False, reason=str(error))
        return
    x = probe(fused, side=34)
    agreement = compare_forms(fused, dual, x)
    operands = _operands(fused, x)
    convertible = sum(isinstance(part, DualKernelConv) for part in dual.modules())
    all_binary = [bool(((operand == 0) | (operand == 1)).all()) for operand in operands]
    counted = count_parameters(model_config("cifar10dvs"))
    assert counted.dual_kernel is not None
    extra = counted.dual_kernel - counted.deployed
    yield exact(
        "dual.network",
        agreement.error,
        flips=agreement.flips,
        spikes=agreement.spikes,
        extra=extra,
        total=counted.dual_kernel,
    )
    yield fact("dual.five-of-six", f"{convertible} of {len(operands)}", convertible == 5 and len(operands) == 6)
    yield fact(
        "dual.operands",
        ", ".join("binary" if flag else "real" for flag in all_binary),
        all_binary == [False] + [True] * 5,
    )


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


def _shares() -> Iterator[Claim]:
    config = model_config("dvsgesture")
    backbone = count_flops(config).by_part["backbone"]
    first = 2 * config.time_steps * conv_macs(64 * 64, 2, 32)
    share = 100 * first / backbone
    yield number("dual.first-share", share)
    yield number("dual.eligible", 100 - share)
