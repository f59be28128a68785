"""Any tree of `class/recording`, or of `train/class/recording`, `test/…` (and `val/…`), in any format."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
    "folder", title="your own", partitions=("folders", "share-…"), sizes="any", sensor="any",
    files="CLASS/RECORDING, or train/CLASS/RECORDING …",
    options=("test_share", "sensor_size", "time_unit", "crop", "folders"),
)  # fmt: skip
def list_folder(
    root: Path,
    files: Sequence[str],
    folders: Sequence[str] = (),
    test_share: float | None = None,
    sensor_size: tuple[int, int] | None = None,
    time_unit: str | None = None,
    crop: tuple[int, int, int, int] | None = None,
) -> Listing:
    """`folders` are the tree's folders, to detect empty classes; `test_share` splits a tree without train and test.

    `crop` (x, y, width, height) is the part of the sensor that is kept.
    """
    crop = None if crop is None else check_crop(crop, sensor_size)
    folders = [path for path in folders if not set(path.split("/")) & set(SYSTEM_FOLDERS)]
    visible = [
        path for path in files if not path.rsplit("/", 1)[-1].startswith(".") and not path.endswith(SIDECAR_SUFFIXES)
    ]
    recordings = [path for path in visible if not _is_stray(path)]
    strays = tuple(path for path in visible if _is_stray(path))
    tops = {path.split("/")[0] for path in [*recordings, *folders] if "/" in path or path in folders}
    split = bool(tops) and tops <= {top for top in tops if top.lower() in SPLIT_NAMES}
    depth = 3 if split else 2
    for path in recordings:
        if path.count("/") != depth - 1:
            wanted = "split/class/recording" if split else "class/recording"
            raise DataError.expected("files", wanted, path, path=root / path)
    filled = {path.rsplit("/", 1)[0] for path in recordings}
    for folder in sorted(folders):
        if folder.count("/") == depth - 2 and folder not in filled:
            raise DataError.expected("files", "at least one recording a class", "none", path=root / folder)
    classes = tuple(sorted({path.split("/")[-2] for path in recordings}))
    recordings.sort()
    labels = [classes.index(path.split("/")[-2]) for path in recordings]
    if split:
        if test_share is not None:
            raise DataError.expected("test_share", "none with train and test folders", test_share, path=root)
        partition, parts = "folders", [SPLIT_NAMES[path.split("/")[0].lower()] for path in recordings]
    elif test_share is not None:
        if not 0 < test_share < 1:
            raise DataError.expected("test_share", "a number between 0 and 1", test_share)
        # Chosen like the validation split, by names only.
        clips = [Clip(*named) for named in zip(recordings, labels, strict=True)]
        held_out = hold_out_validation("folder-test", clips, [TRAIN] * len(clips), test_share)
        partition, parts = f"share-{test_share:g}", [TEST if part == VALIDATION else TRAIN for part in held_out]
    else:
        partition, parts = UNSPLIT, [NONE] * len(recordings)
    made = make_listing(
        "folder", classes, zip(recordings, recordings, labels, parts, strict=True), partition,
        hold_out=VALIDATION not in parts, sensor_size=sensor_size, time_unit=time_unit, passed_over=strays, crop=crop,
    )  # fmt: skip
    return replace(made, notes=_notes(made))


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
