"""A few held-out clips to look at."""

from itertools import zip_longest

from torch import Tensor

from ripe_mambaspike.data.clips import open_data
from ripe_mambaspike.data.listing import TEST
from ripe_mambaspike.data.loading import EventDataset
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.train.recipe import Recipe

Sample = tuple[Tensor, int, str]  # counts [T, 2, H, W], label, name
HeldOut = tuple[Recording, str, str]  # recording, class, name


def sample_clips(recipe: Recipe, count: int = 4) -> list[Sample] | None:
    """Test clips of as many classes as there are samples, evenly apart; None where the data is gone."""
    try:
        clips = open_data(recipe).test
    except RipeError:
        return None
    return [(*clips.clip(number), clips.names[number]) for number in spread_over_classes(clips.labels.tolist(), count)]


def held_out(recipe: Recipe, count: int) -> list[HeldOut]:
    """The same as recordings."""
    data = open_data(recipe)
    events = EventDataset(data.store, data.cut, TEST, data.members[TEST])
    found = []
    for number in spread_over_classes(events.labels.tolist(), count):
        recording, label = events[number]
        found.append((recording, data.classes[label], events.names[number]))
    return found


def spread_over_classes(labels: list[int], count: int) -> list[int]:
    """Numbers of so many clips, one of each class as far as that goes, the classes evenly apart."""
    seen = sorted(set(labels))
    by_class = [[number for number, own in enumerate(labels) if own == label] for label in seen]
    if count < len(seen):
        return [by_class[index * len(seen) // count][0] for index in range(count)]
    turns = [number for turn in zip_longest(*by_class) for number in turn if number is not None]
    return turns[:count]
