"""Any tree of `class/recording`, or of `train/class/recording`, `test/…` (and `val/…`), in any format.

A table of labels (`data/label_table.py`) takes the place of the folders, for recordings that are not in class folders.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ripe_mambaspike.data.label_table import read_label_table
from ripe_mambaspike.data.listing import (
    NONE,
    TEST,
    TRAIN,
    UNSPLIT,
    VALIDATION,
    Clip,
    Listing,
    hold_out_validation,
    make_listing,
)
from ripe_mambaspike.data.sets.registry import register_dataset
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.events.reading import find_format
from ripe_mambaspike.events.region import check_crop

SPLIT_NAMES = {"train": TRAIN, "training": TRAIN, "val": VALIDATION, "valid": VALIDATION, "validation": VALIDATION}
SPLIT_NAMES |= {"test": TEST, "testing": TEST}
SIDECAR_SUFFIXES = ("_labels.csv",)  # files that belong to a recording
SYSTEM_FOLDERS = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information")
# Suffixes that recordings never have (.db and .ini come from operating systems), and names of description files.
NON_RECORDING_SUFFIXES = (
    ".avi", ".cfg", ".db", ".doc", ".docx", ".gif", ".html", ".ini", ".ipynb", ".jpeg", ".jpg", ".json", ".lnk", ".md",
    ".md5", ".mp4", ".pdf", ".png", ".py", ".rst", ".sh", ".sha256", ".svg", ".toml", ".xls", ".xlsx", ".xml", ".yaml",
    ".yml",
)  # fmt: skip
DESCRIPTION_NAMES = ("readme", "license", "licence", "copying", "citation", "changelog", "notice", "authors")


@register_dataset(
    "folder", title="your own", partitions=("folders", "share-…", "labels"), sizes="any", sensor="any",
    files="CLASS/RECORDING, or train/CLASS/RECORDING …",
    options=("test_share", "labels", "format", "sensor_size", "time_unit", "crop", "folders"),
)  # fmt: skip
def list_folder(
    root: Path,
    files: Sequence[str],
    folders: Sequence[str] = (),
    test_share: float | None = None,
    sensor_size: tuple[int, int] | None = None,
    time_unit: str | None = None,
    crop: tuple[int, int, int, int] | None = None,
    labels: str | Path | None = None,
    format: str | None = None,
) -> Listing:
    """`folders` are the tree's folders, to detect empty classes; `test_share` splits a tree without train and test.

    `crop` (x, y, width, height) is the part of the sensor that is kept. `labels` is a table of the files' classes, and
    splits if it has any, in place of folders. `format` is that of all files, where it is not recognized by content.
    """
    if format is not None:
        find_format(format)
    crop = None if crop is None else check_crop(crop, sensor_size)
    folders = [path for path in folders if not set(path.split("/")) & set(SYSTEM_FOLDERS)]
    visible = [
        path for path in files if not path.rsplit("/", 1)[-1].startswith(".") and not path.endswith(SIDECAR_SUFFIXES)
    ]
    table = None if labels is None else _find_table(root, labels)
    if table is None:
        found = [path for path in visible if not _is_stray(path)]
        recordings, named, splits = _by_folders(root, found, folders)
    else:
        visible = [path for path in visible if (root / path).resolve() != table]
        recordings, named, splits = _by_table(root, visible, table)
    classes = tuple(sorted(set(named)))
    numbers = [classes.index(name) for name in named]
    if splits is not None:
        if test_share is not None:
            where = "train and test folders" if table is None else "a column of splits"
            raise DataError.expected("test_share", f"none with {where}", test_share, path=root)
        partition, parts = "folders" if table is None else "labels", [SPLIT_NAMES[split] for split in splits]
    elif test_share is not None:
        if not 0 < test_share < 1:
            raise DataError.expected("test_share", "a number between 0 and 1", test_share)
        # Chosen like the validation split, by names only.
        clips = [Clip(*one) for one in zip(recordings, numbers, strict=True)]
        held_out = hold_out_validation("folder-test", clips, [TRAIN] * len(clips), test_share)
        partition, parts = f"share-{test_share:g}", [TEST if part == VALIDATION else TRAIN for part in held_out]
    else:
        partition, parts = UNSPLIT, [NONE] * len(recordings)
    strays = tuple(path for path in visible if path not in set(recordings))
    made = make_listing(
        "folder", classes, zip(recordings, recordings, numbers, parts, strict=True), partition,
        hold_out=VALIDATION not in parts, sensor_size=sensor_size, time_unit=time_unit, passed_over=strays, crop=crop,
        format=format,
    )  # fmt: skip
    return replace(made, notes=_notes(made))


def _by_folders(
    root: Path, recordings: list[str], folders: Sequence[str]
) -> tuple[list[str], list[str], list[str] | None]:
    """The recordings, their classes, and their splits where the tree has such folders."""
    tops = {path.split("/")[0] for path in [*recordings, *folders] if "/" in path or path in folders}
    split = bool(tops) and tops <= {top for top in tops if top.lower() in SPLIT_NAMES}
    depth = 3 if split else 2
    for path in recordings:
        if path.count("/") != depth - 1:
            wanted, hint = (
                "split/class/recording" if split else "class/recording",
                "or --labels FILE.csv names the classes",
            )
            raise DataError.expected("files", wanted, path, path=root / path, hint=hint)
    filled = {path.rsplit("/", 1)[0] for path in recordings}
    for folder in sorted(folders):
        if folder.count("/") == depth - 2 and folder not in filled:
            raise DataError.expected("files", "at least one recording a class", "none", path=root / folder)
    recordings = sorted(recordings)
    splits = [path.split("/")[0].lower() for path in recordings] if split else None
    return recordings, [path.split("/")[-2] for path in recordings], splits


def _by_table(root: Path, files: list[str], table: Path) -> tuple[list[str], list[str], list[str] | None]:
    """The recordings of a table of labels, their classes, and their splits where it has that column."""
    rows = sorted(read_label_table(table, files, list(SPLIT_NAMES)))
    recordings = [row.file for row in rows]
    if missing := sorted({path for path in files if not _is_stray(path)} - set(recordings)):
        got = f"none for {missing[0]}" + (f" and {len(missing) - 1:,} more" if len(missing) > 1 else "")
        raise DataError.expected("labels", f"a row for every recording in {root}", got, path=table)
    splits = [row.split for row in rows] if rows[0].split else None
    return recordings, [row.label for row in rows], splits


def _find_table(root: Path, labels: str | Path) -> Path:
    """The table: in the working folder or, where it is not there, in the root."""
    given = Path(labels)
    return (given if given.is_absolute() or given.exists() else root / given).resolve()


def find_recordings(folder: str | Path) -> list[Path]:
    """The recordings in a folder and the folders in it, sorted: its files, but for those that are named otherwise."""
    folder = Path(folder)
    found = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [
        folder / path
        for path in found
        if not any(part.startswith(".") for part in path.parts)
        and not path.name.endswith(SIDECAR_SUFFIXES)
        and not _is_stray(path.as_posix())
    ]


def _is_stray(path: str) -> bool:
    """Whether the name shows that a file is not a recording."""
    *above, name = path.lower().split("/")
    stem, dot, ending = name.rpartition(".")
    if dot + ending in NON_RECORDING_SUFFIXES or set(path.split("/")[:-1]) & set(SYSTEM_FOLDERS):
        return True
    return not above and (stem or ending) in DESCRIPTION_NAMES


def _notes(listing: Listing) -> tuple[str, ...]:
    """Problems of the split that would distort results."""
    (partition,) = listing.partitions.values()
    if partition.name == UNSPLIT:
        return ("the set has no split; train/ and test/ folders or --test-share give one",)
    notes = []
    for part, meaning in ((TRAIN, "to learn from"), (VALIDATION, "to choose by"), (TEST, "to report on")):
        there = {clip.label for clip, own in zip(listing.clips, partition.parts, strict=True) if own == part}
        if missing := [name for label, name in enumerate(listing.classes) if label not in there]:
            shown = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
            notes.append(f"classes without a recording {meaning} ({part}): {shown}")
    return tuple(notes)
