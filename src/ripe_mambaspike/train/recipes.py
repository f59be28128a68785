"""Recipes: read, written, changed and compared. Every way of making one ends in `check`."""

from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.files import atomic_write, read_regular
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipe_checks import check, read_network_fields
from ripe_mambaspike.train.recipe_fields import (
    FieldHelp,
    build,
    comments_of,
    fields_of,
    kinds_of,
    leaves,
    nearest,
    plain,
    show,
)

__all__ = [
    "FieldHelp",
    "check",
    "describe",
    "difference",
    "fields_of",
    "list_recipes",
    "load_recipe",
    "recipe_from",
    "save_recipe",
    "to_dict",
    "to_yaml",
    "with_settings",
]

LARGEST = 64 * 1024  # bytes of a recipe file; a full one with comments has a tenth of it
MAX_VALUES = 10_000  # of a recipe, fields and items counted
MAX_DEPTH = 20
MAX_BITS = 128  # of a whole number
ORDER = ("dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "dailydvs200", "dailydvs200-lite")  # the paper's first
WANTED = "a recipe in YAML is wanted"


def list_recipes() -> list[str]:
    """The names of the recipes that ship with the package: the paper's, then the others."""
    folder = resources.files("ripe_mambaspike") / "recipes"
    names = {file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")}
    return [name for name in ORDER if name in names] + sorted(names - set(ORDER))


def load_recipe(name_or_path: str | Path) -> Recipe:
    """A shipped recipe by its name, or one from a .yaml file."""
    return recipe_from(_parse(_text_of(name_or_path), _origin(name_or_path)), _origin(name_or_path))


def describe(name_or_path: str | Path) -> str:
    """The comment that a recipe's file begins with: what it is, its command, and why it is so."""
    lines = []
    for line in _text_of(name_or_path).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return "\n".join(lines)


def recipe_from(values: Any, origin: str) -> Recipe:
    """A recipe from plain values by name; the origin is what errors call it."""
    recipe = build(Recipe, values, origin)
    try:
        network = recipe.model
        settled = replace(network, fields=read_network_fields(network.name, network.fields))
        recipe = replace(recipe, model=settled)
        check(recipe)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error
    return recipe


def with_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with fields set by words such as `schedule.epochs=3` or `data.grid=[34, 34]`, values as in YAML."""
    values = to_dict(recipe)
    known = [path for path, _, _ in leaves(recipe)]
    seen: list[str] = []
    for setting in settings:
        path, equals, text = setting.partition("=")
        path = path.strip()
        if not equals or not path:
            raise ConfigError(f"a setting is {show(setting)}; field=value is wanted, such as schedule.epochs=3")
        inner = path.startswith("model.fields.") and len(path) > len("model.fields.")
        if path not in known and not inner:
            if any(field.startswith(f"{path}.") for field in known):
                raise ConfigError(
                    f"{path} is a part of the recipe; one of its fields is wanted, such as {path}.…=value"
                )
            raise ConfigError(f"recipe '{recipe.name}' has no field {show(path)}{nearest(path, known)}")
        if clash := [
            other for other in seen if f"{other}.".startswith(f"{path}.") or f"{path}.".startswith(f"{other}.")
        ]:
            raise ConfigError(f"{path} was set twice (as {clash[0]} before); one value is wanted")
        seen.append(path)
        *above, last = ["model", "fields", path.removeprefix("model.fields.")] if inner else path.split(".")
        place = values
        for part in above:
            place = place[part]
        is_key = path == "data.store" and text.strip().isdigit()  # a key without a letter is no number
        place[last] = text.strip() if is_key else _parse(text, f"the setting {show(setting)}")
    return recipe_from(values, f"recipe '{recipe.name}'")


def difference(a: Recipe, b: Recipe) -> list[str]:
    """The dotted fields in which two recipes differ, in order."""
    found: list[str] = []
    for (path, _, mine), (_, _, other) in zip(leaves(a), leaves(b), strict=True):
        mine, other = plain(mine), plain(other)
        if isinstance(mine, dict) and isinstance(other, dict):
            missing = object()
            keys = dict.fromkeys([*mine, *other])
            found += [f"{path}.{key}" for key in keys if mine.get(key, missing) != other.get(key, missing)]
        elif mine != other:
            found.append(path)
    return found


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Plain values, nested as in the file."""
    values: dict[str, Any] = {}
    for path, _, value in leaves(recipe):
        *above, last = path.split(".")
        place = values
        for part in above:
            place = place.setdefault(part, {})
        place[last] = plain(value)
    return values


def to_yaml(recipe: Recipe, comments: bool = False) -> str:
    """The whole recipe in YAML, in field order; with comments, each field's own behind it."""
    lines = []
    for name, kind in kinds_of(Recipe).items():
        value = getattr(recipe, name)
        if not is_dataclass(kind):
            lines.append(f"{name}: {_scalar(value)}{_comment(comments_of(Recipe).get(name, ''), comments)}")
            continue
        says = (kind.__doc__ or "").partition("\n")[0].partition(". ")[0].rstrip(".")
        lines.append(f"{name}:{_comment(says, comments)}")
        for path, _, inner in leaves(value):
            said = comments_of(kind).get(path, "")  # type: ignore[arg-type]
            lines.append(f"  {path}: {_scalar(inner)}{_comment(said, comments)}")
    return "\n".join(lines) + "\n"


def save_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write the recipe with everything resolved; `load_recipe` gives the same one."""
    try:
        with atomic_write(Path(path)) as file:
            file.write(to_yaml(recipe, comments=True).encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); a file in a folder is wanted") from error


def _comment(said: str, wanted: bool) -> str:
    return f"  # {said}" if wanted and said else ""


def _scalar(value: Any) -> str:
    """A value on one line."""
    options: dict[str, Any] = {"default_flow_style": True, "width": float("inf"), "allow_unicode": True}
    text = yaml.safe_dump([plain(value)], sort_keys=False, **options)[1:-2]
    if len(text.splitlines()) > 1:  # U+0085 and its kin end a line too, and YAML reads such an end as a space
        text = yaml.safe_dump([plain(value)], sort_keys=False, default_style='"', **options)[1:-2]
    return text


def _is_path(name: str | Path) -> bool:
    return isinstance(name, Path) or "/" in name or "\\" in name or name.endswith((".yaml", ".yml"))


def _origin(name: str | Path) -> str:
    return f"{name}" if _is_path(name) else f"recipe '{name}'"


def _text_of(name: str | Path) -> str:
    if not _is_path(name):
        names = list_recipes()
        if name not in names:
            raise ConfigError(
                f"there is no recipe {show(name)}{nearest(str(name), names)} "
                f"(there are {', '.join(names)}, and any .yaml file)"
            )
        return (resources.files("ripe_mambaspike") / "recipes" / f"{name}.yaml").read_text("utf-8")
    path = Path(name)
    try:
        if path.is_dir():
            inside = f", such as {path / 'recipe.yaml'}" if (path / "recipe.yaml").is_file() else ""
            raise ConfigError(f"{path} is a folder; {WANTED}{inside}", path=path)
        return read_regular(path, LARGEST).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is not there; {WANTED}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8; {WANTED}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); {WANTED}", path=path) from error
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{show(str(name))} is no path; {WANTED}") from error


def _parse(text: str, origin: str) -> Any:
    """What the text says in YAML, within bounds. A field written twice, and aliases (which can unfold without end),
    are refused."""
    try:
        _check_events(text, origin)
        if node := yaml.compose(text, Loader=yaml.SafeLoader):
            _refuse_repeats(node, origin)
        return _in_range(yaml.safe_load(text), origin)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise ConfigError(f"{origin} cannot be read as YAML{line}; fields and their values are wanted") from error


def _check_events(text: str, origin: str) -> None:
    """Stop at what grows with the square of its size, or without end, before it is built."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{origin} uses an alias in line {line}; values written out are wanted")
        if depth > MAX_DEPTH or count > MAX_VALUES:
            raise ConfigError(
                f"{origin}: line {line}: expected at most {MAX_VALUES} values, {MAX_DEPTH} deep, got more"
            )


def _refuse_repeats(node: yaml.Node, origin: str) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise ConfigError(f"{origin} has the field {show(key.value)} twice; one value is wanted")
                seen.add(key.value)
            _refuse_repeats(key, origin)
            _refuse_repeats(value, origin)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeats(item, origin)


def _in_range(value: Any, origin: str, field: str = "") -> Any:
    """The value, no number in it so long that Python refuses to print it."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        name, expected = field[:80] or "value", f"a whole number of at most {MAX_BITS} bits"
        raise ConfigError(f"{origin}: {name}: expected {expected}, got {value.bit_length()}", field=field or None)
    if isinstance(value, dict):
        for key, inner in value.items():
            _in_range(key, origin, field)
            _in_range(inner, origin, f"{field}.{key}".lstrip("."))
    elif isinstance(value, list | tuple | set):
        for inner in value:
            _in_range(inner, origin, field)
    return value
