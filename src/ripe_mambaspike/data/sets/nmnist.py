"""N-MNIST: `Train/<digit>/NNNNN.bin` and `Test/<digit>/NNNNN.bin`, 60,000 and 10,000; and the 600 that ship with this
project's development data, every third of which is its test part."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ripe_mambaspike.data.listing import TEST, TRAIN, Listing, make_listing
from ripe_mambaspike.data.mirrors import ORCHARD_2015, DownloadInfo, mendeley_archive
from ripe_mambaspike.data.sets.registry import register_dataset

SENSOR = (34, 34)
CLASSES = tuple("0123456789")
SIZES = {"train": 60_000, "test": 10_000}
# Of the lists that follow from MNIST's labels: file NNNNN is image NNNNN − 1.
PUBLISHED = "7755032b17097c5adaf18cd6c331808a7c91ed130b960968080b0702120d9dba"
PUBLISHED_600 = "611ac9dd772161abc384e8f78bf775bf0a547b7f6e4cab2d3229da28691a747a"
FILE = re.compile(r"(?:.*/)?((Train|Test)/([0-9])/(\d{5}))\.bin")
DOWNLOAD = DownloadInfo(
    "N-MNIST",
    "CC BY-SA 4.0",
    ORCHARD_2015,
    "https://www.garrickorchard.com/datasets/n-mnist",
    archives=tuple(
        mendeley_archive(f"{name}.zip", "468j46mzdv", file, f"md5:{md5}", name)
        for name, file, md5 in (
            ("Train", "39c25547-014b-4137-a934-9d29fa53c7a0", "20959b8e626244a1b502305a9e6e2031"),
            ("Test", "05a4d654-7e03-4c15-bdfa-9bb2bcbea494", "69ca8762b2fe404d9b9bad1103e97832"),
        )
    ),
    instructions="Both archives are also to be had with a browser from the home page.",
)


@register_dataset(
    "nmnist", title="N-MNIST", partitions=("folders",), sizes="60000/10000", sensor="34×34",
    files="Train/D/NNNNN.bin, Test/D/NNNNN.bin", download=DOWNLOAD,
)  # fmt: skip
def list_nmnist(root: Path, files: Sequence[str]) -> Listing:
    found = sorted(_find(files), key=lambda row: row[3:])
    rows = [(path, name, label, split) for split, _, label, name, path in found]
    there = Counter(split for _, _, _, split in rows)
    missing = [split for split, wanted in SIZES.items() if there[split] != wanted]
    notes = [f"{there[split]:,} of the {SIZES[split]:,} {split} recordings are there" for split in missing]
    return make_listing(
        "nmnist", CLASSES, rows, "folders", hold_out=True, published=PUBLISHED, sensor_size=SENSOR, notes=tuple(notes)
    )


@register_dataset(
    "nmnist-600", title="N-MNIST, its first 600", partitions=("thirds",), sizes="400/200", sensor="34×34",
    files="Train/D/NNNNN.bin",
)  # fmt: skip
def list_nmnist_600(root: Path, files: Sequence[str]) -> Listing:
    """Recordings 1 to 600 of N-MNIST's training split; those whose number is divisible by three are tested."""
    found = sorted(row for row in _find(files) if row[0] == TRAIN and row[1] <= 600)
    rows = [(path, name, label, TRAIN if number % 3 else TEST) for _, number, label, name, path in found]
    return make_listing(
        "nmnist-600", CLASSES, rows, "thirds", hold_out=True, published=PUBLISHED_600, sensor_size=SENSOR,
        notes=() if len(rows) == 600 else (f"{len(rows)} of the 600 recordings are there",),
    )  # fmt: skip


def _find(files: Sequence[str]) -> list[tuple[str, int, int, str, str]]:
    """(split, number, label, name, path) of each recording."""
    found = [(match, path) for path in files if (match := FILE.fullmatch(path))]
    return [(match[2].lower(), int(match[4]), int(match[3]), match[1], path) for match, path in found]
