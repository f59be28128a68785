"""A short recording, and a network for its sensor, for tests of commands that play recordings."""

import numpy as np

from ripe_mambaspike import create_model
from ripe_mambaspike.events.recording import make_events
from ripe_mambaspike.models.labels import Labels, save_labels

SENSOR = (20, 18)


def draw_events():
    """4,000 events of 0.1 s."""
    draws = np.random.default_rng(0)
    times = np.sort(draws.integers(0, 100_000, 4000))
    times[[0, -1]] = 0, 100_000
    return make_events(draws.integers(0, 20, 4000), draws.integers(0, 18, 4000), times, draws.integers(0, 2, 4000))


def save_network(folder):
    fields = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 16}
    create_model("nmnist", seed=0, num_classes=3, **fields).save_pretrained(folder)
    labels = Labels(("a", "b", "c"), "mine", None, 4, (16, 16), "time", False, 1, "validation", sensor_size=SENSOR)
    save_labels(labels, folder)
    return folder
