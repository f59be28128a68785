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
    make_cut,
    one_clip_each,
)

SENSOR = (240, 180)
TOTAL = 8_709
PUBLISHED = "5364659b9087ff012baa38d4aba072a817596e9fb2d6cc9c002715460908bde4"
FILE = re.compile(r"(?:.*/)?([^/]+)/image_(\d+)\.bin")


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
    if len(clips) != TOTAL or len(classes) != 101:
        notes.append(f"{len(clips):,} recordings of {len(classes)} classes are there; the whole set has 8,709 of 101")
    cut = make_cut("first-90", clips, hold_out_validation("ncaltech101", clips, parts), PUBLISHED)
    return check_listing(
        Listing("ncaltech101", classes, sources, {cut.name: cut}, SENSOR, notes=tuple(notes)), str(root)
    )
