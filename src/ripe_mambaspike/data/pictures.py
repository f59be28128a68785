"""Pictures to simulate recordings of: listed first, read when needed; grey, values 0 to 1.

Supported are MNIST's IDX files (`train-images…`, `train-labels…`, `t10k-…`, gzipped or not), CIFAR-10's binary
batches, and trees of `class/picture`, or of `train/class/picture` and `test/class/picture`, in a folder or a zip file.
"""

import gzip
import hashlib
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.data import cifar_batches
from ripe_mambaspike.data.listing import NONE, TEST, TRAIN
from ripe_mambaspike.data.sets.cifar10dvs import CLASSES as CIFAR_CLASSES
from ripe_mambaspike.data.sets.folder import SPLIT_NAMES
from ripe_mambaspike.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png")
IDX = re.compile(r"(train|t10k)[-.](images|labels)[-.]idx[13][-.]ubyte(\.gz)?")
IDX_SPLITS = {"train": TRAIN, "t10k": TEST}
MIN_SIDE, MAX_SIDE = 8, 4096  # of a picture's side
EXPECTED = "MNIST's IDX files, CIFAR-10's binary batches, or class/picture.jpg or .png in a folder or a zip file"
READ_ERRORS = (
    OSError,
    EOFError,
    zlib.error,
    zipfile.BadZipFile,
    NotImplementedError,
    ValueError,
    SyntaxError,
    RuntimeError,
)


@dataclass(frozen=True)
class Picture:
    """One picture, not yet read."""

    member: str  # its file in the folder or zip file; the IDX file or batch it is in
    label: int
    part: str  # '' where the pictures are not split
    number: int  # in an IDX file or batch from 0; by the last digits of a name, −1 without any


@dataclass(frozen=True)
class Pictures:
    """All of them, by part, class and number."""

    source: Path
    classes: tuple[str, ...]
    listed: tuple[Picture, ...]


def find_pictures(path: str | Path) -> Pictures:
    """List the pictures at the path."""
    path = Path(path)
    try:
        if path.is_file():
            if IDX.fullmatch(path.name) or cifar_batches.BATCH.fullmatch(path.name):
                return find_pictures(path.parent)
            return _list_tree(path, _zip_names(path))
        if not path.is_dir():
            raise DataError.expected("images", EXPECTED, "nothing", path=path)
        found = sorted(each.relative_to(path) for each in path.rglob("*") if each.is_file())
    except OSError as error:
        raise DataError.expected("images", "files that can be read", error, path=error.filename or path) from error
    files = [each for each in found if not any(name.startswith(".") for name in each.parts)]
    if any(IDX.fullmatch(each.name) for each in files):
        return _list_idx(path, files)
    if batches := [each for each in files if cifar_batches.BATCH.fullmatch(each.name)]:
        listed = [Picture(file.as_posix(), *at) for file, at in cifar_batches.list_batches(path, batches)]
        listed.sort(key=lambda picture: (picture.part, picture.label, picture.member, picture.number))
        return Pictures(path, CIFAR_CLASSES, tuple(listed))
    if any(cifar_batches.PICKLED.fullmatch(each.name) for each in files):
        hint = "its binary version has the same pictures"
        raise DataError.expected("images", EXPECTED, "CIFAR-10's pickled batches", path=path, hint=hint)
    names = [each.as_posix() for each in files]
    zips = [name for name in names if name.lower().endswith(".zip")]
    if len(zips) == 1 and not any(name.lower().endswith(SUFFIXES) for name in names):
        return find_pictures(path / zips[0])
    return _list_tree(path, names)


def read_pictures(source: Path, listed: Sequence[Picture]) -> list[NDArray[np.float32]]:
    """The pictures [h, w], each of its own size."""
    return [_decode(source, picture, data) for picture, data in zip(listed, _contents(source, listed), strict=True)]


