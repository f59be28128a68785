"""An exported network on disk: graphs in files of some format, and `export.json`, which describes them.

    run = load_exported("runs/mine/export/onnx")
    logits = run(clips)  # [B, T, num_classes], or [B, 1, num_classes] as the network's, by the format's own runtime

A file whose checksum differs from `export.json` is rejected before any runtime loads it. Formats that carry code are
opened only with `trust=True`, `--trust` on the command line.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.common import require_trust
from ripe_mambaspike.deploy.export.graph import step_states
from ripe_mambaspike.deploy.export.manifest import MANIFEST, Manifest, config_of, read_graph, read_manifest
from ripe_mambaspike.deploy.export.registry import GraphFormat, Runner, export_format
from ripe_mambaspike.errors import InputError, WeightsError
from ripe_mambaspike.inference.classifier import Classifier, make_classifier
from ripe_mambaspike.models.config import ModelConfig, RipeConfig
from ripe_mambaspike.models.labels import LABELS_FILE, Labels, parse_labels, read_labels

# Ways to run an export, and the graphs of each.
CLIP, STEPS, CAUSAL_STEPS = "clip graph", "step and tail graphs", "step graph"
WAYS = {CLIP: ("clip",), STEPS: ("step", "tail"), CAUSAL_STEPS: ("step",)}


class Exported:
    """An exported network: clips to logits by its clip graph, or step by step."""

    dtype = torch.float32

    def __init__(
        self, folder: Path, manifest: Manifest, config: ModelConfig, target: GraphFormat, *, trust: bool = False
    ) -> None:
        self.folder, self.manifest, self.config = folder, manifest, config
        self.whole = not isinstance(config, RipeConfig)  # a clip graph alone, for clips of one size
        self.causal = isinstance(config, RipeConfig) and config.causal
        self.name = manifest.network
        self._format, self._trust = target, trust
        self._loaded: dict[str, Runner] = {}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of its graphs."""
        return tuple(graph.kind for graph in self.manifest.graphs)

    @property
    def ways(self) -> list[str]:
        """How it can be run: by its clip graph, or step by step."""
        steps = CAUSAL_STEPS if self.causal else STEPS
        return [way for way in (CLIP, steps) if set(self.kinds).issuperset(WAYS[way])]

    @property
    def one_size(self) -> bool:
        """Whether its graphs are for clips of one height and width."""
        return self.manifest.static or self.whole

    def ready(self, way: str) -> Callable[[Tensor], Tensor]:
        """The network run one way, with its graphs loaded already, so that loading is not timed as a prediction."""
        for kind in WAYS[way]:
            self.graph(kind)
        return self if way == CLIP else self.by_steps

    def graph(self, kind: str) -> Runner:
        """A graph, loaded on first use from the checked bytes, so that no file can be replaced in between."""
        if kind not in self._loaded:
            file = next((graph for graph in self.manifest.graphs if graph.kind == kind), None)
            if file is None:
                hint = f"export with --graphs {kind}"
                raise InputError.expected("graphs", f"a {kind} graph", "none", path=self.folder, hint=hint)
            data = read_graph(self.folder, file)
            self._loaded[kind] = self._format.load(self.folder / file.file, data=data, trust=self._trust)
        return self._loaded[kind]

    def __call__(self, x: Tensor) -> Tensor:
        """x [B, T, 2, H, W] → logits [B, T or 1, num_classes]; without a clip graph step by step."""
        if CLIP not in self.ways and self.ways:
            return self.by_steps(x)
        self._check_clips(x)
        return self._check_logits([self.graph("clip")(part)[0] for part in self._parts(x)], x)

    def by_steps(self, x: Tensor) -> Tensor:
        """The same by the step graph, with its states carried from step to step, and the tail graph."""
        self._check_clips(x)
        return self._check_logits([self._run_steps(part) for part in self._parts(x)], x)

    def _parts(self, x: Tensor) -> Sequence[Tensor]:
        return x.split(1) if self.manifest.static else (x,)

    def _run_steps(self, x: Tensor) -> Tensor:
        assert isinstance(self.config, RipeConfig)
        states = step_states(self.config, len(x), x.shape[3], x.shape[4])
        kept = []
        try:
            for step in range(x.shape[1]):
                first, *rest = self.graph("step")(x[:, step].contiguous(), torch.tensor(step), *states.values())
                kept.append([first] if self.causal else [first, rest.pop(0)])
                states = dict(zip(states, rest, strict=True))
            outputs = [torch.stack(parts, 1) for parts in zip(*kept, strict=True)]
        except (TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, InputError):
                raise
            raise self._unexpected("step graph", "features, attention and the next states", error) from error
        if self.causal:
            return outputs[0]
        scores = [state for name, state in states.items() if name.startswith("tokens.")]
        return self.graph("tail")(*outputs, *scores)[0]

    def _check_logits(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """The logits of all clips, with their shape checked."""
        shapes = [(steps, self.config.num_classes) for steps in (self.manifest.time_steps, *[1] * self.whole)]
        for part in parts:
            if not isinstance(part, Tensor) or part.dtype != self.dtype or tuple(part.shape[1:]) not in shapes:
                got = getattr(part, "shape", part)
                raise self._unexpected("logits", f"{self.dtype} (B, {shapes[0][0]}, {shapes[0][1]})", got)
        logits = torch.cat(list(parts))
        if len(logits) != len(x):
            raise self._unexpected("logits", f"those of {len(x)} clips", tuple(logits.shape))
        if not logits.isfinite().all():
            raise self._unexpected("logits", "finite numbers", "NaN or infinity")
        return logits

    def _unexpected(self, field: str, expected: str, got: object) -> WeightsError:
        return WeightsError.expected(field, expected, str(got)[:200], path=self.folder)

    def _check_clips(self, x: Tensor) -> None:
        manifest = self.manifest
        height, width = manifest.grid if self.one_size else x.shape[3:] if x.ndim == 5 else (0, 0)
        shape = (manifest.time_steps, 2, height, width)
        if x.ndim != 5 or tuple(x.shape[1:]) != shape or x.dtype != self.dtype:
            size = f"{height}, {width}" if self.one_size else "H, W"
            expected = f"torch.float32 (B, {manifest.time_steps}, 2, {size}) for {self.folder}"
            raise InputError.expected("clips", expected, f"{x.dtype} {tuple(x.shape)}")


def is_export(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def load_exported(folder: str | Path, *, trust: bool = False) -> Exported:
    """Load the exported network of a folder; files are checked now and loaded by the runtime on first use.

    A format that carries code (aoti, executorch, or a torch-export with more than `ripe export` writes) is rejected
    without `trust`. With `trust`, loading the folder may run any code that its author put there.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    path = folder / MANIFEST
    try:
        target = export_format(manifest.to)
    except ValueError as error:
        raise WeightsError(f"{path}: {error}", field="to", path=path) from error
    if not isinstance(target, GraphFormat):
        raise InputError.expected("to", "a format that runs here", manifest.to, path=path)
    require_trust(folder, target.carries_code, trust)
    for graph in manifest.graphs:
        read_graph(folder, graph)
    return Exported(folder, manifest, config_of(manifest, folder), target, trust=trust)


def load_export(
    folder: str | Path,
    *,
    time_steps: int | None = None,
    grid: int | None = None,
    sensor_size: tuple[int, int] | None = None,
    crop: tuple[int, int, int, int] | None = None,
    trust: bool = False,
) -> Classifier:
    """An exported network with the names of its classes and its binning, for `inference.predict.predict`."""
    model = load_exported(folder, trust=trust)
    manifest = model.manifest
    labels = _labels_of(Path(folder), manifest)
    if labels is not None and len(labels.classes) != model.config.num_classes:
        expected = f"{model.config.num_classes} names"
        raise WeightsError.expected("classes", expected, len(labels.classes), path=folder)
    if time_steps not in (None, manifest.time_steps):
        raise InputError.expected("time_steps", f"{manifest.time_steps}, as in {folder}", time_steps)
    if grid is not None and model.one_size and (grid, grid) != manifest.grid:
        height, width = manifest.grid
        raise InputError.expected("grid", f"{height}×{width}, as in {folder}", grid)
    return make_classifier(
        model,  # type: ignore[arg-type]
        labels,
        manifest.time_steps,
        manifest.grid if grid is None else (grid, grid),
        grid_given=grid is not None,
        sensor_size=sensor_size,
        crop=crop,
    )


def _labels_of(folder: Path, manifest: Manifest) -> Labels | None:
    """The export's `labels.json`, or the copy in its `export.json`."""
    if (folder / LABELS_FILE).exists():
        return read_labels(folder)
    return None if manifest.labels is None else parse_labels(manifest.labels, folder / MANIFEST)
