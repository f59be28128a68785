"""What a clip shows once it is mirrored or played backwards, read off the names of its classes.

In a mirror a right arm that turns clockwise is a left arm that turns counter-clockwise. Played backwards it is a right
arm that turns counter-clockwise.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from ripe_mambaspike.errors import ConfigError

TURN = r"(?:counter|anti)[_ -]?clockwise"
WORDS = re.compile(rf"(?<![a-z])(?:{TURN}|clockwise|left|right)(?![a-z])", re.IGNORECASE)


class Relabels(NamedTuple):
    """The class of every class's clips, changed: label → label."""

    mirrored: tuple[int, ...]
    backwards: tuple[int, ...]


@lru_cache(maxsize=64)
def relabels(classes: tuple[str, ...]) -> Relabels:
    """From the names: left ↔ right and clockwise ↔ counter-clockwise in a mirror, the latter alone backwards.

    A name without such a word keeps its label. One whose opposite is no class of the set is an error.
    """
    return Relabels(_labels(classes, "a mirror", sides=True), _labels(classes, "reverse", sides=False))


def relabel(labels: Tensor, chosen: Tensor, table: Sequence[int]) -> Tensor:
    """Labels [B] with those of the chosen [B] samples looked up in the table."""
    return labels.where(~chosen.to(labels.device), labels.new_tensor(table)[labels])


def _labels(classes: tuple[str, ...], how: str, *, sides: bool) -> tuple[int, ...]:
    numbers = {_plain(name): number for number, name in enumerate(classes)}
    found = []
    for name in classes:
        opposite = WORDS.sub(lambda match: _opposite(match[0], sides), name)
        if _plain(opposite) not in numbers:
            raise ConfigError(
                f"augmentation.relabel is true, and in {how} class '{name}' shows '{opposite}', which is no class of "
                "this set; false is wanted, with horizontal_flip and time_reversal at 0"
            )
        found.append(numbers[_plain(opposite)])
    return tuple(found)


def _opposite(word: str, sides: bool) -> str:
    small = word.lower()
    if small in ("left", "right"):
        return {"left": "right", "right": "left"}[small] if sides else small
    return "counter_clockwise" if small == "clockwise" else "clockwise"


def _plain(name: str) -> str:
    """All ways to write a turn are one."""
    return re.sub(TURN, "counter_clockwise", name.lower())
