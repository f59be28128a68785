"""Limits of a stream, and its summary."""

import math
from dataclasses import dataclass, field
from typing import Any

from ripe_mambaspike.errors import InputError

MIN_SECONDS = 1e-6
GROWTH = math.log(1.02)
BUCKETS = int(math.log(1e10) / GROWTH) + 1  # up to 10,000 s


@dataclass(frozen=True)
class StreamLimits:
    """Limits of a stream."""

    queue_events: int = 1_000_000  # waiting for the network; beyond, the oldest are dropped
    max_rate: float | None = None  # events a second; the rest is dropped
    tolerance_us: int = 0  # how late an event may come and still be sorted in
    stall_seconds: float = 1.0  # without a packet, after which it is reported and time goes on by the wall clock
    max_predictions: int | None = None  # final predictions after which to stop

    def __post_init__(self) -> None:
        if not self.stall_seconds > 0:
            raise InputError.expected("stall_seconds", "more than 0", self.stall_seconds)
        if self.max_predictions is not None and self.max_predictions < 1:
            raise InputError.expected("max_predictions", "at least 1", self.max_predictions)


@dataclass
class StreamSummary:
    """Statistics of a finished stream."""

    events: int = 0  # that reached the network
    predictions: int = 0  # final ones
    early_predictions: int = 0
    silent_windows: int = 0
    seconds: float = 0.0
    stalls: int = 0
    restarts: int = 0  # of the source's clock
    dropped: dict[str, int] = field(default_factory=dict)  # events, by reason
    invalid_packets: int = 0
    last_invalid: str | None = None  # why
    lost_packets: int = 0  # datagrams that the operating system dropped, since its buffer was full (Linux)
    losses: dict[str, int] = field(default_factory=dict)  # what else the source lost, by a description with its unit
    latency_ms: dict[str, float | None] = field(default_factory=dict)
    sensor_size: tuple[int, int] | None = None  # (width, height) before the crop, and who named it
    sensor_size_from: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class LatencyHistogram:
    """Percentiles of any number of durations to within 2 %, in constant memory: bucket widths grow by 2 %."""

    def __init__(self) -> None:
        self.count, self.longest = 0, 0.0
        self._buckets = [0] * BUCKETS

    def add(self, seconds: float) -> None:
        index = int(math.log(max(seconds, MIN_SECONDS) / MIN_SECONDS) / GROWTH)
        self._buckets[min(index, BUCKETS - 1)] += 1
        self.count += 1
        self.longest = max(self.longest, seconds)

    def percentile(self, percent: float) -> float | None:
        """The duration in seconds that `percent` of them did not exceed; None without any."""
        if not self.count:
            return None
        rank, seen = math.ceil(self.count * percent / 100), 0
        for index, number in enumerate(self._buckets):
            seen += number
            if seen >= rank:
                return min(self.longest, MIN_SECONDS * math.exp((index + 1) * GROWTH))
        return self.longest

    def to_milliseconds(self) -> dict[str, float | None]:
        """The 50th, 95th and 99th percentile and the maximum."""
        found = {f"p{percent}": self.percentile(percent) for percent in (50, 95, 99)}
        found["max"] = self.longest if self.count else None
        return {name: None if seconds is None else 1e3 * seconds for name, seconds in found.items()}
