"""What viewers may ask for: how many, how much, how often."""

from dataclasses import dataclass, fields

from ripe_mambaspike.errors import InputError

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class ServerLimits:
    """Bounds of the service. All are whole numbers of at least one."""

    viewers: int = 32  # at once
    frames: int = 20  # event frames a second for each viewer
    upload_bytes: int = 256 * MEGABYTE
    upload_seconds: int = 120  # for one upload to arrive
    uploads: int = 2  # arriving or being read at once
    uploads_a_minute: int = 12
    events: int = 20_000_000  # of one recording
    seconds: int = 1800  # of one recording
    held: int = 16  # recordings in memory
    held_events: int = 60_000_000  # in all of them
    listed: int = 2000  # recordings offered
    reading_seconds: int = 60  # for one recording to be read
    message_bytes: int = 4096  # of one message of a viewer
    messages_a_second: int = 20
    stalled_seconds: int = 20  # that a viewer may take nothing before it is let go
    head_seconds: int = 10  # that a connection may take to ask for something, whole
    per_address: int = 16  # connections of one address at once, viewers and others
    waiting: int = 64  # connections that ask for nothing, at once; one more and the oldest is let go
    drained_bytes: int = 4 * MEGABYTE  # of a refused upload, read on so that its sender comes to the refusal

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{field.name} is {value!r}; a whole number of at least 1 is wanted")


class TokenBucket:
    """So many a second, a burst of as many at once; asked with the time, so that it holds no clock of its own."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._left, self._since = float(burst), float("-inf")

    def take(self, now: float) -> bool:
        """Whether one more is allowed at this time, in seconds."""
        waited = 0.0 if self._since == float("-inf") else max(0.0, now - self._since)
        self._left = min(float(self.burst), self._left + self.rate * waited)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
