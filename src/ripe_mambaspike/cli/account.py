"""`ripe account`: what a network costs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ripe_mambaspike.cli.account_tables import show_account, show_sweep
from ripe_mambaspike.cli.output import print_json, print_warnings
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Count, CropArea, Json, SensorSize, Settings, option
from ripe_mambaspike.errors import ConfigError

SweepName = Literal["in_size", "time_steps", "width", "num_tokens"]


@dataclass
class AccountCommand:
    """Count a network's parameters, operations, bytes and energy.

    Energy needs spikes: they are measured on --recordings, on --input, or on a synthetic clip, and a network that was
    never trained is labelled as such. On recordings the additions are made and counted by the accumulate-only runtime,
    whose spikes are compared with the dense network's; rates are given by layer, as mean, least and most.

    JSON keys: model, config, spiking_layers, counted_at, parameters, flops, weight_bytes, dual_kernel,
    dual_kernel_bytes, energy (assumptions, layers, shares, microjoules); with --recordings also operations (backbone,
    network, macs_that_stay) and recordings (count, sums, spikes, spikes_that_differ, rates, additions, files).
    """

    model: Annotated[str, tyro.conf.Positional, option("MODEL")] = "dvsgesture"
    """A registered network (see ripe models), or the folder of a run or of a saved network."""
    in_size: Count = None
    """Side of the square input. Default: the network's own."""
    time_steps: Count = None
    """Time steps of a clip. Default: the network's own."""
    set: Settings = field(default_factory=list)
    """More config fields, for example: --set attention=grouped neurons=lif num_tokens=64."""
    input: Annotated[Path | None, option("FILE")] = None
    """Binned events to measure spikes on: a .npy or .npz file with one array [T, 2, H, W]."""
    recordings: Annotated[tuple[Path, ...] | None, option("FILE …")] = None
    """Recordings to measure spikes, additions and energy on, binned as in training."""
    limit: Count = None
    """Use only the first N of --recordings. Default: all."""
    sensor_size: SensorSize = None
    """With --recordings: their sensor, whatever the files say. Default: the sensor of training."""
    crop: CropArea = None
    """With --recordings: the part of the sensor that is binned. Default: as in training."""
    sweep: Annotated[SweepName | None, option("{in_size,time_steps,width,num_tokens}")] = None
    """Instead, print one of the paper's cost tables beside ours."""
    plot: Annotated[Path | None, option("FILE")] = None
    """With --sweep: also draw it into this .png, .svg or .pdf file."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import account

        recordings = self.recordings
        if self.limit is not None:
            if recordings is None or self.limit < 1:
                raise ConfigError(f"--limit: expected 1 or more, with --recordings, got {self.limit}", field="--limit")
            recordings = recordings[: self.limit]
        if self.sweep is not None:
            return self._run_sweep()
        if self.plot is not None:
            raise ConfigError("--plot: expected --sweep with it, got none", field="--plot")
        with progress_bar() as update, print_warnings():
            document = account(
                self.model, in_size=self.in_size, time_steps=self.time_steps, fields=read_fields(self.set),
                clip=self.input, recordings=recordings, sensor_size=self.sensor_size, crop=self.crop, progress=update,
            )  # fmt: skip
        print_json(document) if self.json else show_account(document)
        return 0

    def _run_sweep(self) -> int:
        from ripe_mambaspike import account_sweep

        assert self.sweep is not None
        for name, given in (("--input", self.input), ("--recordings", self.recordings)):
            if given:
                raise ConfigError(f"{name}: expected none with --sweep, which measures no spikes", field=name)
        sizes = {"in_size": self.in_size, "time_steps": self.time_steps}
        made = account_sweep(self.model, self.sweep, **sizes, fields=read_fields(self.set))
        if self.plot is not None:
            from ripe_mambaspike.account.plots import plot_sweep

            plot_sweep(made, self.plot)
        print_json(made.to_dict()) if self.json else show_sweep(made)
        return 0


def read_fields(pairs: Sequence[str]) -> dict[str, Any]:
    """`field=value` words, the value written as in YAML: `attention=grouped`, `neurons=[lif, lif, lif]`."""
    import yaml

    from ripe_mambaspike.yaml_text import parse_yaml

    fields: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set: expected field=value, got '{pair}'", field="--set")
        if name in fields:
            raise ConfigError(f"--set: expected {name} once, got it twice", field="--set")
        try:
            value = yaml.safe_load(text)
            fields[name] = (
                parse_yaml(text, "--set") if isinstance(value, str) else value
            )  # 1e-5 is a number in YAML 1.2
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"--set: expected a YAML value, got '{pair[:60]}'", field="--set") from error
    return fields
