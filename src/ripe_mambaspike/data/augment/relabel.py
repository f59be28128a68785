"""The label of a mirrored or reversed clip: declared by the recipe, or inferred from the class names.

In a mirror a right arm that turns clockwise is a left arm that turns counter-clockwise; played backwards it is a right
arm that turns counter-clockwise. Names do not tell more: `swipe_left` backwards is `swipe_right`, but `left_hand_wave`
backwards is itself; `push` backwards is `pull`, but `clap` is itself. So every class whose name does not determine the
result has to be declared; otherwise an error is raised.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from ripe_mambaspike.errors import ConfigError

TURN = r"(?:counter|anti)[_ -]?clockwise"
WORDS = re.compile(rf"(?<![a-z])(?:{TURN}|clockwise|left|right)(?![a-z])", re.IGNORECASE)
SIDES = re.compile(r"(?<![a-z])(?:left|right)(?![a-z])", re.IGNORECASE)
# Words of a name that say that its mirror image, or the clip played backwards, is likely to show something else.
SIDED = r"(?:left|right)(?:wards?)?|(?:counter|anti)?clockwise|c?cw"
MOVING = (
    rf"{SIDED}|(?:up|down|in|out|for|back)wards?|up|down|in|out|open(?:ing)?|clos(?:e|ing)|push(?:ing)?|pull(?:ing)?|"
    r"rais(?:e|ing)|ris(?:e|ing)|lower(?:ing)?|fall(?:ing)?|enter(?:ing)?|exit|leav(?:e|ing)|approach(?:ing)?|retreat|"
    r"grab|release|pick|put|drop|throw|catch|zoom"
)


class LabelChange(NamedTuple):
    """One way to change a clip, and the recipe fields that concern it."""

    what: str  # as a sentence says it
    probability: str
    pairs: str
    sides_turn: bool  # whether left and right change places
    words: str  # a pattern of words


MIRROR = LabelChange("in a mirror", "augmentation.horizontal_flip", "augmentation.mirror_pairs", True, SIDED)
REVERSE = LabelChange("played backwards", "augmentation.time_reversal", "augmentation.reverse_pairs", False, MOVING)


class LabelTables(NamedTuple):
    """Label → label of the changed clips; None if clips are not changed this way."""

    mirrored: tuple[int, ...] | None
    backwards: tuple[int, ...] | None


def relabel(labels: Tensor, chosen: Tensor, table: Sequence[int]) -> Tensor:
    """Labels [B] with those of the chosen [B] samples looked up in the table."""
    return labels.where(~chosen.to(labels.device), labels.new_tensor(table)[labels])


def label_table(classes: tuple[str, ...], pairs: tuple[str, ...], change: LabelChange) -> tuple[int, ...]:
    """Label → label of the changed clip. A class neither declared in `pairs` nor inferred from its name is refused.

    A pair is `A=B`, where clips of A show B and those of B show A, or `A`, where they still show A. Names tell left ↔
    right and clockwise ↔ counter-clockwise in a mirror, and a turn alone (without left or right) backwards.
    """
    declared, unknown = _declared(classes, pairs, change)
    table = tuple(declared[name] if name in declared else _by_name(name, classes, change) for name in classes)
    if unknown:
        raise ConfigError.expected(change.pairs, "classes of this dataset, as A=B or A", repr(unknown[0]))
    for label, other in enumerate(table):
        if table[other] != label:
            got = f"'{classes[label]}' → '{classes[other]}' → '{classes[table[other]]}'"
            raise ConfigError.expected(change.pairs, "pairs", got, hint=f"declare '{classes[label]}' too")
    return table


def check_names(classes: Iterable[str], change: LabelChange, probability: float) -> None:
    """Raise if clips would be changed but keep their labels although a class's name suggests another one."""
    for name in classes:
        if any(re.fullmatch(change.words, word) for word in _words(name)):
            wanted = f"0 for the class '{name}', whose clips may show another class {change.what}"
            hint = f"set it to 0, or set augmentation.relabel=true and {change.pairs}"
            raise ConfigError.expected(change.probability, wanted, f"{probability:g}", hint=hint)


def _declared(
    classes: tuple[str, ...], pairs: tuple[str, ...], change: LabelChange
) -> tuple[dict[str, int], list[str]]:
    """Class → label from the declarations, and the declarations with unknown classes."""
    numbers = {name: number for number, name in enumerate(classes)}
    declared: dict[str, int] = {}
    unknown = []
    for pair in pairs:
        found = _split(pair, numbers)
        if found is None:
            unknown.append(pair)
            continue
        if twice := [name for name in found if name in declared]:
            raise ConfigError.expected(change.pairs, "every class once", f"'{twice[0]}' twice")
        declared |= {found[0]: numbers[found[1]], found[1]: numbers[found[0]]}
    return declared, unknown


def _split(pair: str, numbers: dict[str, int]) -> tuple[str, str] | None:
    """The two classes of a pair, which may have an = in their names; one class twice where it stays what it is."""
    if pair in numbers:
        return pair, pair
    parts = pair.split("=")
    for at in range(1, len(parts)):
        first, second = "=".join(parts[:at]).strip(), "=".join(parts[at:]).strip()
        if first in numbers and second in numbers:
            return first, second
    return None


def _by_name(name: str, classes: tuple[str, ...], change: LabelChange) -> int:
    """The label inferred from the name, or an error."""
    if not WORDS.search(name) or (not change.sides_turn and SIDES.search(name)):
        wanted = f"'{name}=B', or '{name}' where it still shows that, since its name does not say it {change.what}"
        raise ConfigError.expected(change.pairs, wanted, "neither", hint=f"or set {change.probability}=0")
    opposite = WORDS.sub(lambda match: _opposite(match[0]), name)
    numbers = {_plain(other): number for number, other in enumerate(classes)}
    if _plain(opposite) not in numbers:
        wanted, got = f"what '{name}' shows {change.what}", f"'{opposite}' by its name, which is no class"
        raise ConfigError.expected(change.pairs, wanted, got, hint=f"or set {change.probability}=0")
    return numbers[_plain(opposite)]


def _opposite(word: str) -> str:
    small = word.lower()
    if small in ("left", "right"):
        return "right" if small == "left" else "left"
    return "counter_clockwise" if small == "clockwise" else "clockwise"


def _plain(name: str) -> str:
    """Normalize the spellings of counter-clockwise."""
    return re.sub(TURN, "counter_clockwise", name.lower())


def _words(name: str) -> list[str]:
    """The words of a name in small letters: swipe_left, SwipeLeft and swipe-left have the same."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
