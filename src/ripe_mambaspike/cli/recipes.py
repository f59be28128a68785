"""`ripe recipes`: the training runs that ship with the package, and everything that can be set in one."""

import textwrap
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from ripe_mambaspike.cli.output import WIDTH, console, print_json, print_table
from ripe_mambaspike.command_options import Json, option

if TYPE_CHECKING:
    from ripe_mambaspike.train.recipe import Recipe

FIELDS_TEXT = """\
Fields of a recipe: each can be set by --set FIELD=VALUE, and those with a dot as an option, --FIELD VALUE. Values are
written as in YAML: null, true, false; several as data.grid=[48, 64] or --data.grid 48 64.
"""


@dataclass
class RecipesCommand:
    """List the shipped training recipes; with a name, print that one with what each field means."""

    name: Annotated[str | None, tyro.conf.Positional, option("NAME")] = None
    """A recipe's name or .yaml file; its output, saved to a file and changed, is a recipe of your own."""
    json: Json = False

    def run(self) -> int:
        if self.name is None:
            self._show_all()
        else:
            self._show_one(self.name)
        return 0

    def _show_all(self) -> None:
        from ripe_mambaspike.train.recipes import describe_recipe, list_recipes, load_recipe

        rows = [_row(name, load_recipe(name), describe_recipe(name)) for name in list_recipes()]
        if self.json:
            print_json({"recipes": rows})
            return
        out = console()
        columns = ["recipe", "what", "T", "input", "epochs", "batch"]
        print_table(out, "Recipes", columns, [_cells(row) for row in rows], left=2)
        out.print(
            "Next: ripe recipes synthgesture · ripe train synthgesture · for your own recordings, ripe train folder"
        )

    def _show_one(self, name: str) -> None:
        import msgspec

        from ripe_mambaspike.train.recipe import Recipe, field_help
        from ripe_mambaspike.train.recipes import describe_recipe, load_recipe, to_dict, to_yaml

        recipe, head = load_recipe(name), describe_recipe(name)
        if self.json:
            about = {"recipe": recipe.name, "description": head, "values": to_dict(recipe), "fields": field_help()}
            print_json(about | {"schema": msgspec.json.schema(Recipe)})  # types, choices, limits and defaults
            return
        for line in head.splitlines():
            print(f"# {line}".rstrip())
        print(to_yaml(recipe, comments=True), end="")


def show_fields() -> None:
    """All fields of a recipe with their types and defaults, as part of a command's help."""
    from ripe_mambaspike.train.recipe import Recipe, field_help
    from ripe_mambaspike.train.recipes import to_dict
    from ripe_mambaspike.yaml_text import yaml_value

    print(FIELDS_TEXT)
    defaults, helps = to_dict(Recipe()), field_help()
    for section, kind in get_type_hints(Recipe).items():
        if not is_dataclass(kind):
            _show_field(f"--set {section}={value_text(kind)}", helps[section], yaml_value(defaults[section]))
            continue
        print(f"\n{section}: {(kind.__doc__ or '').partition(chr(10))[0]}")
        for name, hint in get_type_hints(kind, include_extras=False).items():
            field = f"{section}.{name}"
            _show_field(f"--{field} {value_text(hint)}", helps[field], yaml_value(defaults[section][name]))


def _show_field(option: str, text: str, default: str) -> None:
    shown = f"{text} (default: {default})" if default else text
    print(f"  {option}", *textwrap.wrap(shown, WIDTH - 6), sep="\n      ")


def value_text(hint: Any) -> str:
    """A field's type as its value is typed, which is YAML: `[INT, INT] | null`."""
    kinds = get_args(hint)
    if get_origin(hint) is Literal:
        return "|".join(map(str, kinds))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(value_text(kind) for kind in sorted(kinds, key=lambda kind: kind is NoneType))
    if get_origin(hint) is tuple:
        return f"[{', '.join('…' if kind is Ellipsis else value_text(kind) for kind in kinds)}]"
    if get_origin(hint) is dict:
        return "{NAME: VALUE, …}"
    return {NoneType: "null", bool: "true|false"}.get(hint) or hint.__name__.upper()


def _row(name: str, recipe: "Recipe", head: str) -> dict[str, Any]:
    return {
        "recipe": name,
        "what": head.partition("\n")[0],
        "set": recipe.data.dataset,
        "network": recipe.model.name,
        "steps": recipe.data.time_steps,
        "grid": None if recipe.data.grid is None else list(recipe.data.grid),
        "epochs": recipe.schedule.epochs,
        "batch_size": recipe.schedule.batch_size,
        "accumulate": recipe.schedule.grad_accum_steps,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    grid = "sensor" if row["grid"] is None else "×".join(map(str, row["grid"]))
    steps, epochs, batch = (str(row[name] or "–") for name in ("steps", "epochs", "batch_size"))
    batch += f" × {row['accumulate']}" if row["accumulate"] > 1 else ""
    return [row["recipe"], row["what"], steps, grid, epochs, batch]
