"""Packets in datagrams and pipes, and messages from viewers."""

import json
from pathlib import Path
from typing import get_args

import numpy as np

from fuzz.mutate import mutate_json
from fuzz.target import Target, WrongAnswer
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.events.recording import make_events
from ripe_mambaspike.inference.stream.packets import EventPacket, PacketReader, read_packet, write_packet
from ripe_mambaspike.live.messages import ViewerCommand, read_command

SENSOR = (16, 12)
COMMANDS = [kind.__struct_config__.tag for kind in get_args(ViewerCommand)]


def make(name: str) -> Target:
    events = make_events([1, 2, 3, 15], [0, 11, 5, 6], [10, 20, 20, 90], [0, 1, 1, 0])
    frame = write_packet(events, SENSOR)
    if name == "packet":
        return Target(name, "others", [frame, write_packet(events[:0], SENSOR)], _packet, (b"REVT", frame[:12]))
    if name == "pipe":
        return Target(name, "others", [frame * 4, frame * 40], _pipe, (b"REVT", frame[:12], frame))
    values = (
        None,
        1,
        0.5,
        True,
        "key",
        {"label": "wave", "start": 0.1, "stop": 1},
        {"label": "wave", "name": "001.raw"},
    )
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
