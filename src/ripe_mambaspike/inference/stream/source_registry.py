"""What a source of a stream is, and the kinds of sources by the scheme of their address.

A kind is one module in `inference/stream/cameras/`, which is discovered automatically: a function that opens an
address, registered with its scheme.

    @register_source("toy", form="toy://NAME")
    def open_toy(address: str, options: SourceOptions) -> StreamSource:
        return ToySource(address.removeprefix("toy://"))
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NamedTuple, Protocol

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.region import SensorRegion, format_size
from ripe_mambaspike.inference.stream.packets import EventPacket, InvalidPacket

Pace = Literal["real", "fast"]
Stopped = Callable[[], bool]

POLL_SECONDS = 0.1  # between two checks whether to stop
INSTALL_HINT = 'pip install "ripe-mambaspike[camera]" installs it'


class StreamSource(Protocol):
    """Yields packets of events. `live`: packets arrive in real time, and are dropped rather than made to wait.

    `size`, the sensor's (width, height), is known from the first events on. A source whose packets name it also has
    `check_sizes(check_sensor)`. Most sources also count what they lost (`losses`) and data of other kinds (`other`).
    A live source with `can_wait` is made to wait where every event counts, which is in a recording.
    `packets` closes the source when it ends; `close` is for one that was never read.
    """

    live: bool
    invalid: int  # packets
    last_invalid: str | None  # why the last one was
    size: tuple[int, int] | None

    def packets(self, stopped: Stopped) -> Iterator[Events]: ...
    def close(self) -> None: ...


class SourceOptions(NamedTuple):
    """How a source is opened.

    sensor_size: overrides the size that a file or a packet names; a camera must have it
    region: the network's, for a source that names no size
    keep_listening: go on with the next sender when one has left
    """

    pace: Pace = "real"
    sensor_size: tuple[int, int] | None = None
    region: SensorRegion | None = None
    keep_listening: bool = False


@dataclass(frozen=True)
class SourceKind:
    """The sources of one scheme. `start` says what one is doing before its first events.

    `always_live`: packets cannot be made to wait, whatever the pace.
    """

    scheme: str
    form: str  # of an address, for people
    open: Callable[[str, SourceOptions], StreamSource]
    start: str = "reading"
    always_live: bool = False


SOURCES: dict[str, SourceKind] = {}


def register_source(
    scheme: str, *, form: str, start: str = "reading", always_live: bool = False
) -> Callable[[Callable[[str, SourceOptions], StreamSource]], Callable[[str, SourceOptions], StreamSource]]:
    """Register the function that opens addresses of a scheme; the arguments are the fields of `SourceKind`."""

    def register(opener: Callable[[str, SourceOptions], StreamSource]) -> Callable[[str, SourceOptions], StreamSource]:
        SOURCES[scheme] = SourceKind(scheme, form, opener, start, always_live)
        return opener

    return register


def find_source_kind(given: str) -> SourceKind | None:
    """The kind of an address; None for the name of a file and for `-`."""
    match = re.match(r"([a-z][a-z0-9]*)://", given)
    if match is None:
        return None
    if match[1] not in SOURCES:
        forms = ", ".join(kind.form for kind in SOURCES.values())
        raise InputError.expected("source", f"a file, - or one of {forms}", repr(given))
    return SOURCES[match[1]]


def import_driver(name: str, package: str) -> Any:
    """A module of the extra `camera`; raises InputError, with what to install, where it is absent."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError.expected("source", f"the package {package}", "none", hint=INSTALL_HINT) from error


class PacketSource:
    """Base of live sources: one sensor size, invalid packets, which are skipped, and counts of what was lost."""

    can_wait = False  # whether the sender waits while nobody reads

    def __init__(self, live: bool, sensor_size: tuple[int, int] | None) -> None:
        self.live, self.size = live, sensor_size
        self.size_from = "the source" if sensor_size is None else "the caller"
        self._check_sensor: Callable[[tuple[int, int]], None] = lambda size: None
        self.invalid = self.lost = 0  # packets: lost ones were dropped by the operating system
        self.last_invalid: str | None = None
        self.losses: Counter[str] = Counter()  # what else was lost: count by a description with its unit
        self.other: Counter[str] = Counter()  # data beside the events, which is left out: frames, IMU samples, …

    def close(self) -> None:
        """Release what the source holds."""

    def take(self, found: EventPacket | InvalidPacket) -> Events | None:
        if isinstance(found, EventPacket) and self.size is not None and found.sensor_size != self.size:
            width, height = found.sensor_size
            found = InvalidPacket(f"a sensor of {width}×{height} in a stream of {self.size[0]}×{self.size[1]}")
        if isinstance(found, InvalidPacket):
            self.invalid += 1
            self.last_invalid = found.reason
            return None
        if self.size is None and len(found.events):  # a packet without events must not decide the size
            try:
                self._check_sensor(found.sensor_size)
            except InputError as error:
                return self.take(InvalidPacket(str(error)))
            self.size = found.sensor_size
        return found.events

    def set_size(self, size: tuple[int, int]) -> None:
        """Take the size that a camera says it has; raises InputError if another was given, or none such can be used."""
        if self.size is None:
            self._check_sensor(size)
            self.size = size
        elif size != self.size:
            reason = "as given" if self.size_from == "the caller" else "as before"
            wanted = f"{format_size(self.size)}, {reason}"
            raise InputError.expected("sensor_size", wanted, f"a camera of {format_size(size)}")

    def check_sizes(self, check_sensor: Callable[[tuple[int, int]], None]) -> None:
        """Call this before the size is taken from a packet; if it raises InputError the packet is invalid."""
        self._check_sensor = check_sensor
