"""The network of a recipe."""

import torch

from ripe_mambaspike.data.settings import resolved_grid
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.registry import build, create_model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.train.recipe import Recipe


def create_network(recipe: Recipe, classes: tuple[str, ...]) -> RipeMambaSpike:
    """The recipe's network with fresh weights for its seed."""
    data = recipe.data
    sizes = {"num_classes": len(classes), "time_steps": data.time_steps, "in_size": resolved_grid(data)}
    model = create_model(recipe.model.name, seed=recipe.run.seed, **{**sizes, **recipe.model.fields})
    if not isinstance(model, RipeMambaSpike):
        expected = "a RIPE-MambaSpike, which has both forward passes"
        raise ConfigError.expected("model.name", expected, repr(recipe.model.name))
    return model


def parameter_counts(model: Model) -> dict[str, int]:
    """The parameter counts of the training and the deployed form."""
    with torch.device("meta"):
        deployed = build(model.config.replace(form="deployed"), model.name)
    return {"training": model.parameter_count(), "deployed": deployed.parameter_count()}
