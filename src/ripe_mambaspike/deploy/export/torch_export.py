"""A graph as torch.export's own file: read by PyTorch again, on any device, without this package."""

import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.common import write_whole
from ripe_mambaspike.deploy.graph import Graph
from ripe_mambaspike.deploy.graph_trace import check_length, traced
from ripe_mambaspike.errors import InputError

SUFFIX = ".pt2"
FACTS = "ripe.json"
SAMPLES = "data/sample_inputs/model.pt"
MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/(serialization_id|version)|models/model\.json"
    r"|data/(weights/model_weights|constants/model_constants)_config\.json|data/weights/weight_\d+"
    r"|data/constants/tensor_\d+|data/sample_inputs/model\.pt|extra/ripe\.json"
)


def why_not() -> str | None:
    """Always usable: PyTorch is all it needs."""
    return None


def save(graph: Graph, path: Path, *, dynamic: bool = True) -> None:
    """Write the graph; with `dynamic` one file serves every batch and every size from 8×8 on."""
    program = traced(graph, dynamic=dynamic)
    module: Any = graph.module
    facts = {"kind": graph.kind, "dynamic": dynamic, "inputs": graph.input_names, **module.facts}
    program.example_inputs = None  # zeros of the traced size: nothing reads them
    for node in program.graph.nodes:
        for key in ("stack_trace", "nn_module_stack", "torch_fn"):  # where each operation was written, for a debugger
            node.meta.pop(key, None)
    held = io.BytesIO()
    torch.export.save(program, held, extra_files={FACTS: json.dumps(facts)})
    write_whole(path, _without_samples(held))


def load(path: Path) -> Callable[..., tuple[Tensor, ...]]:
    """The program as a function. Nothing is unpickled: PyTorch's reader would do it for a file that asks it to, so
    such files are refused before it sees them."""
    wanted = "a file that torch.export saved from this package is wanted"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); {wanted}") from error
    extra = {FACTS: ""}
    try:
        _check_archive(data)
        program = torch.export.load(io.BytesIO(data), extra_files=extra)
        facts = json.loads(extra[FACTS])
        module = program.module()
    except Exception as error:  # its reader has no class of its own for a bad file
        reason = (str(error) or repr(error)).splitlines()[0]
        raise InputError(f"{path} is damaged or no exported program ({reason}); {wanted}") from error

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        if facts["dynamic"]:
            check_length(facts["kind"], inputs)
        try:
            with torch.no_grad():
                out = module(*inputs)
        except (RuntimeError, AssertionError, ValueError, TypeError) as error:
            shapes = ", ".join(str(tuple(value.shape)) for value in inputs)
            reason = (str(error) or repr(error)).splitlines()[0]
            raise InputError(f"{path} cannot be run on inputs of shape {shapes} ({reason})") from error
        return out if isinstance(out, tuple) else (out,)

    return run


def _without_samples(held: io.BytesIO) -> bytes:
    """The archive with its sample inputs, of which there are none, left empty: its reader then unpickles nothing."""
    slim = io.BytesIO()
    with zipfile.ZipFile(held) as archive, zipfile.ZipFile(slim, "w", zipfile.ZIP_STORED) as kept:
        for name in archive.namelist():
            kept.writestr(name, b"" if name.partition("/")[2] == SAMPLES else archive.read(name))
    return slim.getvalue()


def _check_archive(data: bytes) -> None:
    """Every member has its checksum, and none would be unpickled: only what `save` writes may be there."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if (broken := archive.testzip()) is not None:
            raise ValueError(f"its part {broken} does not have the checksum it was saved with")
        members = {name.partition("/")[2]: name for name in archive.namelist()}
        if "archive_format" not in members:
            raise ValueError("it has no archive_format")
        for member, name in members.items():
            if not MEMBERS.fullmatch(member):
                raise ValueError(f"its part {member} is none that a graph has")
            if member.endswith("_config.json"):
                entries = json.loads(archive.read(name))["config"]
                if any(entry.get("use_pickle") is not False for entry in entries.values()):
                    raise ValueError(f"its part {member} asks for unpickling")
            elif member == SAMPLES and archive.getinfo(name).file_size:
                raise ValueError(f"its part {member} asks for unpickling")
