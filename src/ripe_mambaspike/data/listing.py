"""The contents of a dataset before any file is read: its files, the clips in them, and its splits."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import DataError

TRAIN, VALIDATION, TEST, NONE = "train", "val", "test", ""
SPLITS = (TRAIN, VALIDATION, TEST)
UNSPLIT = "unsplit"  # the partition of a dataset without splits
VALIDATION_SHARE = 0.1  # of a class's training clips, kept for validation


@dataclass(frozen=True)
class Clip:
    """One sample: a file, or a span of one."""

    name: str  # unique in the set
    label: int
    start_us: int | None = None
    stop_us: int | None = None


@dataclass(frozen=True)
class SourceFile:
    """A file of the set, relative to its root, and the clips in it."""

    path: str
    clips: tuple[Clip, ...]


@dataclass(frozen=True)
class Partition:
    """One way to split a dataset. `parts` has the split of every clip of the listing, in order; '' if it is unused."""

    name: str
    parts: tuple[str, ...]
    checksum: str  # of the names in each split
    published: bool  # whether this is the complete split used in the literature

    def sizes(self) -> dict[str, int]:
        counted = Counter(self.parts)
        return {split: counted[split] for split in SPLITS}


@dataclass(frozen=True)
class Listing:
    """A whole set."""

    name: str
    classes: tuple[str, ...]
    sources: tuple[SourceFile, ...]
    partitions: Mapping[str, Partition]  # the first is the default
    sensor_size: tuple[int, int] | None = None  # None: as the recordings say
    time_unit: str | None = None
    notes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # what it was listed with
    passed_over: tuple[str, ...] = ()  # files that are not recordings
    format: str | None = None  # of its files; None: recognized by content
    crop: tuple[int, int, int, int] | None = None  # (x, y, width, height) of the sensor that is kept; None: all of it

    @property
    def clips(self) -> tuple[Clip, ...]:
        return tuple(clip for source in self.sources for clip in source.clips)


def make_partition(
    name: str, clips: Sequence[Clip], parts: Sequence[str], published: str | bool | None = None
) -> Partition:
    """`published` is the checksum of the literature's list, or whether this is that list."""
    checksum = checksum_of((split, clip.name) for clip, split in zip(clips, parts, strict=True) if split)
    return Partition(name, tuple(parts), checksum, published is True or checksum == published)


def make_listing(
    name: str,
    classes: tuple[str, ...],
    rows: Iterable[tuple[str, str, int, str]],
    partition: str,
    *,
    hold_out: bool = False,
    published: str | bool | None = None,
    **options: Any,
) -> Listing:
    """A dataset of one clip per file, with one partition.

    rows: (path, the clip's name, label, split) of each file; the name does not include the folders around the dataset
    hold_out: whether validation clips are taken from the training split
    published: as in `make_partition`
    options: further fields of the `Listing`
    """
    rows = list(rows)
    clips = [Clip(clip, label) for _, clip, label, _ in rows]
    sources = tuple(SourceFile(row[0], (clip,)) for row, clip in zip(rows, clips, strict=True))
    splits = [split for _, _, _, split in rows]
    if hold_out:
        splits = hold_out_validation(name, clips, splits)
    return Listing(name, classes, sources, {partition: make_partition(partition, clips, splits, published)}, **options)


def checksum_of(lines: Iterable[tuple[str, str]]) -> str:
    """The checksum of the sorted `split name` lines, which does not depend on the order of the files."""
    text = "".join(f"{split} {name}\n" for split, name in sorted(lines))
    return _hash(text)


def hash_rank(salt: str, name: str) -> str:
    """A sort key that shuffles names reproducibly, on every machine and with every version."""
    return _hash(f"{salt}/{name}")


def _hash(text: str) -> str:
    """The hash of a text; file names in it may be undecodable."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def hold_out_validation(
    salt: str, clips: Sequence[Clip], parts: Sequence[str], share: float = VALIDATION_SHARE
) -> list[str]:
    """Move a share of each class's training clips to validation, at least one if there are several."""
    held = list(parts)
    by_class: dict[int, list[int]] = {}
    for index, (clip, split) in enumerate(zip(clips, parts, strict=True)):
        if split == TRAIN:
            by_class.setdefault(clip.label, []).append(index)
    for members in by_class.values():
        take = min(len(members) - 1, max(1, round(share * len(members))))
        for index in sorted(members, key=lambda member: hash_rank(salt, clips[member].name))[:take]:
            held[index] = VALIDATION
    return held


def without_files(listing: Listing, paths: Collection[str]) -> Listing:
    """The listing without some of its files; its splits no longer count as published. No class may become empty."""
    if not paths:
        return listing
    sources = tuple(source for source in listing.sources if source.path not in paths)
    clips = [clip for source in sources for clip in source.clips]
    if lost := sorted({clip.label for clip in listing.clips} - {clip.label for clip in clips}):
        name = listing.classes[lost[0]]
        raise DataError.expected(name, "a class with a recording that can be read", "none")
    kept = [source.path not in paths for source in listing.sources for _ in source.clips]
    partitions = {
        name: make_partition(name, clips, [split for split, stays in zip(partition.parts, kept, strict=True) if stays])
        for name, partition in listing.partitions.items()
    }
    return replace(listing, sources=sources, partitions=partitions)


def check_listing(listing: Listing, root: str | Path) -> Listing:
    """The listing, after checking that it is not empty and names are unique."""
    if not listing.sources:
        raise DataError.expected("files", f"recordings of {listing.name}", "none", path=root)
    counted = Counter(clip.name for clip in listing.clips)
    name, count = counted.most_common(1)[0]
    if count > 1:
        raise DataError.expected("files", "every clip once", f"'{name}' {count} times", path=root)
    return listing
