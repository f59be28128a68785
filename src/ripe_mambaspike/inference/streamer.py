"""A trained network on a stream of events: packets in, predictions out, in bounded memory.

    streamer = Streamer(load_classifier("runs/mine"), (128, 128), window_us=1_600_000, hop_us=100_000)
    for events in packets:
        for answer in streamer.push(events):
            print(answer.label, answer.probability)

A window's final answer is, to the last bit, that of `predict` on the events of the window.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Protocol

import torch
from torch import Tensor

from ripe_mambaspike.deploy.fuse.convert import fuse
from ripe_mambaspike.errors import InputError, WeightsError
from ripe_mambaspike.events.incremental import ClosedBin, IncrementalBinner, Timeline, check_types
from ripe_mambaspike.events.recording import Events, Recording, check_inside
from ripe_mambaspike.events.region import crop_events
from ripe_mambaspike.inference.predict import Classifier, check_grid
from ripe_mambaspike.inference.stream.causal import CausalStream
from ripe_mambaspike.inference.stream.front import make_front
from ripe_mambaspike.inference.stream.windows import SlidingWindows, WindowResult
from ripe_mambaspike.models.attention_map import attention_contrast
from ripe_mambaspike.models.base import clip_logits, require_unmodified
from ripe_mambaspike.models.ripe import RipeMambaSpike

MAX_WINDOW_US = 3_600_000_000  # of a window; beyond, a slip and not a wish
MAX_WINDOWS = 1024  # in flight
DEFAULT_WINDOW_US = 1_500_000  # for a network that does not know how long its training clips lasted: about a gesture


@dataclass(frozen=True)
class StreamPrediction:
    """What the network says about a window, or about the part of it that has been seen."""

    start_us: int  # the window, [start, stop) in the stream's clock
    stop_us: int
    step: int  # steps seen of the window
    steps: int
    probabilities: tuple[float, ...]  # softmax of the mean of the logits over the steps seen
    label: str
    probability: float
    rates: tuple[float, ...]  # mean firing rate of what each stage handed on
    attention: Tensor | None  # where the last stage attends at the last step, `attention_contrast` [h, w]
    seconds: float  # from when the bin closed to the answer

    @property
    def final(self) -> bool:
        """Whether the whole window has been seen."""
        return self.step == self.steps


class StreamProcessor(Timeline, Protocol):
    """What becomes of closed bins: windows that begin anew, or one network that never ends."""

    silent: int

    def closed(self, part: ClosedBin) -> list[WindowResult]: ...

    def settle(self) -> None: ...


class Streamer:
    """Events in packets of any size → an answer every hop, once the first window is full.

    `sensor_size` is the source's; it must be the one that the network was trained on, where that is known and no other
    was asked for. The network's crop is applied here. With `early` every window in flight is answered for whenever one
    of its bins closes: more answers, more work.
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
        window_us = whole("window_us", window_us)
        hop_us = default_hop(classifier, window_us) if hop_us is None else whole("hop_us", hop_us)
        sensor_size = whole_size(sensor_size)
        check_stream(classifier, sensor_size, window_us, hop_us)
        self.classifier = deployed(classifier)
        self.sensor_size, self.window_us, self.hop_us = sensor_size, window_us, hop_us
        self._attention = attention
        self._track = self._make_track(early)
        crop = self.classifier.crop
        self._binner = IncrementalBinner(sensor_size if crop is None else crop[2:], self._track, classifier.grid)

    def push(self, events: Events) -> list[StreamPrediction]:
        """More events, by time: what they complete. Those earlier than the last closed bin are counted as late.

        Work that no answer waits for may be left for the next call, or for `settle`.
        """
        return [answer for part in self._bins(events) for answer in self._closed(part)]

    def advance(self, to_us: int) -> list[StreamPrediction]:
        """Time has passed without events: what the bins that end by then complete."""
        return [answer for part in self._binner.advance(whole("to_us", to_us)) for answer in self._closed(part)]

    def settle(self) -> None:
        """Do the work left for later: for when there is time between an answer and the next packet."""
        self._track.settle()

    def close(self) -> list[StreamPrediction]:
        """The end of the stream: windows that are not full are given up, and the next event begins anew."""
        self._binner.restart()
        return []

    @property
    def late(self) -> int:
        """Events that came too late and were left out."""
        return self._binner.late

    @property
    def silent(self) -> int:
        """Windows that ended without an event: there is nothing to say about them."""
        return self._track.silent

    def _bins(self, events: Events) -> Iterator[ClosedBin]:
        """The bins these events close. Time goes on with those outside the crop as well."""
        crop = self.classifier.crop
        if crop is None:
            yield from self._binner.push(events)
            return
        check_types(events)
        check_inside(Recording(events, self.sensor_size))
        yield from self._binner.push(crop_events(events, crop))
        if len(events):
            yield from self._binner.advance(int(events["t"].max()))

    def _make_track(self, early: bool) -> StreamProcessor:
        """The one place that knows which kinds of networks there are."""
        one = self.classifier
        model = one.model
        assert isinstance(model, RipeMambaSpike)
        span, hop, steps = self.window_us, self.hop_us, one.steps
        if model.config.causal:
            return CausalStream(model, span_us=span, hop_us=hop, steps=steps, binary=one.binary, early=early)
        return SlidingWindows(
            lambda slots: make_front(model, slots, one.grid, steps),
            span_us=span,
            hop_us=hop,
            steps=steps,
            binary=one.binary,
            early=early,
        )

    def _closed(self, part: ClosedBin) -> list[StreamPrediction]:
        return [self._answer(look) for look in self._track.closed(part)]

    def _answer(self, look: WindowResult) -> StreamPrediction:
        one = self.classifier
        shares = torch.softmax(clip_logits(look.seen.logits)[0], -1)
        if not shares.isfinite().all():
            raise WeightsError("the network's logits are not finite; a network that was trained well is wanted")
        best = int(shares.argmax())
        probabilities = tuple(shares.tolist())
        return StreamPrediction(
            look.start_us,
            look.stop_us,
            look.step,
            one.steps,
            probabilities,
            one.names[best],
            probabilities[best],
            look.seen.rates,
            attention_contrast(look.seen.attention) if self._attention else None,
            look.seconds,
        )


