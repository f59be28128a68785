"""ONNX: a graph as one file, and onnxruntime to run it.

The network is traced as for every other format; its scans, neurons and projections are one node each of the traced
program, written in ONNX's operators by `onnx_operators.py`. Stored weights stay int8 or float16 in the file and are
converted by a Cast and a Mul. The metadata has the kind of graph, time steps, classes and a checksum of nodes and
weights.
"""

import hashlib
import importlib
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.common import damaged, failed_run, first_line, silenced
from ripe_mambaspike.deploy.export.graph import Graph
from ripe_mambaspike.deploy.export.onnx_direct import WRITTEN_NODES, needs_no_decomposition, translations
from ripe_mambaspike.deploy.export.registry import GraphFormat, Runner, register_export
from ripe_mambaspike.deploy.export.trace import check_length, trace_graph
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.ops.graph_nodes import graph_nodes

OPSETS = (18, 22)  # from PyTorch's oldest target to the newest that the oldest supported onnxruntime reads
OPSET = 20
LEVEL = "ORT_ENABLE_ALL"  # the fastest; spikes flip as rarely at every level
MAX_FOLDED_BYTES = 128  # sizes and the like; stored weights must not be folded to float32
GROWING = ("ConstantOfShape", "Expand", "Tile")  # folded, a few numbers would fill a large tensor in the file
MARK = "ripe-mambaspike"
OWN_DOMAINS = ("", "ai.onnx")
LETTERS = string.ascii_letters + string.digits


@register_export("onnx")
class OnnxFormat(GraphFormat):
    suffix = ".onnx"
    any_network = True
    packages, extra = ("onnx", "onnxscript", "onnxruntime"), "export"

    def check_opset(self, opset: int) -> None:
        if isinstance(opset, bool) or not isinstance(opset, int) or not OPSETS[0] <= opset <= OPSETS[1]:
            raise ConfigError.expected("opset", f"an int from {OPSETS[0]} to {OPSETS[1]}", repr(opset))

    def encode(self, graph: Graph, *, dynamic: bool, opset: int | None) -> bytes:
        """With `dynamic` one file serves every batch and, of a RIPE-MambaSpike, every size from 8×8 on."""
        onnx = _package("onnx")
        with graph_nodes(*WRITTEN_NODES):
            program = trace_graph(graph, dynamic=dynamic)
        if needs_no_decomposition(program):
            program.run_decompositions = lambda *given, **options: program
        with silenced():
            try:
                translated = torch.onnx.export(
                    program,
                    dynamo=True,
                    opset_version=OPSET if opset is None else opset,
                    input_names=list(graph.input_names),
                    output_names=list(graph.output_names),
                    custom_translation_table=translations(),
                    optimize=False,
                    verbose=False,
                )
            except Exception as error:  # the exporter has many error classes
                expected = f"a {graph.kind} graph that ONNX can express"
                raise ConfigError.expected("to", expected, first_line(error)) from error
            assert translated is not None
            _simplify(translated.model)
        model = translated.model_proto
        _slim(model, graph, dynamic)
        facts = {"format": MARK, "kind": graph.kind, "dynamic": str(dynamic).lower()}
        facts |= {name: str(value) for name, value in graph.facts.items()}
        onnx.helper.set_model_props(model, {**facts, "sha256": _checksum(model)})
        onnx.checker.check_model(model)
        data: bytes = model.SerializeToString()
        return data

    def decode(self, data: bytes, path: Path, *, trust: bool) -> Runner:
        """The file in an onnxruntime session on the CPU, with as many threads as PyTorch has.

        `trust` changes nothing: there is no code in it.
        """
        onnx, onnxruntime = _package("onnx"), _package("onnxruntime")
        try:
            model = onnx.load_model_from_string(data)
        except Exception as error:  # protobuf's error class is not public
            raise damaged(path, "an ONNX file", error) from error
        facts = {entry.key: entry.value for entry in model.metadata_props}
        if facts.get("format") != MARK:
            raise damaged(path, f"an ONNX file of {MARK}", "its metadata names another")
        if facts.get("sha256") != _checksum(model):
            raise damaged(path, "the file as it was saved", "its checksum differs")
        _check_contained(model, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, LEVEL)
        options.log_severity_level = 4  # errors are raised and reported here
        try:
            session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        except Exception as error:  # onnxruntime has many error classes
            raise damaged(path, "a graph that onnxruntime runs", error) from error
        names = [one.name for one in session.get_inputs()]

        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            if len(inputs) != len(names):
                raise InputError.expected("inputs", f"{len(names)}: {', '.join(names)}", len(inputs), path=path)
            if facts.get("dynamic") == "true":
                check_length(facts.get("kind", ""), inputs)
            arrays = {name: value.detach().cpu().numpy() for name, value in zip(names, inputs, strict=True)}
            try:
                return tuple(map(torch.from_numpy, session.run(None, arrays)))
            except Exception as error:
                raise failed_run(path, inputs, error) from error

        return run


