"""`ripe recipes`: the training runs that ship with the package, and everything that can be set in one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ripe_mambaspike.cli.output import console, print_json, print_table
from ripe_mambaspike.command_options import Json, option

if TYPE_CHECKING:
    from ripe_mambaspike.train.recipe import Recipe


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
            "Next: ripe recipes synthgesture · ripe train synthgesture · for recordings of your own, ripe train folder"
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
    """All fields of a recipe with their defaults, as part of a command's help."""
    import contextlib

    from ripe_mambaspike.train.recipe import Recipe

    print("Every field of a recipe can be set, by --set FIELD=VALUE or as an option:\n")
    with contextlib.suppress(SystemExit):
        tyro.cli(Recipe, prog="ripe train RECIPE", args=["--help"], config=(tyro.conf.FlagConversionOff,))


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
    batch = str(row["batch_size"]) + (f" × {row['accumulate']}" if row["accumulate"] > 1 else "")
    return [row["recipe"], row["what"], str(row["steps"]), grid, str(row["epochs"]), batch]
