"""Reading documents (JSON, YAML) into typed classes, with errors that name the field.

A document's type is a `msgspec.Struct` or a dataclass; msgspec does the checking. What does not fit raises a
`RipeError` "field: expected X, got Y", whose `field` is the dotted name ("clips.label[3]") and `path` the file.

    class Shard(Document):
        events: Annotated[int, Meta(ge=0)]
        sha256: str

    shard = read_json(folder / "shard.json", Shard)
"""

import dataclasses
import difflib
import math
import os
import re
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from ripe_mambaspike.errors import DataError, RipeError, short_repr
from ripe_mambaspike.files import MAX_JSON_BYTES, read_regular

T = TypeVar("T")
Origin = str | os.PathLike[str] | None


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of documents whose fields are all known: a misspelled one is an error."""


def read_json(
    path: Path,
    kind: type[T],
    *,
    error: type[RipeError] = DataError,
    max_bytes: int = MAX_JSON_BYTES,
    hint: str = "",
    renamed: Mapping[str, str] | None = None,
) -> T:
    """Read a JSON file as `kind`; `error` for a file that is missing, too large, damaged or has a wrong field.

    hint: added to the message: what the user can do about it
    renamed: see `convert`
    """
    try:
        data = read_regular(path, max_bytes)
    except OSError as cause:
        message = f"{path}: expected a readable JSON file, got {cause.strerror or cause}"
        raise error(_with_hint(message, hint), path=path) from cause
    return decode_json(data, kind, origin=path, error=error, hint=hint, renamed=renamed)


def decode_json(
    data: bytes | str,
    kind: type[T],
    *,
    origin: Origin = None,
    error: type[RipeError] = DataError,
    hint: str = "",
    renamed: Mapping[str, str] | None = None,
) -> T:
    """Decode JSON text as `kind`. NaN, infinities, and nesting deeper than Python's stack are refused."""
    try:
        values = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as cause:
        raise error(_with_hint(f"{_prefix(origin)}expected JSON, got {cause}", hint), path=origin) from cause
    return convert(values, kind, origin=origin, error=error, hint=hint, finite=False, renamed=renamed)


def convert(
    values: Any,
    kind: type[T],
    *,
    origin: Origin = None,
    error: type[RipeError] = DataError,
    hint: str = "",
    field: str = "",
    strict: bool = True,
    finite: bool = True,
    renamed: Mapping[str, str] | None = None,
) -> T:
    """Convert plain values (of JSON, YAML) to `kind`; `error` with `field` and `path` for what does not fit.

    field: name of the value itself, put in front of the names of its fields
    strict: False also converts strings, as from a command line ("3" to 3)
    finite: refuse NaN and infinities
    renamed: fields whose earlier name is accepted too, with their name of today
    """
    if renamed and isinstance(values, dict):
        values = {renamed.get(str(name), name): value for name, value in values.items()}

    def fail(at: str, message: str, cause: BaseException | None = None) -> RipeError:
        name = _join(field, at)
        problem = error(
            _with_hint(f"{_prefix(origin)}{name}{': ' if name else ''}{message}", hint), field=name or None, path=origin
        )
        problem.__cause__ = cause
        return problem

    try:
        for at, name, known in _unknown_fields(values, kind, ""):
            raise fail(_join(at, name), _unknown(name, known))
        if finite:
            for at, number in _not_finite(values, ""):
                raise fail(at, f"expected a finite number, got {number}")
        return msgspec.convert(values, kind, strict=strict)
    except msgspec.ValidationError as cause:
        if isinstance(cause.__cause__, RipeError):  # of a class's own __post_init__
            inner = cause.__cause__
            at = _join(_resolve(values, kind, _path_of(str(cause))[1])[0], inner.field or "")
            raise fail(at, str(inner).removeprefix(f"{inner.field}: "), cause) from cause
        raise fail(*_explain(values, kind, str(cause)), cause) from cause
    except UnicodeEncodeError as cause:  # JSON can escape halves of surrogate pairs
        raise fail("", "expected valid Unicode text, got half of a surrogate pair", cause) from cause
    except RecursionError as cause:
        raise fail("", "expected less deeply nested values", cause) from cause


def suggest(name: str, known: Mapping[str, Any] | list[str] | tuple[str, ...]) -> str:
    """ "; did you mean 'x'?" where a known name is close to this one, otherwise nothing."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _with_hint(message: str, hint: str) -> str:
    return f"{message}; {hint}" if hint else message


def _prefix(origin: Origin) -> str:
    return "" if origin is None else f"{origin}: "


def _join(one: str, other: str) -> str:
    return f"{one}{'' if other.startswith('[') else '.'}{other}" if one and other else one or other


def _unknown(name: str, known: list[str]) -> str:
    return f"expected one of {', '.join(known)}, got {short_repr(name)}{suggest(name, known)}"


def _path_of(message: str) -> tuple[str, str]:
    """Split msgspec's message into the text and the path: "$.a[0].b"."""
    found = re.search(r" - at (?:`key` in )?`\$(.*)`$", message, re.DOTALL)
    return (message[: found.start()], found[1]) if found else (message, "")


