"""The part of a sensor that a network bins, and whether a recording fits it.

A network stores the sensor of its training recordings and the crop that was binned. A recording without a sensor size
is assumed to come from that sensor; one with another size is refused unless the caller gave that size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import MAX_SIDE, Events, Recording, is_int

Size = tuple[int, int]  # (width, height)
Crop = tuple[int, int, int, int]  # (x, y, width, height)
SENSOR_SIZES = (
    (34, 34),  # N-MNIST
    (128, 128),  # DVS128
    (240, 180),  # DAVIS240, N-Caltech101
    (304, 240),  # ATIS
    (320, 240),  # DVXplorer Lite
    (320, 320),  # GenX320
    (346, 260),  # DAVIS346
    (640, 480),  # DVXplorer, Gen3, Gen4 VGA
    (1280, 720),  # Gen4, IMX636
)
GUESSED = "the events"  # value of `sensor_size_from` if the file stores no sensor size
FITTED = "region"  # metadata entry of a recording that has been fitted, with its crop


@dataclass(frozen=True)
class SensorRegion:
    """A sensor and the crop of it that is binned. `*_given`: set by the caller, whatever the recording says."""

    size: Size | None = None  # before the crop; None: not known, so each recording's own
    crop: Crop | None = None  # None: all of it
    size_given: bool = False
    crop_given: bool = False

    @property
    def binned_size(self) -> Size | None:
        """The size of the binned area, if known."""
        return self.size if self.crop is None else self.crop[2:]

    def check_size(self, size: Size) -> None:
        """Raise unless a source that names its sensor has the size of the training set, or the given one."""
        if self.size not in (None, size) and (self.size_given or not self.crop_given):
            reason = "as given" if self.size_given else "which the network was trained on"
            wanted = f"{format_size(self.size)}, {reason}"
            raise InputError.expected("sensor_size", wanted, format_size(size), hint=_overrides(size))
        if self.crop is not None:
            check_crop(self.crop, size)

    def decide_size(self, size: Size, size_from: str | None, corner: tuple[int, int]) -> tuple[Size, str | None]:
        """The sensor size of a recording whose events reach to `corner`, and where it comes from.

        `size_from` is the origin of the recording's `size`; if that was guessed, the network's own size is used.
        """
        if self.size is not None and self.size_given:
            return self.size, "the caller"
        if size_from != GUESSED or self.size is None:
            self.check_size(size)
            return size, size_from
        if corner[0] >= self.size[0] or corner[1] >= self.size[1]:
            wanted = f"events on the {format_size(self.size)} sensor which the network was trained on"
            raise InputError.expected("sensor_size", wanted, f"events up to {corner}", hint=_overrides(size))
        return self.size, "the network"

    def fit(self, recording: Recording) -> Recording:
        """The recording as it is binned: of the right sensor, cropped. Possible problems are in its `warnings`.

        A recording that has been fitted, or was cropped this way when its dataset was prepared, is returned unchanged.
        """
        metadata = recording.metadata
        if metadata.get(FITTED) == self or not len(recording):
            return recording
        if (done := metadata.get("crop")) is not None:
            if self.crop == tuple(done) and recording.sensor_size == self.binned_size:
                return recording
            raise InputError.expected("crop", "a whole recording", f"one cropped to {_crop(done)}")
        corner = int(recording["x"].max()), int(recording["y"].max())
        size, size_from = self.decide_size(recording.sensor_size, metadata.get("sensor_size_from"), corner)
        sentences = list(recording.warnings)
        if size_from == GUESSED:
            sentences.append(guessed_size_warning(size))
        events = recording.events
        if corner[0] >= size[0] or corner[1] >= size[1]:
            events = events[inside(events, (0, 0, *size))]
            sentences.append(f"{len(recording) - len(events):,} events outside the {format_size(size)} sensor left out")
        if self.crop is not None:
            events = crop_events(events, check_crop(self.crop, size))
        if not len(events):
            name = "crop" if self.crop else "sensor_size"
            where = f"in the crop {_crop(self.crop)}" if self.crop else f"on the {format_size(size)} sensor"
            raise InputError.expected(name, f"events {where}", "none")
        facts: dict[str, Any] = {**metadata, "sensor_size_from": size_from, "whole_size": size, FITTED: self}
        binned = size if self.crop is None else self.crop[2:]
        return replace(recording, events=events, sensor_size=binned, metadata=facts, warnings=tuple(sentences))


def check_crop(crop: Any, size: Size | None = None) -> Crop:
    """Check (x, y, width, height) against the sensor; raises InputError."""
    values = tuple(crop) if isinstance(crop, tuple | list) else ()
    across, down = size or (MAX_SIDE, MAX_SIDE)
    if len(values) != 4 or not all(map(is_int, values, (0, 0, 1, 1))):
        raise InputError.expected("crop", "x, y, width and height in pixels", _crop(crop))
    left, top, width, height = map(int, values)
    if left + width > across or top + height > down:
        raise InputError.expected("crop", f"a part of the {across}×{down} sensor", _crop(crop))
    return left, top, width, height


def crop_events(events: Events, crop: Crop) -> Events:
    """The events inside the crop, counted from its corner."""
    kept: Events = events[inside(events, crop)]  # a copy
    kept["x"] -= crop[0]
    kept["y"] -= crop[1]
    return kept


def inside(events: Events, crop: Crop) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Which events lie in the crop [n]."""
    x, y, (left, top, width, height) = events["x"], events["y"], crop
    return (x >= left) & (x < left + width) & (y >= top) & (y < top + height)


def likely_size(right: int, bottom: int, sizes: Sequence[Size] = SENSOR_SIZES) -> Size:
    """The first of these sensors that contains the pixel (right, bottom); else just large enough for it."""
    return next((size for size in sizes if right < size[0] and bottom < size[1]), (right + 1, bottom + 1))


def guessed_size_warning(size: Size) -> str:
    """The warning for a sensor size that neither the file nor the network stores."""
    return f"sensor_size: guessed {format_size(size)} from the events; --sensor-size sets it"


def format_size(size: Size | None) -> str:
    return "?" if size is None else f"{size[0]}×{size[1]}"


def _crop(crop: Any) -> str:
    return " ".join(map(str, crop)) if isinstance(crop, tuple | list) else str(crop)[:60]


def _overrides(size: Size) -> str:
    return f"--crop X Y W H takes a part of it, --sensor-size {size[0]} {size[1]} all of it"
