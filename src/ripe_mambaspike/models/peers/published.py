"""Published results of other networks: every row of the paper's Table 1, also of those that cannot be run here."""

from functools import cache
from importlib import resources
from typing import Annotated, Literal, get_args

from msgspec import Meta

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.schema import Document, convert
from ripe_mambaspike.yaml_text import parse_yaml

FILE = "published.yaml"
Benchmark = Literal["dvsgesture", "cifar10dvs", "ncaltech101", "dailydvs200", "nmnist"]
Mark = Literal["published", "own protocol", "our protocol", "ours"]
Name = Annotated[str, Meta(min_length=1)]


class PublishedResult(Document, frozen=True):
    """A row of the table; the file explains its fields."""

    dataset: Benchmark
    method: Name
    time_steps: Annotated[int, Meta(ge=1)] | None
    millions: Annotated[float, Meta(gt=0)] | None
    accuracy: Annotated[float, Meta(ge=0, le=100)]
    mark: Mark
    source: Name | None = None
    model: Name | None = None

    def __post_init__(self) -> None:
        if (self.mark == "ours") == (self.source is not None):
            raise ConfigError.expected("source", "a citation, or none for the paper's own", repr(self.source))


@cache
def _read() -> tuple[PublishedResult, ...]:
    tables = parse_yaml((resources.files(__package__) / FILE).read_text("utf-8"), FILE)
    rows = [{"dataset": dataset, **row} for dataset, table in tables.items() for row in table]
    return convert(rows, tuple[PublishedResult, ...], origin=FILE)


def published_results(dataset: str | None = None) -> tuple[PublishedResult, ...]:
    """All rows in the table's order, or those of one dataset."""
    if dataset is not None and dataset not in get_args(Benchmark):
        raise ConfigError.expected("dataset", f"one of {', '.join(get_args(Benchmark))}", repr(dataset))
    return tuple(row for row in _read() if dataset in (None, row.dataset))
