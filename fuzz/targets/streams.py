"""Packets in datagrams and pipes, EVT streams, network streams of dv-processing, and messages from viewers."""

import json
import struct
from pathlib import Path
from typing import get_args

import numpy as np

from fuzz.mutate import mutate_json
from fuzz.target import Target, WrongAnswer
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.events.formats.evt3 import encode_evt3
from ripe_mambaspike.events.recording import Events, Recording, make_events
from ripe_mambaspike.inference.stream.byte_stream import ByteStreamReader
from ripe_mambaspike.inference.stream.dv_protocol import RECORD, DvStreamReader
from ripe_mambaspike.inference.stream.packets import EventPacket, InvalidPacket, PacketReader, read_packet, write_packet
from ripe_mambaspike.live.messages import ViewerCommand, read_command

SENSOR = (16, 12)
COMMANDS = [kind.__struct_config__.tag for kind in get_args(ViewerCommand)]


def make(name: str) -> Target:
    events = make_events([1, 2, 3, 15], [0, 11, 5, 6], [10, 20, 20, 90], [0, 1, 1, 0])
    frame = write_packet(events, SENSOR)
    if name == "packet":
        seeds = [frame, write_packet(events[:0], SENSOR), write_packet(events, SENSOR, 65535)]
        return Target(name, "others", seeds, _packet, (b"REVT", frame[:12]))
    if name == "pipe":
        return Target(name, "others", [frame * 4, frame * 40], _pipe, (b"REVT", frame[:12], frame))
    if name == "evt-stream":
        raw = b"".join(encode_evt3(Recording(events, SENSOR)))
        words = [b"% evt 2.0\n", b"% evt 2.1\n", b"% end\n", b"% geometry 16x12\n"]
        others = [b"% evt 2.0\n% geometry 16x12\n% end\n", b"% evt 2.1\n% geometry 16x12\n% end\n"]
        time_word, event_word = (0x80000001).to_bytes(4, "little"), (0x10400803).to_bytes(4, "little")
        pair = bytes(4) + time_word + event_word[:1] + bytes(3) + event_word
        seeds = [raw, others[0] + (time_word + event_word) * 3, others[1] + pair * 3]
        return Target(name, "others", seeds, _evt_stream, words, allowed=(RipeError,))
    if name == "dv-stream":
        seeds = [dv_header(SENSOR) + dv_packet(events) * 2]
        return Target(name, "others", seeds, _dv_stream, (b"EVTS", b"IOHE"), allowed=(RipeError,))
    clip, saved = {"label": "wave", "start": 0.1, "stop": 1}, {"label": "wave", "name": "001.raw"}
    values = (None, 1, 0.5, True, "key", clip, saved)
    seeds = [json.dumps({"do": do, "value": value}).encode() for do in COMMANDS for value in values]
    return Target(name, "others", seeds, _message, allowed=(RipeError,), change=mutate_json)


def _packet(case: bytes, folder: Path) -> None:
    _check([read_packet(case)])


def _pipe(case: bytes, folder: Path) -> None:
    """The same packets must come out however the bytes are split."""
    outcomes = []
    for size in (len(case) or 1, 13, 1):
        reader = PacketReader()
        frames = [one for at in range(0, len(case), size) for one in reader.feed(case[at : at + size])]
        frames += reader.end()
        outcomes.append(_check(frames))
    if not (np.array_equal(outcomes[0], outcomes[1]) and np.array_equal(outcomes[0], outcomes[2])):
        raise WrongAnswer(f"the number of events depends on how the bytes are split: {[len(one) for one in outcomes]}")


def _evt_stream(case: bytes, folder: Path) -> None:
    """The same events must come out however the bytes are split, or the same refusal."""
    outcomes = []
    for size in (len(case) or 1, 7, 1):
        reader = ByteStreamReader()
        frames: list[EventPacket | InvalidPacket] = []
        try:
            for at in range(0, len(case), size):
                frames += reader.feed(case[at : at + size])
            frames += reader.end()
        except RipeError as error:
            outcomes.append(type(error))
        else:
            outcomes.append(_check(frames).tobytes())
    if case.startswith(b"%") and len(set(outcomes)) > 1:
        raise WrongAnswer("the events depend on how the bytes are split")


def _dv_stream(case: bytes, folder: Path) -> None:
    for size in (len(case) or 1, 5):
        reader = DvStreamReader()
        for at in range(0, len(case), size):
            for events in reader.feed(case[at : at + size]):
                assert reader.size is not None
                if events is not None:
                    _check([EventPacket(reader.size, events)])


def dv_header(sensor_size: tuple[int, int], compression: int = 0, kind: str = "EVTS") -> bytes:
    """The header of a stream as `dv_processing.io.NetworkWriter` sends it: flatbuffer, then a description."""
    width, height = sensor_size
    values = {"typeIdentifier": kind, "sizeX": width, "sizeY": height}
    text = "".join(f'<attr key="{key}" type="string">{value}</attr>' for key, value in values.items()).encode()
    table = struct.pack("<HHHHH", 10, 20, 4, 8, 16)  # fields: compression, table of packets, description
    table = table.ljust(12, b"\0") + struct.pack("<iiqI", 12, compression, -1, 4)
    body = struct.pack("<I4s", 20, b"IOHE") + table + struct.pack("<I", len(text)) + text + b"\0"
    return len(body).to_bytes(4, "little") + body


def dv_packet(events: Events) -> bytes:
    """A packet of events as `dv_processing.io.NetworkWriter` sends it."""
    records = np.zeros(len(events), RECORD)
    for name in "txyp":
        records[name] = events[name]
    body = struct.pack("<I4sHHHHiII", 16, b"EVTS", 0, 6, 8, 4, 6, 4, len(events)) + records.tobytes()
    packet = len(body).to_bytes(4, "little") + body
    return struct.pack("<ii", 0, len(packet)) + packet


def _check(frames):  # type: ignore[no-untyped-def]
    kept = [one for one in frames if isinstance(one, EventPacket)]
    for one in kept:
        width, height = one.sensor_size
        events = one.events
        if len(events) and (events["x"].max() >= width or events["y"].max() >= height or events["p"].max() > 1):
            raise WrongAnswer(f"a frame has an event outside its {width}×{height} sensor")
    return np.concatenate([one.events for one in kept]) if kept else np.empty(0)


def _message(case: bytes, folder: Path) -> None:
    read_command(case.decode("utf-8", "replace"))
