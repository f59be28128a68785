"""A live source: read once, computed once, watched by all.

`StreamRun` reads the source and runs the network, as `ripe stream` does. What passes by is drawn, and what is answered
is kept for a while; viewers fetch both at their own pace.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.region import Crop, crop_events
from ripe_mambaspike.events.source import empty_events
from ripe_mambaspike.live.answers import PredictionFilter, PredictionMessage, tell
from ripe_mambaspike.live.frames import MAX_DRAWN_EVENTS, RenderedFrame, draw, full_color_count
from ripe_mambaspike.live.network import causal

if TYPE_CHECKING:
    from ripe_mambaspike.inference.stream.sources import StreamSource
    from ripe_mambaspike.inference.streamer import Streamer, StreamPrediction

MAX_QUEUED_EVENTS = 200_000  # events between the source and the network: what is watched is not to be long ago
MAX_KEPT_PREDICTIONS = 1024  # answers, for viewers that are not quick
MAX_SCALES = 64  # frames that the full colour is found by
MAX_BEHIND_SECONDS = 60.0  # s; more is another clock


class TappedSource:
    """A source whose packets are looked at on their way to the network."""

    def __init__(self, source: "StreamSource", look: Callable[[Events], None]) -> None:
        self._source, self._look = source, look

    def packets(self, stopped: Callable[[], bool]) -> Iterator[Events]:
        for events in self._source.packets(stopped):
            self._look(events)
            yield events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)  # whether it is live, its size, what it refused


class LiveStream:
    """What comes from a source, drawn and answered for. What is drawn is what the network bins: the crop, if any."""

    def __init__(
        self,
        name: str,
        source: "StreamSource",
        make_streamer: Callable[[tuple[int, int]], "Streamer"],
        frames: int,
        crop: Crop | None = None,
    ) -> None:
        from ripe_mambaspike.inference.stream.run import StreamRunner
        from ripe_mambaspike.inference.stream.summary import StreamLimits

        self.name, self.viewers, self._crop = name, 0, crop
        self._source, self._make, self._period = source, make_streamer, 1 / frames
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._recent: deque[Events] = deque()  # since the last frame
        self._recent_count = self._held = 0
        self._began: float | None = None  # when the first events came
        self._came_us = self._reached_us = 0  # the newest event that came, and that the network has seen
        self._streamer: Streamer | None = None
        self._origin_us: int | None = None
        self._last_us = 0  # when the last answer was due, since the origin
        self._restarts = 0
        self._answers: deque[PredictionMessage] = deque(maxlen=MAX_KEPT_PREDICTIONS)
        self._told = 0  # answers so far, of which the last ones are kept
        self._trouble: str | None = None
        self._following = PredictionFilter()
        self._frame: tuple[int, RenderedFrame | None, float, float] = (0, None, 0.0, 1.0)
        self._drawn_at = float("-inf")
        self._scales: deque[int] = deque(maxlen=MAX_SCALES)
        self._run = StreamRunner(
            TappedSource(source, self._came),
            self._make_streamer,
            StreamLimits(queue_events=MAX_QUEUED_EVENTS),
            on_prediction=self._answered,
            on_message=self._says,
            should_stop=self._stopped.is_set,
        )
        self._thread = threading.Thread(target=self._work, name="live source", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def facts(self) -> dict[str, Any]:
        """What a viewer is told when it begins to watch; the sensor's size is known from the first packet on."""
        width, height = self._size() or (1, 1)
        return {"name": self.name, "live": True, "width": width, "height": height}

    def status(self) -> dict[str, Any]:
        source = self._source
        with self._lock:
            behind = (self._came_us - self._reached_us) / 1e6
            trouble = self._trouble
        if source.invalid:
            trouble = (
                f"{source.invalid:,} invalid packets (the last: {source.last_invalid}); {trouble or 'others taken'}"
            )
        behind = behind if 0 < behind < MAX_BEHIND_SECONDS else 0.0
        return {
            "live": True,
            "behind": behind,
            "dropped": sum(self._run.dropped().values()),
            "trouble": trouble,
            "viewers": self.viewers,
        }

    def newest(self) -> int:
        """The number that the next answer will have."""
        with self._lock:
            return self._told

    def answers(self, after: int, most: int) -> tuple[list[PredictionMessage], int]:
        """The answers from that number on, at most so many, and the number to ask for next."""
        with self._lock:
            gone = self._told - len(self._answers)
            first = max(after, gone)
            found = [self._answers[index - gone] for index in range(first, min(first + most, self._told))]
        return found, first + len(found)

    def frame(self, now: float) -> tuple[int, RenderedFrame | None, float, float]:
        """The frame of this moment: its number, what it shows, its place and its length in s. One for all viewers."""
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
        drawn = draw(events, size, round(float(np.median(self._scales or [1]))))
        span = min(max(now - self._drawn_at, 1e-3), 1.0)
        place = time.monotonic() - self._began
        self._frame = (self._frame[0] + 1, RenderedFrame(drawn.width, drawn.height, count, drawn.shades), place, span)
        self._drawn_at = now
        return self._frame

    def _size(self) -> tuple[int, int] | None:
        """Of what is drawn; None until it is known."""
        return self._source.size if self._crop is None or self._source.size is None else self._crop[2:]

    def _came(self, events: Events) -> None:
        """The reader's thread: keep what the next frame needs, and no more."""
        if not len(events):
            return
        newest = int(events["t"][-1])
        events = events if self._crop is None else crop_events(events, self._crop)
        with self._lock:
            if self._began is None:
                self._began = time.monotonic()
            self._came_us = newest
            self._recent.append(events[-MAX_DRAWN_EVENTS:])
            self._recent_count += len(events)
            self._held += len(self._recent[-1])
            while self._held - len(self._recent[0]) >= MAX_DRAWN_EVENTS:
                self._held -= len(self._recent.popleft())

    def _make_streamer(self, sensor_size: tuple[int, int]) -> "Streamer":
        self._streamer = self._make(sensor_size)
        return self._streamer

    def _answered(self, answer: "StreamPrediction") -> None:
        """The network's thread. After a restart of the source's clock, times go on from the last answer."""
        if self._origin_us is None or self._restarts != self._run.summary.restarts:
            self._restarts = self._run.summary.restarts
            self._origin_us = answer.start_us - self._last_us
            self._following = PredictionFilter()
        wanted = self._following.wants(answer)
        streamer = self._streamer
        told = tell(answer, self._origin_us, streamer is not None and causal(streamer.classifier.model.config))
        with self._lock:
            self._reached_us = self._origin_us + told.at_us
            self._last_us = max(self._last_us, told.at_us)
            self._trouble = None  # what it last said of is over
            if wanted:
                self._answers.append(told)
                self._told += 1

    def _says(self, sentence: str) -> None:
        with self._lock:
            self._trouble = f"{self.name}: {sentence}"

    def _work(self) -> None:
        try:
            self._run.run()
            self._says("the source has ended")
        except RipeError as error:
            self._says(str(error))
        except Exception as error:  # the page stays up, whatever a source does
            self._says(f"the source failed ({type(error).__name__}: {error})")
