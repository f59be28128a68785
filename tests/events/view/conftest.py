"""A recording with events everywhere, the corners and both ends of time among them."""

import numpy as np
import pytest

from ripe_mambaspike.events.recording import Recording, make_events


@pytest.fixture
def make():
    def made(width=20, height=13, count=500, duration=100_000, start=7_000, seed=0, **more) -> Recording:
        random = np.random.default_rng(seed)
        x, y = random.integers(0, width, count), random.integers(0, height, count)
        t = start + np.sort(random.integers(0, duration + 1, count))
        x[0], y[0], t[0] = 0, 0, start
        x[-1], y[-1], t[-1] = width - 1, height - 1, start + duration
        return Recording(make_events(x, y, t, random.integers(0, 2, count)), (width, height), **more)

    return made
