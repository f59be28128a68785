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
    make_cut,
    one_clip_each,
)

SENSOR = (34, 34)
CLASSES = tuple("0123456789")
SIZES = {"train": 60_000, "test": 10_000}
# Of the lists that follow from MNIST's labels: file NNNNN is image NNNNN − 1.
PUBLISHED = "7755032b17097c5adaf18cd6c331808a7c91ed130b960968080b0702120d9dba"
PUBLISHED_600 = "611ac9dd772161abc384e8f78bf775bf0a547b7f6e4cab2d3229da28691a747a"
FILE = re.compile(r"(?:.*/)?(Train|Test)/([0-9])/(\d{5})\.bin")


def list_nmnist(root: Path, files: Sequence[str]) -> Listing:
    found = sorted((match, path) for path in files if (match := _parts(path)))
    sources = one_clip_each((path, "/".join(match), int(match[1])) for match, path in found)
    clips = [source.clips[0] for source in sources]
    parts = [TRAIN if folder == "Train" else TEST for (folder, _, _), _ in found]
    notes = []
    for part, wanted in SIZES.items():
        if (there := parts.count(part)) != wanted:
            notes.append(f"{there:,} of the {wanted:,} {part} recordings are there")
    cut = make_cut("folders", clips, hold_out_validation("nmnist", clips, parts), PUBLISHED)
    return check_listing(Listing("nmnist", CLASSES, sources, {cut.name: cut}, SENSOR, notes=tuple(notes)), str(root))


def list_nmnist_600(root: Path, files: Sequence[str]) -> Listing:
    """Recordings 1 to 600 of N-MNIST's training part; those whose number three divides are the test part."""
    found = sorted((int(match[2]), int(match[1]), path) for path in files if (match := _parts(path)) and _first(match))
    sources = one_clip_each((path, f"Train/{digit}/{number:05d}", digit) for number, digit, path in found)
    clips = [source.clips[0] for source in sources]
    parts = [TEST if number % 3 == 0 else TRAIN for number, _, _ in found]
    notes = () if len(found) == 600 else (f"{len(found)} of the 600 recordings are there",)
    cut = make_cut("thirds", clips, hold_out_validation("nmnist-600", clips, parts), PUBLISHED_600)
    return check_listing(Listing("nmnist-600", CLASSES, sources, {cut.name: cut}, SENSOR, notes=notes), str(root))


def _parts(path: str) -> tuple[str, str, str] | None:
    match = FILE.fullmatch(path)
    return match.groups() if match else None  # type: ignore[return-value]


def _first(match: tuple[str, str, str]) -> bool:
    return match[0] == "Train" and int(match[2]) <= 600
