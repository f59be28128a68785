"""Where a recording is being watched: a place that moves with the clock on the wall."""

from dataclasses import dataclass, replace

END_PAUSE_SECONDS = 1.0  # s that the end is shown before the next round: the last answer is due there


@dataclass(frozen=True)
class PlaybackClock:
    """At `place_us` of the recording at wall time `since` (s), from where it goes on at `speed` unless held."""

    duration_us: int
    since: float
    place_us: float = 0.0
    speed: float = 1.0
    held: bool = False
    loop: bool = True
    round: int = 0  # grows whenever the place jumps back or forth

    def at(self, now: float) -> "PlaybackClock":
        """The same clock, brought to this time: rounds begun, or held at the end."""
        moved = 0.0 if self.held else max(0.0, now - self.since) * 1e6 * self.speed
        place = self.place_us + moved
        if not self.loop and place >= self.duration_us:
            return replace(self, since=now, place_us=float(self.duration_us), held=True)
        if place < self.duration_us + END_PAUSE_SECONDS * 1e6 * self.speed:
            return replace(self, since=now, place_us=place)
        return replace(self, since=now, place_us=0.0, round=self.round + 1)

    @property
    def watched_us(self) -> int:
        """The place that is shown: the end while it rests there."""
        return min(int(self.place_us), self.duration_us)

    def seek(self, now: float, share: float) -> "PlaybackClock":
        return replace(self, since=now, place_us=share * self.duration_us, round=self.round + 1)

    def hold(self, now: float) -> "PlaybackClock":
        return replace(self.at(now), held=True)

    def go(self, now: float) -> "PlaybackClock":
        """On from here; from the beginning where it had ended."""
        again = self.held and self.place_us >= self.duration_us
        return replace(self.seek(now, 0.0) if again else self.at(now), held=False, since=now)

    def change(self, now: float, *, speed: float | None = None, loop: bool | None = None) -> "PlaybackClock":
        here = self.at(now)
        return replace(here, speed=here.speed if speed is None else speed, loop=here.loop if loop is None else loop)
