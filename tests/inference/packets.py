"""Events for the streaming tests, and whether two arrays of them are the same."""

import numpy as np

from ripe_mambaspike.events.recording import make_events

SENSOR = (20, 18)


def make(times, seed=0):
    rng = np.random.default_rng(seed)
    count = len(times)
    return make_events(rng.integers(0, 20, count), rng.integers(0, 18, count), times, rng.integers(0, 2, count))


def same(first, second):
    return first.dtype == second.dtype and first.tolist() == second.tolist()
