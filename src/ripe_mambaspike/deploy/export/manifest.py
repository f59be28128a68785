"""`export.json`: what was exported, from what, for which inputs, and the checksum of every graph.

A folder may come from anyone. Each entry is of the kind and within the bounds that `ripe export` writes, and a graph's
bytes are handed on only when they are the ones that the manifest was written with.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ripe_mambaspike.deploy.export.common import MAX_GRAPH
from ripe_mambaspike.errors import InputError, RipeError, WeightsError
from ripe_mambaspike.files import MAX_JSON, read_regular
from ripe_mambaspike.models.config import MAX_SIDE, MAX_TIME_STEPS, RipeConfig

MANIFEST = "export.json"
FORMAT, VERSION = "ripe-export", 1
# A format's name and the module of `deploy.export` that writes and runs it.
RUNNABLE = {"onnx": "onnx", "torch-export": "torch_export", "aoti": "aoti", "executorch": "executorch"}
FORMATS = ("safetensors", *RUNNABLE, "nir")
KINDS = ("clip", "step", "tail", "front")
WANTED = "a folder written by ripe export is wanted"
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", re.ASCII)
CHECKSUM = re.compile(r"[0-9a-f]{64}", re.ASCII)
MAX_NAMES = 1000  # inputs or outputs of a graph, sentences of what is not expressed
MAX_WORD = 2000  # characters


@dataclass(frozen=True)
class GraphFile:
    """One graph of an exported network."""

    kind: str  # clip, step or tail; front for NIR
    file: str
    bytes: int
    sha256: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """What was exported, from what, and for which inputs."""

    to: str
    weights: str  # fp32, fp16 or int8
    network: str
    config: dict[str, Any]
    steps: int
    grid: tuple[int, int]  # (height, width) it was made at
    static: bool  # for this size and one clip at a time alone
    graphs: tuple[GraphFile, ...]
    not_expressed: tuple[str, ...] = ()  # of the network, by this format
    labels: dict[str, Any] | None = None  # as in labels.json: the classes and all of the binning

    def to_json(self) -> bytes:
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def describe_file(kind: str, path: Path, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> GraphFile:
    data = path.read_bytes()
    if len(data) > MAX_GRAPH:
        raise InputError(
            f"{path}: expected at most {MAX_GRAPH:,} bytes, which are read again, got {len(data):,}", path=path
        )
    return GraphFile(kind, path.name, len(data), hashlib.sha256(data).hexdigest(), tuple(inputs), tuple(outputs))


def read_graph(folder: Path, graph: GraphFile) -> bytes:
    """The content of a graph's file, the very bytes that the manifest was written with."""
    path = folder / graph.file
    try:
        data = read_regular(path, graph.bytes)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error}); {WANTED}", path=path) from error
    if hashlib.sha256(data).hexdigest() != graph.sha256:
        raise WeightsError(
            f"{path} is not the file that {MANIFEST} was written with: its checksum differs, so it was damaged, cut "
            "short or exchanged",
            path=path,
            field="sha256",
        )
    return data


def read_manifest(folder: Path) -> Manifest:
    """The folder's manifest; a WeightsError for one that says anything else than it should."""
    path = folder / MANIFEST
    try:
        document = json.loads(read_regular(path, MAX_JSON), parse_constant=_no_number)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error}); {WANTED}", path=path) from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON ({error}); {WANTED}", path=path) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise WeightsError(f"{path} is not a {FORMAT} file; {WANTED}", path=path, field="format")
    if document.get("version") != VERSION or isinstance(document["version"], bool):
        raise _wrong(path, "version", document.get("version"), f"{VERSION}, which this package reads")
    _check_entries(document, path)
    graphs = tuple(_graph(one, f"graphs[{index}]", path) for index, one in enumerate(document["graphs"]))
    for unique in ("kind", "file"):
        if len({getattr(graph, unique) for graph in graphs}) < len(graphs):
            raise _wrong(path, "graphs", document["graphs"], f"graphs that differ in their {unique}")
    height, width = document["grid"]
    return Manifest(
        to=document["to"],
        weights=document["weights"],
        network=document["network"],
        config=document["config"],
        steps=document["steps"],
        grid=(height, width),
        static=document["static"],
        graphs=graphs,
        not_expressed=tuple(document.get("not_expressed", ())),
        labels=document.get("labels"),
    )