def _check_contained(model: Any, path: Path) -> None:
    """Raise unless the graph is self-contained and uses ONNX's own operators only: no external data, which onnxruntime
    would look up in the working directory, and no custom operators or functions."""
    for message in _all_messages(model):
        kind, domain = message.DESCRIPTOR.name, getattr(message, "domain", "")
        if kind == "TensorProto" and (message.data_location or len(message.external_data)):
            where, expected, given = "external_data", "all tensors in the file itself", message.name
        elif kind in ("FunctionProto", "TrainingInfoProto") or (kind != "ModelProto" and domain not in OWN_DOMAINS):
            where, expected, given = "domain", "ONNX's own operators alone", domain or kind
        else:
            continue
        raise InputError.expected(where, expected, repr(given[:60]), path=path)


def _all_messages(message: Any) -> Iterator[Any]:
    """A protobuf message and all nested ones: a node's attribute may hold a tensor or another graph."""
    waiting = [message]
    while waiting:
        one = waiting.pop()
        yield one
        for field, value in one.ListFields():
            if field.message_type is not None:
                waiting.extend(value if hasattr(value, "__len__") else [value])


def _package(name: str) -> Any:
    """Import an optional package on first use."""
    return importlib.import_module(name)


def _simplify(model: Any) -> None:
    """Fold small constants, and remove what is computed twice or not used; onnxruntime does the rest when it loads."""
    optimizer, passes = _package("onnxscript.optimizer"), _package("onnx_ir.passes.common")
    for _ in range(2):
        optimizer.fold_constants(
            model,
            onnx_shape_inference=False,
            input_size_limit=MAX_FOLDED_BYTES,
            should_fold=lambda node: False if node.op_type in GROWING else None,
        )
        passes.IdentityEliminationPass()(model)
        passes.CommonSubexpressionEliminationPass()(model)
        passes.RemoveUnusedNodesPass()(model)


def _slim(model: Any, graph: Graph, dynamic: bool) -> None:
    """Remove debug information, and name dynamic dimensions as the graph does."""
    names: dict[str, str] = {}

    def short(name: str) -> str:
        return names.setdefault(name, f"_{_letters(len(names))}") if name else name

    body = model.graph
    names.update((value.name, value.name) for value in (*body.input, *body.output, *body.initializer))
    for node in body.node:
        node.ClearField("name")
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
        node.input[:], node.output[:] = map(short, node.input), map(short, node.output)
    for value in (*body.input, *body.output, *body.initializer):
        value.ClearField("metadata_props")
        value.ClearField("doc_string")
    body.ClearField("value_info")
    body.ClearField("metadata_props")
    model.ClearField("metadata_props")
    for value in body.input if dynamic else ():
        for position, name in graph.dynamic.get(value.name, {}).items():
            value.type.tensor_type.shape.dim[position].dim_param = name
    for value in body.output if dynamic else ():
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.HasField("dim_param"):  # an expression of renamed symbols
                dimension.ClearField("dim_param")
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


def _letters(number: int) -> str:
    """A number as a short name: the file has some ten thousand of them."""
    kept = ""
    while number or not kept:
        number, digit = divmod(number, len(LETTERS))
        kept += LETTERS[digit]
    return kept


def _checksum(model: Any) -> str:
    """A checksum of nodes and weights, independent of the order of fields in the file."""
    digest = hashlib.sha256()
    for part in (*model.graph.node, *model.graph.initializer, *model.graph.input, *model.graph.output):
        digest.update(part.SerializeToString(deterministic=True))
    return digest.hexdigest()
