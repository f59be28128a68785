"""N-Caltech101: `Caltech101/<class>/image_NNNN.bin`, 8,709 recordings, 100 objects and a background class.

The first ⌈0.9 n⌉ of each class are the training part.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from ripe_mambaspike.data.listing import (
    TEST,
    TRAIN,
    Listing,
    check_listing,
    hold_out_validation,
    make_partition,
    one_clip_each,
)
from ripe_mambaspike.data.mirrors import Archive, DownloadInfo
from ripe_mambaspike.data.sets.registry import register_dataset

SENSOR = (240, 180)
NUM_RECORDINGS = 8_709
PUBLISHED = "5364659b9087ff012baa38d4aba072a817596e9fb2d6cc9c002715460908bde4"
FILE = re.compile(r"(?:.*/)?([^/]+)/image_(\d+)\.bin")
DOWNLOAD = DownloadInfo(
    title="N-Caltech101",
    license="not confirmed; the home page has the final word",
    citation="G. Orchard et al., Converting Static Image Datasets to Spiking Neuromorphic Datasets Using Saccades, "
    "Front. Neurosci. 9:437, 2015",
    home="https://www.garrickorchard.com/datasets/n-caltech101",
    archives=(),  # until its licence is known to allow it
    by_hand=(Archive("Caltech101.zip", (), None, "md5:66201824eabb0239c7ab992480b50ba3", "Caltech101"),),
    instructions=(
        "A browser gets Caltech101.zip from https://data.mendeley.com/datasets/cy6cvx3ryv/1; "
        "put it into the folder of the set."
    ),
)


@register_dataset(
    "ncaltech101",
    title="N-Caltech101",
    partitions=("first-90",),
    sizes="7886/823",
    sensor="240×180",
    files="CLASS/image_NNNN.bin",
    download=DOWNLOAD,
)
def list_ncaltech101(root: Path, files: Sequence[str]) -> Listing:
    by_class: dict[str, list[tuple[int, str]]] = {}
    for path in files:
        if match := FILE.fullmatch(path):
            by_class.setdefault(match[1], []).append((int(match[2]), path))
    classes = tuple(sorted(by_class))
    named = [
        (path, f"{name}/image_{number:04d}", label)
        for label, name in enumerate(classes)
        for number, path in sorted(by_class[name])
    ]
    parts = []
    for name in classes:
        count = len(by_class[name])
        trained = -(-9 * count // 10)
        parts += [TRAIN] * trained + [TEST] * (count - trained)
    sources = one_clip_each(named)
    clips = [source.clips[0] for source in sources]
    notes = []
    if len(clips) != NUM_RECORDINGS or len(classes) != 101:
        notes.append(f"{len(clips):,} recordings of {len(classes)} classes are there; the whole set has 8,709 of 101")
    partition = make_partition("first-90", clips, hold_out_validation("ncaltech101", clips, parts), PUBLISHED)
    return check_listing(
        Listing("ncaltech101", classes, sources, {partition.name: partition}, SENSOR, notes=tuple(notes)), str(root)
    )