def _explain(values: Any, kind: Any, message: str) -> tuple[str, str]:
    """The field's name and "expected X, got Y" of one of msgspec's messages."""
    text, path = _path_of(message)
    at, value, inner = _resolve(values, kind, path)
    if found := re.fullmatch(r"Object missing required field `(.*)`", text):
        return _join(at, found[1]), "expected a value, got nothing"
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        return _join(at, found[1]), _unknown(found[1], list(_fields(inner)))
    if text.startswith("Invalid enum value"):
        return at, f"expected one of {', '.join(map(repr, _choices(inner)))}, got {short_repr(value)}"
    wanted = re.sub(r", got .*$", "", text, flags=re.DOTALL).replace("`", "").replace("array", "list")
    if not wanted.startswith("Expected"):  # of a __post_init__
        return at, text.removeprefix(f"{at}: ")
    return at, f"e{wanted[1:]}, got {short_repr(value)}"


def _resolve(values: Any, kind: Any, path: str) -> tuple[str, Any, Any]:
    """The name, the value and the type at msgspec's path; entries of mappings are found by trying each one."""
    at = ""
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
        kind = _plain(kind, values)
        if name:
            at, values, kind = _join(at, name), values[name], _fields(kind).get(name, Any)
        elif index != "...":
            inner = get_args(kind)
            number = int(index)
            kind = inner[min(number, len(inner) - 1)] if inner and inner[-1] is not ... else inner[0] if inner else Any
            at, values = f"{at}[{number}]", values[number]
        elif isinstance(values, dict):
            inner = get_args(kind)
            kind = inner[1] if len(inner) == 2 else Any
            key = next((key for key, value in values.items() if not _fits(value, kind)), None)
            if key is None:
                break
            at, values = _join(at, str(key)), values[key]
        else:
            break
    return at, values, _plain(kind, values)


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, RipeError):
        return False
    return True


def _plain(kind: Any, value: Any) -> Any:
    """The type without its annotations; of a union, the member that a value of this kind would be of."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        members = [_plain(one, value) for one in get_args(kind)]
        if isinstance(value, dict):
            return next((one for one in members if _fields(one) or get_origin(one) is dict), members[0])
        if isinstance(value, list):
            return next((one for one in members if get_origin(one) in (list, tuple, set, frozenset)), members[0])
        return next((one for one in members if get_origin(one) is Literal), members[0])
    return kind


def _fields(kind: Any) -> dict[str, Any]:
    """Names and types of a Struct's or a dataclass's fields."""
    if not isinstance(kind, type) or not (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        return {}
    hints = get_type_hints(kind, include_extras=True)
    if issubclass(kind, msgspec.Struct):
        stored = kind.__struct_encode_fields__  # their names in a file
        return {name: hints[field] for name, field in zip(stored, kind.__struct_fields__, strict=True)}
    return {one.name: hints.get(one.name, Any) for one in dataclasses.fields(kind) if one.init}


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is Literal else tuple(one.value for one in kind)


def _unknown_fields(values: Any, kind: Any, at: str) -> Iterator[tuple[str, str, list[str]]]:
    """Fields that a dataclass, at any depth, does not have; msgspec ignores them."""
    kind = _plain(kind, values)
    inner = get_args(kind)
    if isinstance(values, dict) and (fields := _fields(kind)):
        if dataclasses.is_dataclass(kind):
            yield from ((at, str(name), list(fields)) for name in values if name not in fields)
        for name, one in fields.items():
            if name in values:
                yield from _unknown_fields(values[name], one, _join(at, name))
    elif isinstance(values, dict) and get_origin(kind) is dict and _has_fields(inner[1]):
        for name, value in values.items():
            yield from _unknown_fields(value, inner[1], _join(at, str(name)))
    elif isinstance(values, list) and get_origin(kind) in (list, tuple) and _has_fields(inner[0]):
        for index, value in enumerate(values):
            yield from _unknown_fields(value, inner[0], f"{at}[{index}]")


def _has_fields(kind: Any) -> bool:
    return bool(_fields(_plain(kind, {}))) or any(map(_has_fields, get_args(kind)))


def _not_finite(values: Any, at: str) -> Iterator[tuple[str, float]]:
    if isinstance(values, float) and not math.isfinite(values):
        yield at, values
    elif isinstance(values, dict):
        for name, value in values.items():
            yield from _not_finite(value, _join(at, str(name)))
    elif isinstance(values, (list, tuple)):
        for index, value in enumerate(values):
            yield from _not_finite(value, f"{at}[{index}]")
