"""Datasets by name: which there are, preparing one, verifying it, and what is prepared in a folder."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from ripe_mambaspike.data.building import Progress
from ripe_mambaspike.data.checking import source_state
from ripe_mambaspike.data.known_stores import check_known
from ripe_mambaspike.data.prepare import prepare
from ripe_mambaspike.data.sets.registry import STORE, dataset_info, datasets, list_dataset
from ripe_mambaspike.data.store import EventStore, current_key, open_store, store_keys, verify_store
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.events.region import Crop

MAX_WORKERS = 1024


class PreparedDataset(NamedTuple):
    """A prepared dataset, and files of its folder that are not recordings."""

    store: EventStore
    passed_over: tuple[str, ...]


class PreparedStores(NamedTuple):
    """The prepared datasets of a folder; of a damaged one its set, key and why it cannot be opened."""

    stores: list[EventStore]
    damaged: list[dict[str, Any]]


def list_datasets() -> list[dict[str, Any]]:
    """What is known of every dataset: name, title, sizes, sensor, splits, files, licence."""
    rows = []
    for name, info in datasets().items():
        mirror = info.download
        rows.append(
            {
                "name": name,
                "title": info.title,
                "sizes": info.sizes,
                "sensor": info.sensor,
                "partitions": list(info.partitions),
                "files": info.files,
                "download": bool(mirror and mirror.archives),
                "license": mirror.license if mirror else None,
                "home": mirror.home if mirror else None,
                "simulated": info.simulated,
            }
        )
    return rows


def store_folder(root: Path, store: Path | None = None) -> Path:
    """The folder of the prepared datasets of a root."""
    return root / STORE if store is None else store


def count_workers(given: int | None) -> int:
    """The given number of processes, or one for each core."""
    if given is not None and not 1 <= given <= MAX_WORKERS:
        raise ConfigError.expected("workers", f"1 to {MAX_WORKERS}", given)
    return given or os.cpu_count() or 1


def prepare_dataset(
    name: str,
    root: str | Path,
    *,
    store: Path | None = None,
    workers: int | None = None,
    strict: bool = False,
    skip_unreadable: bool = False,
    unsplit: bool = False,
    partial: bool = False,
    lists: Path | None = None,
    test_share: float | None = None,
    labels: str | Path | None = None,
    format: str | None = None,
    sensor_size: tuple[int, int] | None = None,
    time_unit: str | None = None,
    crop: Crop | None = None,
    progress: Progress | None = None,
) -> PreparedDataset:
    """Decode a dataset into a store that is mapped into memory; an interrupted run continues where it was.

    `name` is one of `list_datasets()`, or "folder" for your own recordings, as CLASS/RECORDING or with `labels`, a CSV
    file with the columns file, label and, if any, split. The store is
    `root`/.ripe unless `store` is given. `ripe data prepare --help` says what the other options mean.
    """
    root = Path(os.fspath(root))
    workers = count_workers(workers)
    listing = list_dataset(
        name, root, partial=partial, lists=lists, test_share=test_share, sensor_size=sensor_size, time_unit=time_unit,
        crop=crop, labels=None if labels is None else Path(labels), format=format,
    )  # fmt: skip
    made = prepare(
        listing, root, store_folder(root, store), workers=workers, strict=strict, skip_unreadable=skip_unreadable,
        unsplit=unsplit, progress=progress,
    )  # fmt: skip
    return PreparedDataset(made, tuple(listing.passed_over))


def verify_dataset(
    name: str, root: str | Path, *, store: Path | None = None, key: str | None = None
) -> tuple[EventStore, str]:
    """Check every byte of a prepared dataset; returns it with the state of its source: unchanged, gone or simulated."""
    root = Path(os.fspath(root))
    dataset_info(name)
    opened = open_store(store_folder(root, store), name, key)
    verify_store(opened)
    check_known(opened)
    state = source_state(opened, root)
    if state.startswith("changed"):
        hint = "the store itself is undamaged, prepare the dataset again"
        raise DataError.expected("source", "an unchanged one", state, path=opened.folder, hint=hint)
    return opened, state


def prepared_stores(root: str | Path, *, store: Path | None = None) -> PreparedStores:
    """All prepared datasets of a folder; several preparations of one dataset exist side by side."""
    folder = store_folder(Path(os.fspath(root)), store)
    homes = sorted(path for path in (folder.iterdir() if folder.is_dir() else ()) if store_keys(path))
    if not homes:
        raise DataError.expected("store", "a prepared set", "none", path=folder, hint="run `ripe data prepare` first")
    stores, damaged = [], []
    for home in homes:
        for key in store_keys(home):
            try:
                stores.append(open_store(folder, home.name, key))
            except DataError as error:
                current = key == current_key(home)
                damaged.append({"set": home.name, "key": key, "current": current, "why": str(error)})
    return PreparedStores(stores, damaged)


def describe_store(store: EventStore) -> dict[str, Any]:
    """A prepared dataset as a JSON document."""
    home, index = store.folder.parent, store.index
    return {
        "set": store.name,
        "store": str(store.folder),
        "key": store.key,
        "sha256": index.sha256,
        "current": current_key(home) == store.key,
        "others": [key for key in store_keys(home) if key != store.key],
        "clips": len(store),
        "events": sum(index.clips.events),
        "classes": len(store.classes),
        "sensor_size": list(store.sensor_size),
        "crop": None if store.crop is None else list(store.crop),
        "partitions": {
            name: {**partition.sizes, "checksum": partition.checksum, "published": partition.published}
            for name, partition in index.partitions.items()
        },
        "notes": list(index.notes),
        "warnings": len(index.troubles),
        "unreadable": len(index.unreadable),
    }
