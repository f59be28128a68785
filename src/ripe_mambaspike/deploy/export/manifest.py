"""`export.json`: the exported network, its source, its inputs, and the checksum of every graph.

A folder may come from an untrusted source. Each field is checked against the types and bounds that `ripe export`
writes, and a graph is loaded only if its checksum matches.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ripe_mambaspike.deploy.export.common import MAX_GRAPH_BYTES
from ripe_mambaspike.errors import ConfigError, InputError, RipeError, WeightsError
from ripe_mambaspike.files import read_regular
from ripe_mambaspike.models.base import ARCHITECTURES
from ripe_mambaspike.models.config import MAX_SIDE, MAX_TIME_STEPS, ModelConfig, RipeConfig
from ripe_mambaspike.models.old_names import with_added_fields
from ripe_mambaspike.schema import Document, read_json

MANIFEST = "export.json"
FORMAT: Final = "ripe-export"
VERSION: Final = 2
HINT = "pass a folder written by ripe export"
MAX_NAMES = 1000  # inputs or outputs of a graph, sentences of what is not expressed

Word = Annotated[str, Meta(max_length=2000)]
Words = Annotated[tuple[Word, ...], Meta(max_length=MAX_NAMES)]
Side = Annotated[int, Meta(ge=1, le=MAX_SIDE)]
Letter = Annotated[str, Meta(pattern=r"\A[A-Z]\Z")]


class TensorShape(Document, frozen=True):
    """An input or output of a graph; a dimension of any size has a letter, B for the batch."""

    role: Literal["input", "output"]
    name: Annotated[str, Meta(min_length=1, max_length=2000)]
    dtype: Annotated[str, Meta(pattern=r"\A[a-z]+\d*\Z", min_length=3, max_length=20)]
    shape: Annotated[tuple[Annotated[int, Meta(ge=1, le=2**31)] | Letter, ...], Meta(max_length=8)]


class GraphFile(Document, frozen=True):
    """One graph of an exported network."""

    kind: Literal["clip", "step", "tail", "front"]  # front: of NIR
    file: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}\Z")]
    bytes: Annotated[int, Meta(ge=1, le=MAX_GRAPH_BYTES)]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    inputs: Words
    outputs: Words
    tensors: Annotated[tuple[TensorShape, ...], Meta(max_length=2 * MAX_NAMES)] = ()  # in order; all states start at 0


class Manifest(Document, frozen=True, kw_only=True):
    """The exported network, its source, and its inputs."""

    format: Literal["ripe-export"] = FORMAT
    version: Literal[2] = VERSION
    to: Word
    weights: Literal["fp32", "fp16", "int8"]
    network: Word
    architecture: Word = RipeConfig.architecture  # whose config this is
    config: dict[str, Any]
    time_steps: Annotated[int, Meta(ge=1, le=MAX_TIME_STEPS)]
    grid: tuple[Side, Side]  # (height, width) it was made at
    static: bool  # for this size and one clip at a time only
    graphs: Annotated[tuple[GraphFile, ...], Meta(max_length=4)]
    not_expressed: Words = ()  # of the network, by this format
    labels: dict[str, Any] | None = None  # as in labels.json: the classes and all of the binning

    def __post_init__(self) -> None:
        for name in ("kind", "file"):
            if len({getattr(graph, name) for graph in self.graphs}) < len(self.graphs):
                raise ConfigError.expected("graphs", f"one of each {name}", "one twice")
        if self.architecture not in ARCHITECTURES:
            raise ConfigError.expected("architecture", f"one of {', '.join(ARCHITECTURES)}", self.architecture)
        fields = ARCHITECTURES[self.architecture].config.field_names()
        given = with_added_fields(self.architecture, self.config)
        if missing := [name for name in fields if name not in given]:
            raise ConfigError.expected(f"config.{missing[0]}", "a value", "nothing")

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


class _Header(msgspec.Struct):
    format: Literal["ripe-export"]
    version: int


def describe_file(
    kind: Any,
    path: Path,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    tensors: Iterable[TensorShape] = (),
) -> GraphFile:
    data = path.read_bytes()
    if len(data) > MAX_GRAPH_BYTES:
        raise InputError(f"{path}: expected at most {MAX_GRAPH_BYTES:,} bytes, got {len(data):,}", path=path)
    digest = hashlib.sha256(data).hexdigest()
    names = {"inputs": tuple(inputs), "outputs": tuple(outputs)}
    return GraphFile(kind=kind, file=path.name, bytes=len(data), sha256=digest, **names, tensors=tuple(tensors))


def read_graph(folder: Path, graph: GraphFile) -> bytes:
    """The content of a graph's file, checked against the manifest's checksum."""
    path = folder / graph.file
    try:
        data = read_regular(path, graph.bytes)
    except OSError as error:
        raise WeightsError(f"{path}: expected a readable file, got {error.strerror or error}", path=path) from error
    if (digest := hashlib.sha256(data).hexdigest()) != graph.sha256:
        hint = "the file was damaged or replaced"
        raise WeightsError.expected("sha256", f"{graph.sha256} of {MANIFEST}", digest, path=path, hint=hint)
    return data


def read_manifest(folder: Path) -> Manifest:
    """The folder's manifest; raises a WeightsError for a wrong field."""
    path = folder / MANIFEST
    header = read_json(path, _Header, error=WeightsError, hint=HINT)
    if header.version != VERSION:
        hint = "export the network again with ripe export"
        raise WeightsError.expected("version", str(VERSION), header.version, path=path, hint=hint)
    return read_json(path, Manifest, error=WeightsError, hint=HINT)


@dataclass(frozen=True)
class ExportedConfig(RipeConfig):
    """The config of an exported network, in which the names of layers need not be registered here.

    The graphs hold those layers already. Building the network from the config raises for an unknown name.
    """

    def _choose(self, field: str, choices: Iterable[str], several: bool = False) -> None:
        names = getattr(self, field) if several else (getattr(self, field),)
        known = not isinstance(choices, Mapping) or all(name in choices for name in names)
        if known or not all(isinstance(name, str) for name in names):
            super()._choose(field, choices, several)


def config_of(manifest: Manifest, folder: Path) -> ModelConfig:
    """The exported network's config, checked."""
    path = folder / MANIFEST
    kind = manifest.architecture
    try:
        fields = with_added_fields(kind, manifest.config)
        config = ExportedConfig if kind == RipeConfig.architecture else ARCHITECTURES[kind].config
        return config.from_dict(fields, str(path))
    except (RipeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WeightsError(f"{path}: config: {error}", path=path, field="config") from error
