"""The sensor sizes that a dataset's recordings store, and the choice of one for the whole dataset."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.region import likely_size

Size = tuple[int, int]


class RecordingCount(NamedTuple):
    """A number of recordings, and the first of them."""

    recordings: int
    first: str

    def __str__(self) -> str:
        return f"{self.recordings:,} recording{'s' * (self.recordings > 1)}, {self.first}" + " first" * (
            self.recordings > 1
        )


class SensorsNote(msgspec.Struct, frozen=True, kw_only=True):
    """`SensorsNamed` as stored in a shard's note."""

    named: list[tuple[int, int, int, str]]  # width, height, recordings, the first of them
    unnamed: tuple[int, str] | None
    corner: Size


@dataclass
class SensorsNamed:
    """Counts of recordings by sensor size."""

    named: dict[Size, RecordingCount] = field(default_factory=dict)  # by their headers
    unnamed: RecordingCount | None = None  # recordings without a sensor size
    corner: Size = (0, 0)  # the furthest pixel of all events

    def see(self, recording: Recording, path: str) -> None:
        """Add a recording."""
        self.corner = union(self.corner, (int(recording["x"].max()), int(recording["y"].max())))
        in_file = recording.metadata.get("sensor_size_in_file")
        named = in_file is not None or recording.metadata["sensor_size_from"] == "the file"
        # If the caller gave the size, a header with the same size counts like no header.
        self._count(tuple(in_file or recording.sensor_size) if named else None, RecordingCount(1, path))

    def add(self, note: SensorsNote | None) -> None:
        """Add the counts of a shard's note."""
        if note is None:
            return
        self.corner = union(self.corner, note.corner)
        for width, height, recordings, first in note.named:
            self._count((width, height), RecordingCount(recordings, first))
        if note.unnamed:
            self._count(None, RecordingCount(*note.unnamed))

    def to_dict(self) -> dict[str, Any]:
        return {
            "named": [[*size, *seen] for size, seen in self.named.items()],
            "unnamed": list(self.unnamed) if self.unnamed else None,
            "corner": list(self.corner),
        }

    def _count(self, size: Any, seen: RecordingCount) -> None:
        before = self.named.get(size) if size else self.unnamed
        both = RecordingCount(before.recordings + seen.recordings, before.first) if before else seen
        if size:
            self.named[size] = both
        else:
            self.unnamed = both


class SensorChoice(NamedTuple):
    size: Size
    notes: tuple[str, ...]
    troubles: tuple[str, ...]


def choose_sensor(seen: SensorsNamed, given: Size | None) -> SensorChoice:
    """The sensor of the store, guesses about it, and whether the recordings come from several sensors.

    Recordings of several sensors, and some without a sensor size, may be mixed: the chosen sensor contains them all.
    """
    if given is not None:
        others = [f"{_shown(size)} ({found})" for size, found in seen.named.items() if size != given]
        warning = f"sensor_size: expected recordings of {_shown(given)}, got some that name " + " and ".join(others)
        return SensorChoice(given, (), (f"{warning}; events outside are left out",) if others else ())
    reach = (seen.corner[0] + 1, seen.corner[1] + 1)
    if not seen.named:
        size = likely_size(*seen.corner)
        return SensorChoice(size, (f"sensor_size: guessed {_shown(size)} from the events; give --sensor-size W H",), ())
    declared = (0, 0)
    for one in seen.named:
        declared = union(declared, one)
    size = union(declared, reach)
    troubles = []
    if len(seen.named) > 1:
        several = " and ".join(f"{_shown(one)} ({found})" for one, found in seen.named.items())
        troubles.append(
            f"sensor_size: expected recordings of one sensor, got {several}; the store takes all for {_shown(size)}, "
            "so prepare each sensor's as a set of its own"
        )
    if size != declared:
        troubles.append(
            f"sensor_size: expected events inside {_shown(declared)}, which recordings name, got some at "
            f"{_shown(reach)} in those that name none ({seen.unnamed}); the store takes all for {_shown(size)}"
        )
    elif seen.unnamed:
        note = f"sensor_size: guessed {_shown(size)}, as the others name, for {seen.unnamed}; give --sensor-size W H"
        return SensorChoice(size, (note,), tuple(troubles))
    return SensorChoice(size, (), tuple(troubles))


def union(first: Sequence[int], second: Sequence[int]) -> Size:
    return max(first[0], second[0]), max(first[1], second[1])


def _shown(size: Sequence[int]) -> str:
    return f"{size[0]}×{size[1]}"
