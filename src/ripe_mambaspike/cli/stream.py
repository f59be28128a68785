"""`ripe stream`: predictions while the events arrive."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from rich.markup import escape

from ripe_mambaspike.cli.network_options import NetworkOptions, warn_default_window
from ripe_mambaspike.cli.output import console, print_message, print_warnings
from ripe_mambaspike.cli.signals import stop_on_signal
from ripe_mambaspike.command_options import Count, DeviceName, Flag, FormatName, Milliseconds, option
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.region import format_size

if TYPE_CHECKING:
    from ripe_mambaspike.inference.classifier import Classifier
    from ripe_mambaspike.inference.stream.summary import StreamSummary
    from ripe_mambaspike.inference.streamer import StreamPrediction

MAX_OPTION_US = 10**15  # of an option in time


@dataclass(kw_only=True)
class StreamCommand(NetworkOptions):
    """Classify a stream of events while it arrives.

    A window of fixed length ends every hop; its prediction is that of ripe predict on the window's events. The stream
    is a camera, a recording that is replayed, or packets on standard input, in UDP datagrams or over a TCP connection
    (docs/streaming.md describes the format; ripe send sends them). Ctrl-C ends it with a summary.
    """

    source: Annotated[str, option("ADDRESS|FILE|-")]
    """A recording of any format, a UDP or TCP port to listen on (udp://HOST:PORT, tcp://HOST:PORT), - for standard
    input, or a camera: usb://, inivation:// or dv://HOST:PORT (ripe record --list shows those that are connected). With
    TCP, the stream ends when the sender closes its connection."""
    window: Milliseconds = None
    """Length of a window. Default: that of the training clips (their median), or 1500 ms if the network does not store
    it."""
    hop: Milliseconds = None
    """Time between two predictions. Default: one bin of the window."""
    early: Flag = False
    """Also predict for windows that are not full, whenever one of their bins closes (RIPE-MambaSpike alone)."""
    pace: Literal["real", "fast"] = "real"
    """Replay a recording at its own pace, or as fast as possible; for standard input and TCP, whether the sender can
    wait."""
    format: FormatName = None
    time_steps: Count = None
    """Time bins of a window. Default: as in training."""
    max_rate: Annotated[float | None, option("EVENTS/S")] = None
    """Accept at most this many events per second; the others are dropped and counted."""
    queue: Annotated[int, option("EVENTS")] = 1_000_000
    """Keep at most this many events waiting for the network; beyond that the oldest are dropped and counted."""
    tolerance: Annotated[float, option("MS")] = 0.0
    """How late an event may arrive and still be sorted in; every prediction waits that long."""
    stall: Annotated[float, option("SECONDS")] = 1.0
    """Silence after which a live source is reported as stalled; from then on the wall clock closes the windows."""
    max_predictions: Count = None
    """Stop after this many predictions for whole windows."""
    device: DeviceName = "cpu"
    """Where the network computes."""
    json: Flag = False
    """Print one JSON line for every prediction, and one for the summary."""

    def run(self) -> int:
        from ripe_mambaspike.inference.stream.run import make_stream
        from ripe_mambaspike.inference.stream.sources import describe_source_start
        from ripe_mambaspike.inference.stream.summary import StreamLimits
        from ripe_mambaspike.inference.streamer import MAX_WINDOW_US

        window_us = None if self.window is None else _microseconds("window", self.window, most=MAX_WINDOW_US)
        hop_us = None if self.hop is None else _microseconds("hop", self.hop)
        tolerance_us = _microseconds("tolerance", self.tolerance, least=0)
        limits = StreamLimits(self.queue, self.max_rate, tolerance_us, self.stall, self.max_predictions)
        classifier = self.load(time_steps=self.time_steps, device=None if self.device == "cpu" else self.device)
        show: Callable[[StreamPrediction], None] = print_json_line if self.json else PredictionLines()

        def on_prediction(prediction: "StreamPrediction") -> None:
            with output_errors():
                show(prediction)

        with stop_on_signal(quiet=True) as should_stop:
            with print_warnings():
                stream = make_stream(
                    classifier, self.source, window_us=window_us, hop_us=hop_us, early=self.early, pace=self.pace,
                    format=self.format, limits=limits, on_prediction=on_prediction, on_message=print_message,
                    should_stop=should_stop,
                )  # fmt: skip
            if self.window is None:
                warn_default_window(classifier)
            if (start := describe_source_start(self.source)) is not None:
                print_message(start)
            if classifier.sensor_given or classifier.region.crop_given:
                print_message(_describe_region(classifier))
            try:
                stream.run()
            except (OutputError, BrokenPipeError):
                raise  # stdout is closed, so no summary can be printed
            except BaseException:
                self._show_summary(stream.summary)
                raise
            self._show_summary(stream.summary)
            for sentence in getattr(stream.source, "warnings", ()):
                print_message(f"{self.source}: {sentence}")
            return 130 if should_stop() else 0

    def _show_summary(self, summary: "StreamSummary") -> None:
        with output_errors():
            if self.json:
                print(json.dumps({"summary": summary.to_dict()}), flush=True)
            else:
                print_summary(summary)


class OutputError(InputError):
    """Standard output cannot be written."""


@contextmanager
def output_errors() -> Iterator[None]:
    """Errors of standard output, raised the same way for both forms."""
    try:
        yield
    except SystemExit as stop:  # raised by rich when the output pipe is closed
        raise BrokenPipeError from stop
    except BrokenPipeError:
        raise
    except OSError as error:
        # What could not be written is still buffered, and would be tried once more when the interpreter shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reason = error.strerror or error
        raise OutputError(f"stdout: expected an output that can be written, got {reason}", field="stdout") from error


def _describe_region(classifier: "Classifier") -> str:
    """Which part of the source's sensor goes to which grid."""
    region = classifier.region
    height, width = classifier.grid
    part = "all" if region.crop is None else f"the part {' '.join(map(str, region.crop))}"
    return f"{part} of the {format_size(region.size)} sensor is binned to the network's grid of {width}×{height}"


def _microseconds(option: str, milliseconds: float, least: int = 1, most: int = MAX_OPTION_US) -> int:
    given = round(milliseconds * 1000) if abs(milliseconds) <= most / 1000 else -1
    if given < least:
        raise InputError(
            f"{option}: expected {least / 1000:g} to {most / 1000:.0f} ms, got {milliseconds:.10g}", field=option
        )
    return given


def print_json_line(prediction: "StreamPrediction") -> None:
    document = {name: value for name, value in vars(prediction).items() if name != "attention"}
    print(json.dumps({**document, "final": prediction.final}, ensure_ascii=False), flush=True)


class PredictionLines:
    """One line of text for each prediction."""

    def __init__(self) -> None:
        self._out = console()
        self._first: int | None = None

    def __call__(self, prediction: "StreamPrediction") -> None:
        self._first = prediction.start_us if self._first is None else self._first
        start, stop = ((time_us - self._first) / 1e6 for time_us in (prediction.start_us, prediction.stop_us))
        style = "bold" if prediction.final else "dim"
        seen = "" if prediction.final else f"  after {prediction.step} of {prediction.time_steps} steps"
        unknown = f"[{style}]unknown[/], at best " if prediction.unknown else ""
        self._out.print(
            f"[dim]{start:9.3f}–{stop:.3f} s[/]  {unknown}[{style}]{escape(prediction.label)}[/] "
            f"{100 * prediction.probability:5.1f} %{seen}  [dim]{1e3 * prediction.seconds:.0f} ms[/]",
            soft_wrap=True,
            highlight=False,
        )


def print_summary(summary: "StreamSummary") -> None:
    speed = summary.events / summary.seconds if summary.seconds else 0.0
    early = f" and {summary.early_predictions:,} early ones" if summary.early_predictions else ""
    lines = [
        f"[bold]{summary.predictions:,} predictions[/]{early} from {summary.events:,} events "
        f"in {summary.seconds:.1f} s ({speed:,.0f} events/s)"
    ]
    if parts := [f"{name} {value:.1f} ms" for name, value in summary.latency_ms.items() if value is not None]:
        lines.append(f"latency {', '.join(parts)}")
    if lost := [f"{reason} {count:,}" for reason, count in summary.dropped.items() if count]:
        lines.append(f"events dropped: {', '.join(lost)}")
    if summary.invalid_packets:
        lines.append(f"invalid packets: {summary.invalid_packets:,} (the last: {escape(summary.last_invalid or '')})")
    if summary.lost_packets:
        lines.append(f"datagrams lost before they were read: {summary.lost_packets:,}")
    lines += [f"{escape(name)}: {count:,}" for name, count in summary.losses.items()]
    rest = {"windows without an event": summary.silent_windows, "stalls": summary.stalls, "restarts": summary.restarts}
    if counted := [f"{name} {count:,}" for name, count in rest.items() if count]:
        lines.append(", ".join(counted))
    out = console()
    for line in lines:
        out.print(line, soft_wrap=True, highlight=False)
