"""A network as graphs for exporters: the whole clip, one step, and the tail.

    clip   x [B, T, 2, H, W] → logits [B, T, num_classes]
    step   (x [B, 2, H, W], step [], states…) → (features [B, N, d], attention [B, C, h, w], next states…)
    tail   (features [B, T, N, d], attention [B, T, C, h, w]) → logits [B, T, num_classes]

T steps in a row and then the tail give the clip's logits. A causal network has no tail: its step gives (logits
[B, num_classes], next states…). The graphs call the network itself (`RipeMambaSpike.reference_front_end`), whose
operators use exportable implementations while torch.export traces them; states have the network's own names.
Batch, height and width may be symbolic, T is fixed.

A network that is not RIPE-MambaSpike has the clip graph alone, traced from the network as it is. Its logits may be
those of the whole clip, [B, 1, num_classes], and only its batch may be symbolic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from ripe_mambaspike.deploy.export.prepare import prepare_for_export, prepare_whole
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import MIN_SIDE, ModelConfig, RipeConfig
from ripe_mambaspike.models.registry import build
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.stored import Stored
from ripe_mambaspike.nn.forward_mode import HARD
from ripe_mambaspike.nn.state import State, below, prefixed
from ripe_mambaspike.ops.backend import kernels

GRAPH_KINDS = ("clip", "step", "tail")
NEXT = "next."  # prefix of the states that a step returns
SPIKES_ALIAS = (".attention.spikes", ".second_conv.input")  # equal states; the second one is kept


@dataclass(frozen=True)
class Graph:
    kind: str  # clip, step or tail
    module: nn.Module  # in evaluation; forward(*inputs) → a tensor or a tuple of them
    example: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dynamic: Mapping[str, Mapping[int, str]]  # dynamic dimensions of each input: {dimension: name}
    facts: Mapping[str, Any]  # name, time_steps and num_classes, saved in the file


def graph_kinds(config: ModelConfig, graphs: Sequence[str] = ()) -> tuple[str, ...]:
    """The kinds of graphs to export: those given, or all that the network has."""
    kinds: Sequence[str] = GRAPH_KINDS
    if not isinstance(config, RipeConfig):
        kinds = GRAPH_KINDS[:1]
    elif config.causal:
        kinds = GRAPH_KINDS[:2]
    if other := [kind for kind in graphs if kind not in kinds]:
        expected = f"some of {', '.join(kinds)}" if len(kinds) > 1 else f"{kinds[0]} alone for {config.architecture}"
        raise ConfigError.expected("graphs", expected, other[0])
    return tuple(graphs or kinds)


def make_graph(
    kind: str,
    model: Model,
    height: int,
    width: int,
    stored: Mapping[str, Stored] | None = None,
    *,
    time_steps: int | None = None,
) -> Graph:
    """One graph of a network, which is deployed if it can be, over `time_steps` steps (by default the network's).

    `stored` are weights that stay int8 or float16 in the graph and are converted to float32 where they are used.
    """
    if min(height, width) < MIN_SIDE:
        raise ConfigError.expected("in_size", f"at least {MIN_SIDE}×{MIN_SIDE}", f"{height}×{width}")
    whole = isinstance(model, Model) and not isinstance(model, RipeMambaSpike)
    if whole and stored:
        raise ConfigError.expected("stored", f"no smaller weights of '{model.name}'", len(stored))
    prepared = prepare_whole(model) if whole else prepare_for_export(model, stored)
    config = prepared.config
    graph_kinds(config, (kind,))
    most = config.max_time_steps
    steps = config.time_steps if time_steps is None else time_steps
    if steps < 1 or (most is not None and steps > most):
        raise ConfigError.expected("time_steps", f"an int from 1 to {most}", steps)
    kinds: dict[str, type[_GraphModule]] = {"clip": WholeClip if whole else _Clip, "step": _Step, "tail": _Tail}
    module = kinds[kind](prepared, steps).eval()
    module.size = (height, width)
    facts = {"name": model.name, "time_steps": steps, "num_classes": config.num_classes}
    return Graph(kind, module, module.example(1, height, width), module.inputs, module.outputs, module.axes, facts)


def resized(graph: Graph, batch: int, height: int, width: int) -> Graph:
    """The same graph with an example input of another batch and size."""
    module: Any = graph.module
    return replace(graph, example=module.example(batch, height, width))


def step_states(
    config: RipeConfig, batch: int, height: int, width: int, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """The initial states of a step graph, by name: zeros."""
    grids = [(height, width), *config.grids(height, width)]
    sizes = {"batch": batch, "positions": grids[-1][0] * grids[-1][1]}
    for level, (rows, columns) in enumerate(grids):
        sizes |= {f"height{level or ''}": rows, f"width{level or ''}": columns}
    states = {}
    for name, example in _example_states(config).items():
        axes = _state_axes(name)
        shape = [sizes[axes[axis]] if axis in axes else size for axis, size in enumerate(example.shape)]
        kept = example.dtype != torch.float32 or name.startswith("tokens.")
        states[name] = torch.zeros(shape, dtype=example.dtype if kept else dtype)
    return states


@lru_cache(8)
def _example_states(config: RipeConfig) -> dict[str, Tensor]:
    """Every state that a step returns, found by running one step of the smallest size on the meta device.

    An attention's last spikes equal the second convolution's last input and are returned only once.
    """
    with torch.device("meta"), torch.no_grad():
        model = build(config, config.architecture).eval()
        assert isinstance(model, RipeMambaSpike)
        state = _step(model, torch.zeros(1, 1, 2, MIN_SIDE, MIN_SIDE), None, 0)[-1]
    alias, kept = SPIKES_ALIAS
    return {name: one for name, one in state.items() if alias not in name or name.replace(alias, kept) not in state}


def _step(
    model: RipeMambaSpike, x: Tensor, state: State | None, first_step: int | Tensor
) -> tuple[tuple[Tensor, ...], State]:
    """One step x [B, 1, 2, H, W]: (features, attention), or the logits of a causal network; and the next state."""
    front = model.reference_front_end(x, HARD, state, first_step)
    if not model.config.causal:
        return (front.features, front.attention), front.state
    tokens, left = model.hierarchy.forward_with_state(
        model.bridge(front.features, front.attention), below(state, "hierarchy")
    )
    return (_head(model, tokens),), front.state | prefixed("hierarchy", left)


def _classify(model: RipeMambaSpike, features: Tensor, attention: Tensor, indices: Tensor | None) -> Tensor:
    """The logits of a whole recording, over the network's modules."""
    return _head(model, model.hierarchy(model.bridge(features, attention, indices)))


def _head(model: RipeMambaSpike, tokens: Tensor) -> Tensor:
    logits: Tensor = model.head(tokens.mean(2))
    return logits


class _GraphModule(nn.Module):
    """Holds the network and describes its inputs and outputs."""

    model: Any
    size: tuple[int, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ("logits",)
    axes: dict[str, dict[int, str]]

    def __init__(self, model: Model, time_steps: int) -> None:
        super().__init__()
        self.model, self.time_steps, self.dtype = model, time_steps, model.dtype

    def example(self, batch: int, height: int, width: int) -> tuple[Tensor, ...]:
        raise NotImplementedError


class _Clip(_GraphModule):
    def __init__(self, model: Model, time_steps: int) -> None:
        super().__init__(model, time_steps)
        self.inputs, self.axes = ("x",), {"x": {0: "batch", 3: "height", 4: "width"}}

    def forward(self, x: Tensor) -> Tensor:
        front = self.model.reference_front_end(x)
        scores = front.token_scores
        indices = None if scores is None else self.model.tokens.select(scores)
        return _classify(self.model, front.features, front.attention, indices)

    def example(self, batch: int, height: int, width: int) -> tuple[Tensor, ...]:
        return (torch.zeros(batch, self.time_steps, 2, height, width, dtype=self.dtype),)


class WholeClip(_Clip):
    """Any network, called as it is."""

    def __init__(self, model: Model, time_steps: int) -> None:
        super().__init__(model, time_steps)
        self.axes = {"x": {0: "batch"}}

    def forward(self, x: Tensor) -> Tensor:
        with kernels("off"):  # no other runtime has the fused operators
            logits: Tensor = self.model(x)
        return logits


class _Step(_GraphModule):
    def __init__(self, model: RipeMambaSpike, time_steps: int) -> None:
        super().__init__(model, time_steps)
        names = tuple(_example_states(model.config))
        self.inputs = ("x", "step", *names)
        self.outputs = ("logits",) if model.config.causal else ("features", "attention")
        self.outputs += tuple(NEXT + name for name in names)
        self.axes = {"x": {0: "batch", 2: "height", 3: "width"}, **{name: _state_axes(name) for name in names}}

    def forward(self, x: Tensor, step: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        state = dict(zip(self.inputs[2:], states, strict=True))
        state |= {name.replace(*SPIKES_ALIAS[::-1]): value for name, value in state.items()}
        outputs, left = _step(self.model, x.unsqueeze(1), state, step.reshape(1))
        return (*(value.squeeze(1) for value in outputs), *(left[name] for name in self.inputs[2:]))

    def example(self, batch: int, height: int, width: int) -> tuple[Tensor, ...]:
        states = step_states(self.model.config, batch, height, width, self.dtype)
        x = torch.zeros(batch, 2, height, width, dtype=self.dtype)
        return x, torch.zeros((), dtype=torch.int64), *states.values()


class _Tail(_GraphModule):
    def __init__(self, model: RipeMambaSpike, time_steps: int) -> None:
        super().__init__(model, time_steps)
        scores = () if model.config.num_tokens is None else ("tokens.count", "tokens.earliness")
        self.inputs = ("features", "attention", *scores)
        self.axes = {"features": {0: "batch", 2: "positions"}, "attention": {0: "batch", 3: "height3", 4: "width3"}}
        self.axes |= {name: {0: "batch", 1: "positions"} for name in scores}

    def forward(self, features: Tensor, attention: Tensor, *scores: Tensor) -> Tensor:
        indices = self.model.tokens.select(self.model.tokens.score(*scores)) if scores else None
        return _classify(self.model, features, attention, indices)

    def example(self, batch: int, height: int, width: int) -> tuple[Tensor, ...]:
        config = self.model.config
        rows, columns = config.grids(height, width)[-1]
        return (
            torch.zeros(batch, self.time_steps, rows * columns, config.bridge_width, dtype=self.dtype),
            torch.zeros(batch, self.time_steps, config.stage_channels[-1], rows, columns, dtype=self.dtype),
            *(torch.zeros(batch, rows * columns) for _ in self.inputs[2:]),
        )


def _state_axes(name: str) -> dict[int, str]:
    """The dynamic dimensions of a state: the batch, and the sides of a map."""
    part, *rest = name.split(".")
    if part == "tokens":
        return {0: "batch", 1: "positions"}
    if part == "hierarchy" or rest[-1] == "weight":
        return {0: "batch"}
    level = 3 if part == "bridge" else int(rest[0]) + (rest[1:] != ["first_conv", "input"])
    return {0: "batch", 2: f"height{level or ''}", 3: f"width{level or ''}"}
