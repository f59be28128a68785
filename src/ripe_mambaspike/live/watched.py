"""A recording with what the network has answered so far. All viewers of a recording share one track.

The answers depend on the recording alone, not on when or how fast it is watched: each is computed once, when the first
viewer reaches it, and kept.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.events.recording import Events, Recording
from ripe_mambaspike.live.answers import PredictionFilter, PredictionMessage, tell
from ripe_mambaspike.live.frames import RenderedFrame, draw, full_color_count, sample_spans
from ripe_mambaspike.live.network import causal

if TYPE_CHECKING:
    from ripe_mambaspike.inference.streamer import Streamer, StreamPrediction

MIN_SPAN_US = 200_000  # that a recording is played for, so that one of a few events can be seen
KEPT_FRAMES = 16  # of those drawn last, for viewers in step
SAMPLE_US = 50_000

# (sensor size, duration in µs) → a streamer, and how long its bins are in µs
StreamerMaker = Callable[[tuple[int, int], int], tuple["Streamer", int]]


class WatchedRecording:
    """One recording being watched; `step` is called by one thread, everything else by another."""

    def __init__(self, recording: Recording, name: str, make_streamer: StreamerMaker) -> None:
        if not len(recording):
            raise InputError(f"{name} has no events; at least one is wanted")
        self.recording, self.name = recording, name
        self.origin_us, self.stop_us = recording.first_us, recording.last_us + 1
        self.duration_us = max(MIN_SPAN_US, self.stop_us - self.origin_us)
        self._times = np.ascontiguousarray(recording["t"])
        self._scale = full_color_count(
            [self._between(*span) for span in sample_spans(self.origin_us, recording.last_us, SAMPLE_US)],
            recording.sensor_size,
        )
        self.viewers = 0
        self.trouble: str | None = None  # why the network gave up on it
        self._streamer: Streamer | None
        self._streamer, self._slice_us = make_streamer(recording.sensor_size, self.stop_us - self.origin_us)
        self._causal = causal(self._streamer.classifier.model.config)
        self._following = PredictionFilter()
        self._lock = threading.Lock()
        self._answers: list[PredictionMessage] = []
        self._dues: list[int] = []
        self._computed_us = 0  # since the origin
        self._wanted_us = 0
        self._drawn: OrderedDict[tuple[int, int], RenderedFrame] = OrderedDict()

    def frame(self, start_us: int, stop_us: int) -> RenderedFrame:
        """The events of [start, stop) since the origin, drawn; viewers in step share it."""
        key = (start_us, stop_us)
        drawn = self._drawn.get(key)
        if drawn is None:
            events = self._between(self.origin_us + start_us, self.origin_us + stop_us)
            drawn = self._drawn[key] = draw(events, self.recording.sensor_size, self._scale)
            while len(self._drawn) > KEPT_FRAMES:
                self._drawn.popitem(last=False)
        return drawn

    def answers(self, after: int, until_us: int, most: int) -> list[PredictionMessage]:
        """The answers from number `after` on that were due by then, at most so many."""
        with self._lock:
            stop = bisect_right(self._dues, until_us)
            return self._answers[after : min(stop, after + most)]

    def lag_us(self, place_us: int) -> int:
        """How far the network is behind a place in the recording: a bin that is not full yet is not behind."""
        with self._lock:
            computed = self._computed_us
        left = min(place_us, self.stop_us - self.origin_us) - computed
        return left if left >= self._slice_us and self.trouble is None else 0

    def want(self, until_us: int) -> bool:
        """Ask for the answers up to a place; whether there is anything to do."""
        with self._lock:
            self._wanted_us = max(self._wanted_us, until_us)
        return self.ready()

    def ready(self) -> bool:
        """Whether the next slice has been asked for by someone who still watches."""
        with self._lock:
            following = min(self._computed_us + self._slice_us, self.stop_us - self.origin_us)
            return self._streamer is not None and self.viewers > 0 and self._wanted_us >= following

    def step(self) -> None:
        """Compute one slice more: as long as a bin, so that an answer's latency is that of its own bin."""
        streamer = self._streamer
        if streamer is None:
            return
        try:
            self._step(streamer)
            streamer.finish_pending()  # what no answer waited for
        except RipeError as error:
            self._give_up(f"the network cannot read it: {error}")
        except Exception as error:  # one recording's trouble is not the others'
            self._give_up(f"the network failed on it ({type(error).__name__}: {error})")

    def _step(self, streamer: "Streamer") -> None:
        start = self.origin_us + self._computed_us
        stop = min(start + self._slice_us, self.stop_us)
        events = self._between(start, stop)
        made: list[StreamPrediction] = streamer.push(events) if len(events) else []
        made += streamer.advance(stop)
        told = [tell(answer, self.origin_us, self._causal) for answer in made if self._following.wants(answer)]
        with self._lock:
            self._computed_us = stop - self.origin_us
            for one in told:
                self._answers.append(one)
                # Early and final answers of one bin come in any order; what is due never runs back.
                self._dues.append(max(one.at_us, self._dues[-1] if self._dues else 0))
            if stop == self.stop_us:
                self._streamer = None

    def _give_up(self, why: str) -> None:
        with self._lock:
            self.trouble, self._streamer = why, None

    def _between(self, start_us: int, stop_us: int) -> Events:
        first, last = np.searchsorted(self._times, (start_us, stop_us))
        return self.recording.events[first:last]