def config_of(manifest: Manifest, folder: Path) -> RipeConfig:
    """The exported network's config, checked."""
    path = folder / MANIFEST
    try:
        return RipeConfig.from_dict(manifest.config, str(path))
    except (RipeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WeightsError(f"{path}: config: {error}", path=path, field="config") from error


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _check_entries(document: dict[str, Any], path: Path) -> None:
    most = MAX_SIDE
    entries = {
        "to": (_among(FORMATS), f"one of {', '.join(FORMATS)}"),
        "weights": (_among(("fp32", "fp16", "int8")), "fp32, fp16 or int8"),
        "network": (_is_word, "a name"),
        "config": (_is_config, "the fields of a network's config"),
        "steps": (lambda value: _is_count(value, MAX_TIME_STEPS), f"an int from 1 to {MAX_TIME_STEPS}"),
        "grid": (lambda value: _is_list(value, lambda one: _is_count(one, most), 2) and len(value) == 2, "two sides"),
        "static": (lambda value: isinstance(value, bool), "true or false"),
        "graphs": (lambda value: _is_list(value, lambda one: isinstance(one, dict), len(KINDS)), "a list of graphs"),
        "not_expressed": (lambda value: _is_list(value, _is_word, MAX_NAMES), "a list of sentences"),
        "labels": (lambda value: value is None or isinstance(value, dict), "an object or null"),
    }
    _check(document, {"not_expressed": [], "labels": None, **document}, entries, "", path, {"format", "version"})


def _graph(value: dict[str, Any], name: str, path: Path) -> GraphFile:
    names = (lambda given: _is_list(given, _is_word, MAX_NAMES), "a list of names")
    entries = {
        "kind": (_among(KINDS), f"one of {', '.join(KINDS)}"),
        "file": (lambda given: isinstance(given, str) and bool(FILE_NAME.fullmatch(given)), "a file of the folder"),
        "bytes": (lambda given: _is_count(given, MAX_GRAPH), f"an int from 1 to {MAX_GRAPH}"),
        "sha256": (lambda given: isinstance(given, str) and bool(CHECKSUM.fullmatch(given)), "64 hexadecimal digits"),
        "inputs": names,
        "outputs": names,
    }
    _check(value, value, entries, f"{name}.", path, set())
    words = {key: value[key] for key in ("kind", "file", "bytes", "sha256")}
    return GraphFile(**words, inputs=tuple(value["inputs"]), outputs=tuple(value["outputs"]))


def _check(
    given: dict[str, Any], full: dict[str, Any], entries: dict[str, Any], prefix: str, path: Path, more: set[str]
) -> None:
    if unknown := sorted(given.keys() - entries.keys() - more):
        raise _wrong(path, prefix + unknown[0][:60], given[unknown[0]], "no such entry")
    for name, (fits, expected) in entries.items():
        if name not in full:
            raise _wrong(path, prefix + name, "nothing", expected)
        if not fits(full[name]):
            raise _wrong(path, prefix + name, full[name], expected)


def _is_config(value: Any) -> bool:
    return isinstance(value, dict) and all(name in value for name in RipeConfig.field_names())


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_WORD


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_list(value: Any, fits: Any, most: int) -> bool:
    return isinstance(value, list) and len(value) <= most and all(map(fits, value))


def _among(known: Sequence[str]) -> Any:
    return lambda value: isinstance(value, str) and value in known


def _wrong(path: Path, name: str, value: Any, expected: str) -> WeightsError:
    return WeightsError(
        f"{path}: {name}: expected {expected}, got {str(value)[:60]!r}; {WANTED}", field=name, path=path
    )
