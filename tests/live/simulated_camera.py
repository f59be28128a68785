"""A simulated camera that plays gestures into a TCP source, one after the other, as long as it is shown them."""

import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ripe_mambaspike.data.simulated import WARM_UP_US
from ripe_mambaspike.events.simulate.fitted import GESTURE_PIXEL
from ripe_mambaspike.events.simulate.gestures import CLASSES, draw_clip, render
from ripe_mambaspike.events.simulate.pixel import simulate_events
from ripe_mambaspike.inference.stream.packets import write_packet

STEP_US, PACKET_US = 5_000, 10_000


def simulate_gesture(name, seed, part, side, seconds):
    """The events of somebody who makes a gesture; other parts have other people."""
    clip = replace(draw_clip(CLASSES.index(name), seed, part), duration_us=round(1e6 * seconds))
    (events,) = simulate_events(
        lambda at: render([clip], at, (side, side)), GESTURE_PIXEL, (side, side), clip.duration_us, [seed],
        step_us=STEP_US, warm_us=WARM_UP_US,
    )  # fmt: skip
    return events


class SimulatedCamera:
    """Sends what it is shown, over and over, in real time and by one clock; nothing before it is shown anything."""

    def __init__(self, address, side):
        self._address, self._side = address, side
        self._shown, self._stopped = None, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def show(self, events):
        self._shown = events

    @contextmanager
    def running(self):
        self._thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._thread.join(10)

    def _run(self):
        began, at_us = time.monotonic(), 0
        with socket.create_connection(self._address, timeout=30) as link:
            while not self._stopped.is_set():
                shown = self._shown
                length = PACKET_US if shown is None else -(-(int(shown["t"][-1]) + 1) // PACKET_US) * PACKET_US
                for start in range(0, length, PACKET_US):
                    if self._shown is not shown or self._stopped.wait(max(0, began + at_us / 1e6 - time.monotonic())):
                        break
                    if shown is not None:
                        first, last = np.searchsorted(shown["t"], (start, start + PACKET_US))
                        events = shown[first:last].copy()
                        events["t"] += at_us - start
                        link.sendall(write_packet(events, (self._side, self._side)))
                    at_us += PACKET_US
