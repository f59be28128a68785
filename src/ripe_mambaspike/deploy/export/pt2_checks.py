"""Composable checks for a JSON document; each returns the value, rebuilt from its checked parts.

object_of({"steps": int64, "names": list_of(matching(NAME, "a name"))})(document, "facts")
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], Any]
MAX_ENTRIES = 1_000_000  # of one list or mapping
MAX_INT64 = 2**63 - 1
NON_FINITE = ("Infinity", "-Infinity", "NaN")  # as JSON has none


class UnknownPartError(ValueError):
    """A part that `ripe export` does not write; `field` is where it was found."""

    def __init__(self, field: str, expected: str, given: object) -> None:
        super().__init__(f"{field}: expected {expected}, got {str(given)[:80]!r}")
        self.field = field


def matching(pattern: re.Pattern[str], expected: str) -> Check:
    def check(value: Any, field: str) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise UnknownPartError(field, expected, value)
        return value

    return check


def any_of(*allowed: Any) -> Check:
    known = {(type(one), one) for one in allowed}

    def check(value: Any, field: str) -> Any:
        if not isinstance(value, bool | int | str | None) or (type(value), value) not in known:
            expected = ", ".join(map(str, allowed)) if len(allowed) <= 8 else "one that ripe export writes"
            raise UnknownPartError(field, expected or "nothing", value)
        return value

    return check


def optional(inner: Check) -> Check:
    return lambda value, field: None if value is None else inner(value, field)


def list_of(inner: Check) -> Check:
    def check(value: Any, field: str) -> list[Any]:
        if not isinstance(value, list) or len(value) > MAX_ENTRIES:
            raise UnknownPartError(field, "a list", value)
        return [inner(one, f"{field}[{index}]") for index, one in enumerate(value)]

    return check


def map_of(key: Check, inner: Check) -> Check:
    def check(value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
            raise UnknownPartError(field, "a mapping", value)
        return {key(name, field): inner(one, f"{field}.{str(name)[:80]}") for name, one in value.items()}

    return check


def object_of(fields: Mapping[str, Check], defaults: Mapping[str, Any] | None = None) -> Check:
    """Exactly these fields; those with a default may be missing, and others may be present only if empty."""

    def check(value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise UnknownPartError(field, "fields and their values", value)
        for name, one in value.items():
            if name not in fields and one:
                raise UnknownPartError(f"{field}.{str(name)[:80]}", "no such field", one)
        given = {**(defaults or {}), **value}
        if lacking := [name for name in fields if name not in given]:
            raise UnknownPartError(f"{field}.{lacking[0]}", "a value", "none")
        return {name: inner(given[name], f"{field}.{name}") for name, inner in fields.items()}

    return check


def one_of(kinds: Mapping[str, Check]) -> Check:
    def check(value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in kinds:
            raise UnknownPartError(field, "one kind of value that ripe export writes", value)
        ((kind, inner),) = value.items()
        return {kind: kinds[kind](inner, f"{field}.{kind}")}

    return check


def left_out(instead: Any) -> Check:
    """Debug information, replaced by an empty value."""
    return lambda value, field: instead


def flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise UnknownPartError(field, "true or false", value)
    return value


def int64(value: Any, field: str) -> int:
    if type(value) is not int or not -MAX_INT64 <= value <= MAX_INT64:
        raise UnknownPartError(field, "an int below 2^63", value)
    return value


def natural(value: Any, field: str) -> int:
    if int64(value, field) < 0:
        raise UnknownPartError(field, "0 or more", value)
    return value


def real(value: Any, field: str) -> float | str:
    if isinstance(value, bool) or not (isinstance(value, int | float) or value in NON_FINITE):
        raise UnknownPartError(field, "a number", value)
    return value
