"""What a viewer may say: one small JSON object with `do` and, for most, `value`. Everything else is refused."""

import json
from dataclasses import dataclass
from typing import Any

from ripe_mambaspike.errors import InputError

MIN_SPEED, MAX_SPEED = 0.05, 8.0
MAX_KEY_LENGTH = 64
WORDS = {
    "play": "the number of a recording",
    "upload": "the key of an upload",
    "live": "nothing",
    "pause": "nothing",
    "resume": "nothing",
    "seek": "a share of the recording from 0 to 1",
    "speed": f"a number from {MIN_SPEED:g} to {MAX_SPEED:g}",
    "loop": "true or false",
    "attention": "true or false",
}


@dataclass(frozen=True)
class ViewerCommand:
    """What a viewer asks for."""

    do: str
    value: Any = None


def read_command(text: str) -> ViewerCommand:
    """The wish that a message says; an error says what is wanted."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("the message is not JSON; an object with 'do' and 'value' is wanted") from None
    if not isinstance(said, dict) or set(said) - {"do", "value"}:
        raise InputError("the message is not an object with 'do' and 'value' alone; such a one is wanted")
    do, value = said.get("do"), said.get("value")
    if not isinstance(do, str) or do not in WORDS:
        raise InputError(f"the message asks to do {str(do)[:40]!r}; one of {', '.join(WORDS)} is wanted")
    if not _fits(do, value):
        raise InputError(f"the value of '{do}' is {str(value)[:40]!r}; {WORDS[do]} is wanted")
    return ViewerCommand(do, value)


def _fits(do: str, value: Any) -> bool:
    if do in ("live", "pause", "resume"):
        return value is None
    if do in ("loop", "attention"):
        return isinstance(value, bool)
    if do == "upload":
        return isinstance(value, str) and 0 < len(value) <= MAX_KEY_LENGTH and value.isascii()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if do == "play":
        return isinstance(value, int) and 0 <= value < 2**31
    low, high = (0.0, 1.0) if do == "seek" else (MIN_SPEED, MAX_SPEED)
    return low <= value <= high  # which nothing that is no number does