def pad_to_square(picture: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pad to a square with the median brightness of the border, so that the border itself causes few events.

    Around the square all is black: a background that is not black is extended beyond the sensor's field of view.
    """
    edge = np.concatenate([picture[0], picture[-1], picture[1:-1, 0], picture[1:-1, -1]])
    ground = np.sort(edge)[len(edge) // 2]
    side = max(picture.shape) * (2 if ground > 0 else 1)
    square = np.full((side, side), ground, np.float32)
    top, left = (side - picture.shape[0]) // 2, (side - picture.shape[1]) // 2
    square[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return square


def picture_checksums(source: Path, listed: Sequence[Picture]) -> list[str]:
    """A checksum of each picture's content, independent of its container; raises for unreadable pictures."""
    checksums = []
    for picture, data in zip(listed, _contents(source, listed), strict=True):
        _decode(source, picture, data)
        shape = b"" if isinstance(data, bytes) else str(data.shape).encode()
        checksums.append(hashlib.sha256(shape + (data if isinstance(data, bytes) else data.tobytes())).hexdigest())
    return checksums


def _contents(source: Path, listed: Sequence[Picture]) -> Iterator[Any]:
    """The bytes of each picture's file, or its values [h, w] from an IDX file or a batch."""
    with _opened(source) as archive:
        for picture in listed:
            if IDX.fullmatch(Path(picture.member).name):
                yield read_idx(source / picture.member)[picture.number]
                continue
            if cifar_batches.BATCH.fullmatch(Path(picture.member).name):
                record = cifar_batches.read_batch(source / picture.member)[picture.number]
                yield cifar_batches.gray_picture(record)
                continue
            try:
                yield archive.read(picture.member) if archive else (source / picture.member).read_bytes()
            except (*READ_ERRORS, KeyError) as error:
                where = source / picture.member
                raise DataError.expected("picture", "a readable file", str(error), path=where) from error


@contextmanager
def _opened(source: Path) -> Iterator[zipfile.ZipFile | None]:
    if source.is_dir():
        yield None
        return
    try:
        archive = zipfile.ZipFile(source)
    except READ_ERRORS as error:
        raise DataError.expected("images", EXPECTED, f"no zip file, or a damaged one ({error})", path=source) from error
    with archive:
        yield archive


def _decode(source: Path, picture: Picture, data: Any) -> NDArray[np.float32]:
    """Grey values from 0 to 1."""
    from PIL import Image

    path = source / picture.member
    if not isinstance(data, bytes):
        _check_sides(path, data.shape[1], data.shape[0])
        return data.astype(np.float32) / np.float32(255)
    try:
        with Image.open(io.BytesIO(data)) as image:
            _check_sides(path, *image.size)
            if image.mode.startswith("I"):  # 16 bits
                return (np.asarray(image).astype(np.float32) / np.float32(65535)).clip(0, 1)
            return np.asarray(image.convert("L")).astype(np.float32) / np.float32(255)
    except (*READ_ERRORS, Image.DecompressionBombError) as error:
        reason = str(error).split("\n")[0]
        raise DataError.expected("picture", "JPEG or PNG", f"another file, or damage ({reason})", path=path) from error


def _check_sides(path: Path, width: int, height: int) -> None:
    if not MIN_SIDE <= min(width, height) <= max(width, height) <= MAX_SIDE:
        raise DataError.expected("picture", f"sides from {MIN_SIDE} to {MAX_SIDE}", f"{width}×{height}", path=path)


def _zip_names(path: Path) -> list[str]:
    with _opened(path) as archive:
        names = [] if archive is None else [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    return sorted(name for name in names if not any(part.startswith((".", "__MACOSX")) for part in name.split("/")))


def _list_tree(source: Path, names: Sequence[str]) -> Pictures:
    """Pictures by the folders that they are in; folders around all of them do not count."""
    paths = {name: name.split("/") for name in names if name.lower().endswith(SUFFIXES)}
    if not paths:
        raise DataError.expected("images", EXPECTED, "no pictures", path=source)
    while all(len(parts) > 2 for parts in paths.values()) and len({parts[0] for parts in paths.values()}) == 1:
        if next(iter(paths.values()))[0].lower() in SPLIT_NAMES:
            break
        paths = {name: parts[1:] for name, parts in paths.items()}
    split = all(len(parts) == 3 and parts[0].lower() in SPLIT_NAMES for parts in paths.values())
    for name, parts in paths.items():
        if len(parts) != (3 if split else 2):
            raise DataError.expected("images", "class/picture or train/class/picture", name, path=source / name)
    classes = tuple(sorted({parts[-2] for parts in paths.values()}))
    labels = {name: label for label, name in enumerate(classes)}
    listed = []
    for name, parts in paths.items():
        digits = re.findall(r"[0-9]+", parts[-1].rsplit(".", 1)[0])
        part = SPLIT_NAMES[parts[0].lower()] if split else NONE
        listed.append(Picture(name, labels[parts[-2]], part, int(digits[-1]) if digits else -1))
    listed.sort(key=lambda picture: (picture.part, picture.label, picture.number, picture.member))
    return Pictures(source, classes, tuple(listed))


def _list_idx(folder: Path, files: Sequence[Path]) -> Pictures:
    """Pictures of IDX files, each paired with its labels."""
    found: dict[tuple[str, str], Path] = {}
    for path in files:
        if match := IDX.fullmatch(path.name):
            kept = found.setdefault((match[1], match[2]), path)
            if path not in (kept, kept.with_name(f"{kept.name}.gz")):  # packed and not packed may lie side by side
                raise DataError.expected("images", "every file once", f"'{kept}' and '{path}'", path=folder)
    listed: list[Picture] = []
    highest = 0
    for stem, part in IDX_SPLITS.items():
        images, labels = found.get((stem, "images")), found.get((stem, "labels"))
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            missing = "images" if images is None else "labels"
            where = folder / (images or labels or "")
            raise DataError.expected("images", f"{stem}-{missing} beside it", "none", path=where)
        values, named = read_idx(folder / images), read_idx(folder / labels)
        if values.ndim != 3 or named.ndim != 1:
            got = f"{values.ndim} and {named.ndim}"
            raise DataError.expected("images", "3 axes, and 1 of labels", got, path=folder / images)
        if len(values) != len(named):
            got = f"{len(named):,} labels for {len(values):,} pictures"
            raise DataError.expected("images", "one label for each picture", got, path=folder / images)
        listed += [Picture(images.as_posix(), label, part, number) for number, label in enumerate(named.tolist())]
        highest = max(highest, *named.tolist()) if len(named) else highest
    if not listed:
        raise DataError.expected("images", EXPECTED, "no pictures", path=folder)
    return Pictures(folder, tuple(str(label) for label in range(highest + 1)), tuple(listed))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of an IDX file of bytes."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError.expected("images", "a readable file", error, path=path) from error
    return _read_idx(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)  # a shard reads hundreds of pictures from one file; the key changes with the file
def _read_idx(path: Path, changed: int, size: int) -> NDArray[np.uint8]:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        zero, kind, axes = struct.unpack(">HBB", data[:4])
        shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    except (*READ_ERRORS, struct.error) as error:
        raise DataError.expected("images", "an IDX file", f"another, or damage ({error})", path=path) from error
    body = len(data) - 4 - 4 * axes
    if (zero, kind) != (0, 8) or axes not in (1, 3):
        got = f"one that begins with {data[:4].hex()}"
        raise DataError.expected("images", "an IDX file of bytes with one or three axes", got, path=path)
    if body != int(np.prod(shape, dtype=object)):
        raise DataError.expected("images", f"{'×'.join(map(str, shape))} bytes", f"{body:,}", path=path)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)
