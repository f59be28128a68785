"""YAML 1.2 scalars with limits, for recipe files and `--set field=value`.

PyYAML reads YAML 1.1, where `1e-3` is a string, `off` is false and `1:30` is 90. Here the rules are those of YAML 1.2's
core schema. Aliases (which can expand without end) and keys that are given twice are errors.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from ripe_mambaspike.errors import ConfigError, short_repr

MAX_VALUES = 10_000  # of a document, keys and items counted
MAX_DEPTH = 20
MAX_BITS = 128  # of an int
RESOLVERS = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars; refuses aliases, repeated keys, and documents that are too large or too deep."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012
    depth = values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise self._problem("expected values written out, got an alias")
        self.depth += 1
        self.values += 1
        if self.depth > MAX_DEPTH or self.values > MAX_VALUES:
            raise self._problem(f"expected at most {MAX_VALUES} values, {MAX_DEPTH} deep, got more")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise self._problem(f"expected each field once, got {short_repr(key.value)} twice", key.start_mark)
                keys.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_int(self, node: Any) -> int:
        text = self.construct_scalar(node)
        value = int(text, 0 if text[:2] in ("0o", "0x") else 10)
        if value.bit_length() > MAX_BITS:
            raise self._problem(f"expected an int of at most {MAX_BITS} bits, got {len(text)} digits", node.start_mark)
        return value

    def _problem(self, message: str, mark: Any = None) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError(problem=message, problem_mark=mark or self.peek_event().start_mark)


class _Dumper(yaml.SafeDumper):
    """Quotes strings that either version of YAML would read as another type."""

    yaml_implicit_resolvers = {key: list(value) for key, value in yaml.SafeDumper.yaml_implicit_resolvers.items()}  # noqa: RUF012


for _tag, _pattern, _first in RESOLVERS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_int)


def parse_yaml(text: str, origin: str | Path) -> Any:
    """The values of a YAML document; a ConfigError names the line and `origin`, which is a file if it is a Path."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f"line {mark.line + 1}: " if mark else ""
        message = problem if problem and problem.startswith("expected ") else f"expected YAML, got {problem or error}"
        path = origin if isinstance(origin, Path) else None
        raise ConfigError(f"{origin}: {line}{message}", path=path) from error


def yaml_value(value: Any) -> str:
    """A plain value (of lists, mappings, strings, numbers) on one line of YAML."""
    options: dict[str, Any] = {"Dumper": _Dumper, "width": float("inf"), "allow_unicode": True, "sort_keys": False}
    text = yaml.dump([value], default_flow_style=True, **options)[1:-2]
    if len(text.splitlines()) > 1:  # U+0085 and the like end a line too, and YAML reads such an end as a space
        text = yaml.dump([value], default_flow_style=True, default_style='"', **options)[1:-2]
    return text
