"""Select a few test clips."""

from itertools import zip_longest

from torch import Tensor

from ripe_mambaspike.data.listing import TEST
from ripe_mambaspike.data.loading import EventDataset
from ripe_mambaspike.data.settings import DataSettings
from ripe_mambaspike.data.training_data import open_data
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.events.recording import Recording

Sample = tuple[Tensor, int, str]  # counts [T, 2, H, W], label, name
HeldOut = tuple[Recording, str, str]  # recording, class, name


def sample_clips(settings: DataSettings, count: int = 4) -> list[Sample] | None:
    """Test clips of as many different classes as possible; None if the data is missing."""
    try:
        clips = open_data(settings).test
    except RipeError:
        return None
    return [(*clips.clip(index), clips.names[index]) for index in spread_over_classes(clips.labels.tolist(), count)]


def held_out(settings: DataSettings, count: int) -> list[HeldOut]:
    """The same clips as recordings."""
    data = open_data(settings)
    events = EventDataset(data.store, data.partition, TEST, data.members[TEST])
    found = []
    for index in spread_over_classes(events.labels.tolist(), count):
        recording, label = events[index]
        found.append((recording, data.classes[label], events.names[index]))
    return found


def spread_over_classes(labels: list[int], count: int) -> list[int]:
    """Indices of `count` clips: one of each class in turn; of more classes than that, evenly spaced ones."""
    classes = sorted(set(labels))
    by_class = [[index for index, own in enumerate(labels) if own == label] for label in classes]
    if count < len(classes):
        return [by_class[index * len(classes) // count][0] for index in range(count)]
    turns = [index for turn in zip_longest(*by_class) for index in turn if index is not None]
    return turns[:count]
