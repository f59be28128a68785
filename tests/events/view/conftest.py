"""A recording with events everywhere, the corners and both ends of time among them."""

import pytest
from makers import random_events

from ripe_mambaspike.events.recording import Recording


@pytest.fixture
def make():
    def made(width=20, height=13, count=500, duration=100_000, start=7_000, seed=0, **more) -> Recording:
        events = random_events(count, (width, height), duration + 1, seed, start)
        for index, (x, y, t) in ((0, (0, 0, start)), (-1, (width - 1, height - 1, start + duration))):
            events[index] = (x, y, t, events["p"][index])
        return Recording(events, (width, height), **more)

    return made
