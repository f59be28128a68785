"""`ripe data sets`, `download`, `prepare`, `list` and `verify`: whole datasets."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.markup import escape

from ripe_mambaspike.cli.output import console, print_json, print_message, print_table
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import (
    Count,
    CropArea,
    Flag,
    Folder,
    FormatName,
    Json,
    SensorSize,
    TimeUnit,
    option,
)

if TYPE_CHECKING:
    from ripe_mambaspike.data.store import EventStore

Name = Annotated[str, tyro.conf.Positional, option("NAME")]
Root = Annotated[Path, option("DIR")]
MAX_WARNINGS = 10  # of one kind; the others are counted


@dataclass
class SetsCommand:
    """List the datasets, their splits and where they come from."""

    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import list_datasets

        datasets = list_datasets()
        if self.json:
            print_json(datasets)
            return 0
        rows = [
            (one["name"], one["sizes"], one["sensor"], ", ".join(one["partitions"]), one["files"], _origin(one))
            for one in datasets
        ]
        title = "Datasets (train + validation / test); the first partition is the default"
        print_table(console(), title, ("name", "clips", "sensor", "partitions", "files", "download"), rows, left=6)
        return 0


@dataclass
class DownloadCommand:
    """Download a dataset whose licence allows it. An interrupted download continues where it stopped."""

    name: Name
    """The dataset (see ripe data sets)."""
    root: Root
    """The folder to put it in."""

    def run(self) -> int:
        from ripe_mambaspike import download_dataset

        with progress_bar(self.name, "bytes") as update:
            facts = download_dataset(self.name, self.root, update)
        print(f"{self.root}: {facts.title}, licence {facts.license}; cite {facts.citation}")
        return 0


@dataclass
class PrepareCommand:
    """Decode a dataset once into a store that training maps into memory. An interrupted run continues.

    Preparing a dataset with other options makes another store beside the first (see ripe data list). Runs that were
    trained on the first one keep using it.
    """

    name: Name
    """The dataset (see ripe data sets); folder for your own recordings as CLASS/RECORDING."""
    root: Root
    """Where its files are."""
    store: Folder = None
    """Where the store goes. Default: ROOT/.ripe."""
    workers: Count = None
    """Number of processes. Default: one for each core."""
    strict: Flag = False
    """Refuse recordings with events outside the sensor, with times that run backwards, or of several sensors."""
    skip_unreadable: Flag = False
    """Leave out recordings that cannot be read, each with a warning."""
    partial: Flag = False
    """Continue with the recordings that are there when the split lists name more."""
    lists: Folder = None
    """Folder of DailyDVS-200's train.txt, val.txt and test.txt, if they are not in the root."""
    test_share: Annotated[float | None, option("SHARE")] = None
    """Share of each class that becomes the test split of a folder without train/ and test/."""
    labels: Annotated[Path | None, option("FILE.csv")] = None
    """Classes of recordings that are not in class folders: a table with the columns file (relative to the root), label
    and, if any, split (train, val or test)."""
    format: FormatName = None
    unsplit: Flag = False
    """Prepare a folder without a test split, even in place of one with a split. Only the recipe few trains on it."""
    sensor_size: SensorSize = None
    """Width and height of a folder's sensor, if its files do not say."""
    time_unit: TimeUnit = None
    """Unit of a folder's times, if its format does not fix it."""
    crop: CropArea = None
    """The part of a folder's sensor to keep: left, top, width and height. Events elsewhere are left out."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import prepare_dataset
        from ripe_mambaspike.data.datasets import store_folder
        from ripe_mambaspike.data.store import current_key

        before = current_key(store_folder(self.root, self.store) / self.name)
        with progress_bar(self.name) as update:
            made, passed = prepare_dataset(
                self.name, self.root, store=self.store, workers=self.workers, strict=self.strict,
                skip_unreadable=self.skip_unreadable, unsplit=self.unsplit, partial=self.partial, lists=self.lists,
                test_share=self.test_share, sensor_size=self.sensor_size, time_unit=self.time_unit, crop=self.crop,
                labels=self.labels, format=self.format, progress=update,
            )  # fmt: skip
        if passed:
            shown = ", ".join(passed[:3]) + " …" * (len(passed) > 3)
            print_message(f"note: {len(passed):,} files that are not recordings were skipped: {shown}")
        print_notes(before, made)
        _warn(made.index.troubles, made)
        unreadable = made.index.unreadable
        _warn([f"left out: {reason}" for reason in unreadable.values()], made)
        if made.partitions == ("unsplit",):
            warning = "the store has no test split, so only the recipe few trains on it; --test-share makes one"
            print_message(f"warning: {warning}")
        show_store(made, self.json)
        return 0


@dataclass
class ListCommand:
    """List the prepared datasets of a folder. Several preparations of one dataset exist side by side."""

    root: Root
    """Where the files of the datasets are."""
    store: Folder = None
    """Where the stores are. Default: ROOT/.ripe."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike.data.datasets import describe_store, prepared_stores, store_folder

        stores, damaged = prepared_stores(self.root, store=self.store)
        documents = [describe_store(store) for store in stores]
        if self.json:
            print_json({"stores": documents, "damaged": damaged})
            return 0
        rows = [
            (
                one["set"],
                one["key"] + " (current)" * one["current"],
                f"{one['clips']:,}",
                "×".join(map(str, one["sensor_size"])),
                escape(
                    ", ".join(f"{name} {n['train']}+{n['val']}/{n['test']}" for name, n in one["partitions"].items())
                ),
                one["sha256"][:12],
            )
            for one in documents
        ]
        columns = ("set", "key", "clips", "sensor", "partitions (train+val/test)", "content")
        print_table(console(), f"Prepared in {escape(str(store_folder(self.root, self.store)))}", columns, rows, left=6)
        for one in damaged:
            print_message(f"warning: {one['why']}")
        return 0


