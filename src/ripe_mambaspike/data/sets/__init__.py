"""The benchmarks, one module each: `listing(root, files) → Listing`, a pure function of the files' names."""

from ripe_mambaspike.data.sets.registry import SETS, SIMULATED, DatasetInfo, dataset_info, list_dataset

__all__ = ["SETS", "SIMULATED", "DatasetInfo", "dataset_info", "list_dataset"]
