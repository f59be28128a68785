"""What the formats share: a file that appears whole, and the words of those that are for one size."""

from pathlib import Path

from ripe_mambaspike.deploy.graph import Graph
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.files import atomic_write


def write_whole(path: Path, data: bytes) -> None:
    """The file, or a sentence and no trace of it."""
    try:
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); a place with room for it is wanted"
        ) from error


def refuse_free_sizes(graph: Graph, what: str) -> None:
    """For a format that cannot leave them open."""
    if graph.dynamic:
        sizes = sorted({size for axes in graph.dynamic.values() for size in axes.values()})
        raise ConfigError(
            f"{what} is for one size, and the {graph.kind} graph's {', '.join(sizes)} are to stay free; "
            "--static is wanted"
        )
