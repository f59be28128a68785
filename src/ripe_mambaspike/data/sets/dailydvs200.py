"""DailyDVS-200: `action_<k>/C<label>P<person>M<moving>S<scene>_<time>.aedat4`, split by the official lists.

The lists come with the set (`train.txt`, `val.txt`, `test.txt`: `path label` a line) and are known here by their
checksums. As published they are not disjoint: all 555 recordings of person 4 stand in `val.txt` and in `test.txt`. They
stay in the test split alone, which leaves 14,773 / 3,180 / 4,093 and no person in two splits.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from ripe_mambaspike.data.listing import SPLITS, TEST, VALIDATION, Listing, make_listing
from ripe_mambaspike.data.mirrors import DownloadInfo
from ripe_mambaspike.data.sets.registry import register_dataset
from ripe_mambaspike.errors import DataError

SENSOR = (320, 240)
CLASSES = tuple(f"action_{number}" for number in range(1, 201))
LISTS = {
    "train": "ee5551c09cd4c7e7f14b9df7369b60a3689d03d67661bc4e2f8c8772c8c8949b",
    "val": "f1f27047d2944a76bcf29d06eb26c5512e7a19e6d25751ba63aaf88002831e05",
    "test": "e423d7c6143b3b907007a8931fe02730a1754f175e1e3644394badb813fa2a0f",
}
LINE = re.compile(r"(action_(\d+)/C(\d+)P(\d+)M\d+S\d+_[\d_]+\.aedat4)\s+(\d+)")
DOWNLOAD = DownloadInfo(
    "DailyDVS-200",
    "MIT",
    "Q. Wang et al., DailyDVS-200: A Comprehensive Benchmark Dataset for Event-Based Action Recognition, ECCV 2024",
    "https://github.com/QiWang233/DailyDVS-200",
    instructions=(
        "The recordings lie on a share that only a person can open and have no published checksums: follow the "
        "link on the home page and unpack them so that action_1/…aedat4 to action_200/…aedat4 stand in the folder "
        "of the set."
    ),
)


@register_dataset(
    "dailydvs200", title="DailyDVS-200", partitions=("official",), sizes="14773+3180/4093", sensor="320×240",
    files="action_K/….aedat4 + train.txt, val.txt, test.txt", options=("partial", "lists"), download=DOWNLOAD,
    official_validation=True,
)  # fmt: skip
def list_dailydvs200(root: Path, files: Sequence[str], partial: bool = False, lists: Path | None = None) -> Listing:
    """`lists` is the folder of the three lists; the root, or a folder in it, when none is given."""
    folder = _find_lists(root, files) if lists is None else Path(lists)
    texts = {split: _read(folder / f"{split}.txt") for split in SPLITS}
    official = all(hashlib.sha256(texts[split]).hexdigest() == LISTS[split] for split in SPLITS)
    named = {split: _parse(texts[split], folder / f"{split}.txt") for split in SPLITS}
    tested = set(named[TEST])
    shared = len(tested & set(named[VALIDATION]))
    named[VALIDATION] = {name: label for name, label in named[VALIDATION].items() if name not in tested}
    if twice := set(named["train"]) & (tested | set(named[VALIDATION])):
        got = f"'{min(twice)}' and {len(twice) - 1} more in train.txt and in another"
        raise DataError.expected("lists", "every training recording in one list", got, path=folder)
    notes = [f"{shared} recordings stand in val.txt and in test.txt; they are in the test part alone"] if shared else []
    if not official:
        notes.append("the lists are not the official ones (by their checksums)")

    paths: dict[str, str] = {}
    for path in files:
        name = "/".join(path.split("/")[-2:])
        if path.endswith(".aedat4") and paths.setdefault(name, path) != path:
            raise DataError.expected("files", "every recording once", f"'{paths[name]}' and '{path}'", path=root)
    wanted = sorted((name, label, split) for split in SPLITS for name, label in named[split].items())
    missing = [name for name, _, _ in wanted if name not in paths]
    if missing and not partial:
        got = f"all but {len(missing):,}, '{missing[0]}' first"
        raise DataError.expected(
            "files", f"the {len(wanted):,} recordings of the lists", got, path=root, hint="--partial continues without"
        )
    if missing:
        notes.append(f"{len(wanted) - len(missing):,} of the {len(wanted):,} recordings are there")
    rows = [(paths[name], name, label, split) for name, label, split in wanted if name in paths]
    published = official and not missing
    return make_listing(
        "dailydvs200", CLASSES, rows, "official", published=published, sensor_size=SENSOR, notes=tuple(notes)
    )


def _find_lists(root: Path, files: Sequence[str]) -> Path:
    holders = [path.removesuffix("train.txt") for path in files if path == "train.txt" or path.endswith("/train.txt")]
    for holder in sorted(holders, key=len):
        if all(f"{holder}{split}.txt" in files for split in SPLITS):
            return root / holder
    raise DataError.expected("lists", "train.txt, val.txt and test.txt of the dataset", "none", path=root)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError.expected("lists", "the dataset's official list", error, path=path) from error


def _parse(text: bytes, path: Path) -> dict[str, int]:
    """{name: label} of one list."""
    named: dict[str, int] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        match = LINE.fullmatch(line.strip())
        if not match or not int(match[2]) - 1 == int(match[3]) == int(match[5]) < len(CLASSES):
            wanted = "action_K/C…P….aedat4 and the label K−1"
            raise DataError.expected(f"line {number}", wanted, repr(line[:80]), path=path)
        if match[1] in named:
            raise DataError.expected(f"line {number}", "every recording once", f"'{match[1]}' again", path=path)
        named[match[1]] = int(match[5])
    return named
