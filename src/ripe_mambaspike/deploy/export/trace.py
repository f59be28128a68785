"""A graph traced by torch.export, for every format that starts from such a program."""

import importlib
from typing import Any

import torch

from ripe_mambaspike.deploy.export.common import first_line, silenced
from ripe_mambaspike.deploy.export.graph import Graph, WholeClip, resized
from ripe_mambaspike.deploy.export.parity import MAX_DIFFERENCE
from ripe_mambaspike.errors import ConfigError, InputError, VerificationError
from ripe_mambaspike.models.synthetic import synthetic_clip
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
    if isinstance(graph.module, WholeClip):
        _require_same_logits(graph.module, program, (1, 3) if dynamic else (1,))
    return program


@torch.no_grad()
def _require_same_logits(network: WholeClip, program: torch.export.ExportedProgram, batches: tuple[int, ...]) -> None:
    """Raise unless the program gives the network's logits, for any number of clips.

    A graph holds what one call did: whatever a module draws, counts or keeps from call to call is not in it.
    """
    run = program.module(check_guards=False)  # which other runtimes do not check
    for batch in batches:
        clips = synthetic_clip(network.time_steps, *network.size, samples=batch, seed=batch).to(network.dtype)
        expected, given = network(clips), run(clips)
        if given.shape != expected.shape:
            raise VerificationError.expected("logits", f"{tuple(expected.shape)} from the graph", tuple(given.shape))
        apart = float((given - expected).abs().max() / expected.abs().max().clamp(min=torch.finfo(given.dtype).tiny))
        if not apart <= MAX_DIFFERENCE:
            expected_difference = f"a graph within {MAX_DIFFERENCE:.0e} of '{network.model.name}'"
            raise VerificationError.expected("logits", expected_difference, f"{apart:.1e}")


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
    if isinstance(module, WholeClip):
        return module.example(batch, *module.size)
    height, width = (max(side, own) for side, own in zip(sides, module.size, strict=True))
    return resized(graph, batch, height, width + 8 * (width == height)).example
