"""The fields of a recipe: their dotted paths, their types, and values read strictly by type."""

import ast
import difflib
import inspect
import io
import math
import re
import reprlib
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.train.recipe import Recipe

# What YAML 1.1 takes for a text because it lacks the dot or the sign: 1e-3, 2.5e3.
EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", re.ASCII)
WORDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 80
_shown.maxlist = _shown.maxtuple = _shown.maxdict = 8

T = TypeVar("T")


@dataclass(frozen=True)
class FieldHelp:
    """One field, as a person sees it."""

    path: str  # dotted, such as schedule.epochs
    type: str
    default: Any  # in plain values: lists, not tuples
    help: str  # the comment behind it, or nothing


class Leaf(NamedTuple):
    """One field, as the code sees it."""

    path: str
    kind: Any  # its annotation
    value: Any


def leaves(settings: Any, before: str = "") -> Iterator[Leaf]:
    """Every field below a dataclass that is not one itself, in order."""
    kinds = kinds_of(type(settings))
    for field in fields(settings):
        value = getattr(settings, field.name)
        path = before + field.name
        if is_dataclass(kinds[field.name]):
            yield from leaves(value, f"{path}.")
        else:
            yield Leaf(path, kinds[field.name], value)


def kinds_of(settings: type) -> dict[str, Any]:
    """The annotations of a dataclass, by field."""
    hints = get_type_hints(settings)
    return {field.name: hints[field.name] for field in fields(settings)}


@cache
def comments_of(settings: type) -> dict[str, str]:
    """The comment at the end of each field's lines, by field; nothing where the source is not at hand."""
    try:
        source = textwrap.dedent(inspect.getsource(settings))
    except (OSError, TypeError):
        return {}
    said = {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            rows = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found[node.target.id] = " ".join(said[row] for row in rows if row in said)
    return found


def fields_of() -> list[FieldHelp]:
    """Every field of a recipe, in order, with the comment written behind it."""
    helps = dict(_helps(Recipe))
    return [FieldHelp(path, words(kind), plain(value), helps[path]) for path, kind, value in leaves(Recipe())]


def _helps(settings: type, before: str = "") -> Iterator[tuple[str, str]]:
    comments = comments_of(settings)
    for name, kind in kinds_of(settings).items():
        if is_dataclass(kind):
            yield from _helps(kind, f"{before}{name}.")  # type: ignore[arg-type]
        else:
            yield before + name, comments.get(name, "")


def words(kind: Any) -> str:
    """A type as a person would say it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, UnionType):
        return " or ".join("null" if part is NoneType else words(part) for part in arguments)
    if origin is tuple:
        return "a list of texts" if arguments[-1] is Ellipsis else "one whole number or a list of two"
    if origin is dict:
        return "a mapping of fields"
    return WORDS[kind]


def plain(value: Any) -> Any:
    """Tuples as lists, at any depth: what YAML and JSON know."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def show(value: Any) -> str:
    """A value in an error: on one line, and not for ever."""
    return _shown.repr(value)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, where something is near: by spelling, or by being the only one that ends so."""
    known = list(known)
    ends = [path for path in known if path.rpartition(".")[2] == name.rpartition(".")[2]]
    close = ends if len(ends) == 1 else difflib.get_close_matches(name, known, 1)
    if not close:
        last = {path.rpartition(".")[2]: path for path in known}
        close = [last[word] for word in difflib.get_close_matches(name.rpartition(".")[2], last, 1)]
    return f"; did you mean '{close[0]}'?" if close else ""


def build(settings: type[T], values: Any, origin: str, before: str = "") -> T:
    """A dataclass from plain values by name; a nested one from a nested mapping, what is left out by its default."""
    if not isinstance(values, Mapping):
        name = f"{origin}: {before.rstrip('.')}" if before else origin
        raise ConfigError(f"{name} is {show(values)}; fields and their values are wanted")
    kinds = kinds_of(settings)
    given = {}
    for name, value in values.items():
        if name not in kinds:
            known = [before + kind for kind in kinds] + [path for path, _ in _helps(Recipe)]
            hint = nearest(before + str(name), dict.fromkeys(known))
            where = f"in {before.rstrip('.')} are" if before else "are"
            shown = f"{before}{name}" if isinstance(name, str) and name.isprintable() else f"{before}{show(name)}"
            raise ConfigError(f"{origin} has no field '{shown[:80]}'{hint} (its fields {where} {', '.join(kinds)})")
        kind = kinds[name]
        if is_dataclass(kind):
            given[name] = build(kind, value, origin, f"{before}{name}.")  # type: ignore[arg-type]
        else:
            given[name] = read(kind, value, f"{origin}: {before}{name}")
    try:
        return settings(**given)
    except ConfigError as error:  # of settings that check themselves
        raise ConfigError(f"{origin}: {before}{error}") from error


def read(kind: Any, value: Any, name: str) -> Any:
    """The value as the annotation wants it, or one sentence."""
    origin, arguments = get_origin(kind), get_args(kind)
    try:
        if origin in (Union, UnionType):
            return None if value is None else read(arguments[0], value, name)
        if origin is Literal:
            return _choice(value, arguments)
        if origin is tuple:
            return _several(value, arguments)
        if origin is dict:
            return _mapping(value)
        return {int: _whole, float: _number, bool: _flag, str: _text}[kind](value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        quotes = " (in quotes)" if kind is str else ""
        raise ConfigError(f"{name} is {show(value)}; {words(kind)}{quotes} is wanted") from error


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _number(value: Any) -> float:
    if isinstance(value, str) and EXPONENT.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _choice(value: Any, choices: tuple[Any, ...]) -> Any:
    if value is False and "off" in choices:  # YAML 1.1 reads a bare `off` as false
        return "off"
    if type(value) not in (int, str) or value not in choices:
        raise ValueError
    return value


def _several(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if kinds[-1] is Ellipsis:
        if not isinstance(value, list | tuple):
            raise TypeError
        return tuple(_text(item) for item in value)
    items = value if isinstance(value, list | tuple) else [value] * len(kinds)
    if len(items) != len(kinds):
        raise ValueError
    return tuple(_whole(item) for item in items)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError
    return {key: plain(item) for key, item in value.items()}
