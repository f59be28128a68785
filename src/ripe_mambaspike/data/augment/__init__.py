"""Augmentation of event clips [B, T, 2, H, W]: floating-point counts, polarity 0 = OFF and 1 = ON.

Pure functions with explicit parameters per sample, small frozen transforms that draw those parameters, and the paper's
settings for each benchmark. Random numbers are drawn on the CPU and then moved, so a CPU and a GPU get the same ones
without synchronizing. Inputs are not modified; if no sample is changed, the input itself is returned.
"""

from ripe_mambaspike.data.augment.draws import batch_generator
from ripe_mambaspike.data.augment.flips import (
    HorizontalFlip,
    PolarityFlip,
    TimeReversal,
    flip_horizontal,
    flip_polarity,
    reverse_time,
)
from ripe_mambaspike.data.augment.geometry import (
    affine_transform,
    cutout,
    displace,
    roll,
    rotations,
    shears,
    temporal_cutout,
)
from ripe_mambaspike.data.augment.mixing import Box, EventCutMix, Mixup, cutmix, mixup, soft_targets
from ripe_mambaspike.data.augment.nda import NDA, OPERATIONS, NDADraw, apply_draw
from ripe_mambaspike.data.augment.relabel import LabelTables, relabel
from ripe_mambaspike.data.augment.settings import (
    BENCHMARKS,
    Augmentation,
    augment_clips,
    augment_labeled,
    augmentation_for,
    label_tables,
    mix,
)
from ripe_mambaspike.data.augment.warp import Warp, elastic_displacement

__all__ = [
    "BENCHMARKS",
    "NDA",
    "OPERATIONS",
    "Augmentation",
    "Box",
    "EventCutMix",
    "HorizontalFlip",
    "LabelTables",
    "Mixup",
    "NDADraw",
    "PolarityFlip",
    "TimeReversal",
    "Warp",
    "affine_transform",
    "apply_draw",
    "augment_clips",
    "augment_labeled",
    "augmentation_for",
    "batch_generator",
    "cutmix",
    "cutout",
    "displace",
    "elastic_displacement",
    "flip_horizontal",
    "flip_polarity",
    "label_tables",
    "mix",
    "mixup",
    "relabel",
    "reverse_time",
    "roll",
    "rotations",
    "shears",
    "soft_targets",
    "temporal_cutout",
]
