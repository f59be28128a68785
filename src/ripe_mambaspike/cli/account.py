"""`ripe account`: what a network costs, counted."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ripe_mambaspike.cli.select import is_saved, read_clip, read_fields, select_model
from ripe_mambaspike.cli.show import console, number, print_json, print_table
from ripe_mambaspike.errors import ConfigError, InputError

if TYPE_CHECKING:
    from ripe_mambaspike.account.sweeps import Sweep

SWEPT = {
    "resolution": {"resolution"},
    "steps": {"steps"},
    "width": {"stage_channels", "hierarchy_widths"},
    "tokens": {"tokens"},
}
CALIBRATION_SIDE = 34  # statistics depend little on the size of the clip, their cost does


@dataclass
class Account:
    """Count a network's parameters, operations, bytes and energy.

    Energy needs spikes: they are measured on --input, or on a synthetic clip, and a network that was never trained
    is labelled as such.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")] = "dvsgesture"
    """A registered network (see ripe models), or the folder of a saved one."""
    resolution: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Side of the square input; the network's own when not given."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Time steps; the network's own when not given."""
    set: Annotated[list[str], tyro.conf.arg(metavar="FIELD=VALUE")] = field(default_factory=list)
    """More fields of the network, for example: --set attention=grouped neurons=lif tokens=64."""
    input: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Binned events to measure spikes on: .npy or .npz, (steps, 2, height, width)."""
    sweep: Literal["resolution", "steps", "width", "tokens"] | None = None
    """Print one of the paper's cost tables beside ours instead."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """With --sweep, also draw it into this .png, .svg or .pdf file."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        if self.plot is not None and self.sweep is None:
            raise ConfigError("--plot was given without --sweep; there is nothing to draw")
        if self.sweep is not None:
            self._show_sweep()
        else:
            document = self._account()
            print_json(document) if self.json else _show(document)
        return 0

    def _fields(self) -> dict[str, Any]:
        fields = read_fields(self.set)
        for name in ("resolution", "steps"):
            value = getattr(self, name)
            if value is not None and name in fields:
                raise ConfigError(f"{name} was given both by --{name} and by --set; one of them is wanted")
            if value is not None:
                fields[name] = value
        return fields

    def _account(self) -> dict[str, Any]:
        from ripe_mambaspike.account.document import account
        from ripe_mambaspike.models.checks import check_input
        from ripe_mambaspike.models.probe import probe_events
        from ripe_mambaspike.models.ripe import RipeMambaSpike
        from ripe_mambaspike.nn.calibrate import recalibrate

        saved = is_saved(self.model)
        fields = self._fields()
        size = {name: fields.pop(name) for name in ("resolution", "steps") if saved and name in fields}
        model = select_model(self.model, fields)
        if self.input is not None:
            if self.resolution is not None or self.steps is not None:
                raise InputError("--input was given together with --resolution or --steps; the file sets both")
            clip = read_clip(self.input).to(model.dtype)
            if "resolution" in fields and tuple(clip.shape[3:]) != model.config.resolution:
                given = "×".join(map(str, clip.shape[3:]))
                raise InputError(f"--set was given a resolution that {self.input} does not have; its clip is {given}")
            measured_on = f"{self.input.name}, "
        else:
            wanted = model.config.replace(**size)
            clip = probe_events(wanted.steps, *wanted.resolution).to(model.dtype)
            measured_on = "a synthetic clip (a sweeping bar and noise), "
        check_input(clip, model.config.steps, model.dtype)
        if not saved and isinstance(model, RipeMambaSpike):
            small = probe_events(clip.shape[1], CALIBRATION_SIDE, CALIBRATION_SIDE, samples=2, seed=1)
            recalibrate(model, [small.to(model.dtype)], run=model.front_end)
        measured_on += f"weights of {self.model}" if saved else "untrained weights (seed 0)"
        return account(model, clip, measured_on)

    def _show_sweep(self) -> None:
        from ripe_mambaspike.account.sweeps import sweep
        from ripe_mambaspike.models.registry import model_config

        assert self.sweep is not None
        if self.input is not None:
            raise ConfigError("--input was given together with --sweep; a sweep measures no spikes")
        fields = self._fields()
        swept = SWEPT[self.sweep] & fields.keys()
        if swept:
            raise ConfigError(f"{swept.pop()} was set for a sweep over {self.sweep}; the sweep sets it itself")
        if is_saved(self.model):
            raise ConfigError(f"--sweep was given for the saved network {self.model}; a registered name is wanted")
        config = model_config(self.model, **fields)
        made = sweep(self.sweep, config)
        if self.plot is not None:
            from ripe_mambaspike.account.plots import plot_sweep

            plot_sweep(made, self.plot)
        print_json(made.to_dict()) if self.json else _show_sweep(made)


