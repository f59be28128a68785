"""Any table of the paper with ours beside it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.studies.tables.counts import (
    architecture_table,
    footprint_table,
    fusion_table,
    levels_table,
    operations_table,
    resolution_table,
)
from ripe_mambaspike.studies.tables.hyperparameters import hyperparameter_table
from ripe_mambaspike.studies.tables.measured import attention_cost_table, latency_table, resolution_cost_table
from ripe_mambaspike.studies.tables.stored import ResultFolders, result_folders
from ripe_mambaspike.studies.tables.table import PaperTable
from ripe_mambaspike.studies.tables.trained import (
    attention_table,
    class_table,
    component_table,
    interface_table,
    neuron_table,
    peers_table,
    sequence_table,
    sigma_table,
    time_bins_table,
    tokens_table,
)

NUMBERS = range(1, 21)

COUNTED: dict[int, Callable[[], PaperTable]] = {
    4: architecture_table,
    5: fusion_table,
    6: resolution_table,
    8: footprint_table,
    9: hyperparameter_table,
    10: levels_table,
    20: operations_table,
}
STORED: dict[int, Callable[[ResultFolders], PaperTable]] = {
    1: peers_table,
    2: component_table,
    3: sequence_table,
    7: interface_table,
    11: sigma_table,
    12: neuron_table,
    13: tokens_table,
    14: time_bins_table,
    16: attention_cost_table,
    17: latency_table,
    18: attention_table,
    19: resolution_cost_table,
}


def paper_table(
    number: int, *, results: str | Path | Sequence[str | Path] | None = None, run: str | Path | None = None
) -> PaperTable:
    """Table 1 to 20 of the paper with ours beside it.

    Args:
        results: folder of stored results (studies/NAME/results.json and DATE-DEVICE-paper.json), by default
            benchmarks/results of this checkout; or several, of which the last one that has a study counts. "stored"
            among them is the default.
        run: the folder of a run, for Table 15 (accuracy by class)
    """
    if number not in NUMBERS:
        raise ConfigError.expected("number", f"a table from {NUMBERS[0]} to {NUMBERS[-1]}", number)
    if run is not None and number != 15:
        raise ConfigError.expected("run", "none for a table other than 15", str(run))
    if number in COUNTED:
        return COUNTED[number]()
    if number in STORED:
        return STORED[number](result_folders(results))
    return class_table(None if run is None else Path(run))
