"""The full account of one network as plain data, for printing or JSON."""

from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.account.energy import energy_of, energy_report
from ripe_mambaspike.account.parameters import BYTES, count_parameters
from ripe_mambaspike.account.synaptic import watch_activity
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.mamba_spike import MambaSpike
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.eval_mode import eval_mode


def account_clip(model: Model, x: Tensor, measured_on: str) -> dict[str, Any]:
    """Parameters and bytes of the network, FLOPs and energy at the size of x [B, T, 2, H, W]."""
    if isinstance(model, MambaSpike):
        model.check(x)
    with torch.no_grad(), eval_mode(model):
        if isinstance(model, RipeMambaSpike | MambaSpike):
            energy = energy_report(model, x, measured_on)
        else:
            config = model.config.replace(in_size=tuple(x.shape[3:]), time_steps=x.shape[1])
            energy = energy_of(watch_activity(model, x), config, measured_on)
    return document_of(model, x.shape[1], (x.shape[3], x.shape[4]), energy)


def document_of(model: Model, steps: int, resolution: tuple[int, int], energy: dict[str, Any]) -> dict[str, Any]:
    """The account with an energy report measured at these steps and this resolution."""
    config = model.config
    parameters = count_parameters(config)
    flops = count_flops(config.replace(in_size=resolution, time_steps=steps))
    document: dict[str, Any] = {
        "model": model.name,
        "config": config.to_dict(),
        "spiking_layers": model.num_spiking_layers(),
        "counted_at": {"time_steps": steps, "in_size": list(resolution)},
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
        document["dual_kernel_bytes"] = {
            "whole": {kind: size * parameters.dual_kernel for kind, size in BYTES.items()},
            "more_than_deployed": {kind: size * extra for kind, size in BYTES.items()},
        }
    return document
