"""An exported network on disk: graphs in files of some format, and `export.json`, which says what they are.

    run = load_exported("runs/mine/export/onnx")
    logits = run(clips)  # [B, T, classes], by the format's own runtime

A file that is not the one `export.json` was written with is refused before any runtime sees it.
"""

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.deploy.graph_front import FrontEnd
from ripe_mambaspike.errors import InputError, RipeError, WeightsError
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.labels import LABELS_FILE, Labels, parse_labels, read_labels
from ripe_mambaspike.models.registry import build
from ripe_mambaspike.train.predict import Classifier, make_classifier

MANIFEST = "export.json"
FORMAT, VERSION = "ripe-export", 1
# A format's name and the module of `deploy.export` that writes and runs it.
RUNNABLE = {"onnx": "onnx_file", "torch-export": "torch_export", "aoti": "aoti", "executorch": "executorch_file"}
FORMATS = ("safetensors", *RUNNABLE, "nir")
WANTED = "a folder written by ripe export is wanted"
Run = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class GraphFile:
    """One graph of an exported network."""

    kind: str  # clip, step or tail
    file: str
    bytes: int
    sha256: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """What was exported, from what, and for which inputs."""

    to: str
    weights: str  # fp32, fp16 or int8
    network: str
    config: dict[str, Any]
    steps: int
    grid: tuple[int, int]  # (height, width) it was made at
    static: bool  # for this size and one clip at a time alone
    graphs: tuple[GraphFile, ...]
    not_expressed: tuple[str, ...] = ()  # of the network, by this format
    labels: dict[str, Any] | None = None  # as in labels.json: the classes and all of the binning

    def to_json(self) -> bytes:
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def format_module(to: str) -> ModuleType:
    """What writes and runs a format."""
    return importlib.import_module(f"ripe_mambaspike.deploy.export.{RUNNABLE.get(to, 'nir_file')}")


