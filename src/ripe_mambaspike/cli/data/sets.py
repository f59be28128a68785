"""`ripe data sets`, `download`, `prepare` and `verify`: whole sets of recordings."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ripe_mambaspike.cli.data.recordings import CropArea, SensorSize, TimeUnit
from ripe_mambaspike.cli.output import console, print_json, print_table
from ripe_mambaspike.errors import ConfigError, DataError

if TYPE_CHECKING:
    from ripe_mambaspike.data.store import EventStore

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Root = Annotated[Path, tyro.conf.arg(metavar="DIR")]
Store = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]
SHOWN = 10  # warnings of one kind before the rest is counted


@dataclass
class SetsCommand:
    """The sets there are, their splits and where they come from."""

    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.data.mirrors import BENCHMARKS
        from ripe_mambaspike.data.sets import SETS, SIMULATED

        document: list[dict[str, Any]] = []
        for name, facts in (SETS | SIMULATED).items():
            mirror = BENCHMARKS.get(name)
            document.append(
                {
                    "name": name,
                    "title": facts.title,
                    "sizes": facts.sizes,
                    "sensor": facts.sensor,
                    "cuts": list(facts.cuts),
                    "files": facts.files,
                    "download": bool(mirror and mirror.archives),
                    "license": mirror.license if mirror else None,
                    "home": mirror.home if mirror else None,
                    "simulated": facts.simulated,
                }
            )
        if self.json:
            print_json(document)
            return 0
        rows = [
            (
                entry["name"],
                entry["sizes"],
                entry["sensor"],
                ", ".join(entry["cuts"]),
                entry["files"],
                _origin(entry),
            )
            for entry in document
        ]
        title = "Sets (train + validation / test); the first cut is the default"
        columns = ("name", "clips", "sensor", "cuts", "files", "download")
        print_table(console(), title, columns, rows, left=6)
        return 0


@dataclass
class DownloadCommand:
    """Fetch a set whose licence allows it; an interrupted download goes on where it was."""

    name: Name
    """The set (see ripe data sets)."""
    root: Root
    """The folder to put it in."""

    def run(self) -> int:
        from ripe_mambaspike.data.fetch import download_dataset

        with progress_bar(self.name, "bytes") as report:
            facts = download_dataset(self.name, self.root, report)
        print(f"{self.root}: {facts.title}, licence {facts.license}; cite {facts.citation}")
        return 0


@dataclass
class PrepareCommand:
    """Decode a set once into a store that is mapped into memory. A run that was killed goes on where it was.

    Preparing a set in another way makes another store beside the first (see ripe data list), which a run that was
    trained on it goes on using.
    """

    name: Name
    """The set (see ripe data sets); folder for a tree of your own, class/recording."""
    root: Root
    """Where its files are."""
    store: Store = None
    """Where the store goes; ROOT/.ripe when not given."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Processes; as many as there are cores when not given."""
    strict: bool = False
    """Refuse recordings with events outside the sensor, times that run backwards, or several sensors."""
    skip_unreadable: bool = False
    """Leave out recordings that cannot be read, each with a warning."""
    partial: bool = False
    """Go on with the recordings that are there when the split lists name more."""
    lists: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of DailyDVS-200's train.txt, val.txt and test.txt, when they are not in the root."""
    test_share: Annotated[float | None, tyro.conf.arg(metavar="SHARE")] = None
    """Share of each class of a folder that becomes its test part, when it has no train/ and test/."""
    unsplit: bool = False
    """Prepare a folder without a test part, in the place of one that has one; nothing can be trained on it."""
    sensor_size: SensorSize = None
    """Width and height of a folder's sensor, where its files do not say."""
    time_unit: TimeUnit = None
    """Unit of a folder's times, where its format does not fix it."""
    crop: CropArea = None
    """The part of a folder's sensor to keep: left, top, width and height; events elsewhere are left out."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.data.prepare import prepare
        from ripe_mambaspike.data.sets import list_dataset
        from ripe_mambaspike.data.store import current_key

        workers = count_workers(self.workers)
        listing = list_dataset(
            self.name,
            self.root,
            partial=self.partial,
            lists=self.lists,
            test_share=self.test_share,
            sensor_size=self.sensor_size,
            time_unit=self.time_unit,
            crop=self.crop,
        )
        stores = store_root(self.root, self.store)
        before = current_key(stores / self.name)
        with progress_bar(self.name) as report:
            made = prepare(
                listing,
                self.root,
                stores,
                workers=workers,
                strict=self.strict,
                skip_unreadable=self.skip_unreadable,
                unsplit=self.unsplit,
                progress=report,
            )
        if passed := listing.passed_over:
            shown = ", ".join(passed[:3]) + " …" * (len(passed) > 3)
            print(f"ripe: note: {len(passed):,} files that are no recordings passed over: {shown}", file=sys.stderr)
        print_notes(made)
        _warn(made.index["troubles"], made)
        unreadable: dict[str, str] = made.index.get("unreadable", {})
        _warn([f"left out: {reason}" for reason in unreadable.values()], made)
        if made.cuts == ("unsplit",):
            warning = "the store has no split, so nothing can be trained on it or reported; --test-share gives it one"
            print(f"ripe: warning: {warning}", file=sys.stderr)
        print_current_store(before, made)
        document = store_document(made)
        print_json(document) if self.json else show_store(document)
        return 0


@dataclass
class VerifyCommand:
    """Check a prepared set against its checksums, and whether its source is still the one it was made from."""

    name: Name
    """The set."""
    root: Root
    """Where its files are."""
    store: Store = None
    """Where the store is; ROOT/.ripe when not given."""
    key: Annotated[str | None, tyro.conf.arg(metavar="KEY")] = None
    """One of several preparations (see ripe data list); the current one when not given."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.data.checking import source_state
        from ripe_mambaspike.data.sets import dataset_info
        from ripe_mambaspike.data.store import open_store, verify_store

        dataset_info(self.name)
        opened = open_store(store_root(self.root, self.store), self.name, self.key)
        verify_store(opened)
        state = source_state(opened, self.root)
        if state.startswith("changed"):
            raise DataError(f"{opened.folder} is undamaged, but its source has {state}; prepare the set again")
        document = {**store_document(opened), "verified": True, "source": state}
        if self.json:
            print_json(document)
        else:
            show_store(document)
            said = "it is simulated, by its recipe" if state == "simulated" else f"the source is {state}"
            print(f"every checksum is right; {said}")
        return 0


