"""Sets by name: what a person should know about each, and how its files are listed."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ripe_mambaspike.data.listing import Listing
from ripe_mambaspike.data.sets import cifar10dvs, dailydvs200, dvsgesture, folder, ncaltech101, nmnist
from ripe_mambaspike.errors import ConfigError, DataError

STORE = ".ripe"  # the folder in a set's root that holds what is prepared from it


@dataclass(frozen=True)
class DatasetInfo:
    title: str
    cuts: tuple[str, ...]  # the first is the default
    sizes: str  # train + validation / test
    sensor: str
    files: str  # or, of a simulated set, the pictures that it shows
    listing: Callable[..., Listing] | None  # None: simulated, made by `ripe sim make`
    options: tuple[str, ...] = ()  # those of `list_dataset` that it takes

    @property
    def simulated(self) -> bool:
        return self.listing is None


SETS = {
    "dvsgesture": DatasetInfo(
        "DVS-Gesture", ("1176-288", "1077-264"), "1176/288 or 1077/264", "128×128",
        "userNN_LIGHT.aedat + _labels.csv, or userNN_LIGHT/K.npy", dvsgesture.list_dvsgesture,
    ),
    "cifar10dvs": DatasetInfo(
        "CIFAR10-DVS", ("first-100", "last-100", "random-100"), "9000/1000", "128×128",
        "CLASS/cifar10_CLASS_N.aedat", cifar10dvs.list_cifar10dvs, ("partial",),
    ),
    "ncaltech101": DatasetInfo(
        "N-Caltech101", ("first-90",), "7886/823", "240×180", "CLASS/image_NNNN.bin", ncaltech101.list_ncaltech101,
    ),
    "nmnist": DatasetInfo(
        "N-MNIST", ("folders",), "60000/10000", "34×34", "Train/D/NNNNN.bin, Test/D/NNNNN.bin", nmnist.list_nmnist,
    ),
    "nmnist-600": DatasetInfo(
        "N-MNIST, its first 600", ("thirds",), "400/200", "34×34", "Train/D/NNNNN.bin", nmnist.list_nmnist_600,
    ),
    "dailydvs200": DatasetInfo(
        "DailyDVS-200", ("official",), "14773+3180/4093", "320×240",
        "action_K/….aedat4 + train.txt, val.txt, test.txt", dailydvs200.list_dailydvs200, ("partial", "lists"),
    ),
    "folder": DatasetInfo(
        "your own", ("folders", "share-…"), "any", "any", "CLASS/RECORDING, or train/CLASS/RECORDING …",
        folder.list_folder, ("test_share", "sensor_size", "time_unit", "crop", "folders"),
    ),
}  # fmt: skip


SIMULATED = {
    "synthgesture": DatasetInfo("simulated gestures (default)", ("people",), "1320/440", "64×64", "no pictures", None),
    "sim-nmnist": DatasetInfo(
        "simulated stand-in of N-MNIST", ("folders",), "60000/10000", "34×34", "MNIST's IDX files", None,
    ),
    "sim-cifar10": DatasetInfo(
        "simulated stand-in of CIFAR10-DVS", ("first-100",), "9000/1000", "128×128",
        "train/CLASS/N.jpg, test/CLASS/N.jpg", None,
    ),
    "sim-caltech101": DatasetInfo(
        "simulated stand-in of N-Caltech101", ("first-90",), "7857/820", "128×128", "CLASS/image_NNNN.jpg", None,
    ),
}  # fmt: skip


def dataset_info(name: str) -> DatasetInfo:
    known = SETS | SIMULATED
    if name not in known:
        raise ConfigError(f"there is no set '{name}'; one of {', '.join(known)} is wanted")
    return known[name]


def list_dataset(name: str, root: str | Path, **options: Any) -> Listing:
    """The files and splits of a set. Options that are None or False are as if not given."""
    facts = dataset_info(name)
    if facts.listing is None:
        raise ConfigError(f"{name} is simulated: it is made by `ripe sim make {name}`, not prepared from recordings")
    given = {option: value for option, value in options.items() if value is not None and value is not False}
    if strange := sorted(set(given) - set(facts.options)):
        raise ConfigError(f"{strange[0]} was given for {name}, which does not take it")
    root = Path(os.fspath(root))
    files, folders = _walk(root)
    tree = {"folders": folders} if "folders" in facts.options else {}
    return replace(facts.listing(root, files, **given, **tree), options=given)


def _walk(root: Path) -> tuple[list[str], list[str]]:
    """Every file and folder below the root, relative to it; what starts with a dot is passed over."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read ({error.strerror})") from error

    try:
        if not root.is_dir():
            what = "no folder" if root.exists() else "not there"
            raise DataError(f"{root} is {what}; the folder of the set is wanted")
    except OSError as error:
        refuse(error)
    files, folders = [], []
    seen = set()  # folders, so that a link back up does not go round for ever
    for place, below, names in os.walk(root, onerror=refuse, followlinks=True):
        status = Path(place).stat()
        if (status.st_dev, status.st_ino) in seen:
            raise DataError(f"{place} leads to a folder that was listed before; every folder once is wanted")
        seen.add((status.st_dev, status.st_ino))
        below[:] = sorted(name for name in below if not name.startswith("."))
        relative = Path(place).relative_to(root)
        folders += [(relative / name).as_posix() for name in below]
        files += [(relative / name).as_posix() for name in sorted(names) if not name.startswith(".")]
    return files, folders
