"""Clips to calibrate and check an export with: from the training dataset, or from files."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.data.clips import Clips
from ripe_mambaspike.data.samples import spread_over_classes
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.inference.checkpoint_data import (
    data_settings_of,
    open_data_for,
    split_of,
    store_note,
    trained_store,
)
from ripe_mambaspike.inference.classifier import Classifier, make_clip, read_recording
from ripe_mambaspike.models.labels import Labels


class SampleClips(NamedTuple):
    """Clips [N, T, 2, H, W] and a description."""

    clips: Tensor
    what: str


def from_set(folder: Path, labels: Labels, part: str, count: int, root: Path | None = None) -> SampleClips:
    """`count` clips of a split of the network's own dataset, balanced over classes."""
    found, note = open_split(folder, labels, part, root)
    chosen = spread_over_classes(found.labels.tolist(), min(count, len(found)))
    what = f"{len(chosen)} of the {len(found)} {part} recordings of {labels.set}" + (f" ({note})" if note else "")
    return SampleClips(torch.stack([found.clip(number)[0] for number in chosen]), what)


def open_split(folder: Path, labels: Labels, part: str, root: Path | None = None) -> tuple[Clips, str | None]:
    """A split of the network's own dataset, and a note where it is prepared otherwise than for training."""
    data = open_data_for(folder, labels, data_settings_of(folder, labels, root=root))
    return split_of(data, part), store_note(trained_store(folder, labels), data)


def from_files(classifier: Classifier, paths: Sequence[Path]) -> SampleClips:
    """Recordings of any format; an error names the file."""
    clips = []
    for path in paths:
        try:
            clips.append(make_clip(classifier, read_recording(classifier, path)))
        except RipeError as error:
            raise error.in_file(path) from error
    return SampleClips(torch.stack(clips), f"{len(clips)} recording{'s' * (len(clips) > 1)} given")
