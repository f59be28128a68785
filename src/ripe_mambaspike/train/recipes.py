"""Recipes: read, checked, changed, compared and written. Every recipe passes `check_recipe`."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from ripe_mambaspike.data.sets.registry import datasets
from ripe_mambaspike.data.settings import MAX_RECIPE_BYTES
from ripe_mambaspike.data.settings import RENAMED_FIELDS as RENAMED_DATA_FIELDS
from ripe_mambaspike.data.store import KEY
from ripe_mambaspike.errors import ConfigError, short_repr
from ripe_mambaspike.files import read_regular, write_file
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.registry import list_models, model_config
from ripe_mambaspike.schema import convert
from ripe_mambaspike.train.recipe import Recipe, field_help
from ripe_mambaspike.yaml_text import parse_yaml, yaml_value

ORDER = ("dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "dailydvs200", "dailydvs200-lite")  # the paper's first
DATA_FIELDS = {"time_steps": "data.time_steps", "in_size": "data.grid"}  # of a model's config, set by the data
FROM_DATA = ("num_classes", *DATA_FIELDS, "form")  # fields of a model's config that a recipe cannot set
NAME = re.compile(r"\w[\w.+-]{0,99}")
TEXT_FIELDS = ("name", "data.dataset", "data.root", "data.partition", "data.store", "model.name", "model.pretrained")
RENAMED_FIELDS = {
    **{f"data.{earlier}": f"data.{name}" for earlier, name in RENAMED_DATA_FIELDS.items()},
    "optimiser": "optimizer",
    "optimizer.lr": "optimizer.learning_rate",
    "optimizer.lr_min": "optimizer.min_learning_rate",
    "optimizer.filters": "optimizer.tdm_lr_scale",
    "optimizer.clip": "optimizer.clip_grad_norm",
    "schedule.accumulate": "schedule.grad_accum_steps",
    "schedule.warmup_iterations": "schedule.warmup_steps",
    "run.recalibrate": "run.recalibrate_batches",
    "run.ema": "run.ema_decay",
    "run.sync_norms": "run.sync_batch_norm",
    "run.graph": "run.cuda_graph",
}


def list_recipes() -> list[str]:
    """The names of the recipes that ship with the package: the paper's, then the others."""
    folder = resources.files("ripe_mambaspike") / "recipes"
    names = {file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")}
    return [name for name in ORDER if name in names] + sorted(names - set(ORDER))


def load_recipe(name_or_path: str | Path) -> Recipe:
    """A shipped recipe by its name, or one from a .yaml file."""
    origin = Path(name_or_path) if _is_path(name_or_path) else f"recipe '{name_or_path}'"
    return recipe_from(parse_yaml(_text_of(name_or_path), origin), origin)


def describe_recipe(name_or_path: str | Path) -> str:
    """The comment at the top of a recipe's file: what it is, its command, and its rationale."""
    lines = []
    for line in _text_of(name_or_path).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return "\n".join(lines)


def recipe_from(values: Any, origin: str | Path) -> Recipe:
    """A recipe from plain values by field; errors name the origin."""
    try:
        if not isinstance(values, dict):
            raise ConfigError(f"expected fields and their values, got {short_repr(values)}")
        values = {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}
        _check_names(values)
        if isinstance(data := values.get("data"), dict) and "grid" in data:
            data["grid"] = _read_grid(data["grid"])
        recipe = convert(values, Recipe, error=ConfigError)
        _check_rules(recipe)
    except ConfigError as error:
        path = origin if isinstance(origin, Path) else None
        raise ConfigError(f"{origin}: {error}", field=error.field, path=path) from error
    return recipe


def check_recipe(recipe: Recipe) -> None:
    """Raise a ConfigError "field: expected X, got Y" unless a run can be made from this recipe."""
    convert(to_dict(recipe), Recipe, error=ConfigError)
    _check_rules(recipe)


def with_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with fields set by strings such as `schedule.epochs=3` or `data.grid=[34, 34]`, values as in YAML."""
    values, known = to_dict(recipe), field_help()
    given = [[part.strip() for part in setting.split("=", 1)] for setting in settings]
    if names := [one[-1] for one in given if one[0] == "model.name"]:
        kept = _fields_of_network(recipe, names[-1])
        left = recipe.model.fields.keys() - kept.keys() - {one[0].removeprefix("model.fields.") for one in given}
        values["model"] |= {"fields": kept, "unused_fields": sorted(left)}
    seen: list[str] = []
    for setting in settings:
        path, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or not path:
            raise ConfigError(f"expected field=value, such as schedule.epochs=3, got {short_repr(setting)}")
        section, _, name = path.partition(".")
        inside = path.startswith("model.fields.") and path != "model.fields."
        if path not in known and not inside:
            raise _unknown_field(path)
        if clash := [one for one in seen if f"{one}.".startswith(f"{path}.") or f"{path}.".startswith(f"{one}.")]:
            raise ConfigError.expected(path, "one value", f"a second one after {clash[0]}")
        seen.append(path)
        value = parse_yaml(text, path)
        if path in TEXT_FIELDS and isinstance(value, int | float):
            value = text  # a store's key may consist of digits
        if inside:
            values["model"]["fields"][path.removeprefix("model.fields.")] = value
        elif name:
            values[section][name] = value
        else:
            values[section] = value
    return recipe_from(values, f"recipe '{recipe.name}'")


def _fields_of_network(recipe: Recipe, name: str) -> dict[str, Any]:
    """The recipe's `model.fields`; none of them for a network of another architecture."""
    known = list_models()
    if name not in known or recipe.model.name not in known:
        return dict(recipe.model.fields)
    same = model_config(name).architecture == model_config(recipe.model.name).architecture
    return dict(recipe.model.fields) if same else {}


def difference(a: Recipe, b: Recipe) -> list[str]:
    """The dotted fields in which two recipes differ, in order."""
    mine, other, missing = leaf_values(a), leaf_values(b), object()
    differing = [path for path in {**mine, **other} if mine.get(path, missing) != other.get(path, missing)]
    order = list(field_help())
    return sorted(differing, key=lambda path: order.index(path if path in order else "model.fields"))


def leaf_values(recipe: Recipe) -> dict[str, Any]:
    """Plain values by dotted field, such as those of the network's config: "model.fields.neurons"."""
    return dict(_leaves(to_dict(recipe)))


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Plain values, nested as in the file."""
    return msgspec.to_builtins(asdict(recipe))


def to_yaml(recipe: Recipe, comments: bool = False) -> str:
    """The whole recipe in YAML, in field order; with `comments`, each field is followed by its help text."""
    helps = field_help() if comments else {}

    def line(indent: str, name: str, value: str, help_text: str) -> str:
        return f"{indent}{name}:{' ' if value else ''}{value}{f'  # {help_text}' if comments and help_text else ''}"

    lines, values = [], to_dict(recipe)
    for name, kind in get_type_hints(Recipe).items():
        value = values[name]
        if not is_dataclass(kind):
            lines.append(line("", name, yaml_value(value), helps.get(name, "")))
            continue
        summary = (kind.__doc__ or "").partition("\n")[0].partition(". ")[0].rstrip(".")
        lines.append(line("", name, "", summary))
        lines += [line("  ", one, yaml_value(v), helps.get(f"{name}.{one}", "")) for one, v in value.items()]
    return "\n".join(lines) + "\n"


def save_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write the recipe with all fields; `load_recipe` gives the same one."""
    write_file(Path(path), to_yaml(recipe, comments=True).encode(), ConfigError)


def _leaves(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _check_names(values: dict[str, Any]) -> None:
    """Raise for the first unknown field, with the name it has now or the nearest one."""
    known = field_help()
    sections = {path.partition(".")[0] for path in known}
    for section, inner in values.items():
        if section not in sections:
            raise _unknown_field(section)
        for name in inner if isinstance(inner, dict) else ():
            if f"{section}.{name}" not in known:
                raise _unknown_field(f"{section}.{name}")


def _unknown_field(path: Any) -> ConfigError:
    path = path if isinstance(path, str) and path.isprintable() and len(path) <= 80 else short_repr(path)
    if path in RENAMED_FIELDS:
        expected = f"{RENAMED_FIELDS[path]}, as it is called now"
    elif within := [name for name in field_help() if name.startswith(f"{path}.")]:
        expected = f"one of its fields, such as {within[0]}=value"
    else:
        expected = "a field of a recipe"
    sections = dict.fromkeys(name.partition(".")[0] for name in field_help())
    in_model = (f"model.fields.{name}" for name in RipeConfig.field_names() if name not in FROM_DATA)
    known = [*field_help(), *in_model, *sections]
    return ConfigError(f"{path}: expected {expected}, got {path!r}{_nearest(path, known)}", field=path)


def _nearest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?": by spelling, or the only field that ends so."""
    last = {path.rpartition(".")[2]: path for path in known}
    ends = [path for path in known if path.rpartition(".")[2] == name.rpartition(".")[2]]
    close = ends if len(ends) == 1 else difflib.get_close_matches(name, list(known), 1)
    close = close or [last[word] for word in difflib.get_close_matches(name.rpartition(".")[2], last, 1)]
    return f"; did you mean '{close[0]}'?" if close and name not in RENAMED_FIELDS else ""


def _refuse(path: str, expected: str, got: Any, hint: str = "") -> None:
    raise ConfigError(f"{path}: expected {expected}, got {short_repr(got)}{hint}", field=path)


def _read_grid(grid: Any) -> Any:
    sides = [grid, grid] if not isinstance(grid, list | tuple) else list(grid)
    if grid is not None and (len(sides) != 2 or not all(type(side) is int for side in sides)):
        _refuse("data.grid", "one int or two", grid)
    return None if grid is None else sides


def _check_rules(recipe: Recipe) -> None:
    """Checks beyond the types and bounds of single fields."""
    data, optimizer, loss, schedule = recipe.data, recipe.optimizer, recipe.loss, recipe.schedule
    known = list(datasets())
    if not NAME.fullmatch(recipe.name):
        _refuse("name", "1 to 100 letters, digits and . _ + -, the first a letter, digit or _", recipe.name)
    if data.dataset not in known:
        _refuse("data.dataset", f"one of {', '.join(known)}", data.dataset, _nearest(data.dataset, known))
    if data.store is not None and not KEY.fullmatch(data.store):
        _refuse("data.store", "the key of a prepared dataset (see ripe data list) or null", data.store)
    for word in data.extra:
        name, _, root = word.partition("=")
        if name not in known or not root:
            _refuse("data.extra", f"DATASET=ROOT with one of the datasets {', '.join(known)}", word)
    for path, value in _fitted_values(recipe).items():
        if not value and recipe.model.pretrained is None:
            _refuse(path, "`int` >= 1, or 0 with model.pretrained", value)
    if data.prepare and data.dataset != "folder":
        _refuse("data.prepare", "false for all datasets but folder", data.prepare)
    if data.folds == 1:
        _refuse("data.folds", "0 (the dataset's own split) or at least 2", 1)
    if data.fold >= max(data.folds, 1):
        _refuse("data.fold", f"an int from 0 to {max(data.folds, 1) - 1}", data.fold)
    if optimizer.learning_rate < optimizer.min_learning_rate:
        expected = f"at least optimizer.min_learning_rate ({optimizer.min_learning_rate})"
        _refuse("optimizer.learning_rate", expected, optimizer.learning_rate)
    if schedule.epochs and not schedule.warmup_steps and schedule.warmup_epochs > schedule.epochs:
        _refuse("schedule.warmup_epochs", f"at most schedule.epochs ({schedule.epochs})", schedule.warmup_epochs)
    if loss.form == "paper" and loss.consistency and loss.passes == 1:
        _refuse("loss.passes", "2, since loss.form=paper compares both passes (loss.consistency)", 1)
    if schedule.epochs and data.first and schedule.first_epochs >= schedule.epochs:
        _refuse("schedule.first_epochs", f"fewer than schedule.epochs ({schedule.epochs})", schedule.first_epochs)
    if recipe.model.pretrained is None and recipe.model.freeze != "none":
        _refuse("model.freeze", "none without model.pretrained", recipe.model.freeze)
    if recipe.model.pretrained is None and recipe.model.expand:
        _refuse("model.expand", "false without model.pretrained", recipe.model.expand)
    _check_model(recipe)


def _fitted_values(recipe: Recipe) -> dict[str, int]:
    """The fields that a recipe with a start may leave to the recordings, as 0."""
    schedule = recipe.schedule
    return {
        "data.time_steps": recipe.data.time_steps,
        "schedule.epochs": schedule.epochs,
        "schedule.batch_size": schedule.batch_size,
    }


def _check_model(recipe: Recipe) -> None:
    name, given, data = recipe.model.name, recipe.model.fields, recipe.data
    if name not in list_models():
        _refuse("model.name", f"one of {', '.join(list_models())}", name, _nearest(name, list_models()))
    if fixed := [field for field in FROM_DATA if field in given]:
        _refuse(f"model.fields.{fixed[0]}", "no value, since the data decides it", given[fixed[0]])
    sizes: dict[str, Any] = {} if data.grid is None else {"in_size": data.grid}
    if data.time_steps:
        sizes["time_steps"] = data.time_steps
    try:
        model_config(name, **given, **sizes)
    except ConfigError as error:
        field = DATA_FIELDS.get(error.field or "", f"model.fields.{error.field}" if error.field else "model.fields")
        raise ConfigError(f"{field}: {str(error).removeprefix(f'{error.field}: ')}", field=field) from error


def _is_path(name: str | Path) -> bool:
    return isinstance(name, Path) or "/" in name or "\\" in name or name.endswith((".yaml", ".yml"))


def _text_of(name: str | Path) -> str:
    if not _is_path(name):
        names = list_recipes()
        if name not in names:
            _refuse("recipe", f"one of {', '.join(names)}, or a .yaml file", name, _nearest(str(name), names))
        return (resources.files("ripe_mambaspike") / "recipes" / f"{name}.yaml").read_text("utf-8")
    path = Path(name)
    try:
        if path.is_dir():
            inside = f"; did you mean {path / 'recipe.yaml'}?" if (path / "recipe.yaml").is_file() else ""
            raise ConfigError(f"{path}: expected a recipe in YAML, got a folder{inside}", path=path)
        return read_regular(path, MAX_RECIPE_BYTES).decode("utf-8-sig")
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: expected a recipe in YAML, got {got}", path=path) from error
