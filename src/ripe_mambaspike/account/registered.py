"""The cost of all registered networks, and verification that each one fuses."""

from collections.abc import Callable
from typing import Any

from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.deploy.fuse.convert import dual_kernel_with_report, fuse_with_report
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.registry import create_model, list_models, model_config
from ripe_mambaspike.models.ripe import RipeMambaSpike

SEED = 0


def describe_models(
    *, verify: bool = False, progress: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Parameters, bytes and operations of every registered network.

    `verify` also builds each one with random filters, norms and statistics, fuses it, makes its accumulate-only form,
    and compares all three in float64.
    """
    rows = []
    for name in list_models():
        progress(f"{'verifying' if verify else 'counting'} {name} …")
        config = model_config(name)
        parameters = count_parameters(config)
        row: dict[str, Any] = {
            "model": name,
            "time_steps": config.time_steps,
            "in_size": list(config.in_size),
            "num_classes": config.num_classes,
            "training": parameters.training,
            "deployed": parameters.deployed,
            "fp16_bytes": parameters.weight_bytes["fp16"],
            "flops": count_flops(config).total,
        }
        rows.append({**row, "verified": _verify(name)} if verify else row)
    return rows


def _verify(name: str) -> dict[str, Any] | None:
    """The largest errors of the fused forms; None for a network with nothing to fuse."""
    model = create_model(name, seed=SEED)
    if not isinstance(model, RipeMambaSpike):
        return None
    randomize(model, SEED)
    fused, fusion = fuse_with_report(model, quiet=True)
    _, dual = dual_kernel_with_report(fused, quiet=True)
    return {
        "fusion_error": fusion.error,
        "dual_kernel_error": dual.error,
        "spikes": fusion.spikes,
        "spikes_flipped": fusion.flips + dual.flips,
    }
