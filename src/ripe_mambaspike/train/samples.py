"""A few held-out clips to look at."""

from torch import Tensor

from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.train.clips import open_data
from ripe_mambaspike.train.recipe import Recipe

Sample = tuple[Tensor, int, str]  # counts [T, 2, H, W], label, name


def sample_clips(recipe: Recipe, count: int = 4) -> list[Sample] | None:
    """Test clips of as many classes as there are samples, evenly apart; None where the data is gone."""
    try:
        clips = open_data(recipe).test
    except RipeError:
        return None
    chosen: list[Sample] = []
    labels = clips.labels.tolist()
    seen = sorted(set(labels))
    for index in range(min(count, len(seen))):
        number = labels.index(seen[index * len(seen) // min(count, len(seen))])
        counts, label = clips.clip(number)
        chosen.append((counts, label, clips.names[number]))
    return chosen
