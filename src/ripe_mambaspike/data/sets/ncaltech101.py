"""N-Caltech101: `Caltech101/<class>/image_NNNN.bin`, 8,709 recordings, 100 objects and a background class.

The first ⌈0.9 n⌉ of each class are the training part.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from ripe_mambaspike.data.listing import TEST, TRAIN, Listing, make_listing
from ripe_mambaspike.data.mirrors import ORCHARD_2015, Archive, DownloadInfo
from ripe_mambaspike.data.sets.registry import register_dataset

SENSOR = (240, 180)
PUBLISHED = "5364659b9087ff012baa38d4aba072a817596e9fb2d6cc9c002715460908bde4"
FILE = re.compile(r"(?:.*/)?([^/]+)/image_(\d+)\.bin")
DOWNLOAD = DownloadInfo(
    "N-Caltech101",
    "not confirmed; the home page has the final word",
    ORCHARD_2015,
    "https://www.garrickorchard.com/datasets/n-caltech101",
    # It has no archives until its licence is known to allow downloads.
    by_hand=(Archive("Caltech101.zip", (), None, "md5:66201824eabb0239c7ab992480b50ba3", "Caltech101"),),
    instructions=(
        "A browser gets Caltech101.zip from https://data.mendeley.com/datasets/cy6cvx3ryv/1; "
        "put it into the folder of the set."
    ),
)


@register_dataset(
    "ncaltech101", title="N-Caltech101", partitions=("first-90",), sizes="7886/823", sensor="240×180",
    files="CLASS/image_NNNN.bin", download=DOWNLOAD,
)  # fmt: skip
def list_ncaltech101(root: Path, files: Sequence[str]) -> Listing:
    by_class: dict[str, list[tuple[int, str]]] = {}
    for path in files:
        if match := FILE.fullmatch(path):
            by_class.setdefault(match[1], []).append((int(match[2]), path))
    classes = tuple(sorted(by_class))
    rows = []
    for label, name in enumerate(classes):
        own = sorted(by_class[name])
        trained = -(-9 * len(own) // 10)
        for index, (number, path) in enumerate(own):
            rows.append((path, f"{name}/image_{number:04d}", label, TRAIN if index < trained else TEST))
    there = f"{len(rows):,} recordings of {len(classes)} classes are there; the whole set has 8,709 of 101"
    return make_listing(
        "ncaltech101", classes, rows, "first-90", hold_out=True, published=PUBLISHED, sensor_size=SENSOR,
        notes=() if (len(rows), len(classes)) == (8_709, 101) else (there,),
    )  # fmt: skip
