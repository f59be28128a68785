"""Random numbers from SHAKE-256: they depend on the seed and the purpose alone, with every version of every library."""

import hashlib

import numpy as np
from numpy.typing import NDArray

BELL_WORDS = 12  # uniform numbers whose sum, less 6, is nearly normal with standard deviation 1


def draw_words(seed: int | str, purpose: str, count: int) -> NDArray[np.uint32]:
    """So many random words of 32 bits."""
    data = hashlib.shake_256(f"{purpose}/{seed}".encode()).digest(4 * count)
    return np.frombuffer(data, "<u4").astype(np.uint32)


def draw_uniform(seed: int | str, purpose: str, count: int) -> NDArray[np.float64]:
    """From 0 to below 1, multiples of 2⁻³²."""
    return draw_words(seed, purpose, count) / 2.0**32


def draw_bell(seed: int | str, purpose: str, count: int) -> NDArray[np.float64]:
    """Nearly normal: mean 0, standard deviation 1, never beyond ±6."""
    words = draw_words(seed, purpose, BELL_WORDS * count).reshape(count, BELL_WORDS)
    return words.sum(1, dtype=np.uint64) / 2.0**32 - BELL_WORDS / 2
