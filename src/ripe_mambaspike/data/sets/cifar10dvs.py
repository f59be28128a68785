"""CIFAR10-DVS: `<class>/cifar10_<class>_<0–999>.aedat`, 1000 a class, AEDAT 2.0.

Three splits are in use, and give different numbers: the first hundred of every class as test, the last hundred, or a
hundred at random. By number, not by name: `_10` comes after `_2`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from ripe_mambaspike.data.listing import (
    TEST,
    TRAIN,
    Clip,
    Listing,
    SourceFile,
    hash_rank,
    hold_out_validation,
    make_partition,
)
from ripe_mambaspike.data.mirrors import DownloadInfo, figshare_archive
from ripe_mambaspike.data.sets.registry import register_dataset
from ripe_mambaspike.errors import DataError

SENSOR = (128, 128)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLIPS_PER_CLASS = 1000
TEST_CLIPS_PER_CLASS = 100
PUBLISHED = {
    "first-100": "26e0cb8a9e9bbb7c02a057815c4f67e31b33b1d783676c28993081435f6d5a68",
    "last-100": "e09896918cc89430f8ee086d1221314b4703d592b8d0aaf48936206ec116300c",
    "random-100": "089c131c4553efaf8a1539c2bfef5984dc9e81d0bee7ce3dbf92354306a4392a",
}
FILE = re.compile(r"(?:.*/)?cifar10_([a-z]+)_(\d+)\.aedat4?")
DOWNLOAD = DownloadInfo(
    "CIFAR10-DVS",
    "CC BY 4.0 by all accounts; the home page has the final word",
    "H. Li et al., CIFAR10-DVS: An Event-Stream Dataset for Object Classification, Front. Neurosci. 11:309, 2017",
    "https://figshare.com/articles/dataset/CIFAR10-DVS_New/4724671",
    archives=tuple(
        figshare_archive(f"{label}.zip", number, md5, label)
        for label, number, md5 in (
            ("airplane", 7712788, "0afd5c4bf9ae06af762a77b180354fdd"),
            ("automobile", 7712791, "8438dfeba3bc970c94962d995b1b9bdd"),
            ("bird", 7712794, "a9c207c91c55b9dc2002dc21c684d785"),
            ("cat", 7712812, "52c63c677c2b15fa5146a8daf4d56687"),
            ("deer", 7712815, "b6bf21f6c04d21ba4e23fc3e36c8a4a3"),
            ("dog", 7712818, "f379ebdf6703d16e0a690782e62639c3"),
            ("frog", 7712842, "cad6ed91214b1c7388a5f6ee56d08803"),
            ("horse", 7712851, "e7cbbf77bec584ffbf913f00e682782a"),
            ("ship", 7712836, "41c7bd7d6b251be82557c6cce9a7d5c9"),
            ("truck", 7712839, "89f3922fd147d9aeff89e76a2b0b70a7"),
        )
    ),
    instructions="Where figshare turns programs away, a browser gets the ten zip files from the home page.",
)


@register_dataset(
    "cifar10dvs", title="CIFAR10-DVS", partitions=tuple(PUBLISHED), sizes="9000/1000", sensor="128×128",
    files="CLASS/cifar10_CLASS_N.aedat", options=("partial",), download=DOWNLOAD,
)  # fmt: skip
def list_cifar10dvs(root: Path, files: Sequence[str], partial: bool = False) -> Listing:
    found: dict[tuple[int, int], str] = {}  # (label, number) → path
    for path in files:
        match = FILE.fullmatch(path)
        if match and match[1] in CLASSES and int(match[2]) < CLIPS_PER_CLASS:
            other = found.setdefault((CLASSES.index(match[1]), int(match[2])), path)
            if other != path:
                raise DataError.expected("files", "every recording once", f"'{other}' and '{path}'", path=root)
    every = [(label, number) for label in range(len(CLASSES)) for number in range(CLIPS_PER_CLASS)]
    missing = [_name(*key) for key in every if key not in found]
    if missing and found and not partial:
        got = f"all but {len(missing):,}, '{missing[0]}.aedat' first"
        hint = "--partial continues without them"
        raise DataError.expected("files", "the 10,000 recordings", got, path=root, hint=hint)
    notes = (f"{len(found):,} of the 10,000 recordings are there",) if missing and found else ()
    keys = sorted(found)
    clips = [Clip(_name(*key), key[0]) for key in keys]
    partitions = {}
    for name, tested in _test_numbers().items():
        parts = [TEST if number in tested[label] else TRAIN for label, number in keys]
        partitions[name] = make_partition(name, clips, hold_out_validation("cifar10dvs", clips, parts), PUBLISHED[name])
    sources = tuple(SourceFile(found[key], (clip,)) for key, clip in zip(keys, clips, strict=True))
    return Listing("cifar10dvs", CLASSES, sources, partitions, SENSOR, notes=notes)


def _name(label: int, number: int) -> str:
    return f"cifar10_{CLASSES[label]}_{number}"


def _test_numbers() -> dict[str, list[set[int]]]:
    """The numbers of each class's test recordings, for each partition."""
    numbers = range(CLIPS_PER_CLASS)
    drawn = (sorted(numbers, key=lambda n: hash_rank("cifar10dvs-random", f"{name}_{n}")) for name in CLASSES)
    return {
        "first-100": [set(numbers[:TEST_CLIPS_PER_CLASS])] * len(CLASSES),
        "last-100": [set(numbers[-TEST_CLIPS_PER_CLASS:])] * len(CLASSES),
        "random-100": [set(order[:TEST_CLIPS_PER_CLASS]) for order in drawn],
    }