def _warn(sentences: Sequence[str], made: "EventStore") -> None:
    for sentence in sentences[:SHOWN]:
        print(f"ripe: warning: {sentence}", file=sys.stderr)
    if len(sentences) > SHOWN:
        print(f"ripe: warning: and {len(sentences) - SHOWN:,} more, listed in {made.folder}", file=sys.stderr)


def _origin(entry: dict[str, Any]) -> str:
    """How a set is come by."""
    if entry["simulated"]:
        return "simulated"
    return "yes" if entry["download"] else "by hand" if entry["home"] else "–"


def store_root(root: Path, store: Path | None) -> Path:
    from ripe_mambaspike.data.sets.registry import STORE

    return root / STORE if store is None else store


def print_notes(store: "EventStore") -> None:
    for sentence in store.index["notes"]:
        print(f"ripe: note: {sentence}", file=sys.stderr)


def print_current_store(before: str | None, made: "EventStore") -> None:
    """That another store of the set is current now."""
    if before not in (None, made.key):
        print(f"ripe: note: {made.key} is current now; {before} stays for runs trained on it", file=sys.stderr)


def count_workers(asked: int | None) -> int:
    if asked is not None and not 1 <= asked <= 1024:
        raise ConfigError(f"--workers is {asked}; a whole number from 1 to 1024 is wanted")
    return asked or os.cpu_count() or 1


def store_document(store: "EventStore") -> dict[str, Any]:
    from ripe_mambaspike.data.store import current_key, store_keys

    home = store.folder.parent
    clips, index = store.index["clips"], store.index
    return {
        "set": store.name,
        "store": str(store.folder),
        "key": store.key,
        "sha256": index["sha256"],
        "current": current_key(home) == store.key,
        "others": [key for key in store_keys(home) if key != store.key],
        "clips": len(store),
        "events": sum(clips["events"]),
        "classes": len(store.classes),
        "sensor_size": list(store.sensor_size),
        "crop": None if store.crop is None else list(store.crop),
        "cuts": {
            name: {**cut["sizes"], "checksum": cut["checksum"], "published": cut["published"]}
            for name, cut in index["cuts"].items()
        },
        "notes": list(index["notes"]),
        "warnings": len(index["troubles"]),
        "unreadable": len(index.get("unreadable", {})),
    }


def show_store(document: dict[str, Any]) -> None:
    width, height = document["sensor_size"]
    title = (
        f"{document['set']}: {document['clips']:,} clips of {document['classes']} classes, "
        f"{document['events']:,} events, {width}×{height}"
    )
    rows = [
        (
            name,
            f"{cut['train']:,}",
            f"{cut['val']:,}",
            f"{cut['test']:,}",
            cut["checksum"][:12],
            _whole(cut["published"]),
        )
        for name, cut in document["cuts"].items()
    ]
    print_table(console(), title, ("cut", "train", "val", "test", "names", "fixed list"), rows)
    print(
        f"key {document['key']}, content {document['sha256'][:12]}" + ("" if document["current"] else ", not current")
    )
    if document["others"]:
        print(f"{len(document['others'])} more in {Path(document['store']).parent}; ripe data list shows them")
    print(document["store"])


def _whole(published: bool) -> str:
    return "yes" if published else "no"


@contextmanager
def progress_bar(what: str, unit: str = "") -> Iterator[Any]:
    """A progress bar on standard error, for whoever watches; nothing otherwise."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    counted = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    shown = Progress(
        TextColumn("{task.description}"), BarColumn(), counted, TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip
    with shown:
        task = shown.add_task(what, total=None)
        yield lambda text, done, of: shown.update(task, description=text, completed=done, total=of)
