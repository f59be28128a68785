"""An exported network on disk: graphs in files of some format, and `export.json`, which says what they are.

    run = load_exported("runs/mine/export/onnx")
    logits = run(clips)  # [B, T, classes], by the format's own runtime

A file that is not the one `export.json` was written with is refused before any runtime sees it. Formats that carry code
are opened only with `trust=True`, `--trust` on the command line.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.common import require_trust
from ripe_mambaspike.deploy.export.graph_front import FrontEnd
from ripe_mambaspike.deploy.export.manifest import MANIFEST, RUNNABLE, Manifest, config_of, read_graph, read_manifest
from ripe_mambaspike.errors import InputError, WeightsError
from ripe_mambaspike.inference.classifier import Classifier, make_classifier
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.labels import LABELS_FILE, Labels, parse_labels, read_labels
from ripe_mambaspike.models.registry import build

Run = Callable[..., tuple[Tensor, ...]]


def format_module(to: str) -> ModuleType:
    """What writes and runs a format."""
    return importlib.import_module(f"ripe_mambaspike.deploy.export.formats.{RUNNABLE.get(to, 'nir')}")


class Exported:
    """The network of an export: clips of any number to logits by its clip graph, or step by step by the other two."""

    dtype = torch.float32

    def __init__(self, folder: Path, manifest: Manifest, config: RipeConfig, *, trust: bool = False) -> None:
        self.folder, self.manifest, self.config, self._trust = folder, manifest, config, trust
        self.name = manifest.network

    def __call__(self, x: Tensor) -> Tensor:
        """x [B, T, 2, H, W] → logits [B, T, classes]; without a clip graph through the other two."""
        if "clip" not in self.kinds and {"step", "tail"} <= set(self.kinds):
            return self.by_steps(x)
        self._check(x)
        return self._checked([self.runs["clip"](part)[0] for part in self._parts(x)], x)

    def by_steps(self, x: Tensor) -> Tensor:
        """The same through the step graph, its states handed from step to step, and the tail graph."""
        self._check(x)
        return self._checked([self._walk(part) for part in self._parts(x)], x)

    @cached_property
    def runs(self) -> Mapping[str, Run]:
        """The graphs by kind, ready to be called; each is loaded when it is first asked for."""
        return _Loaded(self.folder, self.manifest, self._trust)

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
        try:
            for step in range(x.shape[1]):
                features, attention, *states = self.runs["step"](x[:, step].contiguous(), torch.tensor(step), *states)
                kept.append((features, attention))
            named = zip(graph.inputs[2:], states, strict=True)
            salience = [state for name, state in named if name.startswith("tokens.")]
            features, attention = (torch.stack(parts, 1) for parts in zip(*kept, strict=True))
        except (TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, InputError):
                raise
            raise self._odd("step graph", "features, attention and the next states", error) from error
        return self.runs["tail"](features, attention, *salience)[0]

    def _checked(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """The logits of all clips, of the shape that they must have."""
        wanted = (self.manifest.steps, self.config.num_classes)
        for part in parts:
            if not isinstance(part, Tensor) or part.dtype != self.dtype or tuple(part.shape[1:]) != wanted:
                raise self._odd("logits", f"{self.dtype} (B, {wanted[0]}, {wanted[1]})", getattr(part, "shape", part))
        logits = torch.cat(list(parts))
        if len(logits) != len(x):
            raise self._odd("logits", f"those of {len(x)} clips", tuple(logits.shape))
        if not logits.isfinite().all():
            raise self._odd("logits", "finite numbers", "some that are not")
        return logits

    def _odd(self, field: str, expected: str, given: object) -> WeightsError:
        message = f"{self.folder}: {field}: expected {expected}, got {str(given)[:200]}"
        return WeightsError(message, field=field, path=self.folder)

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
    def __init__(self, folder: Path, manifest: Manifest, trust: bool) -> None:
        super().__init__()
        self._folder, self._manifest, self._trust = folder, manifest, trust

    def __missing__(self, kind: str) -> Run:
        """Read once, checked, and loaded from what was checked: nobody can exchange the file in between."""
        graph = next((graph for graph in self._manifest.graphs if graph.kind == kind), None)
        if graph is None:
            raise InputError(f"{self._folder} holds no {kind} graph; an export with --graphs {kind} is wanted")
        load, data = format_module(self._manifest.to).load, read_graph(self._folder, graph)
        self[kind] = load(self._folder / graph.file, data=data, trust=self._trust)
        return self[kind]


def is_export(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def load_exported(folder: str | Path, *, trust: bool = False) -> Exported:
    """The exported network of a folder, its files checked; the runtime loads them when they are first used.

    A format that carries code (aoti, executorch, or a torch-export that says more than `ripe export` writes) is refused
    without `trust`, with which opening the folder may run whatever its author put there.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest.to not in RUNNABLE:
        raise InputError(f"{folder} holds a {manifest.to} export, which has no runtime here; another format is wanted")
    require_trust(folder, format_module(manifest.to).CARRIES, trust)
    for graph in manifest.graphs:
        read_graph(folder, graph)
    return Exported(folder, manifest, config_of(manifest, folder), trust=trust)


def load_export(
    folder: str | Path,
    *,
    time_steps: int | None = None,
    grid: int | None = None,
    sensor_size: tuple[int, int] | None = None,
    crop: tuple[int, int, int, int] | None = None,
    trust: bool = False,
) -> Classifier:
    """An exported network with the names of its classes and its binning, for `train.predict.predict`."""
    model = load_exported(folder, trust=trust)
    manifest = model.manifest
    labels = labels_of(Path(folder), manifest)
    if labels is not None and len(labels.classes) != model.config.num_classes:
        raise WeightsError(f"{folder} names {len(labels.classes)} classes; the network has {model.config.num_classes}")
    if time_steps not in (None, manifest.steps):
        raise InputError(f"--time-steps is {time_steps}; the graph in {folder} takes {manifest.steps} alone")
    if grid is not None and manifest.static and (grid, grid) != manifest.grid:
        height, width = manifest.grid
        raise InputError(f"--grid is {grid}; the graph in {folder} takes {width}×{height} alone")
    return make_classifier(
        model,  # type: ignore[arg-type]
        labels,
        manifest.steps,
        manifest.grid if grid is None else (grid, grid),
        grid_given=grid is not None,
        sensor_size=sensor_size,
        crop=crop,
    )


def labels_of(folder: Path, manifest: Manifest) -> Labels | None:
    """The export's `labels.json`, or what its `export.json` keeps of it."""
    if (folder / LABELS_FILE).exists():
        return read_labels(folder)
    return None if manifest.labels is None else parse_labels(manifest.labels, folder / MANIFEST)
