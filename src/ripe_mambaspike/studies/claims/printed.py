"""Values printed in the paper that claims are computed from: results, seeds and ablations (tables.yaml)."""

from importlib import resources
from typing import Any, NamedTuple

from ripe_mambaspike.yaml_text import parse_yaml


class PrintedRow(NamedTuple):
    """A row of Table 1 (state of the art)."""

    method: str
    millions: float | None  # parameters
    accuracy: float


OURS = "RIPE-MambaSpike"
LITE = "RIPE-MambaSpike lite"
_TABLES: dict[str, Any] = parse_yaml((resources.files(__package__) / "tables.yaml").read_text("utf-8"), "tables.yaml")

GESTURE, CIFAR, CALTECH, DAILY, MNIST = (
    tuple(PrintedRow(method, *values) for method, values in rows.items()) for rows in _TABLES["results"].values()
)
SEEDS: dict[str, list[float]] = _TABLES["seeds"]
ABLATION: dict[str, tuple[list[float], list[str]]] = _TABLES["ablation"]
MIXES: list[tuple[tuple[str, ...], float]] = [(tuple(mix), accuracy) for mix, accuracy in _TABLES["mixes"]]
SEQUENCE: dict[str, list[tuple[float, float | None]]] = {
    arm: [(mean, deviation) for mean, deviation in cells] for arm, cells in _TABLES["sequence"].items()
}
TOP5: dict[str, float] = _TABLES["top5"]
TRAINED_ON: dict[str, str] = _TABLES["trained_on"]
DATASETS = ("dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "dailydvs200")


def printed_row(table: tuple[PrintedRow, ...], method: str = OURS) -> PrintedRow:
    return next(entry for entry in table if entry.method == method)


def hyperparameter(name: str, dataset: str) -> float:
    """A value of Table 9 (hyperparameters): the dataset's own, or the default."""
    values: dict[str, float] = _TABLES["hyperparameters"][name]
    return values.get(dataset, values["default"])
