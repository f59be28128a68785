"""Classify a stream of events while it arrives: packets in, predictions out, in bounded memory.

    streamer = Streamer(load("runs/mine"), (128, 128), window_us=1_600_000, hop_us=100_000)
    for events in packets:
        for prediction in streamer.push(events):
            print(prediction.label, prediction.probability)

The final prediction of a window is bit-identical to that of `predict` on the window's events.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError, WeightsError
from ripe_mambaspike.events.incremental import ClosedBin, IncrementalBinner, check_types
from ripe_mambaspike.events.recording import Events, Recording, check_inside
from ripe_mambaspike.events.region import crop_events
from ripe_mambaspike.inference.classifier import Classifier, check_grid
from ripe_mambaspike.inference.stream.causal import CausalStream
from ripe_mambaspike.inference.stream.processor import StreamProcessor, WindowResult
from ripe_mambaspike.inference.stream.windows import SlidingWindows
from ripe_mambaspike.inference.unknown import apply_rule
from ripe_mambaspike.models.base import Model, clip_logits, require_unmodified
from ripe_mambaspike.models.observe import attention_contrast
from ripe_mambaspike.models.ripe import RipeMambaSpike

MAX_WINDOW_US = 3_600_000_000
MAX_WINDOWS = 1024  # that overlap at any time
DEFAULT_WINDOW_US = 1_500_000  # for a network that does not know how long its training clips lasted: about a gesture


@dataclass(frozen=True)
class StreamPrediction:
    """The network's prediction for a window, or for the part of it that has been seen."""

    start_us: int  # the window, [start, stop) in the stream's clock
    stop_us: int
    step: int  # steps of the window seen so far
    time_steps: int
    probabilities: tuple[float, ...]  # softmax of the mean of the logits over the steps seen
    label: str
    probability: float
    rates: tuple[float, ...]  # mean firing rate of each stage's output, or of each layer of another network
    attention: Tensor | None  # where the last stage attends at the last step, `attention_contrast` [h, w]
    seconds: float  # from when the bin closed to the prediction
    score: float | None = None  # for a network with a threshold for unknown recordings
    unknown: bool = False  # whether the score is below it; `label` is the most likely class all the same

    @property
    def final(self) -> bool:
        """Whether the whole window has been seen."""
        return self.step == self.time_steps


class Streamer:
    """Events in packets of any size → a prediction every hop, once the first window is full.

    A network that is not RIPE-MambaSpike has no steps: it computes a window when its last bin closes, and has no early
    predictions.

    Args:
        classifier: what `load` gives; its crop is applied to the events
        sensor_size: (width, height) of the source. It must be that of the training recordings, where that is known,
            unless the classifier was loaded for another.
        window_us: length of a window
        hop_us: time from one window's end to the next; by default one bin
        early: predict for every open window whenever one of its bins closes: more predictions, more work
        attention: also return where the last stage attends
    """

    def __init__(
        self,
        classifier: Classifier,
        sensor_size: tuple[int, int],
        *,
        window_us: int,
        hop_us: int | None = None,
        early: bool = False,
        attention: bool = False,
    ) -> None:
        window_us = _as_int("window_us", window_us)
        hop_us = default_hop(classifier, window_us) if hop_us is None else _as_int("hop_us", hop_us)
        sensor_size = _as_size(sensor_size)
        check_stream(classifier, sensor_size, window_us, hop_us, early)
        self.classifier = classifier
        self.sensor_size, self.window_us, self.hop_us = sensor_size, window_us, hop_us
        self._attention = attention
        causal = isinstance(classifier.model, RipeMambaSpike) and classifier.model.config.causal
        kind = CausalStream if causal else SlidingWindows
        self._processor: StreamProcessor = kind(classifier, window_us, hop_us, early)
        crop = classifier.crop
        self._binner = IncrementalBinner(sensor_size if crop is None else crop[2:], self._processor, classifier.grid)

    def push(self, events: Events) -> list[StreamPrediction]:
        """Add events, ordered by time, and return the predictions that they complete.

        Events earlier than the last closed bin are left out and counted as late. Work that no prediction waits for may
        be left for the next call, or for `finish_pending`.
        """
        return [prediction for part in self._bins(events) for prediction in self._predictions(part)]

    def advance(self, to_us: int) -> list[StreamPrediction]:
        """Time has passed without events: the predictions that the bins ending by then complete."""
        return [found for part in self._binner.advance(_as_int("to_us", to_us)) for found in self._predictions(part)]

    def finish_pending(self) -> None:
        """Run the deferred work, for example between a prediction and the next packet."""
        self._processor.finish_pending()

    def reset(self) -> None:
        """The end of the stream: windows that are not full are dropped, and the next event starts a new stream."""
        self._binner.restart()

    @property
    def late(self) -> int:
        """Events that came too late and were left out."""
        return self._binner.late

    @property
    def silent(self) -> int:
        """Windows that ended without an event; they get no prediction."""
        return self._processor.silent

    def _bins(self, events: Events) -> Iterator[ClosedBin]:
        """The bins these events close. Events outside the crop advance time as well."""
        crop = self.classifier.crop
        if crop is None:
            yield from self._binner.push(events)
            return
        check_types(events)
        check_inside(Recording(events, self.sensor_size))
        yield from self._binner.push(crop_events(events, crop))
        if len(events):
            yield from self._binner.advance(int(events["t"].max()))

    def _predictions(self, part: ClosedBin) -> list[StreamPrediction]:
        return [self._prediction(result) for result in self._processor.process(part)]

    def _prediction(self, result: WindowResult) -> StreamPrediction:
        mean = clip_logits(result.logits)[0]
        shares = torch.softmax(mean, -1)
        if not shares.isfinite().all():
            raise WeightsError.expected("logits", "finite numbers", "some that are not")
        best, probabilities = int(shares.argmax()), tuple(shares.tolist())
        return StreamPrediction(
            result.start_us,
            result.stop_us,
            result.step,
            self.classifier.time_steps,
            probabilities,
            self.classifier.class_names[best],
            probabilities[best],
            result.rates,
            attention_contrast(result.attention) if self._attention and result.attention is not None else None,
            result.seconds,
            *apply_rule(self.classifier.unknown, mean),
        )


