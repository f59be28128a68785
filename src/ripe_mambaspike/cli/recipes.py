"""`ripe recipes`: the training runs that ship with the package, and everything that can be set in one."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ripe_mambaspike.cli.output import console, print_json, print_table

if TYPE_CHECKING:
    from ripe_mambaspike.train.recipe import Recipe


@dataclass
class RecipesCommand:
    """List the shipped training recipes; with a name, print that one with what each field means."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """A recipe's name or .yaml file; its output, saved to a file and changed, is a recipe of your own."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        if self.name is None:
            self._show_all()
        else:
            self._show_one(self.name)
        return 0

    def _show_all(self) -> None:
        from ripe_mambaspike.train.recipes import describe, list_recipes, load_recipe

        rows = [_row(name, load_recipe(name), describe(name)) for name in list_recipes()]
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
        from ripe_mambaspike.train.recipes import describe, fields_of, load_recipe, to_dict, to_yaml

        recipe, head = load_recipe(name), describe(name)
        if self.json:
            fields = [asdict(field) for field in fields_of()]
            print_json({"recipe": recipe.name, "description": head, "values": to_dict(recipe), "fields": fields})
            return
        for line in head.splitlines():
            print(f"# {line}".rstrip())
        print(to_yaml(recipe, comments=True), end="")


def show_fields() -> None:
    """Every field that --set takes, as a part of a command's help."""
    from rich.markup import escape
    from rich.table import Table

    from ripe_mambaspike.train.recipes import fields_of

    out = console()
    out.print("[bold]fields[/] that --set takes, with their defaults where a recipe sets none:")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 1))
    for one in fields_of():
        said = escape(f"{one.help or 'see ripe recipes NAME'} ({one.type}; {one.default})")
        table.add_row(f"[cyan]{one.path}[/]", said)
    out.print(table)


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
