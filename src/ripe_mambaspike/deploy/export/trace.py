"""A graph traced by torch.export, for every format that starts from such a program."""

import importlib
from typing import Any

import torch

from ripe_mambaspike.deploy.export.common import first_line, silenced
from ripe_mambaspike.deploy.export.graph import Graph, resized
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.ops.mamba_inner.traced_scan import MAX_TOKENS

MIN_TRACED_SIZE = (2, 42, 58)  # batch, height, width: no layer has a size of 1, and no two sizes are equal by chance


def trace_graph(graph: Graph, *, dynamic: bool = True) -> torch.export.ExportedProgram:
    """The graph's operations and constants; sizes that `graph.dynamic` names are symbols unless `dynamic` is False.

    Sizes of 0 and 1 are not specialized, so one program serves every batch and every size from 8×8 on.
    """
    try:
        with torch.no_grad(), silenced():
            program = _traced(graph, dynamic)
    except Exception as error:  # torch.export has many error classes
        hint = "--static may help" if dynamic else ""
        expected = f"a {graph.kind} graph that torch.export can trace"
        raise ConfigError.expected("model", expected, first_line(error), hint=hint) from error
    _remove_identity_casts(program.graph)
    program.graph.eliminate_dead_code()  # intermediate results that are not outputs
    program.graph_module.recompile()
    return program


def _remove_identity_casts(graph: torch.fx.Graph) -> None:
    """Remove casts to the dtype that a tensor has already, and assertions about it: a quarter of a step's nodes."""
    aten = torch.ops.aten
    outputs = graph.output_node().all_input_nodes
    for node in graph.nodes:
        if node.target is aten._assert_tensor_metadata.default:
            graph.erase_node(node)
        elif node.target is aten.to.dtype and len(node.args) == 2 and not node.kwargs and node not in outputs:
            given, dtype = node.args
            if given.meta["val"].dtype == dtype:
                node.replace_all_uses_with(given)
                graph.erase_node(node)


def _traced(graph: Graph, dynamic: bool) -> torch.export.ExportedProgram:
    if not dynamic:
        return torch.export.export(graph.module, graph.example, strict=False)
    settings: Any = importlib.import_module("torch.fx.experimental._config")

    shapes = tuple(dict.fromkeys(graph.dynamic.get(name, {}), torch.export.Dim.DYNAMIC) for name in graph.input_names)
    gathered: tuple[Any, ...] = shapes if len(shapes) <= 2 else (*shapes[:2], shapes[2:])  # the rest is *states
    with settings.patch(backed_size_oblivious=True):
        return torch.export.export(graph.module, _generic(graph), dynamic_shapes=gathered, strict=False)


def check_length(kind: str, inputs: tuple[torch.Tensor, ...]) -> None:
    """Raise for clips with more tokens than a dynamic program supports."""
    if kind == "step":
        return
    shape = inputs[0].shape
    tokens = shape[1] * shape[2] if kind == "tail" else shape[1] * -(-shape[-2] // 8) * -(-shape[-1] // 8)
    if tokens > MAX_TOKENS:
        raise InputError.expected("clips", f"at most {MAX_TOKENS} tokens each", tokens)


def _generic(graph: Graph) -> tuple[torch.Tensor, ...]:
    """An example with generic sizes, at least the graph's own, which fit its tokens."""
    module: Any = graph.module
    batch, *sides = MIN_TRACED_SIZE
    height, width = (max(side, own) for side, own in zip(sides, module.size, strict=True))
    return resized(graph, batch, height, width + 8 * (width == height)).example
