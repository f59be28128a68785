"""A graph as an ExecuTorch program: one `.pte` file for phones, boards and their small runtime.

Whatever XNNPACK has goes to it (`xnnpack_forms.py`), the rest to ExecuTorch's own kernels. Memory is planned ahead of
time, so a program is for one size: nothing is dynamic.
"""

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.common import check_inputs, damaged, describe_tensor, failed_run, silenced
from ripe_mambaspike.deploy.export.graph import Graph
from ripe_mambaspike.deploy.export.registry import GraphFormat, Runner, register_export
from ripe_mambaspike.deploy.export.trace import trace_graph
from ripe_mambaspike.deploy.export.xnnpack_forms import rewrite_for_xnnpack
from ripe_mambaspike.errors import ConfigError

METHOD = "forward"
DTYPES = {4: torch.int64, 6: torch.float32, 7: torch.float64}  # by ExecuTorch's scalar type
HEADER = b"ET"  # at byte 4 of every program, followed by a version


@register_export("executorch")
class ExecuTorchFormat(GraphFormat):
    suffix = ".pte"
    static_only = True
    carries_code = "a program that its runtime runs without full validation"
    packages, extra = ("executorch",), "edge"

    def encode(self, graph: Graph, *, dynamic: bool, opset: int | None) -> bytes:
        """The graph's program for the size of its example."""
        with silenced(stderr=True):
            program = lower(graph)
            missing = _missing_kernels(program)
        if missing:
            got = f"{missing[0]} in the {graph.kind} graph"
            raise ConfigError.expected("to", "operators that ExecuTorch's runtime has", got)
        buffer: bytes = program.buffer
        return buffer

    def decode(self, data: bytes, path: Path, *, trust: bool) -> Runner:
        """The program through ExecuTorch's runtime: inputs of the sizes it was made for → outputs.

        The runtime aborts the process on an invalid program, so without `trust` nothing is loaded.
        """
        if data[4:6] != HEADER:
            raise damaged(path, "an ExecuTorch program", "it has another header")
        try:
            with silenced(stderr=True):
                runtime = importlib.import_module("executorch.runtime").Runtime.get()
                program = runtime.load_program(data)
                method = program.load_method(METHOD)
        except (RuntimeError, ValueError, KeyError) as error:
            raise damaged(path, "an ExecuTorch program", error) from error
        return _Program(path, program, method)


def lower(graph: Graph) -> Any:
    """The graph as an ExecuTorch program, with its memory planned."""
    exir = importlib.import_module("executorch.exir")
    xnnpack = importlib.import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    with torch.no_grad():
        edge = exir.to_edge_transform_and_lower(
            rewrite_for_xnnpack(trace_graph(graph, dynamic=False)),
            partitioner=[xnnpack.XnnpackPartitioner()],
            compile_config=exir.EdgeCompileConfig(_check_ir_validity=False),  # slow: checks all nodes after every pass
        )
        return edge.to_executorch()


class _Program:
    """Keeps the program alive, which the method reads from."""

    def __init__(self, path: Path, program: Any, method: Any) -> None:
        self._path, self._program, self._method = path, program, method
        meta = method.metadata
        tensors = [meta.input_tensor_meta(index) for index in range(meta.num_inputs())]
        self._expected = [describe_tensor(DTYPES.get(one.dtype()), one.sizes()) for one in tensors]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        check_inputs(self._path, inputs, self._expected)
        with torch.no_grad():
            try:
                return tuple(self._method.execute([one.contiguous() for one in inputs]))
            except RuntimeError as error:
                raise failed_run(self._path, inputs, error) from error


def _missing_kernels(program: Any) -> list[str]:
    """Operators of the program that the runtime lacks."""
    runtime = importlib.import_module("executorch.runtime").Runtime.get()
    known = runtime.operator_registry.operator_names
    plans = program.executorch_program.execution_plan
    used = {f"{one.name}.{one.overload}" if one.overload else one.name for plan in plans for one in plan.operators}
    return sorted(used - known)
