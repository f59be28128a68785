"""The position of playback, which moves with the wall clock."""

from dataclasses import dataclass, replace

from ripe_mambaspike.live.messages import Pause, Resume, Seek, SetLoop, SetSpeed, ViewerCommand

END_PAUSE_SECONDS = 1.0  # that the end is shown before playback repeats; the last prediction is due there


@dataclass(frozen=True)
class PlaybackClock:
    """At `position_us` of the recording at wall time `since` (s), from where it goes on at `speed` unless paused."""

    duration_us: int
    since: float
    position_us: float = 0.0
    speed: float = 1.0
    paused: bool = False
    loop: bool = True
    round: int = 0  # grows whenever the position jumps

    def at(self, now: float) -> "PlaybackClock":
        """The clock at this time: in its next round, or paused at the end."""
        moved = 0.0 if self.paused else max(0.0, now - self.since) * 1e6 * self.speed
        position = self.position_us + moved
        if not self.loop and position >= self.duration_us:
            return replace(self, since=now, position_us=float(self.duration_us), paused=True)
        if position < self.duration_us + END_PAUSE_SECONDS * 1e6 * self.speed:
            return replace(self, since=now, position_us=position)
        return replace(self, since=now, position_us=0.0, round=self.round + 1)

    @property
    def shown_us(self) -> int:
        """The position that is shown: the end during the pause there."""
        return min(int(self.position_us), self.duration_us)

    def seek(self, now: float, share: float) -> "PlaybackClock":
        return replace(self, since=now, position_us=share * self.duration_us, round=self.round + 1)

    def pause(self, now: float) -> "PlaybackClock":
        return replace(self.at(now), paused=True)

    def resume(self, now: float) -> "PlaybackClock":
        """Continue from here, or from the beginning if it had ended."""
        again = self.paused and self.position_us >= self.duration_us
        return replace(self.seek(now, 0.0) if again else self.at(now), paused=False, since=now)

    def change(self, now: float, *, speed: float | None = None, loop: bool | None = None) -> "PlaybackClock":
        here = self.at(now)
        return replace(here, speed=here.speed if speed is None else speed, loop=here.loop if loop is None else loop)

    def execute(self, command: ViewerCommand, now: float) -> "PlaybackClock":
        """The clock after a command of a viewer that concerns it."""
        match command:
            case Pause():
                return self.pause(now)
            case Resume():
                return self.resume(now)
            case Seek():
                return self.seek(now, command.value)
            case SetSpeed():
                return self.change(now, speed=command.value)
            case SetLoop():
                return self.change(now, loop=command.value)
        raise AssertionError(command)
