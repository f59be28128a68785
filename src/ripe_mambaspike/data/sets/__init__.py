"""The datasets, one module each, which registers itself (`data/sets/registry.py`)."""

from ripe_mambaspike.data.sets.registry import DatasetInfo, dataset_info, datasets, list_dataset, register_dataset

__all__ = ["DatasetInfo", "dataset_info", "datasets", "list_dataset", "register_dataset"]
