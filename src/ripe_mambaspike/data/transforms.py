"""Transforms of the user over the events of a clip, such as those of tonic, and checks of what they return."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import SIZE_EXPECTED, Events, Recording, is_size, make_events

# What a transform gets. Signed and wide: an event that it moves off the sensor has a coordinate that says so.
TRANSFORM_EVENT = np.dtype([("x", "<i8"), ("y", "<i8"), ("t", "<i8"), ("p", "<i8")])

EventTransform = Callable[[Events], Events]


def check_transform(transform: Any, sensor_size: Any) -> None:
    """Raise unless the transform can be called, and the size of its sensor is one."""
    if transform is not None and not callable(transform):
        raise InputError.expected("transform", "a callable over an array of events", transform)
    if sensor_size is not None and transform is None:
        raise InputError.expected("sensor_size", "a transform that changes the size", "none")
    if sensor_size is not None and not is_size(sensor_size):
        raise InputError.expected("sensor_size", SIZE_EXPECTED, sensor_size)


def apply_transform(
    recording: Recording, transform: EventTransform, sensor_size: tuple[int, int] | None = None
) -> Recording:
    """The recording with transformed events.

    The transform gets a structured array of its own with the fields x, y, t (µs) and p (0 or 1), ordered by time, and
    returns one: inside the sensor, ordered, with at least one event. `sensor_size` (width, height) is that of the
    result, where the transform crops or shrinks.
    """
    size = recording.sensor_size if sensor_size is None else (int(sensor_size[0]), int(sensor_size[1]))
    try:
        found = transform(recording.events.astype(TRANSFORM_EVENT))
        return replace(recording, events=_checked(found, size), sensor_size=size)
    except InputError as error:
        name = recording.metadata.get("name")
        raise InputError(f"{f'{name}: ' if name else ''}transform: {error}", field="transform") from error


def _checked(found: Any, size: tuple[int, int]) -> Events:
    """What a transform returned, as events."""
    names = found.dtype.names if isinstance(found, np.ndarray) else None
    if names is None or found.ndim != 1 or not set("xytp") <= set(names):
        got = f"shape {found.shape} of {found.dtype}" if isinstance(found, np.ndarray) else type(found).__name__
        raise InputError.expected("events", "an array with the fields x, y, t, p", got)
    if not len(found):
        raise InputError.expected("events", "at least one", "none")
    events = make_events(*(found[name] for name in "xytp"))
    for name, side in zip("xy", size, strict=True):
        if (most := int(events[name].max())) >= side:
            hint = "a transform that changes the size needs sensor_size=(width, height)"
            raise InputError.expected(name, f"at most {side - 1} on the {size[0]}×{size[1]} sensor", most, hint=hint)
    if (back := int(np.count_nonzero(events["t"][1:] < events["t"][:-1]))) != 0:
        raise InputError.expected("t", "times in order", f"{back:,} that run backwards", hint="sort the events by t")
    return events
