"""A burst of a `dv_processing.io.NetworkWriter`: what the writer sends of it, and what `record` keeps.

    python -m benchmarks.dv_burst                                     # 20 M events to .raw
    python -m benchmarks.dv_burst --out burst.npy
    python -m benchmarks.dv_burst --out None                          # a plain socket reads instead, as fast as it can
    python -m benchmarks.dv_burst --out None --packets 20000 --events 20    # smaller packets fill the writer's queue
    python -m benchmarks.dv_burst --out None --idle 5 --linger 0.5    # a writer that exits when its queue is empty

The writer is a process of its own, which makes all packets first and then writes them in one loop. It exits when its
client has left, or `linger` seconds after its queue is empty. Events are numbered by their times, so what is missing is
known whoever reads.
"""

import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from ripe_mambaspike import read_chunks, record
from ripe_mambaspike.inference.stream.dv_protocol import DvStreamReader

FIRST_US = 10**15
SENSOR = (1280, 720)
WRITER = f"""
import os, sys, time
import dv_processing as dv

port, packets, events, linger = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
stores = []
for packet in range(packets):
    store = dv.EventStore()
    for at in range(packet * events, (packet + 1) * events):
        store.push_back({FIRST_US} + at, at % {SENSOR[0]}, at % {SENSOR[1]}, at % 2 == 0)
    stores.append(store)
writer = dv.io.NetworkWriter("127.0.0.1", port, dv.io.Stream.EventStream(0, "events", "CAM", {SENSOR}))
while not writer.getClientCount():
    time.sleep(0.005)
began = time.monotonic()
for store in stores:
    writer.writeEvents(store)
took, queued, end = time.monotonic() - began, writer.getQueuedPacketCount(), time.monotonic() + 5
while writer.getQueuedPacketCount() and time.monotonic() < end:
    time.sleep(0.005)
left, end = writer.getQueuedPacketCount(), time.monotonic() + linger
print(f"writer: all written in {{took:.2f}} s, {{queued:,}} packets then in its queue; {{left:,}} never left it")
sys.stdout.flush()
while writer.getClientCount() and time.monotonic() < end:
    time.sleep(0.02)
os._exit(0)
"""


@dataclass
class Arguments:
    packets: int = 2000
    events: int = 10_000
    """In a packet."""
    linger: float = 60
    """Seconds after which the writer exits, once its queue is empty, if its client is still there."""
    idle: float = 0
    """Seconds in which the plain reader reads nothing."""
    out: Path | None = Path("burst.raw")
    """Where to record; None for a plain reader."""
    port: int = 7790


def main(arguments: Arguments) -> None:
    words = [arguments.port, arguments.packets, arguments.events, arguments.linger]
    writer = subprocess.Popen([sys.executable, "-c", WRITER, *map(str, words)])
    try:
        times = read_plainly(arguments) if arguments.out is None else read_recorded(arguments, arguments.out)
    finally:
        writer.wait()
    sent = arguments.packets * arguments.events
    jumps = int(np.count_nonzero(np.diff(times) != 1))
    print(f"read: {len(times):,} of {sent:,} events; {sent - len(times):,} are missing, {jumps} times between others")


def read_plainly(arguments: Arguments) -> np.ndarray:
    """The times of all events that come until 10 s pass without any; they are parsed when all have come."""
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", arguments.port))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    parts: list[bytes] = []
    with connection:
        time.sleep(arguments.idle)
        connection.settimeout(10)
        began = ended = time.monotonic()
        try:
            while part := connection.recv(1 << 20):
                parts.append(part)
                ended = time.monotonic()
        except TimeoutError:
            pass
    reader = DvStreamReader()
    found = [events["t"] for part in parts for events in reader.feed(part) if events is not None]
    print(f"plain reader: {sum(map(len, parts)):,} bytes in {ended - began:.2f} s, {reader.held:,} of a packet cut off")
    return np.concatenate(found)


def read_recorded(arguments: Arguments, out: Path) -> np.ndarray:
    """The times of all events of a recording of the burst."""
    limit, before = arguments.packets * arguments.events, time.process_time()
    summary = record(f"dv://127.0.0.1:{arguments.port}", out, events=limit, force=True)
    took = time.process_time() - before
    print(f"record: {took:.1f} s of CPU time, dropped {summary.dropped}, invalid packets {summary.invalid_packets}")
    return np.concatenate([chunk["t"] for chunk in read_chunks(out, sensor_size=SENSOR)])


if __name__ == "__main__":
    main(tyro.cli(Arguments))