def _as_int(name: str, value: object) -> int:
    """An integer of any type; a float is refused, whatever its value."""
    if not isinstance(value, Integral):
        raise InputError(f"{name}: expected an int, got {value!r}", field=name)
    return int(value)


def _as_size(value: object) -> tuple[int, int]:
    """A sensor's (width, height)."""
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(isinstance(side, Integral) for side in value):
        raise InputError.expected("sensor_size", "(width, height) in ints", repr(value))
    return int(value[0]), int(value[1])


def default_window(classifier: Classifier) -> int:
    """As long as the training clips, by their median, where that is known."""
    return DEFAULT_WINDOW_US if classifier.duration_us is None else classifier.duration_us


def default_hop(classifier: Classifier, window_us: int) -> int:
    """One bin, rounded up: windows then share their bins if the window divides evenly."""
    return max(1, -(-window_us // classifier.time_steps))


def runs_by_steps(model: object) -> bool:
    """Whether a window has a prediction whenever one of its bins closes, without computing all of it again."""
    return isinstance(model, RipeMambaSpike)


def check_stream(
    classifier: Classifier, sensor_size: tuple[int, int], window_us: int, hop_us: int, early: bool = False
) -> None:
    """Raise unless this network can stream windows of this length from this sensor."""
    model, steps = classifier.model, classifier.time_steps
    if not isinstance(model, Model):
        name = getattr(model, "name", type(model).__name__)
        raise InputError.expected("model", "a saved network, which streams", f"the export of '{name}'")
    if early and not runs_by_steps(model):
        raise InputError.expected("early", f"false for '{model.name}', which reads whole windows", True)
    require_unmodified(model, "stream")
    if classifier.bin_by != "time":
        raise InputError.expected(
            "bin_by",
            "a network trained on bins by time",
            f"one by {classifier.bin_by}, whose bins are known only when a recording has ended",
        )
    if not steps <= window_us <= MAX_WINDOW_US:
        raise InputError.expected("window_us", f"{steps} (1 µs for each step) to {MAX_WINDOW_US}", window_us)
    if hop_us < 1:
        raise InputError.expected("hop_us", "at least 1", hop_us)
    if (windows := -(-window_us // hop_us)) > MAX_WINDOWS:
        raise InputError.expected(
            "hop_us",
            f"one that makes at most {MAX_WINDOWS} windows of {window_us} µs overlap",
            f"{hop_us}, which makes {windows}",
        )
    classifier.region.check_size(sensor_size)
    check_grid(classifier, sensor_size if classifier.crop is None else classifier.crop[2:])


def without_crop(classifier: Classifier) -> Classifier:
    """The classifier for events that are already cropped: their sensor is the crop."""
    given = classifier.sensor_given or classifier.crop_given
    size = classifier.region.binned_size
    return replace(classifier, sensor_size=size, crop=None, sensor_given=given, crop_given=False)
