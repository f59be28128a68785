"""A recording as the source of a stream."""

import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.reading import open_recording, open_with_default_size
from ripe_mambaspike.events.recording import Events, RecordingWarning
from ripe_mambaspike.events.region import GUESSED, SensorRegion, guessed_size_warning
from ripe_mambaspike.inference.stream.source_registry import POLL_SECONDS, Pace, Stopped

PACKET_US = 10_000  # of a recording replayed at its own pace
PACKET_EVENTS = 1 << 16


class FileSource:
    """A recording, in packets; at its own pace or as fast as they are taken.

    `format` names its format, as for `read`. A file that then has no header is one of the region's sensor.
    """

    can_wait = True

    def __init__(
        self,
        path: Path,
        pace: Pace,
        sensor_size: tuple[int, int] | None = None,
        region: SensorRegion | None = None,
        format: str | None = None,
    ) -> None:
        self.path, self.pace, self.live, self.format = path, pace, pace == "real", format
        self.invalid = 0
        self.last_invalid: str | None = None
        default_size = None if region is None else region.size
        opened = open_with_default_size(
            open_recording, path, sensor_size=sensor_size, default_size=default_size, format=format
        )
        if opened.declared_size is None:  # the size has to be guessed from the events, so the file is read once
            for _ in opened.pieces():
                pass
        try:
            found = (region or SensorRegion()).decide_size(opened.sensor_size, opened.size_from, opened.corner)
        except InputError as error:
            raise InputError(f"{path}: {error}", field=error.field, path=path) from error
        self.size: tuple[int, int] | None = found[0]
        self.size_from = found[1]
        if self.size_from == GUESSED and region is not None:
            warnings.warn(f"{path}: {guessed_size_warning(found[0])}", RecordingWarning, stacklevel=3)
        self.warnings: tuple[str, ...] = ()

    def close(self) -> None:
        """Nothing is open before `packets`."""

    def packets(self, stopped: Stopped) -> Iterator[Events]:
        opened = open_recording(self.path, sensor_size=self.size, format=self.format)
        began, first = time.monotonic(), None
        for piece in opened.pieces():
            for packet in split_events(piece, PACKET_US if self.live else None):
                if first is None:
                    first = int(packet["t"][0])
                due = began + (int(packet["t"].max()) - first) / 1e6
                while self.live and not stopped() and (left := due - time.monotonic()) > 0:
                    time.sleep(min(left, POLL_SECONDS))
                if stopped():
                    return
                yield packet
        self.warnings = opened.warnings


def split_events(events: Events, span_us: int | None, max_events: int = PACKET_EVENTS) -> Iterator[Events]:
    """Packets of at most `max_events` and, if given, of about `span_us`; the order of the file is kept."""
    if span_us is None:
        bounds = list(range(0, len(events), max_events))
    else:
        reached = np.maximum.accumulate(events["t"])
        cells = (reached - reached[:1]) // span_us
        changes = np.flatnonzero(np.diff(cells)) + 1
        bounds = [place for first, end in _between(0, changes, len(events)) for place in range(first, end, max_events)]
    for first, end in _between(0, np.asarray(bounds[1:], np.int64), len(events)):
        yield events[first:end].copy()  # readers reuse their buffers


def _between(first: int, inner: "np.ndarray[tuple[int], np.dtype[np.int64]]", last: int) -> list[tuple[int, int]]:
    places = [first, *inner.tolist(), last]
    return [(start, end) for start, end in pairwise(places) if end > start]