def _show(document: dict[str, Any]) -> None:
    out = console()
    parameters, flops, energy = document["parameters"], document["flops"], document["energy"]
    config = document["config"]
    height, width = document["counted_at"]["resolution"]
    steps, most = document["counted_at"]["steps"], config["steps"]
    time = f"T {steps}" if steps == most else f"T {steps} of {most}"
    out.print(f"[bold]{document['model']}[/] · {time}, {height}×{width}, {config['classes']} classes\n")

    rows = [
        (part, number(parameters["training_by_part"][part]), number(count))
        for part, count in parameters["by_part"].items()
    ]
    rows.append(("[bold]total", f"[bold]{parameters['training']:,}", f"[bold]{parameters['deployed']:,}"))
    print_table(out, "Parameters", ("part", "training", "deployed"), rows)

    rows = [
        (part.replace("_", " "), number(count / 1e9), f"{100 * count / flops['total']:.1f} %")
        for part, count in flops["by_part"].items()
    ]
    rows.append(("[bold]total", f"[bold]{number(flops['total'] / 1e9)}", ""))
    rows.append(("without the scan", number(flops["without_scan"] / 1e9), ""))
    print_table(out, "GFLOPs of one sample, deployed (a multiply-add is two)", ("part", "GFLOP", "share"), rows)

    sizes = ", ".join(f"{count / 1e6:.2f} MB as {kind}" for kind, count in document["weight_bytes"].items())
    out.print(f"[bold]Weights[/]: {sizes}")
    if "dual_kernel" in document:
        dual = document["dual_kernel"]
        out.print(
            f"[bold]Dual-kernel form[/]: {dual['weights']:,} weights, {dual['more_than_deployed']:,} more than deployed"
        )
    out.print()
    _show_energy(out, energy)


def _show_energy(out: Any, energy: dict[str, Any]) -> None:
    about = energy["assumptions"]
    title = f"Synaptic operations of one sample, measured on {about['measured_on']}"
    rows = [
        (
            layer["layer"],
            "spikes" if layer["binary"] else "event counts",
            f"{layer['rate']:.4f}",
            number(layer["macs"] / 1e6),
            "–" if layer["accumulates"] is None else number(layer["accumulates"] / 1e6),
        )
        for layer in energy["layers"]
    ]
    columns = ("convolution", "operand", "mean", "dense, M MAC", "by additions, M AC")
    print_table(out, title, columns, rows, left=2)
    out.print(
        f"At {about['technology']} ({about['mac_picojoules']} pJ a multiply-add, {about['ac_picojoules']} pJ an "
        f"addition), leaving out {about['left_out']}:"
    )
    for part, label in (("backbone", "spiking part"), ("network", "network")):
        dense, event = energy[f"{part}_dense_microjoules"], energy[f"{part}_event_microjoules"]
        share = 100 * energy[f"eligible_share_of_{part}"]
        out.print(
            f"  {label}: {number(dense)} µJ dense, {number(event)} µJ with additions for the {share:.1f} % of it that "
            "reads spikes"
        )


def _show_sweep(made: "Sweep") -> None:
    out = console()
    names = list(made.units)
    columns = [""] + [f"{name.replace('_', ' ')}, {made.units[name]}" for name in names]
    rows = []
    for row in made.rows:
        rows.append([row.setting] + [f"{number(row.ours[name])}" for name in names])
        printed = (row.paper[name] for name in names)
        rows.append(["[dim]  paper"] + [f"[dim]{'–' if value is None else f'{value:g}'}" for value in printed])
    print_table(out, made.title, columns, rows)
    for remark in made.remarks:
        out.print(f"· {remark}")
