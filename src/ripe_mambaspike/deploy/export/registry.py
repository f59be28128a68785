"""The formats that a network can be exported to. Each is a class in a file of its own that registers itself:

    @register_export("onnx")
    class OnnxFormat(GraphFormat):
        suffix = ".onnx"
        def encode(self, graph, *, dynamic, opset) -> bytes: ...
        def decode(self, data, path, *, trust) -> Runner: ...

Files in `deploy/export/formats/` are found by themselves; any other module registers its format when it is imported.
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor

from ripe_mambaspike.deploy.export.common import read_file, require_trust
from ripe_mambaspike.deploy.export.graph import GRAPH_KINDS, Graph, graph_kinds, make_graph
from ripe_mambaspike.deploy.export.manifest import GraphFile, TensorShape, describe_file
from ripe_mambaspike.deploy.export.tensors import graph_tensors
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.files import write_file
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.stored import Stored
from ripe_mambaspike.own_modules import unknown_name

WeightFormat = Literal["fp32", "fp16", "int8"]
WEIGHT_FORMATS: tuple[WeightFormat, ...] = ("fp32", "fp16", "int8")
Runner = Callable[..., tuple[Tensor, ...]]  # a loaded graph
Network = Callable[[Tensor], Tensor]  # clips [B, T, 2, H, W] → logits


@dataclass(frozen=True)
class ExportOptions:
    """What to export; checked against the format when it is made."""

    to: str
    weights: WeightFormat = "fp32"
    graphs: tuple[str, ...] = ()  # clip, step, tail; empty: all that the network has
    static: bool = False  # one clip at a time of one size
    opset: int | None = None  # of ONNX

    def __post_init__(self) -> None:
        export_format(self.to).check_options(self)


@dataclass(frozen=True)
class ExportRequest:
    """One network to be written into one folder."""

    model: Model  # deployed form, if it has one
    folder: Path
    options: ExportOptions
    time_steps: int
    grid: tuple[int, int]  # (height, width)
    stored: Mapping[str, Stored] | None = None  # smaller weights
    progress: Callable[[str], None] = lambda what: None


class ExportFormat:
    """Base of all formats."""

    name: str  # set by register_export
    weight_formats: Sequence[WeightFormat] = WEIGHT_FORMATS
    any_network = False  # whether it takes networks other than RIPE-MambaSpike, as they are
    has_graphs = False  # whether it writes the clip, step and tail graphs
    has_manifest = True  # whether export.json is written beside its files
    static_only = False  # whether batch and size must be fixed
    carries_code: str | None = None  # the code that loading its files runs; None if they carry no code
    packages: Sequence[str] = ()  # that it needs
    extra = ""  # of this package, which installs them

    def unavailable_reason(self) -> str | None:
        """Why it cannot be written or run here; None if it can."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if not missing:
            return None
        hint = f'pip install "ripe-mambaspike[{self.extra}]" adds it'
        return f"{self.name} needs the package {missing[0]}, which is not installed; {hint}"

    def check_options(self, options: ExportOptions) -> None:
        """Raise a ConfigError for options that the format does not support."""
        if unknown := [kind for kind in options.graphs if kind not in GRAPH_KINDS]:
            raise ConfigError.expected("graphs", f"some of {', '.join(GRAPH_KINDS)}", unknown[0])
        if not self.has_graphs and options.graphs:
            raise ConfigError.expected("graphs", f"none with --to {self.name}", " ".join(options.graphs))
        if not self.has_graphs and options.static:
            raise ConfigError.expected("static", f"false with --to {self.name}", True)
        if self.static_only and not options.static:
            raise ConfigError.expected("static", f"true (--static) with --to {self.name}, which is for one size", False)
        if options.weights not in self.weight_formats:
            known = ", ".join(self.weight_formats)
            raise ConfigError.expected("weights", f"{known} with --to {self.name}", options.weights)
        if options.opset is not None:
            self.check_opset(options.opset)
        self._require_available()

    def check_network(self, model: Model, options: ExportOptions) -> None:
        """Raise a ConfigError for a network that the format does not take with these options."""
        if isinstance(model, RipeMambaSpike):
            return
        if not self.any_network:
            able = ", ".join(name for name in export_formats() if EXPORTS[name].any_network)
            raise ConfigError.expected(
                "to", f"one of {able} for '{model.name}', which is no RIPE-MambaSpike", self.name
            )
        if options.weights != "fp32":
            expected = f"fp32 for '{model.name}', since only a RIPE-MambaSpike is quantized"
            raise ConfigError.expected("weights", expected, options.weights)
        graph_kinds(model.config, options.graphs)

    def _require_available(self) -> None:
        if reason := self.unavailable_reason():
            raise ConfigError(f"to: {reason}", field="to")

    def check_opset(self, opset: int) -> None:
        raise ConfigError.expected("opset", f"none with --to {self.name}", opset)

    def write(self, request: ExportRequest) -> tuple[list[GraphFile], list[str]]:
        """Write the network into the request's folder; returns its graph files and what they do not express."""
        raise NotImplementedError

    def runners(self, folder: Path) -> dict[str, Callable[[], Network]]:
        """The ways to run the exported folder by name, to be compared with PyTorch."""
        raise NotImplementedError

    def check(self, folder: Path, model: Model, clips: Tensor) -> dict[str, Any]:
        """Compare the exported network with PyTorch (with the same weights) on clips; raises if they differ."""
        from ripe_mambaspike.deploy.export.parity import compare_outputs, require_parity

        found = {}
        for how, load in self.runners(folder).items():
            found[how] = compare_outputs(load, model, clips)
            require_parity(found[how], f"{self.name}, {how}")
        return found


