"""Values printed in the paper that claims are computed from: results, seeds, ablations and neuron mixes."""

from typing import NamedTuple

from ripe_mambaspike.models.peers.published import PublishedResult, published_results
from ripe_mambaspike.studies.tables.printed import printed_table, printed_text


class PrintedRow(NamedTuple):
    """A row of Table 1 (state of the art)."""

    method: str
    millions: float | None  # parameters
    accuracy: float


OURS = "RIPE-MambaSpike"
LITE = "RIPE-MambaSpike lite"
COMPONENTS = {"no-attention": "DS-MPA", "no-repconv": "RepConv", "no-tdm": "TDM", "stage3-bridge": "MR-S3A"}


def _method(row: PublishedResult) -> str:
    """The method's name, one for each row of a dataset."""
    if row.method == "Mamba-Spike":
        return row.method + {"published": " published", "own protocol": " released"}.get(row.mark, "")
    return f"{row.method} small" if row.model == "spikepool" else row.method


def _table(dataset: str) -> tuple[PrintedRow, ...]:
    return tuple(PrintedRow(_method(row), row.millions, row.accuracy) for row in published_results(dataset))


DATASETS = ("dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "dailydvs200")  # the columns of Table 9
GESTURE, CIFAR, CALTECH, MNIST, DAILY = map(_table, DATASETS)
SEEDS: dict[str, list[float]] = printed_text().seeds
TOP5: dict[str, float] = printed_text().top5
TRAINED_ON: dict[str, str] = printed_text().trained_on


def printed_row(table: tuple[PrintedRow, ...], method: str = OURS) -> PrintedRow:
    return next(entry for entry in table if entry.method == method)


def _ablation(arm: str) -> tuple[list[float], list[str]]:
    """What removing a component costs on the three datasets in pp (Table 2), and in σ as printed (Table 11)."""
    effects = [str(cell) for cell in printed_table(2).rows[arm][2:]]
    sigmas = [str(cell) for cell in printed_table(11).rows[arm][1:]]
    return [-float(cell.replace("−", "-")) for cell in effects], [cell.removesuffix(" σ") for cell in sigmas]


ABLATION = {name: _ablation(arm) for arm, name in COMPONENTS.items()}
MIXES = [(tuple(mix.split("-")), float(row[1] or "nan")) for mix, row in printed_table(12).rows.items()]  # Table 12


def _mean_and_deviation(cell: str | None) -> tuple[float, float | None]:
    mean, _, deviation = str(cell).partition(" ± ")
    return float(mean), float(deviation) if deviation else None


# Table 3: mean, and deviation where one is printed, on DVS-Gesture and N-Caltech101.
SEQUENCE = {
    arm: [_mean_and_deviation(row[1]), _mean_and_deviation(row[3])] for arm, row in printed_table(3).rows.items()
}


def hyperparameter(name: str, dataset: str) -> float:
    """A number of Table 9, by the row's id."""
    return float(printed_table(9).rows[name][1 + DATASETS.index(dataset)] or "nan")
