"""Classes that come more often than others: those that are hard to tell apart are shown again and again."""

from collections.abc import Sequence

import numpy as np

from ripe_mambaspike.data.loading import EventSet
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.train.clip_cache import Numbers

MOST_TIMES = 100  # that a class may come in an epoch


def times_of(repeat: Sequence[str], classes: Sequence[str]) -> Numbers:
    """How often the clips of every class come in an epoch, from CLASS=TIMES texts."""
    times = np.ones(len(classes), np.int64)
    for text in repeat:
        name, _, count = text.rpartition("=")
        if name not in classes:
            raise ConfigError(f"data.repeat has '{text}'; CLASS=TIMES with one of {', '.join(classes)} is wanted")
        if not (count.isascii() and count.isdigit() and 1 <= int(count) <= MOST_TIMES):
            raise ConfigError(f"data.repeat has '{text}'; CLASS=TIMES with 1 to {MOST_TIMES} times is wanted")
        times[list(classes).index(name)] = int(count)
    return times


def repeated(events: EventSet, labels: Numbers, times: Numbers) -> tuple[EventSet, Numbers]:
    """The clips and their labels, those of a class as often as it says."""
    if (times == 1).all():
        return events, labels
    counts = times[labels]
    return EventSet(events.store, events.cut, events.split, np.repeat(events.members, counts)), np.repeat(
        labels, counts
    )
