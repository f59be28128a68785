"""A graph compiled ahead of time: PyTorch's own kernels in C++, in one `.pt2` package that runs without Python.

    save(clip_graph(model, 34, 34), Path("clip.pt2"))
    (logits,) = load(Path("clip.pt2"), trust=True)(clips)

Compiling takes a minute or two on a processor. A package is for the kind of processor that it was made on, and for one
size: PyTorch's compiler fails on the pooling of free sizes, and takes many minutes over the rest.
"""

import contextlib
import io
import json
import logging
import shutil
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.common import (
    graph_bytes,
    reason_of,
    refuse_free_sizes,
    require_trust,
    write_whole,
)
from ripe_mambaspike.deploy.export.graph import Graph
from ripe_mambaspike.deploy.export.trace import trace_graph
from ripe_mambaspike.errors import ConfigError, InputError

SUFFIX = ".pt2"
CARRIES = "a compiled library, which is run as it is"
INPUTS = "ripe_inputs"  # in the package's metadata, what the inputs must be: compiled code checks nothing itself
WANTED = "a file written by ripe export is wanted"


def unavailable_reason() -> str | None:
    """None when packages can be compiled and run here, else a sentence."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        compiler = get_cpp_compiler()
    except Exception:  # whatever the search for one stumbles over
        compiler = ""
    if not compiler or shutil.which(compiler) is None:
        return "compiling ahead of time needs a C++ compiler, which is not there; installing g++ or clang brings it"
    return None


def save(graph: Graph, path: Path, *, dynamic: bool = True) -> None:
    """Compile the graph into a package; the file appears whole or not at all."""
    if reason := unavailable_reason():
        raise ConfigError(reason)
    if dynamic:
        refuse_free_sizes(graph, "a graph compiled ahead of time")
    inputs = json.dumps([[str(one.dtype), list(one.shape)] for one in graph.example])
    with tempfile.TemporaryDirectory(prefix="ripe-aoti-") as folder, quiet(), torch.no_grad():
        program = trace_graph(graph, dynamic=False)
        package = Path(folder) / f"package{SUFFIX}"
        try:
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(package), inductor_configs={"aot_inductor.metadata": {INPUTS: inputs}}
            )
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise ConfigError(f"the {graph.kind} graph cannot be compiled ahead of time ({first})") from error
        data = package.read_bytes()
    write_whole(path, data)


def load(path: Path, *, data: bytes | None = None, trust: bool = False) -> Callable[..., tuple[Tensor, ...]]:
    """The package, ready to be called; `data` is the file's content where it was read before.

    A package is a compiled library: without `trust` it is not even opened.
    """
    require_trust(path, CARRIES, trust)
    data = graph_bytes(path, WANTED) if data is None else data
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            damaged = archive.testzip()
            compiled = any(name.endswith(".so") for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a whole package ({reason_of(error)}); {WANTED}", path=path) from error
    if damaged or not compiled:
        what = f"its {damaged} is damaged" if damaged else "it holds nothing compiled"
        raise InputError(f"{path} is not a whole package: {what}; {WANTED}", path=path)
    try:
        with quiet(), tempfile.TemporaryDirectory(prefix="ripe-aoti-") as folder:  # the very bytes that were checked
            package = Path(folder) / f"package{SUFFIX}"
            package.write_bytes(data)
            run: Any = torch._inductor.aoti_load_package(str(package))
        wanted = [(kind, tuple(shape)) for kind, shape in json.loads(run.loader.get_metadata()[INPUTS])]
    except Exception as error:  # a library of another machine, or a package of someone else's
        raise InputError(
            f"{path} cannot be loaded on this machine ({reason_of(error)}); {WANTED}", path=path
        ) from error

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        given = [(str(one.dtype), tuple(one.shape)) for one in inputs]
        if given != wanted:
            raise InputError(f"the inputs are {given}; the package in {path} is for {wanted}")
        with torch.no_grad():
            out = run(*(one.contiguous() for one in inputs))
        return tuple(out) if isinstance(out, tuple | list) else (out,)

    return call


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the compiler's remarks on itself."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