@dataclass
class VerifyCommand:
    """Check every byte of a prepared dataset, and whether its source is still the same."""

    name: Name
    """The dataset."""
    root: Root
    """Where its files are."""
    store: Folder = None
    """Where the store is. Default: ROOT/.ripe."""
    key: Annotated[str | None, option("KEY")] = None
    """One of several preparations (see ripe data list). Default: the current one."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import verify_dataset

        opened, state = verify_dataset(self.name, self.root, store=self.store, key=self.key)
        show_store(opened, self.json, verified=True, source=state)
        if not self.json:
            source = "it is simulated by its recipe" if state == "simulated" else f"the source is {state}"
            print(f"all checksums match; {source}")
        return 0


def print_notes(current_before: str | None, made: "EventStore") -> None:
    """Notes of a preparation, and whether another store is the current one now."""
    for note in made.index.notes:
        print_message(f"note: {note}")
    if current_before not in (None, made.key):
        print_message(f"note: {made.key} is now the current store; runs trained on {current_before} still use that one")


def show_store(store: "EventStore", json: bool, **more: Any) -> None:
    """Print a prepared dataset as JSON, or as a table of its splits."""
    from ripe_mambaspike.data.datasets import describe_store

    document = {**describe_store(store), **more}
    if json:
        print_json(document)
        return
    width, height = document["sensor_size"]
    title = (
        f"{document['set']}: {document['clips']:,} clips of {document['classes']} classes, "
        f"{document['events']:,} events, {width}×{height}"
    )
    rows = [
        (
            name,
            *(f"{partition[split]:,}" for split in ("train", "val", "test")),
            partition["checksum"][:12],
            "yes" if partition["published"] else "no",
        )
        for name, partition in document["partitions"].items()
    ]
    print_table(console(), title, ("partition", "train", "val", "test", "names", "fixed list"), rows)
    not_current = "" if document["current"] else ", not current"
    print(f"key {document['key']}, content {document['sha256'][:12]}{not_current}")
    if document["others"]:
        print(f"{len(document['others'])} more in {Path(document['store']).parent}; ripe data list shows them")
    print(document["store"])


def _warn(sentences: Sequence[str], made: "EventStore") -> None:
    for sentence in sentences[:MAX_WARNINGS]:
        print_message(f"warning: {sentence}")
    if len(sentences) > MAX_WARNINGS:
        print_message(f"warning: and {len(sentences) - MAX_WARNINGS:,} more, listed in {made.folder}")


def _origin(entry: dict[str, Any]) -> str:
    """How to get a dataset."""
    if entry["simulated"]:
        return "simulated"
    return "yes" if entry["download"] else "by hand" if entry["home"] else "–"