def describe_file(kind: str, path: Path, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> GraphFile:
    data = path.read_bytes()
    return GraphFile(kind, path.name, len(data), hashlib.sha256(data).hexdigest(), tuple(inputs), tuple(outputs))


class Exported:
    """The network of an export: clips of any number to logits by its clip graph, or step by step by the other two."""

    dtype = torch.float32

    def __init__(self, folder: Path, manifest: Manifest, config: RipeConfig) -> None:
        self.folder, self.manifest, self.config = folder, manifest, config
        self.name = manifest.network

    def __call__(self, x: Tensor) -> Tensor:
        """x [B, T, 2, H, W] → logits [B, T, classes]; without a clip graph through the other two."""
        if "clip" not in self.kinds and {"step", "tail"} <= set(self.kinds):
            return self.by_steps(x)
        self._check(x)
        return torch.cat([self.runs["clip"](part)[0] for part in self._parts(x)])

    def by_steps(self, x: Tensor) -> Tensor:
        """The same through the step graph, its states handed from step to step, and the tail graph."""
        self._check(x)
        return torch.cat([self._walk(part) for part in self._parts(x)])

    @cached_property
    def runs(self) -> Mapping[str, Run]:
        """The graphs by kind, ready to be called; each is loaded when it is first asked for."""
        return _Loaded(self.folder, self.manifest)

    @cached_property
    def _front(self) -> FrontEnd:
        """Knows the shapes of the states; without weights."""
        with torch.device("meta"):
            return FrontEnd(build(self.config, self.name))  # type: ignore[arg-type]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(graph.kind for graph in self.manifest.graphs)

    def _parts(self, x: Tensor) -> Sequence[Tensor]:
        return x.split(1) if self.manifest.static else (x,)

    def _walk(self, x: Tensor) -> Tensor:
        graph = next(graph for graph in self.manifest.graphs if graph.kind == "step")
        states = [torch.zeros(shape) for shape in self._front.state_shapes(len(x), *x.shape[3:])]
        kept = []
        for step in range(x.shape[1]):
            features, attention, *states = self.runs["step"](x[:, step].contiguous(), torch.tensor(step), *states)
            kept.append((features, attention))
        salience = [state for name, state in zip(graph.inputs[2:], states, strict=True) if name.startswith("tokens.")]
        features, attention = (torch.stack(parts, 1) for parts in zip(*kept, strict=True))
        return self.runs["tail"](features, attention, *salience)[0]

    def _check(self, x: Tensor) -> None:
        manifest = self.manifest
        height, width = manifest.grid if manifest.static else x.shape[3:] if x.ndim == 5 else (0, 0)
        wanted = (manifest.steps, 2, height, width)
        if x.ndim != 5 or tuple(x.shape[1:]) != wanted or x.dtype != self.dtype:
            size = f"{height}, {width}" if manifest.static else "H, W"
            raise InputError(
                f"the clips are {x.dtype} of shape {tuple(x.shape)}; {self.folder} takes torch.float32 "
                f"(B, {manifest.steps}, 2, {size})"
            )


class _Loaded(dict[str, Run]):
    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__()
        self._folder, self._manifest = folder, manifest

    def __missing__(self, kind: str) -> Run:
        file = next((graph.file for graph in self._manifest.graphs if graph.kind == kind), None)
        if file is None:
            raise InputError(f"{self._folder} holds no {kind} graph; an export with --graphs {kind} is wanted")
        self[kind] = format_module(self._manifest.to).load(self._folder / file)
        return self[kind]


def is_export(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def load_exported(folder: str | Path) -> Exported:
    """The exported network of a folder, its files checked; the runtime loads them when they are first used."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest.to not in RUNNABLE:
        raise InputError(f"{folder} holds a {manifest.to} export, which has no runtime here; another format is wanted")
    for graph in manifest.graphs:
        try:
            data = (folder / graph.file).read_bytes()
        except OSError as error:
            raise WeightsError(f"{folder / graph.file} cannot be read ({error.strerror}); {WANTED}") from error
        if hashlib.sha256(data).hexdigest() != graph.sha256:
            raise WeightsError(
                f"{folder / graph.file} is not the file that {MANIFEST} was written with: its checksum differs, so it "
                "was damaged, cut short or exchanged"
            )
    try:
        config = RipeConfig.from_dict(manifest.config, str(folder / MANIFEST))
    except RipeError as error:
        raise WeightsError(f"{folder / MANIFEST}: {error}") from error
    return Exported(folder, manifest, config)


def load_exported_classifier(
    folder: str | Path,
    *,
    steps: int | None = None,
    grid: int | None = None,
    sensor_size: tuple[int, int] | None = None,
    crop: tuple[int, int, int, int] | None = None,
) -> Classifier:
    """An exported network with the names of its classes and its binning, for `train.predict.predict`."""
    model = load_exported(folder)
    manifest = model.manifest
    labels = labels_of(Path(folder), manifest)
    if labels is not None and len(labels.classes) != model.config.classes:
        raise WeightsError(f"{folder} names {len(labels.classes)} classes; the network has {model.config.classes}")
    if steps not in (None, manifest.steps):
        raise InputError(f"--steps is {steps}; the graph in {folder} takes {manifest.steps} alone")
    if grid is not None and manifest.static and (grid, grid) != manifest.grid:
        height, width = manifest.grid
        raise InputError(f"--grid is {grid}; the graph in {folder} takes {width}×{height} alone")
    return make_classifier(
        model,  # type: ignore[arg-type]
        labels,
        manifest.steps,
        manifest.grid if grid is None else (grid, grid),
        grid_asked=grid is not None,
        sensor_size=sensor_size,
        crop=crop,
    )


def labels_of(folder: Path, manifest: Manifest) -> Labels | None:
    """The export's `labels.json`, or what its `export.json` keeps of it."""
    if (folder / LABELS_FILE).exists():
        return read_labels(folder)
    return None if manifest.labels is None else parse_labels(manifest.labels, folder / MANIFEST)


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error}); {WANTED}") from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON ({error}); {WANTED}") from error
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise WeightsError(f"{path} is not a {FORMAT} file; {WANTED}")
    if (version := document.pop("version", None)) != VERSION:
        raise WeightsError(f"{path} has version {version!r}; this package reads version {VERSION}")
    try:
        graphs = tuple(
            GraphFile(**{**one, "inputs": tuple(one["inputs"]), "outputs": tuple(one["outputs"])})
            for one in document.pop("graphs")
        )
        height, width = document.pop("grid")
        left = {**document, "not_expressed": tuple(document.pop("not_expressed", ()))}
        manifest = Manifest(**left, grid=(height, width), graphs=graphs)
        _check_kinds(manifest)
        if manifest.to not in FORMATS or any(Path(graph.file).name != graph.file for graph in graphs):
            raise ValueError("it names another format or a file outside its folder")
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path} does not say what an export must say ({error}); {WANTED}") from error
    return manifest


def _check_kinds(manifest: Manifest) -> None:
    """Raise a ValueError where a member is of another kind than it must be."""
    counts = (manifest.steps, *manifest.grid, *(graph.bytes for graph in manifest.graphs))
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in counts):
        raise ValueError("steps, grid and bytes must be whole numbers of at least 1")
    words = (
        manifest.network,
        manifest.weights,
        *(word for graph in manifest.graphs for word in (graph.kind, graph.sha256)),
    )
    if not all(isinstance(word, str) for word in words) or not isinstance(manifest.static, bool):
        raise ValueError("network, weights, kind and sha256 must be texts, and static true or false")
    config = manifest.config if isinstance(manifest.config, dict) else {}
    if lacking := [name for name in RipeConfig.field_names() if name not in config]:
        raise ValueError(f"its config lacks {lacking[0]}")
