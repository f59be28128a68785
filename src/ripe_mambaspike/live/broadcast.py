"""A live source: read once, computed once, shared by all viewers.

`StreamRunner` reads the source and runs the network, as `ripe stream` does. Events are drawn as they pass, and the
latest predictions are kept; viewers fetch both at their own pace.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.region import Crop, crop_events
from ripe_mambaspike.events.source import empty_events
from ripe_mambaspike.inference.stream.run import StreamRunner
from ripe_mambaspike.inference.stream.source_registry import StreamSource
from ripe_mambaspike.inference.stream.summary import StreamLimits
from ripe_mambaspike.inference.streamer import Streamer, StreamPrediction
from ripe_mambaspike.live.frames import MAX_DRAWN_EVENTS, RenderedFrame, full_color_count, render_frame
from ripe_mambaspike.live.messages import PredictionFilter, PredictionMessage, prediction_message
from ripe_mambaspike.live.network import is_causal
from ripe_mambaspike.live.recorder import ClipRecorder

MAX_QUEUED_EVENTS = 200_000  # between the source and the network; a longer queue would add delay
MAX_KEPT_PREDICTIONS = 1024  # for slow viewers
MAX_SCALES = 64  # frames that determine full color
MAX_LAG_SECONDS = 60.0  # more means that the source's clock has changed


class TappedSource:
    """A source whose packets are also shown to a callback on their way to the network."""

    def __init__(self, source: StreamSource, on_events: Callable[[Events], None]) -> None:
        self._source, self._on_events = source, on_events

    def packets(self, stopped: Callable[[], bool]) -> Iterator[Events]:
        for events in self._source.packets(stopped):
            self._on_events(events)
            yield events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)  # whether it is live, its size, its invalid packets


class LiveStream:
    """Frames and predictions of a source. What is drawn is what the network bins: the crop, if there is one."""

    def __init__(
        self,
        name: str,
        source: StreamSource,
        make_streamer: Callable[[tuple[int, int]], Streamer],
        frames: int,
        crop: Crop | None = None,
    ) -> None:
        self.name, self.viewers, self.crop = name, 0, crop
        self.recorder: ClipRecorder | None = None
        self._source, self._make, self._period = source, make_streamer, 1 / frames
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._recent: deque[Events] = deque()  # since the last frame
        self._recent_count = self._held = 0
        self._began: float | None = None  # when the first events came
        self._arrived_us = self._computed_us = 0  # the newest event that came, and that the network has seen
        self._streamer: Streamer | None = None
        self._networks = self._made_network = 0  # how often the network was replaced, and that of the streamer
        self._origin_us: int | None = None
        self._last_us = 0  # the time of the last prediction since the origin
        self._restarts = 0
        self._predictions: deque[PredictionMessage] = deque(maxlen=MAX_KEPT_PREDICTIONS)
        self._count = 0  # predictions so far, of which the last ones are kept
        self._problem: str | None = None
        self._filter = PredictionFilter()
        self._frame: tuple[int, RenderedFrame | None, float, float] = (0, None, 0.0, 1.0)
        self._drawn_at = float("-inf")
        self._scales: deque[int] = deque(maxlen=MAX_SCALES)
        self._runner = StreamRunner(
            TappedSource(source, self._on_events),
            self._make_streamer,
            StreamLimits(queue_events=MAX_QUEUED_EVENTS),
            on_prediction=self._on_prediction,
            on_message=self._on_message,
            should_stop=self._stopped.is_set,
        )
        self._thread = threading.Thread(target=self._run, name="live source", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def replace_network(self, make_streamer: Callable[[tuple[int, int]], Streamer]) -> None:
        """Run another network from the next packet on; predictions of the one before are dropped."""
        with self._lock:
            self._make = make_streamer
            self._networks += 1
            self._predictions.clear()
        self._runner.replace_streamer()

    @property
    def size(self) -> tuple[int, int] | None:
        """Of the whole sensor; None until it is known."""
        return self._source.size

    def missed(self) -> dict[str, int]:
        """What of the source never arrived since the start: count by a description with its unit."""
        source = self._source
        lost = {"packets that could not be read": source.invalid}
        lost["datagrams lost before they were read"] = getattr(source, "lost", 0)
        return {**lost, **dict(getattr(source, "losses", {}))}

    def describe(self) -> dict[str, Any]:
        """The description that a new viewer gets; the sensor's size is known from the first packet on."""
        width, height = self._size() or (1, 1)
        return {"name": self.name, "live": True, "width": width, "height": height}

    def status(self) -> dict[str, Any]:
        source = self._source
        with self._lock:
            lag = (self._arrived_us - self._computed_us) / 1e6
            problem = self._problem
        if source.invalid:
            invalid = f"{source.invalid:,} invalid packets (the last: {source.last_invalid})"
            problem = f"{invalid}; {problem}" if problem else invalid
        if lost := getattr(source, "lost", 0):
            sentence = f"{lost:,} datagrams lost before they were read"
            problem = f"{sentence}; {problem}" if problem else sentence
        for loss, count in list(getattr(source, "losses", {}).items()):
            problem = f"{count:,} {loss}; {problem}" if problem else f"{count:,} {loss}"
        return {
            "live": True,
            "lag": lag if 0 < lag < MAX_LAG_SECONDS else 0.0,
            "dropped": sum(self._runner.dropped().values()),
            "problem": problem,
            "viewers": self.viewers,
        }

    def next_number(self) -> int:
        """The number of the next prediction."""
        with self._lock:
            return self._count

    def predictions(self, first: int, count: int) -> tuple[list[PredictionMessage], int]:
        """The predictions from number `first` on, at most `count`, and the number to ask for next."""
        with self._lock:
            dropped = self._count - len(self._predictions)
            first = max(first, dropped)
            found = [self._predictions[index - dropped] for index in range(first, min(first + count, self._count))]
        return found, first + len(found)

    def frame(self, now: float) -> tuple[int, RenderedFrame | None, float, float]:
        """The current frame: its number, the frame, its position and its length in s. One for all viewers."""
        size = self._size()
        if now - self._drawn_at < 0.9 * self._period or size is None or self._began is None:
            return self._frame
        with self._lock:
            pieces, count = list(self._recent), self._recent_count
            self._recent.clear()
            self._recent_count = self._held = 0
        events = np.concatenate(pieces)[-MAX_DRAWN_EVENTS:] if pieces else empty_events()
        if len(events):
            self._scales.append(full_color_count([events], size))
        frame = render_frame(events, size, round(float(np.median(self._scales or [1]))))
        span = min(max(now - self._drawn_at, 1e-3), 1.0)
        position = time.monotonic() - self._began
        frame = RenderedFrame(frame.width, frame.height, count, frame.shades)
        self._frame = (self._frame[0] + 1, frame, position, span)
        self._drawn_at = now
        return self._frame

    def _size(self) -> tuple[int, int] | None:
        """Of what is drawn; None until it is known."""
        return self._source.size if self.crop is None or self._source.size is None else self.crop[2:]

    def _on_events(self, events: Events) -> None:
        """Keep the events that the next frame needs (reader thread)."""
        if not len(events):
            return
        newest = int(events["t"][-1])
        events = events if self.crop is None else crop_events(events, self.crop)
        size = self._size()
        if self.recorder is not None and size is not None:
            self.recorder.add(events, size)
        with self._lock:
            if self._began is None:
                self._began = time.monotonic()
            self._arrived_us = newest
            self._recent.append(events[-MAX_DRAWN_EVENTS:])
            self._recent_count += len(events)
            self._held += len(self._recent[-1])
            while self._held - len(self._recent[0]) >= MAX_DRAWN_EVENTS:
                self._held -= len(self._recent.popleft())

    def _make_streamer(self, sensor_size: tuple[int, int]) -> Streamer:
        while True:
            with self._lock:
                make, number = self._make, self._networks
            streamer = make(sensor_size)
            with self._lock:
                if number == self._networks:  # it was not replaced meanwhile
                    self._streamer, self._made_network, self._filter = streamer, number, PredictionFilter()
                    return streamer

    def _on_prediction(self, prediction: StreamPrediction) -> None:
        """Store predictions (network thread). After a clock restart, times continue from the last one."""
        if self._origin_us is None or self._restarts != self._runner.summary.restarts:
            self._restarts = self._runner.summary.restarts
            self._origin_us = prediction.start_us - self._last_us
            self._filter = PredictionFilter()
        accepted = self._filter.accepts(prediction)
        streamer = self._streamer
        causal = streamer is not None and is_causal(streamer.classifier.model.config)
        message = prediction_message(prediction, self._origin_us, causal)
        with self._lock:
            self._computed_us = self._origin_us + message.at_us
            self._last_us = max(self._last_us, message.at_us)
            self._problem = None  # resolved
            if accepted and self._made_network == self._networks:
                self._predictions.append(message)
                self._count += 1

    def _on_message(self, text: str) -> None:
        with self._lock:
            self._problem = f"{self.name}: {text}"

    def _run(self) -> None:
        try:
            self._runner.run()
            self._on_message("the source has ended")
        except RipeError as error:
            self._on_message(str(error))
        except Exception as error:  # a failing source must not stop the server
            self._on_message(f"the source failed ({type(error).__name__}: {error})")
