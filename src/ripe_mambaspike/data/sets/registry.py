"""Datasets by name. A dataset is one module in `data/sets/`, which is discovered automatically.

    @register_dataset("toy", title="Toy", partitions=("folders",), sizes="2/2", sensor="34×34", files="CLASS/N.bin")
    def list_toy(root: Path, files: Sequence[str]) -> Listing: ...

The function lists clips, labels and splits from the names of the files only; that there are clips, each once, is
checked after it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from ripe_mambaspike.data.listing import Listing, check_listing
from ripe_mambaspike.data.mirrors import DownloadInfo
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.own_modules import unknown_name

STORE = ".ripe"  # the folder in a dataset's root that holds what is prepared from it
Lister = Callable[..., Listing]


@dataclass(frozen=True)
class DatasetInfo:
    """A description of a dataset, and the function that lists its files."""

    name: str
    title: str
    partitions: tuple[str, ...]  # ways it is split; the first is the default
    sizes: str  # train + validation / test
    sensor: str
    files: str  # for a simulated dataset, the pictures that it needs
    list_files: Lister | None = None  # None: simulated, made by `ripe sim make`
    options: tuple[str, ...] = ()  # those of `list_dataset` that it takes
    download: DownloadInfo | None = None
    official_validation: bool = False  # whether its authors list validation clips; else they are taken from training

    @property
    def simulated(self) -> bool:
        return self.list_files is None


_DATASETS: dict[str, DatasetInfo] = {}


def register_dataset(
    name: str,
    *,
    title: str,
    partitions: tuple[str, ...],
    sizes: str,
    sensor: str,
    files: str,
    options: tuple[str, ...] = (),
    download: DownloadInfo | None = None,
    official_validation: bool = False,
) -> Callable[[Lister], Lister]:
    """Register the function that lists a dataset's files; the arguments are the fields of `DatasetInfo`."""

    def register(list_files: Lister) -> Lister:
        @wraps(list_files)
        def list_checked(root: Path, files: Sequence[str], *given: Any, **chosen: Any) -> Listing:
            return check_listing(list_files(root, files, *given, **chosen), root)

        _DATASETS[name] = DatasetInfo(
            name, title, partitions, sizes, sensor, files, list_checked, options, download, official_validation
        )
        return list_checked

    return register


def register_simulated(
    name: str, *, title: str, partitions: tuple[str, ...], sizes: str, sensor: str, files: str
) -> None:
    """Register a dataset that `simulate_dataset` makes."""
    _DATASETS[name] = DatasetInfo(name, title, partitions, sizes, sensor, files)


def datasets() -> dict[str, DatasetInfo]:
    """All datasets by name, the recorded ones first."""
    package = __name__.rpartition(".")[0]
    for module in iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")
    return dict(sorted(_DATASETS.items(), key=lambda item: item[1].simulated))


def dataset_info(name: str) -> DatasetInfo:
    """The dataset of that name."""
    known = datasets()
    if name not in known:
        raise unknown_name("dataset", name, known)
    return known[name]


def list_dataset(name: str, root: str | Path, **options: Any) -> Listing:
    """The files and splits of a dataset. Options that are None or False count as not given."""
    facts = dataset_info(name)
    if facts.list_files is None:
        hint = f"`ripe sim make {name}` makes it"
        raise ConfigError.expected("dataset", "a recorded dataset", f"the simulated {name}", hint=hint)
    given = {option: value for option, value in options.items() if value is not None and value is not False}
    if unknown := sorted(set(given) - set(facts.options)):
        raise ConfigError.expected(unknown[0], f"no such option for {name}", given[unknown[0]])
    root = Path(os.fspath(root))
    files, folders = _walk(root)
    tree = {"folders": folders} if "folders" in facts.options else {}
    return replace(facts.list_files(root, files, **given, **tree), options=given)


def _walk(root: Path) -> tuple[list[str], list[str]]:
    """All files and folders below the root, relative to it; hidden ones are skipped."""

    def refuse(error: OSError) -> None:
        raise DataError.expected("root", "a folder that can be read", error, path=error.filename) from error

    try:
        if not root.is_dir():
            what = "a file" if root.exists() else "nothing"
            raise DataError.expected("root", "the folder of the dataset", what, path=root)
    except OSError as error:
        refuse(error)
    files, folders = [], []
    seen = set()  # folders seen so far, to detect cyclic links
    for folder, below, names in os.walk(root, onerror=refuse, followlinks=True):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:
            raise DataError.expected("root", "every folder once", "a link to one that was listed before", path=folder)
        seen.add((status.st_dev, status.st_ino))
        below[:] = sorted(name for name in below if not name.startswith("."))
        relative = Path(folder).relative_to(root)
        folders += [(relative / name).as_posix() for name in below]
        files += [(relative / name).as_posix() for name in sorted(names) if not name.startswith(".")]
    return files, folders
