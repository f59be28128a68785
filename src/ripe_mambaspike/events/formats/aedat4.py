"""AEDAT4 (iniVation DV), by the package `aedat`: DailyDVS-200."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events.recording import EVENT, Events
from ripe_mambaspike.events.source import Options, Source

FORMAT = "aedat4"
MAGIC = b"#!AER-DAT4.0"


def recognises(head: bytes, path: Path) -> bool:
    return head.startswith(MAGIC)


def open_source(path: Path, options: Options) -> Source:
    try:
        import aedat
    except ImportError as error:
        raise ReadError(f"{path} is AEDAT4, which needs the package aedat; install ripe-mambaspike[data]") from error
    with _blaming(path):
        decoder = aedat.Decoder(path)
        streams = {number: stream for number, stream in decoder.id_to_stream().items() if stream["type"] == "events"}
    if not streams:
        raise ReadError(f"{path} has no stream of events")
    number, stream = next(iter(streams.items()))
    source = Source(FORMAT, lambda: iter(()), (int(stream["width"]), int(stream["height"])))
    if len(streams) > 1:
        source.metadata["streams_of_events"] = len(streams)

    def pieces() -> Iterator[Events]:
        packets = iter(decoder)
        while True:
            with _blaming(path):
                packet = next(packets, None)
            if packet is None:
                return
            if "events" not in packet:
                source.count("other_packets", 1)
            elif packet["stream_id"] != number:
                source.leave_out(len(packet["events"]), "were of another stream")
            else:
                yield _events(packet["events"])

    source.pieces = pieces
    return source


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Whatever the package raises is the file's fault; a panic of its Rust code is no `Exception`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ReadError(f"{path} is damaged or cut off: {str(error)[:200]}") from error


def _events(packet: np.ndarray) -> Events:
    events = np.empty(len(packet), EVENT)
    for name, theirs in (("x", "x"), ("y", "y"), ("t", "t"), ("p", "on")):
        events[name] = packet[theirs]
    return events
