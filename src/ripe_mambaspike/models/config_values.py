"""Small functions for checking the values of config fields."""

from typing import Any


def letters(name: str) -> str:
    """A name without case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def as_python(value: Any) -> Any:
    """Convert lists and arrays to tuples, and numpy scalars to Python's."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(map(as_python, value)) if isinstance(value, list | tuple) else value


def int_within(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def number_within(value: Any, least: float, most: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and least <= value <= most
