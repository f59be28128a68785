"""The whole account of one network as plain data, ready to print or to write as JSON."""

from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.account.energy import energy_report
from ripe_mambaspike.account.flops import count_flops
from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.mamba_spike import MambaSpike
from ripe_mambaspike.models.ripe import RipeMambaSpike


def account(model: Model, x: Tensor, measured_on: str) -> dict[str, Any]:
    """Parameters, FLOPs, bytes and energy at the resolution and steps of x [B, T, 2, H, W]."""
    config = model.config.replace(resolution=tuple(x.shape[3:]), steps=model.config.steps)
    parameters = count_parameters(config)
    flops = count_flops(config.replace(steps=x.shape[1]))
    assert isinstance(model, RipeMambaSpike | MambaSpike)
    was_training = model.training
    with torch.no_grad():
        energy = energy_report(model.eval(), x, measured_on)
    model.train(was_training)
    document: dict[str, Any] = {
        "model": model.name,
        "config": config.to_dict(),
        "parameters": {
            "training": parameters.training,
            "deployed": parameters.deployed,
            "by_part": parameters.by_part,
            "training_by_part": parameters.training_by_part,
        },
        "flops": {"total": flops.total, "without_scan": flops.without_scan, "by_part": flops.by_part},
        "weight_bytes": parameters.weight_bytes,
        "energy": energy,
    }
    if isinstance(config, RipeConfig) and parameters.dual_kernel is not None:
        extra = parameters.dual_kernel - parameters.deployed
        document["dual_kernel"] = {"weights": parameters.dual_kernel, "more_than_deployed": extra}
    return document
