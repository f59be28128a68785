"""A graph as an ExecuTorch program: one `.pte` file for phones, boards and their small runtime.

The convolutions and products whose weights are constants go to XNNPACK, everything else to ExecuTorch's portable
kernels. The runtime plans its memory ahead, so a program is for one size: nothing here is dynamic.
"""

import contextlib
import importlib
import importlib.util
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.common import (
    failed_run,
    graph_bytes,
    refuse_free_sizes,
    require_trust,
    write_whole,
)
from ripe_mambaspike.deploy.export.graph import Graph
from ripe_mambaspike.deploy.export.trace import trace_graph
from ripe_mambaspike.errors import ConfigError, InputError

SUFFIX = ".pte"
CARRIES = "a program that its runtime runs without checking it whole"
WANTED = "a file written by ripe export is wanted"
METHOD = "forward"
KINDS = {4: torch.int64, 6: torch.float32, 7: torch.float64}  # by the numbers that a program knows them by
HEADER = b"ET"  # at byte 4 of every program, and a version behind it


def unavailable_reason() -> str | None:
    """None when ExecuTorch programs can be written and run here, else a sentence."""
    if importlib.util.find_spec("executorch") is None:
        return (
            "an ExecuTorch program needs the package executorch, which is not installed; "
            'pip install "ripe-mambaspike[edge]" brings it'
        )
    return None


def save(graph: Graph, path: Path, *, dynamic: bool = True) -> None:
    """Write the graph's program for the size of its example; the file appears whole or not at all."""
    if reason := unavailable_reason():
        raise ConfigError(reason)
    if dynamic:
        refuse_free_sizes(graph, "an ExecuTorch program")
    with quiet():
        program = lower(graph)
        missing = _without_kernel(program)
    if missing:
        raise ConfigError(
            f"ExecuTorch's runtime has no kernel for {missing[0]}, which the {graph.kind} graph needs; "
            "another format is wanted"
        )
    write_whole(path, program.buffer)


def lower(graph: Graph) -> Any:
    """The graph in ExecuTorch's own form, its memory planned."""
    exir = importlib.import_module("executorch.exir")
    with torch.no_grad():
        edge = exir.to_edge_transform_and_lower(
            trace_graph(graph, dynamic=False),
            partitioner=_partitioners(),
            compile_config=exir.EdgeCompileConfig(_check_ir_validity=False),  # a check of every pass over all nodes
        )
        return edge.to_executorch()


def load(path: Path, *, data: bytes | None = None, trust: bool = False) -> Callable[..., tuple[Tensor, ...]]:
    """The program through ExecuTorch's runtime: inputs of the sizes it was made for → outputs.

    `data` is the file's content where it was read before. The runtime ends the process over a program that is wrong
    within, so without `trust` it is not given one.
    """
    if reason := unavailable_reason():
        raise ConfigError(reason)
    require_trust(path, CARRIES, trust)
    data = graph_bytes(path, WANTED) if data is None else data
    if data[4:6] != HEADER:
        raise InputError(f"{path} is not an ExecuTorch program; {WANTED}", path=path)
    try:
        with quiet():
            runtime = importlib.import_module("executorch.runtime").Runtime.get()
            program = runtime.load_program(data)
            method = program.load_method(METHOD)
    except (RuntimeError, ValueError, KeyError) as error:
        raise InputError(
            f"{path} is not a whole ExecuTorch program; it was damaged or cut short, and one written by ripe export is "
            "wanted"
        ) from error
    return _Program(path, program, method)


class _Program:
    """Holds the program, which the method reads from."""

    def __init__(self, path: Path, program: Any, method: Any) -> None:
        self._path, self._program, self._method = path, program, method
        meta = method.metadata
        tensors = [meta.input_tensor_meta(index) for index in range(meta.num_inputs())]
        self._shapes = [tuple(one.sizes()) for one in tensors]
        self._kinds = [KINDS.get(one.dtype()) for one in tensors]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = [tuple(one.shape) for one in inputs]
        if given != self._shapes:
            raise InputError(f"the inputs have the shapes {given}; the program in {self._path} is for {self._shapes}")
        kinds = [one.dtype for one in inputs]
        if kinds != self._kinds:
            raise InputError(f"the inputs are {kinds}; the program in {self._path} is for {self._kinds}")
        with torch.no_grad():
            try:
                return tuple(self._method.execute([one.contiguous() for one in inputs]))
            except RuntimeError as error:
                raise failed_run(self._path, inputs, error) from error


def _partitioners() -> Sequence[Any]:
    """XNNPACK for convolutions and products; it has no use for the hundreds of small steps between them."""
    partition = importlib.import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    configs = importlib.import_module("executorch.backends.xnnpack.partition.config.gemm_configs")
    return [partition.XnnpackPartitioner(configs=[configs.ConvolutionConfig, configs.LinearConfig])]


def _without_kernel(program: Any) -> list[str]:
    """Operators of the program that the runtime does not have."""
    runtime = importlib.import_module("executorch.runtime").Runtime.get()
    known = runtime.operator_registry.operator_names
    plans = program.executorch_program.execution_plan
    used = {f"{one.name}.{one.overload}" if one.overload else one.name for plan in plans for one in plan.operators}
    return sorted(used - known)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing on standard error: ExecuTorch, its parts in C++ among them, tell there of what is not the user's."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        with contextlib.suppress(OSError, ValueError):  # there may be no standard error at all
            sys.stderr.flush()
            saved = os.dup(2)
            stack.callback(os.close, saved)
            silent = os.open(os.devnull, os.O_WRONLY)
            stack.callback(os.close, silent)
            os.dup2(silent, 2)
            stack.callback(os.dup2, saved, 2)
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield
