"""What the formats share: a file that appears whole or is read whole, and the words for what cannot be."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ripe_mambaspike.deploy.export.graph import Graph
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.files import atomic_write, read_regular

MAX_GRAPH = 512 << 20  # bytes; those of the shipped networks have some million

TRUST_HINT = "--trust (in Python trust=True) loads it all the same, and runs whatever code it carries"


def write_whole(path: Path, data: bytes) -> None:
    """The file, or a sentence and no trace of it."""
    try:
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); a place with room for it is wanted"
        ) from error


def graph_bytes(path: Path, wanted: str) -> bytes:
    """The content of a graph's file, or a sentence that ends with what is wanted."""
    try:
        return read_regular(path, MAX_GRAPH)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}); {wanted}", path=path) from error


def require_trust(path: Path, carries: str | None, trust: bool) -> None:
    """Refuse what carries code, unless it is said to be trusted."""
    if carries and not trust:
        raise InputError(
            f"{path}: trust: expected true for {carries}, got false; {TRUST_HINT}", field="trust", path=path
        )


def reason_of(error: BaseException) -> str:
    """The first line of what an error says."""
    said = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(said).splitlines()[0][:200]


def failed_run(path: Path, inputs: Sequence[Tensor], error: Exception) -> InputError:
    """What is raised for a graph that stumbled over its inputs."""
    shapes = ", ".join(str(tuple(value.shape)) for value in inputs)
    return InputError(f"{path} cannot be run on inputs of shape {shapes} ({reason_of(error)})", path=path)


def refuse_free_sizes(graph: Graph, what: str) -> None:
    """For a format that cannot leave them open."""
    if graph.dynamic:
        sizes = sorted({size for axes in graph.dynamic.values() for size in axes.values()})
        raise ConfigError(
            f"{what} is for one size, and the {graph.kind} graph's {', '.join(sizes)} are to stay free; "
            "--static is wanted"
        )
