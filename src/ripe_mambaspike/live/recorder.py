"""Recording a live source: its events between start and stop, in bounded memory, with a preview of the clip."""

import base64
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events, Recording
from ripe_mambaspike.events.view.frames import equal_spans
from ripe_mambaspike.inference.stream.buffering import EventSorter
from ripe_mambaspike.inference.stream.run import MAX_CLOCK_JUMP_US
from ripe_mambaspike.live.frames import full_color_count, render_frame

RATE_BINS = 120  # of the preview's event rate
FILM_FRAMES = 10  # of the preview's strip of pictures
FILM_US = 50_000  # the most that one of them shows
RecorderPhase = Literal["idle", "recording", "clip"]


@dataclass(frozen=True)
class RecordedClip:
    """What was recorded: events in order whose times begin at 0, and what is missing from it."""

    recording: Recording
    dropped: int  # events whose time fits no others
    missing: dict[str, int]  # what never arrived meanwhile: count by a description with its unit
    ended: str  # why it ended, where nobody stopped it

    @property
    def seconds(self) -> float:
        return (self.recording.last_us + 1) / 1e6

    def between(self, start: float, stop: float) -> Recording:
        """The part from `start` to `stop` in seconds, its times from 0 again."""
        kept = self.recording.crop(round(1e6 * start), round(1e6 * stop))
        if not len(kept):
            raise InputError.expected("clip", "at least one event between its start and its end", "none")
        events = kept.events.copy()
        events["t"] -= events["t"][0]
        return Recording(events, kept.sensor_size)

    def preview(self) -> dict[str, Any]:
        """For the page: the event rate over time, and a strip of pictures."""
        recording, times = self.recording, np.ascontiguousarray(self.recording["t"])
        spans = equal_spans(0, recording.last_us, RATE_BINS)
        edges = np.searchsorted(times, [*spans[:, 0], spans[-1, 1]])
        parts = [
            recording.events[slice(*np.searchsorted(times, (start, min(stop, start + FILM_US))))]
            for start, stop in equal_spans(0, recording.last_us, FILM_FRAMES)
        ]
        scale = full_color_count(parts, recording.sensor_size)
        film = [render_frame(part, recording.sensor_size, scale) for part in parts]
        return {
            "seconds": self.seconds,
            "events": len(recording),
            "width": film[0].width,
            "height": film[0].height,
            "rates": (np.diff(edges) * (RATE_BINS / self.seconds)).round().astype(int).tolist(),
            "film": [base64.b64encode(frame.shades).decode() for frame in film],
            "dropped": self.dropped,
            "missing": self.missing,
            "ended": self.ended,
        }


class ClipRecorder:
    """Keeps the events of a source while it records; `add` is called by the thread that reads the source.

    The source's own counts, by description, tell what never arrived. A recording ends by itself when it is long
    or large enough, or when the source's clock restarts; nothing is left out of it without being counted.
    """

    def __init__(
        self,
        max_events: int,
        max_seconds: int,
        counts: Callable[[], Mapping[str, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.version = 0  # grows when the phase changes
        self._max_events, self._max_seconds, self._counts, self._clock = max_events, max_seconds, counts, clock
        self._lock = threading.Lock()
        self._phase: RecorderPhase = "idle"
        self._clip: RecordedClip | None = None
        self._reset(None)

    def _reset(self, seconds: float | None) -> None:
        self._pieces: list[Events] = []
        self._count, self._first_us, self._last_us = 0, 0, 0
        self._size = (1, 1)
        self._sorter = EventSorter(0, MAX_CLOCK_JUMP_US)
        self._seconds = min(self._max_seconds, seconds or self._max_seconds)
        self._before, self._arrived, self._ended = self._counts(), self._clock(), ""

    @property
    def phase(self) -> RecorderPhase:
        return self._phase

    @property
    def clip(self) -> RecordedClip | None:
        """What was recorded last and is neither saved nor discarded."""
        return self._clip

    def start(self, seconds: float | None = None) -> None:
        """Record from the next events on, until `stop` or for so many seconds."""
        with self._lock:
            if self._phase != "idle":
                expected = "no clip that waits to be saved or discarded" if self._phase == "clip" else "none under way"
                raise InputError.expected("recording", expected, "one")
            self._reset(seconds)
            self._set_phase("recording")

    def stop(self) -> None:
        """End the recording; without an event there is no clip, and an error says so."""
        with self._lock:
            if self._phase == "clip":  # it ended by itself in this very moment
                return
            if self._phase != "recording":
                raise InputError.expected("recording", "one under way", "none")
            self._finish("")
            if self._clip is None:
                raise InputError.expected("recording", "at least one event", "none; is the source sending?")

    def discard(self) -> None:
        """Forget the clip; without one, nothing happens."""
        with self._lock:
            if self._phase == "clip":
                self._clip = None
                self._set_phase("idle")

    def add(self, events: Events, sensor_size: tuple[int, int]) -> None:
        """Events of the source as they come (reader thread)."""
        if self._phase != "recording" or not len(events):
            return
        with self._lock:
            if self._phase != "recording":
                return
            now = self._clock()
            waited, self._arrived = round(1e6 * (now - self._arrived)), now
            self._size = sensor_size
            for piece, restarted in self._sorter.push(events, waited):
                if restarted and self._count:
                    self._finish("the source's clock restarted")
                if self._phase != "recording" or not self._keep(piece):
                    return

    def status(self) -> dict[str, Any]:
        """How far the recording is."""
        with self._lock:
            return {
                "phase": self._phase,
                "seconds": (self._last_us - self._first_us) / 1e6 if self._count else 0.0,
                "events": self._count,
                "dropped": self._sorter.stray,
                "missing": self._missing(),
            }

    def _keep(self, events: Events) -> bool:
        """Keep events; False if the recording is complete with them."""
        if not len(events):
            return True
        if not self._count:
            self._first_us = int(events["t"][0])
        end = self._first_us + round(1e6 * self._seconds)
        kept = events[events["t"] < end][: self._max_events - self._count]
        self._pieces.append(kept.copy())
        self._count += len(kept)
        self._last_us = max(self._last_us if self._count > len(kept) else 0, int(kept["t"][-1]) if len(kept) else 0)
        if self._count >= self._max_events:
            self._finish(f"the limit of {self._max_events:,} events was reached")
        elif int(events["t"][-1]) >= end:
            limit = self._seconds >= self._max_seconds
            self._finish(f"the limit of {self._max_seconds} s was reached" if limit else "")
        return self._phase == "recording"

    def _finish(self, ended: str) -> None:
        if self._count:
            joined = np.concatenate(self._pieces)
            events = Recording(joined, self._size).ordered().events  # a late event is sorted in
            events["t"] -= events["t"][0]
            clip = Recording(events, self._size)
            self._clip = RecordedClip(clip, self._sorter.stray, self._missing(), ended)
        self._pieces = []
        self._set_phase("clip" if self._clip is not None else "idle")

    def _missing(self) -> dict[str, int]:
        since = {name: count - self._before.get(name, 0) for name, count in self._counts().items()}
        return {name: count for name, count in since.items() if count > 0}

    def _set_phase(self, phase: RecorderPhase) -> None:
        self._phase = phase
        self.version += 1
