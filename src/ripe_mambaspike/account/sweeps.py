"""The paper's tables of cost against input size, time steps, width and tokens, compared with our counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.config import ModelConfig, RipeConfig
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.registry import model_config

SweepName = Literal["in_size", "time_steps", "width", "num_tokens"]


@dataclass(frozen=True)
class SweepRow:
    setting: str
    position: float  # of the setting on an axis
    paper: dict[str, float | None]  # as printed
    ours: dict[str, float]


@dataclass(frozen=True)
class Sweep:
    name: str
    title: str
    units: dict[str, str]  # column → unit
    rows: list[SweepRow]
    remarks: list[str]

    def to_dict(self) -> dict[str, Any]:
        rows = [{"setting": row.setting, "paper": row.paper, "ours": row.ours} for row in self.rows]
        return {"sweep": self.name, "title": self.title, "units": self.units, "rows": rows, "remarks": self.remarks}


COST_UNITS = {"deployed": "M", "gflops": "G", "gflops_64_tokens": "G", "gflops_with_scan": "G"}
COUNTER = "The paper's counter never sees the scan: compare its GFLOPs with ours without it."
PRUNED = "Counted by the paper with 64 tokens a step, though called all tokens: {rows}. Compare with that column."


def sweep(name: SweepName, config: ModelConfig) -> Sweep:
    """One table; the paper's values are for its DVS-Gesture network and shown only for that."""
    if not isinstance(config, RipeConfig):
        raise ConfigError(f"model: expected a RIPE-MambaSpike network to sweep {name}, got Mamba-Spike", field="model")
    made = SWEEPS[name](config)
    if config != model_config("dvsgesture"):
        rows = [SweepRow(row.setting, row.position, dict.fromkeys(row.paper), row.ours) for row in made.rows]
        return Sweep(made.name, made.title, made.units, rows, ["The paper gives these tables for dvsgesture alone."])
    return made


def _cost(config: RipeConfig) -> dict[str, float]:
    flops = count_flops(config)
    positions = config.grids(*config.in_size)[-1]
    fewer = config.replace(num_tokens=min(64, positions[0] * positions[1]))
    return {
        "deployed": count_parameters(config).deployed / 1e6,
        "gflops": flops.without_scan / 1e9,
        "gflops_64_tokens": count_flops(fewer).without_scan / 1e9,
        "gflops_with_scan": flops.total / 1e9,
    }


def _row(setting: str, position: float, ours: dict[str, float], *paper: float | None) -> SweepRow:
    """`paper` are the printed values of our columns, in their order."""
    return SweepRow(setting, position, dict(zip(ours, paper, strict=True)), ours)


def _resolution(config: RipeConfig) -> Sweep:
    paper = {  # Tables flops and resolution-scaling
        34: (0.875, 0.78, 4.79, 2.10, 43.8),
        48: (0.875, 1.27, 7.41, 4.72, 63.6),
        128: (0.875, 9.00, 36.25, 33.55, 92.6),
        224: (0.875, 24.69, 105.46, 102.76, 97.4),
    }
    rows = []
    for side, (deployed, gflops, total, projection, share) in paper.items():
        baseline = count_parameters(model_config("mamba-spike", in_size=side))
        join = baseline.by_part["input_proj"]
        ours = {
            **_cost(config.replace(in_size=side)),
            "mamba_spike": baseline.deployed / 1e6,
            "its_projection": join / 1e6,
            "projection_share": 100 * join / baseline.deployed,
        }
        rows.append(_row(f"{side}×{side}", side, ours, deployed, gflops, None, None, total, projection, share))
    units = {**COST_UNITS, "mamba_spike": "M", "its_projection": "M", "projection_share": "%"}
    odd = "At 34×34 the grid has 25 tokens; the odd one is kept here and was dropped in the paper's count (0.7756)."
    pruned = PRUNED.format(rows="224×224") + " (34×34 has 25 tokens and 48×48 has 36, all kept in it.)"
    return Sweep("in_size", "Cost against the sensor's resolution", units, rows, [COUNTER, pruned, odd])


def _steps(config: RipeConfig) -> Sweep:
    paper: dict[int, tuple[float | None, float | None, float | None]] = {  # Tables flops and T-sweep
        4: (0.864, 2.06, 0.4305),
        8: (0.868, 4.12, 0.8610),
        12: (None, None, 1.2914),
        16: (0.875, 9.00, 1.7219),
        20: (None, None, 2.1524),
        32: (0.890, 16.47, None),
    }
    rows = []
    for steps, (deployed, gflops, gmacs) in paper.items():
        cost = _cost(config.replace(time_steps=steps))
        ours = {**cost, "gmacs": cost["gflops"] / 2}
        rows.append(_row(f"T {steps}", steps, ours, deployed, gflops, None, None, gmacs))
    fits_nothing = "The paper's T-sweep MACs fit no part of the network; they are linear in T, as ours are."
    units = {**COST_UNITS, "gmacs": "G"}
    pruned = PRUNED.format(rows="all rows but T 16")
    return Sweep("time_steps", "Cost against the number of time steps", units, rows, [COUNTER, pruned, fits_nothing])


def _width(config: RipeConfig) -> Sweep:
    paper = {(32, 64, 128): (0.875, 9.00), (64, 128, 256): (3.361, 32.73), (128, 256, 512): (13.165, 130.49)}
    rows = []
    for widths, (deployed, gflops) in paper.items():
        ours = _cost(config.replace(stage_channels=widths, embed_dims=widths))
        rows.append(_row(str(list(widths)), widths[0], ours, deployed, gflops, None, None))
    pruned = PRUNED.format(rows="the two wider rows")
    return Sweep("width", "Cost against the stages' and levels' width", COST_UNITS, rows, [COUNTER, pruned])


def _tokens(config: RipeConfig) -> Sweep:
    paper: dict[int | None, float | None] = {32: 8.11, 64: None, 128: 8.49, None: 9.00}
    rows = []
    height, width = config.grids(*config.in_size)[-1]
    for keep, gflops in paper.items():
        if keep is not None and keep > height * width:
            continue
        cost = _cost(config.replace(num_tokens=keep))
        ours = {name: value for name, value in cost.items() if name != "gflops_64_tokens"}
        setting = f"k {keep}" if keep else f"all {height * width}"
        rows.append(_row(setting, keep or height * width, ours, 0.875 if gflops else None, gflops, None))
    units = {name: unit for name, unit in COST_UNITS.items() if name != "gflops_64_tokens"}
    return Sweep("num_tokens", "Cost against the tokens kept a step", units, rows, [COUNTER])


SWEEPS: dict[str, Callable[[RipeConfig], Sweep]] = {
    "in_size": _resolution,
    "time_steps": _steps,
    "width": _width,
    "num_tokens": _tokens,
}
