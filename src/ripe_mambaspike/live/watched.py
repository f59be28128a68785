"""Recordings being watched, and the thread that runs the network for all of them.

All viewers of a recording share one `WatchedRecording`. Its predictions depend on the recording alone, not on when or
how fast it is watched: each is computed once, when the first viewer reaches it, and kept.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.events.recording import Events, Recording
from ripe_mambaspike.live.frames import RenderedFrame, full_color_count, render_frame, sample_spans
from ripe_mambaspike.live.messages import PredictionFilter, PredictionMessage, prediction_message
from ripe_mambaspike.live.network import is_causal

if TYPE_CHECKING:
    from ripe_mambaspike.inference.streamer import Streamer

MIN_DURATION_US = 200_000  # minimum playing time of a recording
MAX_KEPT_FRAMES = 16  # the last ones drawn, for viewers that are at the same position
SAMPLE_US = 50_000

# (sensor size, duration in µs) → a streamer, and the length of its bins in µs
StreamerMaker = Callable[[tuple[int, int], int], tuple["Streamer", int]]


class WatchedRecording:
    """One recording being watched; `step` is called by one thread, everything else by another."""

    def __init__(self, recording: Recording, name: str, make_streamer: StreamerMaker) -> None:
        if not len(recording):
            raise InputError(f"{name}: recording: expected at least one event, got none", field="recording")
        self.recording, self.name = recording, name
        self.origin_us, self.stop_us = recording.first_us, recording.last_us + 1
        self.duration_us = max(MIN_DURATION_US, self.stop_us - self.origin_us)
        self._times = np.ascontiguousarray(recording["t"])
        self._scale = full_color_count(
            [self._between(*span) for span in sample_spans(self.origin_us, recording.last_us, SAMPLE_US)],
            recording.sensor_size,
        )
        self.viewers = 0
        self.problem: str | None = None  # why the network stopped
        self._streamer: Streamer | None
        self._streamer, self._slice_us = make_streamer(recording.sensor_size, self.stop_us - self.origin_us)
        self._causal = is_causal(self._streamer.classifier.model.config)
        self._filter = PredictionFilter()
        self._lock = threading.Lock()
        self._predictions: list[PredictionMessage] = []
        self._times_us: list[int] = []  # of the predictions
        self._computed_us = 0  # since the origin
        self._requested_us = 0
        self._frames: OrderedDict[tuple[int, int], RenderedFrame] = OrderedDict()

    def frame(self, start_us: int, stop_us: int) -> RenderedFrame:
        """The events of [start, stop) since the origin as a frame; viewers at the same position share it."""
        key = (start_us, stop_us)
        frame = self._frames.get(key)
        if frame is None:
            events = self._between(self.origin_us + start_us, self.origin_us + stop_us)
            frame = self._frames[key] = render_frame(events, self.recording.sensor_size, self._scale)
            while len(self._frames) > MAX_KEPT_FRAMES:
                self._frames.popitem(last=False)
        return frame

    def predictions(self, first: int, until_us: int, count: int) -> list[PredictionMessage]:
        """The predictions from number `first` on that were due by then, at most `count`."""
        with self._lock:
            stop = bisect_right(self._times_us, until_us)
            return self._predictions[first : min(stop, first + count)]

    def lag_us(self, position_us: int) -> int:
        """How far the network is behind a position in the recording; a bin that is not full yet does not count."""
        with self._lock:
            computed = self._computed_us
        left = min(position_us, self.stop_us - self.origin_us) - computed
        return left if left >= self._slice_us and self.problem is None else 0

    def request(self, until_us: int) -> bool:
        """Ask for the predictions up to a position; whether there is anything to do."""
        with self._lock:
            self._requested_us = max(self._requested_us, until_us)
        return self.ready()

    def ready(self) -> bool:
        """Whether the next slice was requested by a viewer that is still watching."""
        with self._lock:
            following = min(self._computed_us + self._slice_us, self.stop_us - self.origin_us)
            return self._streamer is not None and self.viewers > 0 and self._requested_us >= following

    def step(self) -> None:
        """Compute one more slice: as long as a bin, so that a prediction's latency is that of its own bin."""
        streamer = self._streamer
        if streamer is None:
            return
        try:
            self._step(streamer)
            streamer.finish_pending()
        except RipeError as error:
            self._give_up(f"the network cannot classify it: {error}")
        except Exception as error:  # an error in one recording must not affect others
            self._give_up(f"the network failed ({type(error).__name__}: {error})")

    def _step(self, streamer: "Streamer") -> None:
        start = self.origin_us + self._computed_us
        stop = min(start + self._slice_us, self.stop_us)
        events = self._between(start, stop)
        found = (streamer.push(events) if len(events) else []) + streamer.advance(stop)
        messages = [prediction_message(one, self.origin_us, self._causal) for one in found if self._filter.accepts(one)]
        with self._lock:
            self._computed_us = stop - self.origin_us
            for message in messages:
                self._predictions.append(message)
                # Early and final predictions of one bin come in any order; their times must not decrease.
                self._times_us.append(max(message.at_us, self._times_us[-1] if self._times_us else 0))
            if stop == self.stop_us:
                self._streamer = None

    def _give_up(self, reason: str) -> None:
        with self._lock:
            self.problem, self._streamer = reason, None

    def _between(self, start_us: int, stop_us: int) -> Events:
        first, last = np.searchsorted(self._times, (start_us, stop_us))
        return self.recording.events[first:last]


class PredictionWorker:
    """The one thread that runs the network for all recordings being watched, one slice at a time, each in turn.

    There is no queue of work, only a position in each recording up to which someone watches: work cannot pile up.
    """

    def __init__(self) -> None:
        self._recordings: deque[WatchedRecording] = deque()
        self._wake = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Start no further slice, and wait for the current one."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def add(self, recording: WatchedRecording) -> None:
        with self._wake:
            self._recordings.append(recording)

    def remove(self, recording: WatchedRecording) -> None:
        with self._wake:
            self._recordings.remove(recording)

    def request(self, recording: WatchedRecording, until_us: int) -> None:
        """Ask that a recording be computed up to a position."""
        if recording.request(until_us):
            with self._wake:
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._stopped and (recording := self._next()) is None:
                    self._wake.wait()
                if self._stopped or recording is None:
                    return
            recording.step()

    def _next(self) -> WatchedRecording | None:
        """The next recording with something to do; it goes to the end of the row."""
        for _ in range(len(self._recordings)):
            recording = self._recordings[0]
            self._recordings.rotate(-1)
            if recording.ready():
                return recording
        return None
