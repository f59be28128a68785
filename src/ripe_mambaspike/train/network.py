"""The network that a recipe asks for, and where it is computed."""

import torch

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.registry import build, create_model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.sizes import settled_grid


def make_network(recipe: Recipe, classes: tuple[str, ...]) -> RipeMambaSpike:
    """The recipe's network with fresh weights for its seed."""
    data = recipe.data
    fields = {
        "num_classes": len(classes),
        "time_steps": data.time_steps,
        "in_size": settled_grid(data),
        **recipe.model.fields,
    }
    model = create_model(recipe.model.name, seed=recipe.run.seed, **fields)
    if not isinstance(model, RipeMambaSpike):
        raise ConfigError(f"model.name is '{recipe.model.name}'; a RIPE-MambaSpike is wanted, which has both passes")
    return model


def parameters(model: Model) -> dict[str, int]:
    """Of both forms."""
    deployed = create_model_like(model, "deployed")
    return {"training": model.parameter_count(), "deployed": deployed.parameter_count()}


def create_model_like(model: Model, form: str) -> Model:
    """The same network in another form, without weights."""
    with torch.device("meta"):
        return build(model.config.replace(form=form), model.name)
