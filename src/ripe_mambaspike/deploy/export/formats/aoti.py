"""A graph compiled ahead of time: PyTorch's own kernels in C++, in one `.pt2` package that runs without Python.

Compiling takes a minute or two on a CPU. A package is for the kind of processor that it was compiled on, and for one
size: PyTorch's compiler fails on pooling with dynamic sizes, and takes many minutes for the rest.
"""

import io
import json
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.common import check_inputs, damaged, describe_tensor, first_line, silenced
from ripe_mambaspike.deploy.export.graph import Graph
from ripe_mambaspike.deploy.export.inductor_forms import INDUCTOR_FORMS, rewrite_for_inductor
from ripe_mambaspike.deploy.export.registry import GraphFormat, Runner, register_export
from ripe_mambaspike.deploy.export.trace import trace_graph
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.ops.graph_nodes import graph_nodes

INPUTS = "ripe_inputs"  # metadata key for the expected inputs, which compiled code does not check


@register_export("aoti")
class AOTInductorFormat(GraphFormat):
    suffix = ".pt2"
    static_only = True
    carries_code = "a compiled library, which is executed"

    def unavailable_reason(self) -> str | None:
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            compiler = get_cpp_compiler()
        except Exception:  # any error while looking for a compiler
            compiler = ""
        if not compiler or shutil.which(compiler) is None:
            return "compiling ahead of time needs a C++ compiler; install g++ or clang"
        return None

    def encode(self, graph: Graph, *, dynamic: bool, opset: int | None) -> bytes:
        """Compile the graph into a package."""
        inputs = json.dumps([[str(one.dtype), list(one.shape)] for one in graph.example])
        with tempfile.TemporaryDirectory(prefix="ripe-aoti-") as folder, silenced(), torch.no_grad():
            with graph_nodes(*INDUCTOR_FORMS):
                program = trace_graph(graph, dynamic=False)
            package = Path(folder) / f"package{self.suffix}"
            try:
                configs = {"aot_inductor.metadata": {INPUTS: inputs}, "freezing": not _stored_small(program)}
                rewritten = rewrite_for_inductor(program)
                torch._inductor.aoti_compile_and_package(rewritten, package_path=str(package), inductor_configs=configs)
            except Exception as error:
                expected = f"a {graph.kind} graph that PyTorch compiles"
                raise ConfigError.expected("to", expected, first_line(error)) from error
            return package.read_bytes()

    def decode(self, data: bytes, path: Path, *, trust: bool) -> Runner:
        """Load a package; it is a compiled library, so without `trust` it is not even read."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                broken = archive.testzip()
                compiled = any(name.endswith(".so") for name in archive.namelist())
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
            raise damaged(path, "a compiled package", error) from error
        if broken or not compiled:
            raise damaged(path, "a compiled package", f"{broken} is damaged" if broken else "it holds no library")
        try:
            with silenced(), tempfile.TemporaryDirectory(prefix="ripe-aoti-") as folder:  # the bytes that were checked
                package = Path(folder) / f"package{self.suffix}"
                package.write_bytes(data)
                run: Any = torch._inductor.aoti_load_package(str(package))
            expected = [describe_tensor(*one) for one in json.loads(run.loader.get_metadata()[INPUTS])]
        except Exception as error:  # compiled for another machine, or not our package
            raise damaged(path, "a package compiled for this machine", error) from error

        def call(*inputs: Tensor) -> tuple[Tensor, ...]:
            check_inputs(path, inputs, expected)
            with torch.no_grad():
                out = run(*(one.contiguous() for one in inputs))
            return tuple(out) if isinstance(out, tuple | list) else (out,)

        return call


def _stored_small(program: torch.export.ExportedProgram) -> bool:
    """Whether weights are stored as int8 or float16, which freezing would expand in the file.

    Otherwise constants are folded and weights are laid out for oneDNN when the package is written.
    """
    return any(weight.dtype in (torch.int8, torch.float16) for weight in program.state_dict.values())
