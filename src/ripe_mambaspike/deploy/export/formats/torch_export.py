"""A graph as torch.export's own file: read by PyTorch again, on any device, without this package.

PyTorch's reader runs what a file tells it to. `load` therefore takes such a file apart first and refuses whatever
`save` would not have written; only with `trust` does PyTorch get the file as it is.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.common import TRUST_HINT, failed_run, graph_bytes, reason_of, write_whole
from ripe_mambaspike.deploy.export.graph import Graph
from ripe_mambaspike.deploy.export.pt2_archive import FACTS, SAMPLES, members_of, rebuilt, written
from ripe_mambaspike.deploy.export.pt2_checks import UnknownPartError
from ripe_mambaspike.deploy.export.trace import check_length, trace_graph
from ripe_mambaspike.errors import InputError

SUFFIX = ".pt2"
CARRIES = None  # what needs trust in every file; here it depends on what a file says
WANTED = "a file that torch.export saved from this package is wanted"


def unavailable_reason() -> str | None:
    """Always usable: PyTorch is all it needs."""
    return None


def save(graph: Graph, path: Path, *, dynamic: bool = True) -> None:
    """Write the graph; with `dynamic` one file serves every batch and every size from 8×8 on."""
    program = trace_graph(graph, dynamic=dynamic)
    module: Any = graph.module
    facts = {"kind": graph.kind, "dynamic": dynamic, "inputs": graph.input_names, **module.facts}
    program.example_inputs = None  # zeros of the traced size: nothing reads them
    for node in program.graph.nodes:
        for key in ("stack_trace", "nn_module_stack", "torch_fn"):  # where each operation was written, for a debugger
            node.meta.pop(key, None)
    held = io.BytesIO()
    torch.export.save(program, held, extra_files={FACTS: json.dumps(facts)})
    # its sample inputs, of which there are none, are left empty: a reader then unpickles nothing
    write_whole(path, written({**members_of(held.getvalue()), SAMPLES: b""}))


def load(path: Path, *, data: bytes | None = None, trust: bool = False) -> Callable[..., tuple[Tensor, ...]]:
    """The program as a function; `data` is the file's content where it was read before.

    Without `trust` PyTorch sees only what was checked: nothing is unpickled, evaluated, imported or executed, but for
    the operators in `pt2_operators`.
    """
    data = graph_bytes(path, WANTED) if data is None else data
    try:
        if trust:
            extra = {FACTS: ""}
            program, facts = _program(data, extra), json.loads(extra[FACTS])
        else:
            data, facts = rebuilt(data)
            program = _program(data, {})
        module = program.module()
        dynamic, kind = facts["dynamic"], facts["kind"]
    except UnknownPartError as error:
        raise InputError(f"{path}: {error}; {TRUST_HINT}", field=error.field, path=path) from error
    except Exception as error:  # its reader has no class of its own for a bad file
        raise InputError(
            f"{path} is damaged or no exported program ({reason_of(error)}); {WANTED}", path=path
        ) from error

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        if dynamic:
            check_length(kind, inputs)
        try:
            with torch.no_grad():
                out = module(*inputs)
        except Exception as error:  # whatever the graph stumbles over
            raise failed_run(path, inputs, error) from error
        return tuple(out) if isinstance(out, tuple | list) else (out,)

    return run


def _program(data: bytes, extra: dict[str, str]) -> torch.export.ExportedProgram:
    """By PyTorch's reader, without its remarks: what fails is raised, and told by `load`."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(io.BytesIO(data), extra_files=extra)
    finally:
        logging.disable(disabled)
