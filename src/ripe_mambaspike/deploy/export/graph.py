"""A deployed network as graphs that exporters take: the whole clip, one step of the front-end, and the rest.

    clip   x [B, T, 2, H, W] → logits [B, T, classes]
    step   (x [B, 2, H, W], step [], states…) → (features [B, N, d], attention [B, C, h, w], states…)
    tail   (features [B, T, N, d], attention [B, T, C, h, w]) → logits [B, T, classes]

T steps in a row and then the tail give the clip's logits. All are plain PyTorch operations with a number of nodes
that does not depend on the sizes; batch, height and width may be symbols, T is fixed.
"""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ripe_mambaspike.deploy.export.graph_front import FrontEnd
from ripe_mambaspike.deploy.export.graph_tail import Tail
from ripe_mambaspike.deploy.forms import require_form
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.config import MIN_SIDE, RipeConfig
from ripe_mambaspike.models.described import sync_num_classes
from ripe_mambaspike.models.registry import build
from ripe_mambaspike.models.ripe import RipeMambaSpike

if TYPE_CHECKING:
    from ripe_mambaspike.models.stored import Stored

NEXT = "next."  # before the name of a state that a step hands on
GRAPH_KINDS = ("clip", "step", "tail")
SALIENCE = ("tokens.total", "tokens.earliness")  # states that the tail of a network with selected tokens reads


@dataclass(frozen=True)
class Graph:
    kind: str  # clip, step or tail
    module: nn.Module  # in evaluation; forward(*inputs) → a tensor or a tuple of them
    example: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dynamic: Mapping[str, Mapping[int, str]]  # of every input with such dimensions: {dimension: what it is}
    facts: Mapping[str, Any]  # name, time_steps and num_classes, for the file


def clip_graph(
    model: RipeMambaSpike,
    height: int,
    width: int,
    stored: "Mapping[str, Stored] | None" = None,
    *,
    steps: int | None = None,
) -> Graph:
    """The whole network over T = `steps` steps, all that it was made for unless given."""
    module = _Clip(_prepared(model, stored), _checked_steps(model, steps))
    return _graph("clip", module, model, height, width)


def step_graph(model: RipeMambaSpike, height: int, width: int, stored: "Mapping[str, Stored] | None" = None) -> Graph:
    """The front-end for one step, every state an input and an output."""
    return _graph("step", _Step(_prepared(model, stored)), model, height, width)


def tail_graph(
    model: RipeMambaSpike,
    height: int,
    width: int,
    stored: "Mapping[str, Stored] | None" = None,
    *,
    steps: int | None = None,
) -> Graph:
    """From the features and attention of T steps to the logits; with selected tokens also two states of the last."""
    module = _Tail(_prepared(model, stored), _checked_steps(model, steps))
    return _graph("tail", module, model, height, width)


def initial_states(graph: Graph, batch: int, height: int, width: int) -> tuple[Tensor, ...]:
    """The states of a step graph before the first step: zeros."""
    return resized(graph, batch, height, width).example[2:]


def resized(graph: Graph, batch: int, height: int, width: int) -> Graph:
    """The same graph with an example of another batch and size."""
    module: Any = graph.module
    return dataclasses.replace(graph, example=module.example(batch, height, width))


def graph_kinds(config: RipeConfig, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """The graphs to write of a network: those wanted, or all."""
    return tuple(wanted) or GRAPH_KINDS


def make_graph(
    kind: str,
    model: RipeMambaSpike,
    height: int,
    width: int,
    stored: "Mapping[str, Stored] | None" = None,
    *,
    time_steps: int | None = None,
) -> Graph:
    """A graph by its kind."""
    if kind == "step":
        return step_graph(model, height, width, stored)
    make = clip_graph if kind == "clip" else tail_graph
    return make(model, height, width, stored, steps=time_steps)


def step_states(config: RipeConfig, batch: int, height: int, width: int) -> dict[str, Tensor]:
    """The states of a step graph before the first step, by name: zeros."""
    with torch.device("meta"):
        front = FrontEnd(build(config, config.architecture))  # type: ignore[arg-type]
    shapes = front.state_shapes(batch, height, width)
    return {name: torch.zeros(shape) for name, shape in zip(front.state_names, shapes, strict=True)}


def refuse_dynamic(graph: Graph, name: str) -> None:
    """For a format that cannot leave sizes open."""
    if graph.dynamic:
        sizes = sorted({size for axes in graph.dynamic.values() for size in axes.values()})
        raise ConfigError(
            f"static: expected true for {name}, which is for one size, got free {', '.join(sizes)}", field="static"
        )


class _Clip(nn.Module):
    def __init__(self, model: RipeMambaSpike, steps: int) -> None:
        super().__init__()
        self.front, self.tail = FrontEnd(model), Tail(model)
        self.steps, self.dtype = steps, model.dtype
        self.inputs, self.outputs = ("x",), ("logits",)
        self.axes = {"x": {0: "batch", 3: "height", 4: "width"}}

    def forward(self, x: Tensor) -> Tensor:
        features, attention, states = self.front(x)
        salience = (states[name] for name in SALIENCE if name in states)
        logits: Tensor = self.tail(features, attention, *salience)
        return logits

    def example(self, batch: int, height: int, width: int) -> tuple[Tensor, ...]:
        return (torch.zeros(batch, self.steps, 2, height, width, dtype=self.dtype),)


class _Step(nn.Module):
    def __init__(self, model: RipeMambaSpike) -> None:
        super().__init__()
        self.front, self.dtype = FrontEnd(model), model.dtype
        names = self.front.state_names
        self.inputs = ("x", "step", *names)
        self.outputs = ("features", "attention", *(NEXT + name for name in names))
        self.axes = {"x": {0: "batch", 2: "height", 3: "width"}}
        for name in names:
            level = 3 if name.startswith(("bridge", "tokens")) else int(name[5]) - name.endswith(".input")
            across = {2: f"height{level or ''}", 3: f"width{level or ''}"}
            self.axes[name] = {0: "batch", **({1: "positions"} if name in SALIENCE else across)}

    def forward(self, x: Tensor, step: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs[2:], states, strict=True))
        features, attention, left = self.front(x.unsqueeze(1), step, named)
        return (features.squeeze(1), attention.squeeze(1), *(left[name] for name in self.inputs[2:]))

    def example(self, batch: int, height: int, width: int) -> tuple[Tensor, ...]:
        shapes = self.front.state_shapes(batch, height, width)
        states = [
            torch.zeros(shape, dtype=torch.float32 if name in SALIENCE else self.dtype)
            for name, shape in zip(self.inputs[2:], shapes, strict=True)
        ]
        return torch.zeros(batch, 2, height, width, dtype=self.dtype), torch.zeros((), dtype=torch.int64), *states


