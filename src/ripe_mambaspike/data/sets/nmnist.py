"""N-MNIST: `Train/<digit>/NNNNN.bin` and `Test/<digit>/NNNNN.bin`, 60,000 and 10,000; and the 600 that ship with this
project's development data, every third of which is its test part."""

import re
from collections.abc import Sequence
from pathlib import Path

from ripe_mambaspike.data.listing import (
    TEST,
    TRAIN,
    Listing,
    check_listing,
    hold_out_validation,
    make_partition,
    one_clip_each,
)
from ripe_mambaspike.data.mirrors import DownloadInfo, mendeley_archive
from ripe_mambaspike.data.sets.registry import register_dataset

SENSOR = (34, 34)
CLASSES = tuple("0123456789")
SIZES = {"train": 60_000, "test": 10_000}
# Of the lists that follow from MNIST's labels: file NNNNN is image NNNNN − 1.
PUBLISHED = "7755032b17097c5adaf18cd6c331808a7c91ed130b960968080b0702120d9dba"
PUBLISHED_600 = "611ac9dd772161abc384e8f78bf775bf0a547b7f6e4cab2d3229da28691a747a"
FILE = re.compile(r"(?:.*/)?(Train|Test)/([0-9])/(\d{5})\.bin")
DOWNLOAD = DownloadInfo(
    title="N-MNIST",
    license="CC BY-SA 4.0",
    citation="G. Orchard et al., Converting Static Image Datasets to Spiking Neuromorphic Datasets Using Saccades, "
    "Front. Neurosci. 9:437, 2015",
    home="https://www.garrickorchard.com/datasets/n-mnist",
    archives=(
        mendeley_archive(
            "Train.zip",
            "468j46mzdv",
            "39c25547-014b-4137-a934-9d29fa53c7a0",
            "md5:20959b8e626244a1b502305a9e6e2031",
            "Train",
        ),
        mendeley_archive(
            "Test.zip",
            "468j46mzdv",
            "05a4d654-7e03-4c15-bdfa-9bb2bcbea494",
            "md5:69ca8762b2fe404d9b9bad1103e97832",
            "Test",
        ),
    ),
    by_hand=(),
    instructions="Both archives are also to be had with a browser from the home page.",
)


@register_dataset(
    "nmnist",
    title="N-MNIST",
    partitions=("folders",),
    sizes="60000/10000",
    sensor="34×34",
    files="Train/D/NNNNN.bin, Test/D/NNNNN.bin",
    download=DOWNLOAD,
)
def list_nmnist(root: Path, files: Sequence[str]) -> Listing:
    found = sorted((match, path) for path in files if (match := _parts(path)))
    sources = one_clip_each((path, "/".join(match), int(match[1])) for match, path in found)
    clips = [source.clips[0] for source in sources]
    parts = [TRAIN if folder == "Train" else TEST for (folder, _, _), _ in found]
    notes = []
    for part, wanted in SIZES.items():
        if (there := parts.count(part)) != wanted:
            notes.append(f"{there:,} of the {wanted:,} {part} recordings are there")
    partition = make_partition("folders", clips, hold_out_validation("nmnist", clips, parts), PUBLISHED)
    return check_listing(
        Listing("nmnist", CLASSES, sources, {partition.name: partition}, SENSOR, notes=tuple(notes)), str(root)
    )


@register_dataset(
    "nmnist-600",
    title="N-MNIST, its first 600",
    partitions=("thirds",),
    sizes="400/200",
    sensor="34×34",
    files="Train/D/NNNNN.bin",
)
def list_nmnist_600(root: Path, files: Sequence[str]) -> Listing:
    """Recordings 1 to 600 of N-MNIST's training part; those whose number three divides are the test part."""
    found = sorted((int(match[2]), int(match[1]), path) for path in files if (match := _parts(path)) and _first(match))
    sources = one_clip_each((path, f"Train/{digit}/{number:05d}", digit) for number, digit, path in found)
    clips = [source.clips[0] for source in sources]
    parts = [TEST if number % 3 == 0 else TRAIN for number, _, _ in found]
    notes = () if len(found) == 600 else (f"{len(found)} of the 600 recordings are there",)
    partition = make_partition("thirds", clips, hold_out_validation("nmnist-600", clips, parts), PUBLISHED_600)
    return check_listing(
        Listing("nmnist-600", CLASSES, sources, {partition.name: partition}, SENSOR, notes=notes), str(root)
    )


def _parts(path: str) -> tuple[str, str, str] | None:
    match = FILE.fullmatch(path)
    return match.groups() if match else None  # type: ignore[return-value]


def _first(match: tuple[str, str, str]) -> bool:
    return match[0] == "Train" and int(match[2]) <= 600
