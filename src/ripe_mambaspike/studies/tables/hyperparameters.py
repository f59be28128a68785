"""Table 9: the recipes that ship, beside the paper's hyperparameters."""

from typing import Any

from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.studies.tables.printed import printed_table
from ripe_mambaspike.studies.tables.table import Ours, PaperTable, TableCell, beside
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipes import load_recipe

RECIPES = {
    "DVS-Gesture": "dvsgesture",
    "CIFAR10-DVS": "cifar10dvs",
    "N-Caltech101": "ncaltech101",
    "N-MNIST": "nmnist",
    "DailyDVS-200": "dailydvs200",
    "DailyDVS-200 lite": "dailydvs200-lite",
}


def hyperparameter_table() -> PaperTable:
    printed = printed_table(9)
    ours: dict[str, dict[str, Ours]] = {row: {} for row in printed.rows}
    for column, name in RECIPES.items():
        values = recipe_values(load_recipe(name))
        for row in printed.rows:
            ours[row][column] = _cell(values[row], printed.cell(row, column))
    notes = ("An empty cell means that the step is not taken. Dashes of the paper are its default, filled in here.",)
    return beside(9, printed, ours, sources=("the recipes that ship (ripe recipes)",), notes=notes)


def _cell(ours: str | None, paper: str | None) -> TableCell | None:
    """What is not done on either side is not compared; what is done on one side alone differs."""
    if ours is None and paper is None:
        return None
    return TableCell(ours or "none", "same" if ours == paper else "differs")


def recipe_values(recipe: Recipe) -> dict[str, str | None]:
    """The rows of the table for one recipe, as text; None for what is not done."""
    config: Any = model_config(recipe.model.name, **recipe.model.fields)
    schedule, loss, augmentation, optimizer = recipe.schedule, recipe.loss, recipe.augmentation, recipe.optimizer
    nda = augmentation.nda_operations > 0
    warmup = f"{schedule.warmup_steps} steps" if schedule.warmup_steps else f"{schedule.warmup_epochs} epochs"
    return {
        "stage_channels": _numbers(config.stage_channels),
        "embed_dims": _numbers(config.embed_dims),
        "pool_ratios": _numbers(config.pool_ratios),
        "d_state": _number(config.d_state),
        "drop_path_rate": _number(config.drop_path_rate),
        "head_hidden_size": _number(config.head_hidden_size),
        "learning_rate": _number(optimizer.learning_rate),
        "min_learning_rate": _number(optimizer.min_learning_rate),
        "weight_decay": _number(optimizer.weight_decay),
        "warmup": warmup,
        "epochs": _number(schedule.epochs),
        "batch_size": _number(schedule.batch_size),
        "grad_accum_steps": _number(schedule.grad_accum_steps),
        "clip_grad_norm": _number(optimizer.clip_grad_norm),
        "sharpness": f"{schedule.sharpness_start:g} → {schedule.sharpness_end:g}",
        "spread": _number(loss.spread),
        "consistency": _number(loss.consistency),
        "rates": _number(loss.rates),
        "mixup": f"{augmentation.mixup_alpha:g} / {augmentation.mixup_probability:g}",
        "label_smoothing": _number(augmentation.label_smoothing),
        "cutmix_alpha": _number(augmentation.cutmix_alpha or None),
        "time_steps": _number(recipe.data.time_steps),
        "grid": _numbers(recipe.data.grid),
        "nda": f"{augmentation.nda_operations} / {augmentation.nda_magnitude:g}" if nda else None,
        "nda_caps": f"{augmentation.roll_cap:g} / {augmentation.cutout_cap:g}" if nda else None,
        "polarity_flip": _number(augmentation.polarity_flip or None),
        "horizontal_flip": _number(augmentation.horizontal_flip or None),
        "time_reversal": _number(augmentation.time_reversal or None),
    }


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def _numbers(values: Any) -> str:
    return ", ".join(str(value) for value in values)
