"""`ripe models`: which networks there are, and proof that each one fuses."""

from dataclasses import dataclass
from typing import Any

from ripe_mambaspike.cli.output import console, number, print_json, print_table, progress, progress_done
from ripe_mambaspike.cli.select import SEED


@dataclass
class ModelsCommand:
    """List the registered networks with their cost; with --verify build, fuse and check each one."""

    verify: bool = False
    """Build each network, fuse it, make its accumulate-only form, and compare all three in float64."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.models.registry import list_models

        rows = []
        for name in list_models():
            progress(f"{'verifying' if self.verify else 'counting'} {name} …")
            rows.append(_row(name, self.verify))
        progress_done()
        if self.json:
            print_json({"models": rows})
            return 0
        out = console()
        columns = ["network", "T", "input", "classes", "training", "deployed", "fp16 MB", "GFLOP"]
        cells = [_cells(row) for row in rows]
        if self.verify:
            columns += ["fused", "dual", "flips"]
            cells = [cell + _checked(row) for cell, row in zip(cells, rows, strict=True)]
        print_table(out, "Networks", columns, cells)
        if self.verify:
            out.print(
                "fused, dual: largest relative error of any layer after fusion and in the accumulate-only form, in "
                "float64, with random filters, norms and statistics; flips: spikes that differ."
            )
            out.print("Next: ripe account dvsgesture · ripe check")
        return 0


def _row(name: str, verify: bool) -> dict[str, Any]:
    from ripe_mambaspike.account.flops import count_flops
    from ripe_mambaspike.account.parameters import count_parameters
    from ripe_mambaspike.models.registry import model_config

    config = model_config(name)
    parameters, flops = count_parameters(config), count_flops(config)
    row: dict[str, Any] = {
        "model": name,
        "time_steps": config.time_steps,
        "in_size": list(config.in_size),
        "num_classes": config.num_classes,
        "training": parameters.training,
        "deployed": parameters.deployed,
        "fp16_bytes": parameters.weight_bytes["fp16"],
        "flops": flops.total,
    }
    return {**row, "verified": _verify(name)} if verify else row


def _verify(name: str) -> dict[str, Any] | None:
    """Build, calibrate, fuse, compare; None for a network that has nothing to fuse."""
    from ripe_mambaspike.deploy.fuse.convert import dual_kernel_with_report, fuse_with_report
    from ripe_mambaspike.deploy.fuse.randomize import randomize
    from ripe_mambaspike.models.registry import create_model
    from ripe_mambaspike.models.ripe import RipeMambaSpike

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


def _cells(row: dict[str, Any]) -> list[str]:
    height, width = row["in_size"]
    return [
        row["model"],
        str(row["time_steps"]),
        f"{height}×{width}",
        str(row["num_classes"]),
        f"{row['training']:,}",
        f"{row['deployed']:,}",
        f"{row['fp16_bytes'] / 1e6:.2f}",
        number(row["flops"] / 1e9),
    ]


def _checked(row: dict[str, Any]) -> list[str]:
    verified = row["verified"]
    if verified is None:
        return ["–", "–", "–"]
    errors = [f"{verified[kind]:.1e}" for kind in ("fusion_error", "dual_kernel_error")]
    return [*errors, str(verified["spikes_flipped"])]