class GraphFormat(ExportFormat):
    """Base of formats that keep one graph in one file."""

    suffix: str
    has_graphs = True

    def encode(self, graph: Graph, *, dynamic: bool, opset: int | None) -> bytes:
        """The content of the graph's file; with `dynamic` batch and size are dynamic."""
        raise NotImplementedError

    def decode(self, data: bytes, path: Path, *, trust: bool) -> Runner:
        """Load the graph from a file's content; `path` is for errors."""
        raise NotImplementedError

    def save(self, graph: Graph, path: Path, *, dynamic: bool = True, opset: int | None = None) -> None:
        """Write a graph atomically."""
        if opset is not None:
            self.check_opset(opset)
        self._require_available()
        if dynamic and self.static_only and graph.dynamic:
            sizes = sorted({size for axes in graph.dynamic.values() for size in axes.values()})
            expected = f"true for {self.name}, which is for one size"
            raise ConfigError.expected("static", expected, f"free {', '.join(sizes)}")
        write_file(path, self.encode(graph, dynamic=dynamic, opset=opset))

    def load(self, path: Path, *, data: bytes | None = None, trust: bool = False) -> Runner:
        """Load a graph; `data` is the file's content if it was already read."""
        require_trust(path, self.carries_code, trust)
        self._require_available()
        return self.decode(read_file(path) if data is None else data, path, trust=trust)

    def write(self, request: ExportRequest) -> tuple[list[GraphFile], list[str]]:
        options, files = request.options, []
        for kind in graph_kinds(request.model.config, options.graphs):
            request.progress(f"writing the {kind} graph")
            graph = make_graph(kind, request.model, *request.grid, request.stored, time_steps=request.time_steps)
            path = request.folder / f"{kind}{self.suffix}"
            self.save(graph, path, dynamic=not options.static, opset=options.opset)
            found = graph_tensors(
                request.model.config, (kind,), request.time_steps, request.grid, static=options.static
            )
            shapes = (TensorShape(role=one.role, name=one.name, dtype=one.dtype, shape=one.shape) for one in found)
            files.append(describe_file(kind, path, graph.input_names, graph.output_names, shapes))
        return files, []

    def runners(self, folder: Path) -> dict[str, Callable[[], Network]]:
        from ripe_mambaspike.deploy.export.run import load_exported

        exported = load_exported(folder, trust=True)  # this process has just written it
        return {how: lambda how=how: load_exported(folder, trust=True).ready(how) for how in exported.ways}  # type: ignore[misc]


EXPORTS: dict[str, ExportFormat] = {}
Format = TypeVar("Format", bound=type[ExportFormat])


def register_export(name: str) -> Callable[[Format], Format]:
    """Register a class as the format `name` of `ripe export --to name`."""

    def register(cls: Format) -> Format:
        if name in EXPORTS and type(EXPORTS[name]).__module__ != cls.__module__:
            raise ConfigError.expected("register_export", "a name that is not taken", name)
        EXPORTS[name] = cls()
        EXPORTS[name].name = name
        return cls

    return register


def export_format(name: str) -> ExportFormat:
    """A registered format by its name."""
    known = export_formats()
    if name not in known:
        raise unknown_name("to", name, known)
    return EXPORTS[name]


def export_formats() -> list[str]:
    """The names of all formats."""
    _find_formats()
    return sorted(EXPORTS)


@cache
def _find_formats() -> None:
    package = importlib.import_module("ripe_mambaspike.deploy.export.formats")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
