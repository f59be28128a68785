"""CIFAR-10's own binary batches: `data_batch_1.bin` … `data_batch_5.bin` and `test_batch.bin`.

A record is a label and 32×32 bytes each of red, green and blue. The Python version of the same pictures is pickled,
and nothing here unpickles.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.data.listing import TEST, TRAIN
from ripe_mambaspike.data.sets.cifar10dvs import CLASSES
from ripe_mambaspike.errors import DataError

BATCH = re.compile(r"(data_batch_[1-5]|test_batch)\.bin")
PICKLED = re.compile(r"data_batch_[1-5]|test_batch")
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE
MAX_BATCH_BYTES = 10_000 * RECORD
LUMA = np.array([19595, 38470, 7471], np.uint32)  # of red, green and blue, of 65536: those of Pillow's mode "L"


def list_batches(folder: Path, files: Sequence[Path]) -> list[tuple[Path, tuple[int, str, int]]]:
    """File, and label, split and number in the file, of every picture, in the order of the files."""
    found = []
    for path in sorted(files):
        split = TEST if path.name.startswith("test") else TRAIN
        labels = read_batch(folder / path)[:, 0].tolist()
        found += [(path, (label, split, number)) for number, label in enumerate(labels)]
    return found


def read_batch(path: Path) -> NDArray[np.uint8]:
    """The records of a file [n, RECORD]."""
    try:
        status = path.stat()
        return _read_batch(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise DataError.expected("images", "a readable file", error, path=path) from error


@lru_cache(maxsize=6)  # a shard reads pictures of all of them; the key changes with the file
def _read_batch(path: Path, changed: int, size: int) -> NDArray[np.uint8]:
    if not 0 < size <= MAX_BATCH_BYTES or size % RECORD:
        raise DataError.expected("images", f"1 to 10,000 records of {RECORD:,} bytes", f"{size:,} bytes", path=path)
    records = np.fromfile(path, np.uint8).reshape(-1, RECORD)
    if (highest := int(records[:, 0].max())) >= len(CLASSES):
        raise DataError.expected("images", "labels from 0 to 9", highest, path=path)
    return records


def gray_picture(record: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A record's picture in gray [32, 32], rounded as Pillow rounds."""
    colors = record[1:].reshape(3, SIDE, SIDE).astype(np.uint32)
    return ((np.tensordot(LUMA, colors, 1) + 0x8000) >> 16).astype(np.uint8)
