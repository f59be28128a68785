"""Mutations: bytes in, damaged bytes out. They depend only on the random generator, so every case is reproducible."""

import copy
import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

MAX_BYTES = 1 << 16  # a case may grow to this size
INTEGERS = (
    0, 1, -1, 2, 7, 16, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**62,
)  # fmt: skip
NUMBERS = ("0", "-1", "1e400", "NaN", "1e-400", "4294967296", "9223372036854775808", "-9223372036854775809", "9" * 400)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "a", "\0", "../x", "/dev/zero", "\ud800", "\u202e", "x" * 5000, "<script>", [], [0], [None], [[]], {},
    {"a": {}}, "nan", "1e3", "2026-01-01", [1, 2, 3, 4], ["time"], [-1, -1], [0.5, 2],
)  # fmt: skip


def mutate(case: bytes, random: Random, others: Sequence[bytes] = (), words: Sequence[bytes] = ()) -> bytes:
    """A few mutations, one after the other."""
    made = bytearray(case)
    for _ in range(1 << random.randrange(4)):
        _MUTATIONS[random.randrange(len(_MUTATIONS))](made, random, others, words)
        if len(made) > MAX_BYTES:
            del made[MAX_BYTES:]
    return bytes(made)


def mutate_document(document: Any, random: Random) -> Any:
    """A JSON document with one to four of its values replaced, removed, renamed or repeated."""
    made = json.loads(json.dumps(document))
    for _ in range(random.randint(1, 4)):
        places = _places(made)
        if not places:
            return random.choice(VALUES)
        holder, key = random.choice(places)
        what = random.randrange(6)
        if what == 0:
            del holder[key]
        elif what == 1 and isinstance(holder, dict):
            holder[str(key) + random.choice(("", "x", "\0", "é"))] = holder.pop(key)
        elif what == 2:
            simple = not isinstance(holder[key], dict | list)  # nested values would grow exponentially
            holder[key] = [holder[key]] * random.choice((0, 1, 2, 50) if simple else (0, 1, 2))
        elif what == 3 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = holder[key] + random.choice((-1, 1, 0.5, 2**31, -(2**40)))
        elif what == 4:
            nested: Any = holder[key]
            for _ in range(random.choice((1, 10, 500))):
                nested = [nested] if random.random() < 0.5 else {"a": nested}
            holder[key] = nested
        else:
            holder[key] = copy.deepcopy(random.choice(VALUES))
    return made


def mutate_json(case: bytes, random: Random) -> bytes:
    """A JSON text with some values of its document changed."""
    return dump(mutate_document(json.loads(case), random))


def dump(document: Any) -> bytes:
    """JSON with everything that Python's parser accepts, such as NaN and lone surrogates."""
    try:
        return json.dumps(document).encode()
    except (ValueError, RecursionError):
        return b"{}"


def _places(document: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value at any depth; only the first items of long lists."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        value = waiting.pop()
        keys = list(value) if isinstance(value, dict) else range(min(len(value), 50)) if isinstance(value, list) else ()
        found += [(value, key) for key in keys]
        waiting += [value[key] for key in keys]
    return found


Mutation = Callable[[bytearray, Random, Sequence[bytes], Sequence[bytes]], None]


def _span(made: bytearray, random: Random) -> tuple[int, int]:
    start = random.randrange(len(made) + 1)
    return start, min(len(made), start + (1 << random.randrange(8)))


def _flip(made: bytearray, random: Random, *_: Any) -> None:
    if made:
        made[random.randrange(len(made))] ^= 1 << random.randrange(8)


def _byte(made: bytearray, random: Random, *_: Any) -> None:
    if made:
        made[random.randrange(len(made))] = random.choice((0, 1, 10, 32, 48, 127, 128, 240, 255, random.randrange(256)))


def _integer(made: bytearray, random: Random, *_: Any) -> None:
    size = random.choice((1, 2, 4, 8))
    value = random.choice(INTEGERS) % (1 << 8 * size)
    at = random.randrange(len(made) + 1)
    made[at : at + size] = value.to_bytes(size, random.choice(("little", "big")))


def _insert(made: bytearray, random: Random, *_: Any) -> None:
    at = random.randrange(len(made) + 1)
    made[at:at] = random.randbytes(1 << random.randrange(6))


def _delete(made: bytearray, random: Random, *_: Any) -> None:
    start, stop = _span(made, random)
    del made[start:stop]


def _repeat(made: bytearray, random: Random, *_: Any) -> None:
    start, stop = _span(made, random)
    made[start:start] = made[start:stop] * random.choice((1, 1, 2, 16))


def _move(made: bytearray, random: Random, *_: Any) -> None:
    start, stop = _span(made, random)
    piece = made[start:stop]
    del made[start:stop]
    at = random.randrange(len(made) + 1)
    made[at:at] = piece


def _cut(made: bytearray, random: Random, *_: Any) -> None:
    del made[random.randrange(len(made) + 1) :]


def _splice(made: bytearray, random: Random, others: Sequence[bytes], _: Any) -> None:
    if others:
        other = random.choice(others)
        made[random.randrange(len(made) + 1) :] = other[random.randrange(len(other) + 1) :]


def _word(made: bytearray, random: Random, _: Any, words: Sequence[bytes]) -> None:
    if words:
        word = random.choice(words)
        at = random.randrange(len(made) + 1)
        made[at : at + (len(word) if random.random() < 0.5 else 0)] = word


def _number(made: bytearray, random: Random, *_: Any) -> None:
    found = list(re.finditer(rb"[0-9]+", bytes(made[:8192])))
    if found:
        match = random.choice(found)
        made[match.start() : match.end()] = random.choice(NUMBERS).encode()


_MUTATIONS: tuple[Mutation, ...] = (
    _flip, _flip, _byte, _integer, _integer, _insert, _delete, _repeat, _move, _cut, _splice, _word, _number,
)  # fmt: skip
