"""A fuzz target: a name, small valid inputs, and the function to call with mutated ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz.mutate import mutate


class WrongAnswer(Exception):  # noqa: N818
    """The package accepted an input and returned an impossible result."""


@dataclass(frozen=True)
class Target:
    """`run(case, folder)` passes a case to the package; it may only raise the errors in `allowed`."""

    name: str
    group: str  # readers, or other
    seeds: Sequence[bytes]
    run: Callable[[bytes, Path], None]
    words: Sequence[bytes] = ()  # the format's own, to be put anywhere
    allowed: tuple[type[BaseException], ...] = ()
    change: Callable[[bytes, Random], bytes] | None = None  # a mutation of its own
    change_share: float = 0.5  # how often it is used, instead of those of bytes

    def draw(self, random: Random) -> bytes:
        seed = random.choice(self.seeds)
        if self.change is not None and random.random() < self.change_share:
            return self.change(seed, random)
        return mutate(seed, random, self.seeds, self.words)
