"""`ripe models`: list the registered networks, and verify that each one can be fused."""

from dataclasses import dataclass
from typing import Any

from ripe_mambaspike.cli.output import console, format_number, print_json, print_table
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Flag, Json


@dataclass
class ModelsCommand:
    """List the registered networks with their cost; with --verify build, fuse and check each one."""

    verify: Flag = False
    """Build each network, fuse it, make its accumulate-only form, and compare all three in float64."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike.account.registered import describe_models

        with progress_bar() as update:
            rows = describe_models(verify=self.verify, progress=update)
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
        format_number(row["flops"] / 1e9),
    ]


def _checked(row: dict[str, Any]) -> list[str]:
    verified = row["verified"]
    if verified is None:
        return ["–", "–", "–"]
    errors = [f"{verified[kind]:.1e}" for kind in ("fusion_error", "dual_kernel_error")]
    return [*errors, str(verified["spikes_flipped"])]
