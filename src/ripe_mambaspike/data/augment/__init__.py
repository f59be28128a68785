"""Augmentation of event clips [B, T, 2, H, W]: floating-point counts, polarity 0 = OFF and 1 = ON.

Pure functions with explicit parameters a sample, small frozen transforms that draw those parameters, and the paper's
settings for each benchmark. Draws come from a generator on the CPU and are then moved, so a CPU and a GPU make the
same ones and nothing waits for the device. No input is changed; where nothing is hit, the input itself comes back.
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
    "affine_transform",
    "apply_draw",
    "augment_clips",
    "augment_labeled",
    "augmentation_for",
    "batch_generator",
    "cutmix",
    "cutout",
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
