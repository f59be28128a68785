"""Rewrites a traced program into operators that XNNPACK has, with the same results.

    spikes       (u ≥ v) as a float           → clamp(⌊u − v⌋ + 1, 0, 1), which is exactly 0 or 1
    recurrences  addcmul(x, a, b)             → x + a · b
    projections  one matrix for all T steps   → a 1×1 convolution, whose weight is stored once and not T times

XNNPACK has no comparison, and a graph that leaves it for every spike spends most of its time in ExecuTorch's portable
kernels and in copies. Constants are folded afterwards: XNNPACK takes only convolutions whose weights are constant.
"""

import importlib
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten


def rewrite_for_xnnpack(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The same program in operators that XNNPACK takes, with constants folded; weights stored small stay small."""
    rewrites = {aten.to.dtype: _spikes, aten.addcmul.default: _recurrence, aten.bmm.default: _projection}
    graph = program.graph
    for node in list(graph.nodes):
        if node.target in rewrites:
            with graph.inserting_before(node):
                instead = rewrites[node.target](graph, node)
            if instead is not None:
                node.replace_all_uses_with(instead)
                graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    passes = importlib.import_module("executorch.exir.passes.constant_prop_pass")
    folded: torch.export.ExportedProgram = passes.constant_prop_pass(program, {aten.to.dtype})
    return folded


def _spikes(graph: Graph, cast: Node) -> Node | None:
    compared, dtype = cast.args[:2]
    if not isinstance(compared, Node) or compared.target is not aten.ge.Tensor:
        return None
    if any(_value(one).dtype != dtype for one in compared.args) or not dtype.is_floating_point:  # type: ignore[union-attr]
        return None
    whole = _call(graph, aten.floor.default, _call(graph, aten.sub.Tensor, *compared.args))
    return _call(graph, aten.clamp.default, _call(graph, aten.add.Tensor, whole, 1.0), 0.0, 1.0)


def _recurrence(graph: Graph, node: Node) -> Node:
    start, *factors = node.args
    scale = node.kwargs.get("value", 1)
    product = _call(graph, aten.mul.Tensor, *factors)
    if scale not in (1, -1):
        product = _call(graph, aten.mul.Tensor, product, scale)
    return _call(graph, aten.sub.Tensor if scale == -1 else aten.add.Tensor, start, product)


def _projection(graph: Graph, product: Node) -> Node | None:
    """bmm of one matrix [C', C], expanded to all steps S, with x [S, C, N]."""
    expanded, x = product.args
    if not isinstance(expanded, Node) or expanded.target is not aten.expand.default:
        return None
    matrix = expanded.args[0]
    if not isinstance(matrix, Node) or matrix.op != "placeholder" or _value(matrix).ndim != 2:
        return None
    kernel = _call(graph, aten.unsqueeze.default, _call(graph, aten.unsqueeze.default, matrix, 2), 3)
    images = _call(graph, aten.unsqueeze.default, x, 2)
    return _call(graph, aten.squeeze.dim, _call(graph, aten.conv2d.default, images, kernel), 2)


def _call(graph: Graph, operator: Any, *args: Any) -> Node:
    node = graph.call_function(operator, args)
    node.meta["val"] = operator(*(_value(one) for one in args))
    return node


def _value(argument: Any) -> Any:
    """A node's fake tensor; numbers as they are."""
    return argument.meta["val"] if isinstance(argument, Node) else argument
