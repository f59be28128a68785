"""Names, types and shapes of the tensors of exported graphs, for readers who have the file alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ripe_mambaspike.deploy.export.graph import NEXT, step_states
from ripe_mambaspike.models.config import ModelConfig, RipeConfig

Role = Literal["input", "output"]
Shape = Sequence[int | str]  # a dimension of another size in each call has a letter


@dataclass(frozen=True)
class GraphTensor:
    graph: str  # clip, step or tail
    role: Role
    name: str
    dtype: str
    shape: tuple[int | str, ...]


def graph_tensors(
    config: ModelConfig, kinds: Iterable[str], time_steps: int, grid: tuple[int, int], *, static: bool
) -> list[GraphTensor]:
    """The inputs and outputs of the graphs in order, at one grid (height, width). The batch is B unless it is fixed."""
    batch: int | str = 1 if static else "B"
    found: list[GraphTensor] = []

    def add(kind: str, role: Role, name: str, shape: Shape, dtype: str = "float32") -> None:
        found.append(GraphTensor(kind, role, name, dtype, tuple(shape)))

    for kind in kinds:
        if kind == "clip":
            add(kind, "input", "x", (batch, time_steps, 2, *grid))
        if not isinstance(config, RipeConfig):  # logits of every step, or one for the clip
            add(kind, "output", "logits", (batch, "S", config.num_classes))
            continue
        rows, columns = config.grids(*grid)[-1]
        features, attention = (rows * columns, config.bridge_width), (config.stage_channels[-1], rows, columns)
        states = {name: (one.shape[1:], _name(one.dtype)) for name, one in step_states(config, 1, *grid).items()}
        if kind == "step":
            add(kind, "input", "x", (batch, 2, *grid))
            add(kind, "input", "step", (), "int64")
            for name, (shape, dtype) in states.items():
                add(kind, "input", name, (batch, *shape), dtype)
            if config.causal:
                add(kind, "output", "logits", (batch, config.num_classes))
            else:
                add(kind, "output", "features", (batch, *features))
                add(kind, "output", "attention", (batch, *attention))
            for name, (shape, dtype) in states.items():
                add(kind, "output", NEXT + name, (batch, *shape), dtype)
            continue
        if kind == "tail":
            add(kind, "input", "features", (batch, time_steps, *features))
            add(kind, "input", "attention", (batch, time_steps, *attention))
            for name, (shape, dtype) in states.items():
                if name.startswith("tokens."):
                    add(kind, "input", name, (batch, *shape), dtype)
        add(kind, "output", "logits", (batch, time_steps, config.num_classes))
    return found


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
