"""Streaming at a steady rate: how long predictions take, what is dropped, and whether memory stays flat.

    python -m benchmarks.stream                     # 20 s at 1 M events/s, 128², T 16, a hop of 100 ms
    python -m benchmarks.stream --minutes 10        # the long one
    python -m benchmarks.stream --device cuda

Synthetic events come by the wall clock, in packets of 10 ms, through the same queue and network as in `ripe stream`.
First every prediction of the stream's first seconds is compared with the network's on that window: bit by bit on the
CPU; on a GPU, where sums over other batches round differently, to MAX_DIFFERENCE. Where they differ, nothing is timed.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

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
LOOP_PACKETS = 100  # packets before the scene begins again
MAX_DIFFERENCE = {"cpu": 0.0, "cuda": 0.02}  # of a class's probability


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
    time_steps: int = 16
    side: int = 128
    """Of the sensor and of the grid."""
    threads: int = 2
    device: Literal["cpu", "cuda"] = "cpu"
    checked: float = 2.5
    """Seconds of the stream whose predictions are compared first."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Where to write the numbers as JSON."""


def scene(rate: float, side: int) -> list[Events]:
    """A second of a blob that circles over noise, in packets."""
    rng = np.random.default_rng(0)
    count = round(rate * PACKET_US / 1e6)
    packets = []
    for index in range(LOOP_PACKETS):
        angle = 2 * np.pi * index / LOOP_PACKETS
        center = side / 2 * (1 + 0.5 * np.array([np.cos(angle), np.sin(angle)]))
        blob = rng.normal(center[:, None], side / 12, (2, count))
        noise = rng.uniform(0, side, (2, count))
        x, y = np.clip(np.where(rng.random(count) < 0.8, blob, noise), 0, side - 1).astype(np.int64)
        times = np.sort(rng.integers(0, PACKET_US, count))
        packets.append(make_events(x, y, times, rng.integers(0, 2, count)))
    return packets


class SteadySource:
    """The scene in a loop: by the wall clock, or as fast as possible."""

    def __init__(self, packets: list[Events], side: int, seconds: float, live: bool) -> None:
        self.live = live
        self.size: tuple[int, int] | None = (side, side)
        self.invalid = 0
        self.last_invalid: str | None = None
        self._packets, self._number = packets, round(seconds * 1e6 / PACKET_US)

    def close(self) -> None:
        """Nothing is open."""

    def packets(self, stopped: Callable[[], bool]) -> Iterator[Events]:
        began = time.monotonic()
        for index in range(self._number):
            events = self._packets[index % LOOP_PACKETS].copy()
            events["t"] += index * PACKET_US
            if self.live:
                left = began + (index + 1) * PACKET_US / 1e6 - time.monotonic()
                if left > 0:
                    time.sleep(left)
            if stopped():
                return
            yield events


def make_classifier(given: Arguments) -> Classifier:
    model = create_model("dvsgesture", seed=0, time_steps=given.time_steps, in_size=given.side)
    randomize(model, 0)
    deployed = fuse(model.eval(), quiet=True).to(given.device)
    names = tuple(f"class {index}" for index in range(deployed.config.num_classes))
    return Classifier(deployed, names, given.time_steps, (given.side, given.side), "time", False)


def check(given: Arguments, classifier: Classifier, packets: list[Events]) -> tuple[list[StreamPrediction], float]:
    """The first predictions, each compared with the whole window's, and the largest difference of a probability."""
    source = SteadySource(packets, given.side, given.checked, live=False)
    events = np.concatenate(list(source.packets(lambda: False)))
    size = (given.side, given.side)
    predictions = _streamer(given, classifier, size).push(events)
    largest = 0.0
    for prediction in predictions:
        start, stop = prediction.start_us, prediction.stop_us
        inside = events[(events["t"] >= start) & (events["t"] < stop)]
        clip = bin_events(Recording(inside, size), given.time_steps, grid=classifier.grid, start_us=start, stop_us=stop)
        with torch.no_grad():
            logits = classifier.model(clip.unsqueeze(0).to(classifier.device))
            whole = torch.softmax(clip_logits(logits)[0], -1).tolist()
        pairs = zip(whole, prediction.probabilities, strict=True)
        largest = max(largest, *(abs(one - other) for one, other in pairs))
        if not largest <= MAX_DIFFERENCE[given.device]:
            sys.exit(f"the prediction from {start} to {stop} µs differs from the whole window's by {largest:.1e}")
    return predictions, largest


def _streamer(given: Arguments, classifier: Classifier, size: tuple[int, int]) -> Streamer:
    return Streamer(classifier, size, window_us=given.window * 1000, hop_us=given.hop * 1000)


def resident_mib() -> float:
    """Resident memory of this process, where available."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def main(given: Arguments) -> None:
    keep_freed_memory()
    torch.set_num_threads(given.threads)
    classifier = make_classifier(given)
    packets = scene(given.rate, given.side)
    first, difference = check(given, classifier, packets)
    expected = {prediction.start_us: prediction.probabilities for prediction in first}
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
    complete = not sum(summary.dropped.values())  # without what was dropped, predictions differ
    if given.device == "cpu" and differing[0] and complete:
        sys.exit(f"{differing[0]} predictions differ from those computed without a clock; no speed is reported")
    row = {
        **vars(given),
        "out": None,
        "compared": len(expected),
        **summary.to_dict(),
        "resident_mib": [round(one, 1) for one in resident],
    }
    print(
        f"{given.side}², T {given.time_steps}, window {given.window} ms, hop {given.hop} ms, "
        f"{given.threads} threads, {given.device}: "
        f"{summary.events / summary.seconds / 1e6:.2f} M events/s for {summary.seconds:.0f} s, "
        f"{len(expected)} predictions compared, largest difference {difference:.1e}"
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