class _Tail(nn.Module):
    def __init__(self, model: RipeMambaSpike, steps: int) -> None:
        super().__init__()
        self.tail, self.config = Tail(model), model.config
        self.steps, self.dtype = steps, model.dtype
        self.inputs = ("features", "attention", *(() if model.config.num_tokens is None else SALIENCE))
        self.outputs = ("logits",)
        self.axes = {"features": {0: "batch", 2: "positions"}, "attention": {0: "batch", 3: "height3", 4: "width3"}}
        self.axes |= {name: {0: "batch", 1: "positions"} for name in self.inputs[2:]}

    def forward(self, features: Tensor, attention: Tensor, *salience: Tensor) -> Tensor:
        logits: Tensor = self.tail(features, attention, *salience)
        return logits

    def example(self, batch: int, height: int, width: int) -> tuple[Tensor, ...]:
        config = self.config
        rows, columns = config.grids(height, width)[-1]
        return (
            torch.zeros(batch, self.steps, rows * columns, config.embed_dims[0], dtype=self.dtype),
            torch.zeros(batch, self.steps, config.stage_channels[-1], rows, columns, dtype=self.dtype),
            *(torch.zeros(batch, rows * columns) for _ in self.inputs[2:]),
        )


class _Expanded(nn.Module):
    """A weight that stays whole numbers or half precision and is expanded wherever it is read."""

    scale: Tensor | None

    def __init__(self, stored: "Stored", dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("scale", None if stored.scale is None else stored.scale.detach())

    def forward(self, values: Tensor) -> Tensor:
        wide = values.float()
        return (wide if self.scale is None else wide * self.scale).to(self.dtype)


def _prepared(model: Any, stored: "Mapping[str, Stored] | None") -> RipeMambaSpike:
    """A copy in evaluation, without gradients, in float32 (or float64), its stored weights in place."""
    model = require_form(model, "export", "deployed")
    if model.config.causal:
        raise ConfigError(f"causal: expected false for export, got true of '{model.name}'", field="causal")
    sync_num_classes(model)
    prepared = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    if prepared.dtype != torch.float64:
        prepared = prepared.float()
    dtype = prepared.dtype
    shapes = {name: parameter.shape for name, parameter in prepared.named_parameters()}
    for name, one in (stored or {}).items():
        if name not in shapes or one.values.shape != shapes[name]:
            raise ConfigError(
                f"stored: expected weights of '{model.name}', got {name} of shape {tuple(one.values.shape)}",
                field="stored",
            )
        part, _, last = name.rpartition(".")
        module = prepared.get_submodule(part)
        setattr(module, last, nn.Parameter(one.values.detach().clone(), requires_grad=False))
        parametrize.register_parametrization(module, last, _Expanded(one, dtype), unsafe=True)
    return prepared


def _checked_steps(model: Any, steps: int | None) -> int:
    most: int = model.config.time_steps
    if steps is not None and not 1 <= steps <= most:
        raise ConfigError(f"time_steps: expected an int from 1 to {most}, got {steps}", field="time_steps")
    return most if steps is None else steps


def _graph(kind: str, module: Any, model: RipeMambaSpike, height: int, width: int) -> Graph:
    if min(height, width) < MIN_SIDE:
        raise ConfigError(f"in_size: expected at least 8×8, got {height}×{width}", field="in_size")
    steps = model.config.time_steps if kind == "step" else module.steps
    module.eval()
    module.size = (height, width)
    facts = {"name": model.name, "time_steps": steps, "num_classes": model.config.num_classes}
    return Graph(kind, module, module.example(1, height, width), module.inputs, module.outputs, module.axes, facts)
