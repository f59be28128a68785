"""CIFAR10-DVS: `<class>/cifar10_<class>_<0–999>.aedat`, 1000 a class, AEDAT 2.0.

Three splits are in use, and give different numbers: the first hundred of every class as test, the last hundred, or a
hundred by lot. By number, not by name: `_10` comes after `_2`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from ripe_mambaspike.data.listing import (
    TEST,
    TRAIN,
    Listing,
    check_listing,
    hash_rank,
    hold_out_validation,
    make_cut,
    one_clip_each,
)
from ripe_mambaspike.errors import DataError

SENSOR = (128, 128)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
EACH = 1000
TESTED = 100
PUBLISHED = {
    "first-100": "26e0cb8a9e9bbb7c02a057815c4f67e31b33b1d783676c28993081435f6d5a68",
    "last-100": "e09896918cc89430f8ee086d1221314b4703d592b8d0aaf48936206ec116300c",
    "random-100": "089c131c4553efaf8a1539c2bfef5984dc9e81d0bee7ce3dbf92354306a4392a",
}
FILE = re.compile(r"(?:.*/)?cifar10_([a-z]+)_(\d+)\.aedat4?")


def list_cifar10dvs(root: Path, files: Sequence[str], partial: bool = False) -> Listing:
    found: dict[tuple[int, int], str] = {}
    for path in files:
        match = FILE.fullmatch(path)
        if match and match[1] in CLASSES and int(match[2]) < EACH:
            place = (CLASSES.index(match[1]), int(match[2]))
            if place in found:
                raise DataError(f"{root} holds '{found[place]}' and '{path}'; every recording once is wanted")
            found[place] = path
    notes = []
    missing = [(label, number) for label in range(10) for number in range(EACH) if (label, number) not in found]
    if missing and found:
        label, number = missing[0]
        name = f"cifar10_{CLASSES[label]}_{number}.aedat"
        if not partial:
            raise DataError(
                f"{root} lacks {len(missing):,} of the 10,000 recordings that the split lists name, "
                f"'{name}' first; all of them, or --partial, are wanted"
            )
        notes.append(f"{len(found):,} of the 10,000 recordings are there")
    places = sorted(found)
    named = ((found[label, number], f"cifar10_{CLASSES[label]}_{number}", label) for label, number in places)
    sources = one_clip_each(named)
    clips = [source.clips[0] for source in sources]
    cuts = {}
    for name, tested in _tested().items():
        parts = hold_out_validation("cifar10dvs", clips, [TEST if place in tested else TRAIN for place in places])
        cuts[name] = make_cut(name, clips, parts, PUBLISHED[name])
    return check_listing(Listing("cifar10dvs", CLASSES, sources, cuts, SENSOR, notes=tuple(notes)), str(root))


def _tested() -> dict[str, set[tuple[int, int]]]:
    """(label, number) of the test recordings of each split."""
    numbers = range(EACH)
    return {
        "first-100": {(label, number) for label in range(10) for number in numbers[:TESTED]},
        "last-100": {(label, number) for label in range(10) for number in numbers[-TESTED:]},
        "random-100": {
            (label, number)
            for label in range(10)
            for number in sorted(numbers, key=lambda n: hash_rank("cifar10dvs-random", f"{CLASSES[label]}_{n}"))[
                :TESTED
            ]
        },
    }
