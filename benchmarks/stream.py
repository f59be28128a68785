"""Streaming at a steady rate: the latency of predictions, what is dropped, and whether memory stays flat.

    python -m benchmarks.stream                     # 20 s at 1 M events/s, 128², T 16, a hop of 100 ms
    python -m benchmarks.stream --minutes 10        # the long one

Synthetic events come by the wall clock, in packets of 10 ms, through the same queue and network as in `ripe stream`.
First every prediction of the first seconds is compared with the network's on that window; if a bit differs, no speed
is reported.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro

from ripe_mambaspike import create_model
from ripe_mambaspike.deploy.fuse.convert import fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.recording import Events, Recording, make_events
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.stream.run import StreamRunner
from ripe_mambaspike.inference.stream.summary import StreamLimits
from ripe_mambaspike.inference.streamer import Streamer, StreamPrediction
from ripe_mambaspike.models.base import clip_logits
from ripe_mambaspike.ops.memory import keep_freed_memory

PACKET_US = 10_000
LOOP = 100  # packets before the scene begins again


@dataclass
class Arguments:
    rate: float = 1e6
    """Events a second."""
    minutes: float = 1 / 3
    """How long to stream."""
    window: int = 1600
    """Milliseconds."""
    hop: int = 100
    """Milliseconds."""
    steps: int = 16
    side: int = 128
    """Of the sensor and of the grid."""
    threads: int = 2
    checked: float = 2.5
    """Seconds of the stream whose predictions are compared first."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Where to write the numbers as JSON."""


def scene(rate: float, side: int) -> list[Events]:
    """A second of a blob that circles over noise, in packets."""
    rng = np.random.default_rng(0)
    count = round(rate * PACKET_US / 1e6)
    packets = []
    for index in range(LOOP):
        angle = 2 * np.pi * index / LOOP
        center = side / 2 * (1 + 0.5 * np.array([np.cos(angle), np.sin(angle)]))
        blob = rng.normal(center[:, None], side / 12, (2, count))
        noise = rng.uniform(0, side, (2, count))
        x, y = np.clip(np.where(rng.random(count) < 0.8, blob, noise), 0, side - 1).astype(np.int64)
        times = np.sort(rng.integers(0, PACKET_US, count))
        packets.append(make_events(x, y, times, rng.integers(0, 2, count)))
    return packets


class SteadySource:
    """The scene again and again: by the wall clock, or all at once."""

    def __init__(self, packets: list[Events], side: int, seconds: float, live: bool) -> None:
        self.live = live
        self.size: tuple[int, int] | None = (side, side)
        self.invalid = 0
        self.last_invalid: str | None = None
        self._packets, self._number = packets, round(seconds * 1e6 / PACKET_US)

    def packets(self, stopped: Callable[[], bool]) -> Iterator[Events]:
        began = time.monotonic()
        for index in range(self._number):
            events = self._packets[index % LOOP].copy()
            events["t"] += index * PACKET_US
            if self.live:
                left = began + (index + 1) * PACKET_US / 1e6 - time.monotonic()
                if left > 0:
                    time.sleep(left)
            if stopped():
                return
            yield events


def make_classifier(given: Arguments) -> Classifier:
    model = create_model("dvsgesture", seed=0, time_steps=given.steps, in_size=given.side)
    randomize(model, 0)
    deployed = fuse(model.eval(), quiet=True)
    names = tuple(f"class {index}" for index in range(deployed.config.num_classes))
    return Classifier(deployed, names, given.steps, (given.side, given.side), "time", False)


def check(given: Arguments, classifier: Classifier, packets: list[Events]) -> list[StreamPrediction]:
    """The first predictions, each compared with the whole window's, bit by bit."""
    source = SteadySource(packets, given.side, given.checked, live=False)
    events = np.concatenate(list(source.packets(lambda: False)))
    size = (given.side, given.side)
    streamer = _streamer(given, classifier, size)
    predictions = streamer.push(events)
    for answer in predictions:
        inside = events[(events["t"] >= answer.start_us) & (events["t"] < answer.stop_us)]
        span = (answer.start_us, answer.stop_us)
        clip = bin_events(Recording(inside, size), given.steps, grid=classifier.grid, start_us=span[0], stop_us=span[1])
        with torch.no_grad():
            whole = torch.softmax(clip_logits(classifier.model(clip.unsqueeze(0)))[0], -1)
        if tuple(whole.tolist()) != answer.probabilities:
            sys.exit(f"the prediction for {span} differs from the network's on that window; no speed is reported")
    return predictions


def _streamer(given: Arguments, classifier: Classifier, size: tuple[int, int]) -> Streamer:
    return Streamer(classifier, size, window_us=given.window * 1000, hop_us=given.hop * 1000)


def resident_mib() -> float:
    """Memory of this process, where the system tells."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def main(given: Arguments) -> None:
    keep_freed_memory()
    torch.set_num_threads(given.threads)
    classifier = make_classifier(given)
    packets = scene(given.rate, given.side)
    expected = {answer.start_us: answer.probabilities for answer in check(given, classifier, packets)}
    differing = [0]
    resident: list[float] = []  # after the first tenth, then at every tenth
    tenth = max(1, round(given.minutes * 60_000 / given.hop / 10))

    def on_prediction(answer: StreamPrediction) -> None:
        if expected.get(answer.start_us, answer.probabilities) != answer.probabilities:
            differing[0] += 1
        if (answer.start_us // (given.hop * 1000)) % tenth == 0:
            resident.append(resident_mib())

    source = SteadySource(packets, given.side, given.minutes * 60, live=True)
    run = StreamRunner(
        source,
        lambda size: _streamer(given, classifier, size),
        StreamLimits(),
        on_prediction=on_prediction,
        on_message=print,
    )
    summary = run.run()
    if differing[0] and not sum(summary.dropped.values()):  # what was dropped makes other predictions
        sys.exit(f"{differing[0]} predictions differ from those computed at leisure; no speed is reported")
    row = {
        **vars(given),
        "out": None,
        "compared": len(expected),
        **summary.to_dict(),
        "resident_mib": [round(one, 1) for one in resident],
    }
    print(
        f"{given.side}², T {given.steps}, window {given.window} ms, hop {given.hop} ms, {given.threads} threads: "
        f"{summary.events / summary.seconds / 1e6:.2f} M events/s for {summary.seconds:.0f} s, "
        f"{len(expected)} predictions compared bit by bit"
    )
    print("| predictions | dropped | p50 | p95 | p99 | max | p95 / hop | memory |")
    print("|---|---|---|---|---|---|---|---|")
    p50, p95, p99, most = (summary.latency_ms[name] or 0.0 for name in ("p50", "p95", "p99", "max"))
    print(
        f"| {summary.predictions} | {sum(summary.dropped.values())} | {p50:.1f} ms | {p95:.1f} ms | {p99:.1f} ms | "
        f"{most:.1f} ms | {p95 / given.hop:.2f} | {resident[0]:.0f} → {resident[-1]:.0f} MiB |"
    )
    if given.out is not None:
        given.out.write_text(json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
