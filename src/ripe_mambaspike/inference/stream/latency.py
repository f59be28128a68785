"""How long answers took, in constant memory: counts in buckets that grow by 2 %."""

import math

MIN_SECONDS = 1e-6  # seconds
GROWTH = math.log(1.02)
BUCKETS = int(math.log(1e10) / GROWTH) + 1  # up to 10,000 s


class LatencyHistogram:
    """Percentiles of any number of durations, each right to 2 %."""

    def __init__(self) -> None:
        self.count, self.longest = 0, 0.0
        self._buckets = [0] * BUCKETS

    def add(self, seconds: float) -> None:
        place = int(math.log(max(seconds, MIN_SECONDS) / MIN_SECONDS) / GROWTH)
        self._buckets[min(place, BUCKETS - 1)] += 1
        self.count += 1
        self.longest = max(self.longest, seconds)

    def percentile(self, share: float) -> float | None:
        """The duration that so many per cent did not exceed, in seconds; None without any."""
        if not self.count:
            return None
        wanted, seen = math.ceil(self.count * share / 100), 0
        for place, number in enumerate(self._buckets):
            seen += number
            if seen >= wanted:
                return min(self.longest, MIN_SECONDS * math.exp((place + 1) * GROWTH))
        return self.longest
