"""`ripe stream`: predictions while the events arrive."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.markup import escape

from ripe_mambaspike.cli.data.recordings import CropArea, SensorSize, print_warnings
from ripe_mambaspike.cli.output import console
from ripe_mambaspike.cli.train import stopping
from ripe_mambaspike.errors import InputError

if TYPE_CHECKING:
    from ripe_mambaspike.inference.predict import Classifier
    from ripe_mambaspike.inference.stream.run import StreamSummary
    from ripe_mambaspike.inference.streamer import StreamPrediction

LARGEST_US = 10**15  # of an option in time: beyond, a slip and not a wish


@dataclass
class StreamCommand:
    """Say what a stream of events shows, hop by hop, while it arrives.

    A window of fixed length ends every hop; its answer is that of ripe predict on the window's events. The stream is a
    recording replayed, frames on standard input, or frames in UDP datagrams (docs/streaming.md has their format).
    Ctrl-C ends it with a summary.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """The folder of a run (its best network is taken) or of a saved network in any form."""
    source: Annotated[str, tyro.conf.arg(metavar="FILE|udp://HOST:PORT|-")]
    """A recording of any format, a UDP port to listen on, or - for standard input."""
    window: Annotated[float | None, tyro.conf.arg(metavar="MS")] = None
    """Length of a window; as long as the training clips (their median) when not given, 1500 ms for a network that does
    not know, which is said."""
    hop: Annotated[float | None, tyro.conf.arg(metavar="MS")] = None
    """Time between two answers; one bin of the window when not given."""
    early: bool = False
    """Also answer for windows that are not full, whenever one of their bins closes."""
    pace: Literal["real", "fast"] = "real"
    """A recording at its own pace, or as fast as it can be computed; of standard input, whether its writer can wait."""
    sensor_size: SensorSize = None
    """The source's sensor, whatever it says; the one it was trained on when not given, and others are refused."""
    crop: CropArea = None
    """The part of the sensor that is binned: left, top, width and height; as in training when not given."""
    time_steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Time bins of a window; as in training when not given."""
    grid: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Side of the bins' square grid; as in training when not given."""
    max_rate: Annotated[float | None, tyro.conf.arg(metavar="EVENTS/S")] = None
    """Events a second that are let in; the rest is dropped and counted."""
    queue: Annotated[int, tyro.conf.arg(metavar="EVENTS")] = 1_000_000
    """Events that may wait for the network; beyond, the oldest are dropped and counted."""
    tolerance: Annotated[float, tyro.conf.arg(metavar="MS")] = 0.0
    """How late an event may come and still be sorted in; every answer waits that long."""
    stall: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 1.0
    """Silence after which a live source is said to stall; time then goes on by the wall clock."""
    answers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Stop after so many answers for whole windows."""
    json: bool = False
    """Print one JSON line for every answer, and one for the summary."""

    def run(self) -> int:
        from ripe_mambaspike.deploy.export.run import is_export
        from ripe_mambaspike.inference.predict import load
        from ripe_mambaspike.inference.stream.run import StreamLimits, StreamRunner
        from ripe_mambaspike.inference.stream.sources import open_stream
        from ripe_mambaspike.inference.streamer import (
            MAX_WINDOW_US,
            Streamer,
            check_stream,
            default_hop,
            default_window,
            deployed,
            without_crop,
        )

        window_us = None if self.window is None else _microseconds("--window", self.window, most=MAX_WINDOW_US)
        tolerance_us = _microseconds("--tolerance", self.tolerance, least=0)
        limits = StreamLimits(self.queue, self.max_rate, tolerance_us, self.stall, self.answers)
        if self.max_rate is not None and self.pace == "fast" and not self.source.startswith("udp://"):
            raise InputError(
                f"--max-rate is {self.max_rate:g} with --pace fast, at which nothing is dropped; --pace real is wanted"
            )
        if is_export(self.checkpoint):
            raise InputError(f"{self.checkpoint} is an export, which cannot move on step by step; a network is wanted")
        classifier = load(
            self.checkpoint, steps=self.time_steps, grid=self.grid, sensor_size=self.sensor_size, crop=self.crop
        )
        if window_us is None:
            window_us = default_window(classifier)
        hop_us = default_hop(classifier, window_us) if self.hop is None else _microseconds("--hop", self.hop)
        fitted = without_crop(classifier)
        check_stream(fitted, fitted.sensor_size or fitted.grid[::-1], window_us, hop_us)
        classifier = deployed(classifier)

        def make(size: tuple[int, int]) -> Streamer:
            return Streamer(classifier, size, window_us=window_us, hop_us=hop_us, early=self.early)

        def check_sensor(size: tuple[int, int]) -> None:
            check_stream(classifier, size, window_us, hop_us)

        with print_warnings():
            source = open_stream(self.source, pace=self.pace, sensor_size=self.sensor_size, region=classifier.region)
        lines: Callable[[StreamPrediction], None] = print_line if self.json else Lines()

        def tell(answer: "StreamPrediction") -> None:
            with printing():
                lines(answer)

        with stopping(quiet=True) as asked:
            run = StreamRunner(
                source,
                make,
                limits,
                on_prediction=tell,
                on_message=_says,
                should_stop=asked,
                check_sensor=check_sensor,
                report_invalid=True,
            )
            if self.window is None:
                say_unknown_window(classifier)
            if self.source.startswith("udp://"):
                _says(f"listening on {self.source}")
            try:
                run.run()
            except (OutputError, BrokenPipeError):
                raise  # there is nowhere to put a summary
            except BaseException:
                self._close(run.summary)
                raise
            self._close(run.summary)
            for sentence in getattr(source, "warnings", ()):
                _says(f"{self.source}: {sentence}")
            return 130 if asked() else 0

    def _close(self, summary: "StreamSummary") -> None:
        with printing():
            if self.json:
                print(json.dumps({"summary": summary.to_dict()}), flush=True)
            else:
                show_summary(summary)


class OutputError(InputError):
    """Standard output that takes nothing more."""


@contextmanager
def printing() -> Iterator[None]:
    """What goes wrong with standard output, told the same way for both forms."""
    try:
        yield
    except SystemExit as stop:  # how rich ends when whoever read the output has left
        raise BrokenPipeError from stop
    except BrokenPipeError:
        raise
    except OSError as error:
        # What could not be written is still held, and would be tried once more when the interpreter shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reason = error.strerror or error
        raise OutputError(f"standard output cannot be written ({reason}); a place for the answers is wanted") from error


def _microseconds(option: str, milliseconds: float, least: int = 1, most: int = LARGEST_US) -> int:
    given = round(milliseconds * 1000) if abs(milliseconds) <= most / 1000 else -1
    if given < least:
        raise InputError(f"{option} is {milliseconds:.10g} ms; from {least / 1000:g} to {most / 1000:.0f} is wanted")
    return given


def _says(line: str) -> None:
    print(f"ripe: {line}", file=sys.stderr, flush=True)


def say_unknown_window(classifier: "Classifier") -> None:
    """Where a network does not know how long its clips were, the window is a guess."""
    if classifier.duration_us is None:
        _says("warning: --window: 1500 ms are taken, since the network does not say how long its training clips lasted")


def answer_row(answer: "StreamPrediction") -> dict[str, Any]:
    """An answer as it is printed."""
    return {
        "start_us": answer.start_us,
        "stop_us": answer.stop_us,
        "step": answer.step,
        "steps": answer.steps,
        "final": answer.final,
        "label": answer.label,
        "probability": answer.probability,
        "probabilities": list(answer.probabilities),
        "rates": list(answer.rates),
        "seconds": answer.seconds,
    }


def print_line(answer: "StreamPrediction") -> None:
    print(json.dumps(answer_row(answer), ensure_ascii=False), flush=True)


class Lines:
    """A line for a person: when, what, how sure."""

    def __init__(self) -> None:
        self._out = console()
        self._first: int | None = None

    def __call__(self, answer: "StreamPrediction") -> None:
        self._first = answer.start_us if self._first is None else self._first
        start, stop = ((one - self._first) / 1e6 for one in (answer.start_us, answer.stop_us))
        style = "bold" if answer.final else "dim"
        seen = "" if answer.final else f"  after {answer.step} of {answer.steps} steps"
        self._out.print(
            f"[dim]{start:9.3f}–{stop:.3f} s[/]  [{style}]{escape(answer.label)}[/] "
            f"{100 * answer.probability:5.1f} %{seen}  [dim]{1e3 * answer.seconds:.0f} ms[/]",
            soft_wrap=True,
            highlight=False,
        )


def show_summary(summary: "StreamSummary") -> None:
    out = console()
    speed = summary.events / summary.seconds if summary.seconds else 0.0
    early = f" and {summary.early_answers:,} early ones" if summary.early_answers else ""
    out.print(
        f"[bold]{summary.answers:,} answers[/]{early} from {summary.events:,} events in {summary.seconds:.1f} s "
        f"({speed:,.0f} events/s)",
        soft_wrap=True,
        highlight=False,
    )
    parts = [f"{name} {value:.1f} ms" for name, value in summary.latency_ms.items() if value is not None]
    if parts:
        out.print(f"latency {', '.join(parts)}", soft_wrap=True, highlight=False)
    lost = [f"{kind} {count:,}" for kind, count in summary.dropped.items() if count]
    if lost:
        out.print(f"events dropped: {', '.join(lost)}", soft_wrap=True, highlight=False)
    if summary.refused_packets:
        why = escape(summary.last_refusal or "")
        out.print(f"packets refused: {summary.refused_packets:,} (the last: {why})", soft_wrap=True, highlight=False)
    told = {"windows without an event": summary.silent_windows, "stalls": summary.stalls, "restarts": summary.restarts}
    if rest := [f"{name} {count:,}" for name, count in told.items() if count]:
        out.print(", ".join(rest), soft_wrap=True, highlight=False)
