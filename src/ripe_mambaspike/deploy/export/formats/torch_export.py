"""A graph in torch.export's file format, which PyTorch loads on any device without this package.

PyTorch's loader can execute code named in a file. `load` therefore parses the file first and rejects everything that
`save` would not have written; only with `trust` does PyTorch load the file directly.
"""

import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.common import TRUST_HINT, damaged, failed_run, silenced
from ripe_mambaspike.deploy.export.graph import Graph
from ripe_mambaspike.deploy.export.pt2_archive import FACTS, MODEL, SAMPLES, members_of, rebuilt, written
from ripe_mambaspike.deploy.export.pt2_checks import UnknownPartError
from ripe_mambaspike.deploy.export.pt2_sizes import with_traced_sizes
from ripe_mambaspike.deploy.export.registry import GraphFormat, Runner, register_export
from ripe_mambaspike.deploy.export.trace import check_length, trace_graph
from ripe_mambaspike.errors import InputError


@register_export("torch-export")
class TorchExportFormat(GraphFormat):
    suffix = ".pt2"

    def encode(self, graph: Graph, *, dynamic: bool, opset: int | None) -> bytes:
        """With `dynamic` one file serves every batch and every size from 8×8 on."""
        program = trace_graph(graph, dynamic=dynamic)
        facts = {"kind": graph.kind, "dynamic": dynamic, "inputs": graph.input_names, **graph.facts}
        program.example_inputs = None  # zeros of the traced size, unused
        for node in program.graph.nodes:
            for key in ("stack_trace", "nn_module_stack", "torch_fn"):  # debug information
                node.meta.pop(key, None)
        held = io.BytesIO()
        torch.export.save(program, held, extra_files={FACTS: json.dumps(facts)})
        members = members_of(held.getvalue())
        if dynamic:
            members[MODEL] = with_traced_sizes(members[MODEL])
        return written({**members, SAMPLES: b""})  # without sample inputs there is nothing to unpickle

    def decode(self, data: bytes, path: Path, *, trust: bool) -> Runner:
        """Load the program as a function.

        Without `trust` PyTorch gets only checked parts: nothing is unpickled, evaluated, imported or executed except
        the operators listed in `pt2_schema`.
        """
        try:
            if trust:
                extra = {FACTS: ""}
                program, facts = _load_program(data, extra), json.loads(extra[FACTS])
            else:
                data, facts = rebuilt(data)
                program = _load_program(data, {})
            module = program.module()
            dynamic, kind = facts["dynamic"], facts["kind"]
        except UnknownPartError as error:
            raise InputError(f"{path}: {error}; {TRUST_HINT}", field=error.field, path=path) from error
        except Exception as error:  # PyTorch's loader has no specific error class
            raise damaged(path, "an exported program", error) from error

        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            if dynamic:
                check_length(kind, inputs)
            try:
                with torch.no_grad():
                    out = module(*inputs)
            except Exception as error:  # any error while running the graph
                raise failed_run(path, inputs, error) from error
            return tuple(out) if isinstance(out, tuple | list) else (out,)

        return run


def _load_program(data: bytes, extra: dict[str, Any]) -> torch.export.ExportedProgram:
    with silenced():  # errors are raised and reported by `load`
        return torch.export.load(io.BytesIO(data), extra_files=extra)
