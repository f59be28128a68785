"""The accuracy of windows of a recording, as a stream classifies them: of one length, half a length apart."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ripe_mambaspike.data.loading import EventDataset
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.recorded import record_logits
from ripe_mambaspike.models.accuracy import EVAL_BATCH

MAX_WINDOW_MS = 3_600_000.0


@dataclass(frozen=True)
class WindowAccuracy:
    """The windows of one length in all recordings of a split."""

    window_ms: float
    hop_ms: float
    n: int  # windows
    correct: int
    silent: int  # windows without an event, which are not classified
    too_short: int  # recordings shorter than a window

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "top1": self.top1}

    @property
    def top1(self) -> float | None:
        """The share that is classified right; None without windows."""
        return self.correct / self.n if self.n else None


def check_windows(windows_ms: Iterable[float], time_steps: int) -> tuple[int, ...]:
    """The lengths in µs: each of at least 1 µs a step."""
    lengths = []
    for given in windows_ms:
        if not time_steps / 1000 <= given <= MAX_WINDOW_MS:
            wanted = f"{time_steps / 1000:g} (1 µs for each step) to {MAX_WINDOW_MS:.0f} ms"
            raise InputError.expected("windows", wanted, f"{given:.10g}")
        lengths.append(round(1000 * given))
    return tuple(lengths)


def evaluate_windows(classifier: Classifier, events: EventDataset, window_us: int) -> WindowAccuracy:
    """Classify all windows of the recordings that end by their last event; the hop is half a window."""
    hop = max(1, window_us // 2)
    tally = _Tally()
    logits = record_logits(classifier.model, tally.batches(classifier, events, window_us, hop))
    correct = int((logits.argmax(-1) == torch.tensor(tally.labels)).sum()) if tally.labels else 0
    return WindowAccuracy(window_us / 1000, hop / 1000, len(tally.labels), correct, tally.silent, tally.too_short)


def windows_of(recording: Recording, window_us: int, hop_us: int) -> Iterator[tuple[int, Recording]]:
    """The start and the events of every window that ends by the last event; windows are half-open."""
    ordered = recording.ordered()
    times = ordered["t"]
    for start in range(recording.first_us, recording.last_us + 2 - window_us, hop_us):
        first, last = np.searchsorted(times, (start, start + window_us))
        yield start, Recording(ordered.events[first:last], recording.sensor_size)


class _Tally:
    """Labels of the windows that were classified, and what was left out."""

    def __init__(self) -> None:
        self.labels: list[int] = []
        self.silent = self.too_short = 0

    def batches(self, classifier: Classifier, events: EventDataset, window_us: int, hop_us: int) -> Iterator[Tensor]:
        """Clips [B, T, 2, H, W] of the windows, on the network's device."""
        every = self._clips(classifier, events, window_us, hop_us)
        while batch := list(islice(every, EVAL_BATCH)):
            yield torch.stack(batch).to(classifier.device)

    def _clips(self, classifier: Classifier, events: EventDataset, window_us: int, hop_us: int) -> Iterator[Tensor]:
        for number in range(len(events)):
            recording, label = events[number]
            self.too_short += recording.last_us + 1 - recording.first_us < window_us
            for start, window in windows_of(recording, window_us, hop_us):
                if len(window):
                    self.labels.append(label)
                    yield _bin(classifier, window, start, start + window_us)
                else:
                    self.silent += 1


def _bin(classifier: Classifier, window: Recording, start_us: int, stop_us: int) -> Tensor:
    """The clip [T, 2, H, W] of a window: bins of equal duration divide all of it, whenever its events are."""
    timed = classifier.bin_by == "time"
    return bin_events(
        window, classifier.time_steps, by=classifier.bin_by, grid=classifier.grid, binary=classifier.binary,
        start_us=start_us if timed else None, stop_us=stop_us if timed else None,
    )  # fmt: skip
