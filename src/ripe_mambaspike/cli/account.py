"""`ripe account`: what a network costs, counted."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ripe_mambaspike.cli.account_tables import show, show_sweep
from ripe_mambaspike.cli.data.recordings import CropArea, SensorSize, print_warnings, printable
from ripe_mambaspike.cli.output import print_json, progress, progress_done
from ripe_mambaspike.cli.select import is_saved, read_clip, read_fields, select_model
from ripe_mambaspike.errors import ConfigError, InputError, RipeError

if TYPE_CHECKING:
    from ripe_mambaspike.account.measured import Activity
    from ripe_mambaspike.deploy.fuse.accumulate import Accumulator
    from ripe_mambaspike.inference.classifier import Classifier

SWEPT = {
    "resolution": {"in_size"},
    "steps": {"time_steps"},
    "width": {"stage_channels", "embed_dims"},
    "tokens": {"num_tokens"},
}
CALIBRATION_SIDE = 34  # statistics depend little on the size of the clip, their cost does


@dataclass
class AccountCommand:
    """Count a network's parameters, operations, bytes and energy.

    Energy needs spikes: they are measured on --recordings, on --input, or on a synthetic clip, and a network that was
    never trained is labelled as such. On recordings the additions are made and counted by the accumulate-only runtime,
    whose spikes are compared with the dense network's; rates are given by layer, as mean, least and most.

    JSON keys: model, config, counted_at, parameters, flops, weight_bytes, dual_kernel, dual_kernel_bytes, energy
    (assumptions, layers, shares, microjoules); with --recordings also operations (backbone, network, macs_that_stay)
    and recordings (count, sums, spikes, spikes_that_differ, rates, additions, files).
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")] = "dvsgesture"
    """A registered network (see ripe models), or the folder of a run or of a saved network in any form."""
    in_size: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Side of the square input. Default: the network's own."""
    time_steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Time steps of a clip. Default: the network's own."""
    set: Annotated[list[str], tyro.conf.arg(metavar="FIELD=VALUE")] = field(default_factory=list)
    """More fields of the network, for example: --set attention=grouped neurons=lif num_tokens=64."""
    input: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Binned events to measure spikes on: .npy or .npz, (steps, 2, height, width)."""
    recordings: Annotated[tuple[Path, ...] | None, tyro.conf.arg(metavar="FILE …")] = None
    """Recordings of any format to measure spikes, additions and energy on, binned as in training."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Of --recordings the first so many; all when not given."""
    sensor_size: SensorSize = None
    """With --recordings, their sensor, whatever they say; the one it was trained on when not given."""
    crop: CropArea = None
    """With --recordings, the part of the sensor that is binned; as in training when not given."""
    sweep: Literal["resolution", "steps", "width", "tokens"] | None = None
    """Print one of the paper's cost tables beside ours instead."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """With --sweep, also draw it into this .png, .svg or .pdf file."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        if self.plot is not None and self.sweep is None:
            raise ConfigError("--plot was given without --sweep; there is nothing to draw")
        if self.recordings == ():
            raise ConfigError("--recordings was given no file; at least one is wanted")
        if self.limit is not None and (self.recordings is None or self.limit < 1):
            given = f"--limit is {self.limit}" + (", without --recordings" if self.recordings is None else "")
            raise ConfigError(f"{given}; at least 1 of --recordings is wanted")
        for option, given_area in (("--sensor-size", self.sensor_size), ("--crop", self.crop)):
            if given_area is not None and self.recordings is None:
                raise ConfigError(f"{option}: expected --recordings with it, got none", field=option)
        if self.sweep is not None:
            self._show_sweep()
        else:
            document = (
                self._account() if self.recordings is None else self._account_recordings(self.recordings[: self.limit])
            )
            print_json(document) if self.json else show(document)
        return 0

    def _fields(self) -> dict[str, Any]:
        fields = read_fields(self.set)
        for name in ("in_size", "time_steps"):
            value = getattr(self, name)
            if value is not None and name in fields:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{name}: expected it once, got {option} and --set {name}", field=name)
            if value is not None:
                fields[name] = value
        return fields

    def _account(self) -> dict[str, Any]:
        from ripe_mambaspike.account.document import account
        from ripe_mambaspike.models.input_checks import check_input
        from ripe_mambaspike.models.ripe import RipeMambaSpike
        from ripe_mambaspike.models.synthetic import synthetic_clip
        from ripe_mambaspike.nn.calibrate import recalibrate

        saved = is_saved(self.model)
        fields = self._fields()
        size = {name: fields.pop(name) for name in ("in_size", "time_steps") if saved and name in fields}
        model = select_model(_folder(self.model) if saved else self.model, fields)
        if self.input is not None:
            if self.in_size is not None or self.time_steps is not None:
                raise InputError(
                    "--input: expected no --in-size or --time-steps with it, which the file sets, got one",
                    field="--input",
                )
            clip = read_clip(self.input).to(model.dtype)
            if "in_size" in fields and tuple(clip.shape[3:]) != model.config.in_size:
                given = "×".join(map(str, clip.shape[3:]))
                raise InputError(f"--set was given a resolution that {self.input} does not have; its clip is {given}")
            measured_on = f"{self.input.name}, "
        else:
            wanted = model.config.replace(**size)
            clip = synthetic_clip(wanted.time_steps, *wanted.in_size).to(model.dtype)
            measured_on = "a synthetic clip (a sweeping bar and noise), "
        check_input(clip, model.config.max_time_steps, model.dtype)
        if not saved and isinstance(model, RipeMambaSpike) and model.config.form == "training":
            small = synthetic_clip(clip.shape[1], CALIBRATION_SIDE, CALIBRATION_SIDE, samples=2, seed=1)
            recalibrate(model, [small.to(model.dtype)], run=model.front_end)
        measured_on += f"weights of {self.model}" if saved else "untrained weights (seed 0)"
        return account(model, clip, measured_on)

    def _account_recordings(self, paths: tuple[Path, ...]) -> dict[str, Any]:
        if self.input is not None:
            raise ConfigError("--input was given together with --recordings; spikes are measured on one of them")
        if self.set:
            raise ConfigError("--set was given together with --recordings; a saved network has its fields")
        if not is_saved(self.model):
            raise ConfigError(
                f"--recordings was given for {self.model!r}; the folder of a run or of a saved network is wanted"
            )
        from ripe_mambaspike.account.measured import account_recordings, accumulator_of
        from ripe_mambaspike.inference.classifier import load_network

        classifier = load_network(
            self.model, time_steps=self.time_steps, grid=self.in_size, sensor_size=self.sensor_size, crop=self.crop
        )
        runtime = accumulator_of(classifier.model)
        activities = []
        try:
            for index, path in enumerate(paths, 1):
                progress(f"measuring {index} of {len(paths)}: {printable(path)} …")
                activities.append(_measure(classifier, runtime, path))
        finally:
            progress_done()
        count = f"{len(paths)} recording{'s' if len(paths) > 1 else ''}"
        return account_recordings(classifier.model, activities, f"{count}, weights of {self.model}")

    def _show_sweep(self) -> None:
        from ripe_mambaspike.account.sweeps import sweep
        from ripe_mambaspike.models.registry import model_config

        assert self.sweep is not None
        for option, given in (("--input", self.input), ("--recordings", self.recordings)):
            if given:
                raise ConfigError(f"{option} was given together with --sweep; a sweep measures no spikes")
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
        print_json(made.to_dict()) if self.json else show_sweep(made)


def _measure(classifier: "Classifier", runtime: "Accumulator", path: Path) -> "Activity":
    """One recording's activity; an error always names the file."""
    from ripe_mambaspike.account.measured import measure_clip
    from ripe_mambaspike.inference.classifier import make_clip, read_recording

    try:
        with print_warnings():
            recording = read_recording(classifier, path)
        return measure_clip(runtime, printable(path), make_clip(classifier, recording).unsqueeze(0))
    except RipeError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error


def _folder(saved: str) -> str:
    """The folder of the network itself, where that of a run was given."""
    from ripe_mambaspike.models.labels import BEST, CONFIG_FILE

    within = Path(saved) / BEST
    try:
        of_a_run = not (Path(saved) / CONFIG_FILE).exists() and (within / CONFIG_FILE).exists()
    except (OSError, ValueError):  # a name the system cannot even look up
        of_a_run = False
    return str(within) if of_a_run else saved
