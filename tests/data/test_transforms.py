"""Transforms in front of binning. Those of tonic have this contract: a structured array in, a structured array out."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from raising import raises
from ripe_mambaspike.data.loading import load_dataset
from ripe_mambaspike.data.transforms import apply_transform
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events import Recording, bin_events
from ripe_mambaspike.events.recording import make_events


class Mirror:
    """x ↔ width − 1 − x, in place, as some of tonic's transforms work."""

    def __init__(self, width):
        self.width = width

    def __call__(self, events):
        events["x"] = self.width - 1 - events["x"]
        return events


class EverySecond:
    def __call__(self, events):
        return np.delete(events, np.arange(0, len(events), 2), axis=0)


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, events):
        for transform in self.transforms:
            events = transform(events)
        return events


@pytest.fixture
def recording():
    return Recording(make_events([0, 3, 7], [1, 1, 5], [0, 10, 10], [0, 1, 1]), (8, 6), metadata={"name": "a/1"})


def changed(**columns):
    """A transform that replaces columns."""

    def transform(events):
        for name, values in columns.items():
            events[name] = values
        return events

    return transform


def test_before_binning(store, digits):
    plain = load_dataset("nmnist-600", digits, "train")
    both = Compose([Mirror(34), EverySecond()])
    recordings = load_dataset("nmnist-600", digits, "train", transform=both)
    binned = load_dataset("nmnist-600", digits, "train", time_steps=4, transform=both)
    for number, (found, label) in enumerate(recordings):
        source, wanted = plain[number]
        assert label == wanted
        assert found.sensor_size == source.sensor_size
        assert found.metadata == source.metadata
        np.testing.assert_array_equal(found["x"], 33 - source["x"][1::2])
        for name in "ytp":
            np.testing.assert_array_equal(found[name], source[name][1::2])
        assert found.events.dtype == source.events.dtype
        assert torch.equal(binned[number][0], bin_events(found, 4))
    assert torch.equal(binned[0][0], binned[0][0])  # the stored events are never changed
    assert torch.equal(pickle.loads(pickle.dumps(binned))[2][0], binned[2][0])


@pytest.mark.slow
def test_in_workers(store, digits):
    binned = load_dataset("nmnist-600", digits, "train", time_steps=4, transform=EverySecond())
    loader = DataLoader(binned, batch_size=3, num_workers=2, multiprocessing_context="spawn")
    counts = torch.cat([batch for batch, _ in loader])
    assert torch.equal(counts, torch.stack([binned[number][0] for number in range(6)]))


def test_what_a_transform_gets(recording):
    """Signed columns: what it moves off the sensor does not come back on the other side."""
    seen = []
    apply_transform(recording, lambda events: seen.append(events.dtype) or events)
    assert seen[0].names == ("x", "y", "t", "p")
    assert all(seen[0][name].kind == "i" for name in "xytp")


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda events: None, "events"),
        (lambda events: torch.zeros(3), "events"),
        (lambda events: np.zeros((3, 4)), "events"),
        (lambda events: events[["x", "y", "t"]], "events"),
        (lambda events: events[:, None], "events"),
        (lambda events: events[:0], "events"),
        (changed(x=[0, 3, 8]), "x"),
        (changed(x=[0, -1, 2]), "x"),
        (changed(y=[0, 6, 2]), "y"),
        (changed(p=[0, 2, 1]), "p"),
        (changed(p=[-1, 1, 1]), "p"),
        (changed(t=[0, 11, 10]), "t"),
        (changed(t=[0, 1, 2**62 + 1]), "t"),
        (lambda events: events.astype([(name, "f8") for name in "xytp"])[::-1], "t"),
    ],
)
def test_what_a_transform_must_return(recording, transform, said):
    with raises(InputError, "transform", mentions=("a/1", f"transform: {said}: ")):
        apply_transform(recording, transform)


def test_other_integers_and_extra_fields_are_taken(recording):
    wide = [("t", "f8"), ("p", "?"), ("x", "i2"), ("y", "i2"), ("extra", "f4")]

    def rebuilt(events):
        found = np.zeros(len(events), wide)
        for name in "xytp":
            found[name] = events[name]
        return found

    assert np.array_equal(apply_transform(recording, rebuilt).events, recording.events)


def test_a_transform_that_changes_the_size(store, digits, recording):
    shrunk = apply_transform(recording, lambda events: changed(x=events["x"] // 2, y=events["y"] // 2)(events), (4, 3))
    assert shrunk.sensor_size == (4, 3)
    assert shrunk["x"].tolist() == [0, 1, 3]
    larger = changed(x=40)
    with raises(InputError, "transform"):
        load_dataset("nmnist-600", digits, "train", time_steps=2, transform=larger)[0]
    found = load_dataset("nmnist-600", digits, "train", time_steps=2, transform=larger, sensor_size=(50, 34))[0][0]
    assert found.shape == (2, 2, 34, 50)
    assert found.sum() == found[..., 40].sum() == 60
