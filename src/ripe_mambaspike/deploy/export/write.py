"""From a saved network to a folder that another machine runs: fused, made small, written, described."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ripe_mambaspike.deploy.export import graph as graphs
from ripe_mambaspike.deploy.export.card import CARD_FILE
from ripe_mambaspike.deploy.export.manifest import (
    FORMATS,
    MANIFEST,
    RUNNABLE,
    GraphFile,
    Manifest,
    describe_file,
    read_manifest,
)
from ripe_mambaspike.deploy.export.run import format_module
from ripe_mambaspike.deploy.fuse.convert import fuse
from ripe_mambaspike.errors import ConfigError, InputError, RipeError, WeightsError
from ripe_mambaspike.files import atomic_folder
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.labels import LABELS_FILE, Labels, save_labels
from ripe_mambaspike.models.pretrained import CONFIG_FILE, WEIGHTS_FILE, save_pretrained
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.stored import Stored

Weights = Literal["fp32", "fp16", "int8"]
KINDS = ("clip", "step", "tail")
STATIC_ONLY = ("aoti", "executorch")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class ExportOptions:
    """What is asked of an export."""

    to: str
    weights: Weights = "fp32"
    kinds: tuple[str, ...] = KINDS
    static: bool = False
    opset: int | None = None  # of ONNX

    def __post_init__(self) -> None:
        if self.to not in FORMATS:
            raise ConfigError(f"--to is '{self.to}'; one of {', '.join(FORMATS)} is wanted")
        if unknown := [kind for kind in self.kinds if kind not in KINDS]:
            raise ConfigError(f"--graphs has '{unknown[0]}'; some of {', '.join(KINDS)} are wanted")
        if not self.kinds:
            raise ConfigError(f"--graphs is empty; some of {', '.join(KINDS)} are wanted")
        if self.opset is not None and self.to != "onnx":
            raise ConfigError(f"--opset is {self.opset}, which ONNX alone has; --to onnx is wanted with it")
        if self.to in STATIC_ONLY and not self.static:
            raise ConfigError(f"--to is {self.to}, which cannot leave batch and resolution open; --static is wanted")
        if self.to not in RUNNABLE and (self.static or self.kinds != KINDS):
            given = "--static" if self.static else "--graphs"
            raise ConfigError(f"{given} was given with --to {self.to}, which has no such graphs; leave it out")
        if self.to == "nir" and self.weights != "fp32":
            raise ConfigError(f"--weights is {self.weights}; a NIR file carries fp32 alone")
        if self.to != "safetensors" and (reason := format_module(self.to).unavailable_reason()):
            raise ConfigError(reason)
        if self.opset is not None:
            format_module(self.to).check_opset(self.opset)


def to_deployed(model: Model) -> RipeMambaSpike:
    """The network to export: fused where it is not."""
    if not isinstance(model, RipeMambaSpike):
        raise ConfigError(f"'{model.name}' has no deployed form; a RIPE-MambaSpike network is wanted")
    if model.config.form == "dual-kernel":
        raise ConfigError(
            f"'{model.name}' is in its dual-kernel form, which ripe account runs; another form is wanted here"
        )
    return fuse(model, quiet=True) if model.config.form == "training" else model


def check_output_folder(out: Path) -> None:
    """What stands where an export is to go is an earlier export and nothing besides, an empty folder, or nothing."""
    try:
        if not out.exists():
            return
        names = {path.name for path in out.iterdir()} if out.is_dir() else {"."}
    except OSError as error:  # a name the system cannot even look up
        raise InputError(f"{out} cannot be looked up ({error.strerror}); a folder to write is wanted") from error
    if names - _written(out, names):
        raise InputError(f"{out} is there and is no export, or holds more than one; another --out is wanted")


def _written(out: Path, names: set[str]) -> set[str]:
    """Of the files there, those that an earlier export wrote."""
    if MANIFEST in names:
        try:
            graphs = {graph.file for graph in read_manifest(out).graphs}
        except WeightsError:
            return set()
        return {MANIFEST, LABELS_FILE, CARD_FILE, *graphs}
    network = {CONFIG_FILE, WEIGHTS_FILE, CARD_FILE}
    return {*network, LABELS_FILE} if network <= names else set()


def export(
    model: RipeMambaSpike,
    wish: ExportOptions,
    out: Path,
    labels: Labels | None,
    stored: Mapping[str, Stored] | None = None,
    finish: Callable[[Path], None] = lambda folder: None,
    report: Progress = lambda what: None,
) -> Path:
    """Write the deployed network into `out`; `finish` may look at the folder, and raise, before it is moved in."""
    check_output_folder(out)
    try:
        with atomic_folder(out) as folder:
            if wish.to == "safetensors":
                save_pretrained(model, folder, stored=stored or None)
            else:
                manifest = _write_graphs(model, wish, folder, labels, stored, report)
                (folder / MANIFEST).write_bytes(manifest.to_json())
            if labels is not None:  # as given, whatever the network says
                save_labels(labels, folder)
            finish(folder)
    except RipeError as error:  # what names the folder it was written in names the one that was asked for
        raise type(error)(str(error).replace(str(folder), str(out))) from error
    except OSError as error:
        raise WeightsError(
            f"{out} cannot be written ({error.strerror or error}); a disk with room is wanted"
        ) from error
    return out


def _write_graphs(
    model: RipeMambaSpike,
    wish: ExportOptions,
    folder: Path,
    labels: Labels | None,
    stored: Mapping[str, Stored] | None,
    report: Progress,
) -> Manifest:
    steps, grid = (labels.steps, labels.grid) if labels else (model.config.time_steps, model.config.in_size)
    module = format_module(wish.to)
    files: list[GraphFile] = []
    missing: Sequence[str] = ()
    if wish.to == "nir":
        path = folder / f"front{module.SUFFIX}"
        report("writing the front-end")
        missing = module.save(model, path, *grid)
        files.append(describe_file("front", path))
    else:
        options: dict[str, Any] = {} if wish.opset is None else {"opset": wish.opset}
        for kind in wish.kinds:
            report(f"writing the {kind} graph")
            graph = _graph(kind, model, grid, steps, stored)
            path = folder / f"{kind}{module.SUFFIX}"
            module.save(graph, path, dynamic=not wish.static, **options)
            files.append(describe_file(kind, path, graph.input_names, graph.output_names))
    return Manifest(
        to=wish.to,
        weights=wish.weights,
        network=model.name,
        config=model.config.to_dict(),
        steps=steps,
        grid=grid,
        static=wish.static or wish.to not in RUNNABLE,
        graphs=tuple(files),
        not_expressed=tuple(missing),
        labels=None if labels is None else labels.to_dict(),
    )


def _graph(
    kind: str, model: RipeMambaSpike, grid: tuple[int, int], steps: int, stored: Mapping[str, Stored] | None
) -> graphs.Graph:
    if kind == "step":
        return graphs.step_graph(model, *grid, stored)
    make = graphs.clip_graph if kind == "clip" else graphs.tail_graph
    return make(model, *grid, stored, steps=steps)