def whole(name: str, value: object) -> int:
    """A whole number of any type; a float is none, whatever its value."""
    if not isinstance(value, Integral):
        raise InputError(f"{name} is {value!r}; a whole number is wanted")
    return int(value)


def whole_size(given: object) -> tuple[int, int]:
    """A sensor's (width, height)."""
    if not isinstance(given, tuple | list) or len(given) != 2 or not all(isinstance(one, Integral) for one in given):
        raise InputError(f"sensor_size is {given!r}; a width and a height in whole numbers are wanted")
    return int(given[0]), int(given[1])


def default_window(classifier: Classifier) -> int:
    """As long as the training clips, by their median, where that is known."""
    return DEFAULT_WINDOW_US if classifier.duration_us is None else classifier.duration_us


def default_hop(classifier: Classifier, window_us: int) -> int:
    """One bin, rounded up: the windows then share their bins where the window divides evenly."""
    return max(1, -(-window_us // classifier.steps))


def deployed(classifier: Classifier) -> Classifier:
    """The same classifier with its network fused, which changes no bit of what it answers."""
    if classifier.model.config.form != "training":
        return classifier
    return replace(classifier, model=fuse(classifier.model.eval(), quiet=True))


def check_stream(classifier: Classifier, sensor_size: tuple[int, int], window_us: int, hop_us: int) -> None:
    """Raise unless this network can stream windows of this length from this sensor."""
    model = classifier.model
    if not isinstance(model, RipeMambaSpike):
        name = getattr(model, "name", type(model).__name__)
        raise InputError(f"'{name}' cannot move on step by step; a RIPE-MambaSpike network that is no export is wanted")
    require_unmodified(model, "stream")
    if classifier.by != "time":
        raise InputError(
            f"the network was trained on bins by {classifier.by}, whose ends are known when a recording is over; "
            "one trained on bins by time is wanted"
        )
    if not classifier.steps <= window_us <= MAX_WINDOW_US:
        raise InputError(
            f"the window is {window_us} µs; from {classifier.steps} (1 µs for each of the steps) to {MAX_WINDOW_US} µs "
            "is wanted"
        )
    if hop_us < 1:
        raise InputError(f"the hop is {hop_us} µs; at least 1 is wanted")
    if -(-window_us // hop_us) > MAX_WINDOWS:
        raise InputError(
            f"a window of {window_us} µs every {hop_us} µs makes {-(-window_us // hop_us)} at a time; "
            f"at most {MAX_WINDOWS} are wanted, so a longer hop"
        )
    classifier.region.check_size(sensor_size)
    check_grid(classifier, sensor_size if classifier.crop is None else classifier.crop[2:])


def without_crop(classifier: Classifier) -> Classifier:
    """The same for events that have been cropped already: what is left is the whole of their sensor."""
    asked = classifier.sensor_given or classifier.crop_given
    size = classifier.region.binned_size
    return replace(classifier, sensor_size=size, crop=None, sensor_given=asked, crop_given=False)
