"""`ripe data sets`, `download`, `prepare` and `verify`: whole sets of recordings."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ripe_mambaspike.cli.data.recordings import CropArea, SensorSize, TimeUnit
from ripe_mambaspike.cli.show import console, print_json, print_table
from ripe_mambaspike.errors import ConfigError, DataError

if TYPE_CHECKING:
    from ripe_mambaspike.data.store import EventStore

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Root = Annotated[Path, tyro.conf.arg(metavar="DIR")]
Store = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]
SHOWN = 10  # warnings of one kind before the rest is counted


@dataclass
class Sets:
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
                    "licence": mirror.licence if mirror else None,
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
class Download:
    """Fetch a set whose licence allows it; an interrupted download goes on where it was."""

    name: Name
    """The set (see ripe data sets)."""
    root: Root
    """The folder to put it in."""

    def run(self) -> int:
        from ripe_mambaspike.data.fetch import fetch_set

        with bar(self.name, "bytes") as report:
            facts = fetch_set(self.name, self.root, report)
        print(f"{self.root}: {facts.title}, licence {facts.licence}; cite {facts.citation}")
        return 0


@dataclass
class Prepare:
    """Decode a set once into a store that is mapped into memory. A run that was killed goes on where it was."""

    name: Name
    """The set (see ripe data sets); folder for a tree of your own, class/recording."""
    root: Root
    """Where its files are."""
    store: Store = None
    """Where the store goes; ROOT/.ripe when not given."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Processes; as many as there are cores when not given."""
    strict: bool = False
    """Refuse recordings with events outside the sensor or times that run backwards."""
    partial: bool = False
    """Go on with the recordings that are there when the split lists name more."""
    lists: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of DailyDVS-200's train.txt, val.txt and test.txt, when they are not in the root."""
    test_share: Annotated[float | None, tyro.conf.arg(metavar="SHARE")] = None
    """Share of each class of a folder that becomes its test part, when it has no train/ and test/."""
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
        from ripe_mambaspike.data.sets import list_set

        workers = count_workers(self.workers)
        listing = list_set(
            self.name,
            self.root,
            partial=self.partial,
            lists=self.lists,
            test_share=self.test_share,
            sensor_size=self.sensor_size,
            time_unit=self.time_unit,
            crop=self.crop,
        )
        with bar(self.name) as report:
            made = prepare(
                listing,
                self.root,
                _store(self.root, self.store),
                workers=workers,
                strict=self.strict,
                progress=report,
            )
        speak_notes(made)
        troubles = made.index["troubles"]
        for sentence in troubles[:SHOWN]:
            print(f"ripe: warning: {sentence}", file=sys.stderr)
        if len(troubles) > SHOWN:
            print(f"ripe: warning: and {len(troubles) - SHOWN:,} more, listed in {made.folder}", file=sys.stderr)
        document = store_document(made)
        print_json(document) if self.json else show_store(document)
        return 0


@dataclass
class Verify:
    """Check a prepared set against its checksums, and whether its source is still the one it was made from."""

    name: Name
    """The set."""
    root: Root
    """Where its files are."""
    store: Store = None
    """Where the store is; ROOT/.ripe when not given."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.data.checking import source_state
        from ripe_mambaspike.data.sets import find_set
        from ripe_mambaspike.data.store import open_store, verify_store

        find_set(self.name)
        opened = open_store(_store(self.root, self.store), self.name)
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


def _origin(entry: dict[str, Any]) -> str:
    """How a set is come by."""
    if entry["simulated"]:
        return "simulated"
    return "yes" if entry["download"] else "by hand" if entry["home"] else "–"


def _store(root: Path, store: Path | None) -> Path:
    from ripe_mambaspike.data.sets.registry import STORE

    return root / STORE if store is None else store


def speak_notes(store: "EventStore") -> None:
    for sentence in store.index["notes"]:
        print(f"ripe: note: {sentence}", file=sys.stderr)


def count_workers(asked: int | None) -> int:
    if asked is not None and not 1 <= asked <= 1024:
        raise ConfigError(f"--workers is {asked}; a whole number from 1 to 1024 is wanted")
    return asked or os.cpu_count() or 1


def store_document(store: "EventStore") -> dict[str, Any]:
    clips, index = store.index["clips"], store.index
    return {
        "set": store.name,
        "store": str(store.folder),
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
    print_table(console(), title, ("cut", "train", "val", "test", "checksum", "fixed list"), rows)
    print(document["store"])


def _whole(published: bool) -> str:
    return "yes" if published else "no"


@contextmanager
def bar(what: str, unit: str = "") -> Iterator[Any]:
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
