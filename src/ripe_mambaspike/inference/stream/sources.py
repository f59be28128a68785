"""Open a source of a stream: a recording, a pipe, a port or a camera. Each yields packets of events until stopped."""

from pathlib import Path

import ripe_mambaspike.inference.stream.cameras  # noqa: F401  (registers them)
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.region import SensorRegion
from ripe_mambaspike.inference.stream.cameras.pipe import PipeSource as PipeSource
from ripe_mambaspike.inference.stream.cameras.pipe import open_standard_input
from ripe_mambaspike.inference.stream.cameras.tcp import TcpSource as TcpSource
from ripe_mambaspike.inference.stream.cameras.udp import UdpSource as UdpSource
from ripe_mambaspike.inference.stream.file_source import FileSource as FileSource
from ripe_mambaspike.inference.stream.file_source import split_events as split_events
from ripe_mambaspike.inference.stream.source_registry import Pace as Pace
from ripe_mambaspike.inference.stream.source_registry import SourceOptions, find_source_kind
from ripe_mambaspike.inference.stream.source_registry import StreamSource as StreamSource


def open_stream(
    given: str,
    *,
    pace: Pace = "real",
    sensor_size: tuple[int, int] | None = None,
    region: SensorRegion | None = None,
    keep_listening: bool = False,
    format: str | None = None,
) -> StreamSource:
    """Open a file, `-` for standard input, a port (udp://HOST:PORT, tcp://HOST:PORT) or a camera (docs/cameras.md).

    `sensor_size` overrides the size that the source names; `region` is used for one that names none. A source of
    connections ends with the first one unless it is to `keep_listening`. `format` names the format of a file, as for
    `read`, and is refused with any other source.
    """
    kind = None if given == "-" else find_source_kind(given)
    if format is not None and (given == "-" or kind is not None):
        raise InputError.expected("format", "a file as the source", given)
    options = SourceOptions(pace, sensor_size, region, keep_listening)
    if given == "-":
        return open_standard_input(options)
    return FileSource(Path(given), pace, sensor_size, region, format) if kind is None else kind.open(given, options)


def describe_source_start(given: str) -> str | None:
    """What a live source does before its first events, such as "listening on udp://…"; None for a recording."""
    kind = None if given == "-" else find_source_kind(given)
    return None if kind is None else f"{kind.start} {given}"


def is_always_live(given: str) -> bool:
    """Whether the packets of this source cannot be made to wait, whatever the pace."""
    kind = None if given == "-" else find_source_kind(given)
    return kind is not None and kind.always_live
