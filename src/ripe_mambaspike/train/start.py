"""The network that a run starts from (`model.pretrained`): a shipped one, or that of a run or of a folder.

The run's network has the start's config and form, and all of its weights; with `model.expand`, a deployed start gets
its training form, and with `model.fields.causal` one that reads in both directions loses the backward one. Only the
last layer is new, unless the start was trained on the same classes. The checksum of the start's weights is kept in the
run's recipe, so that a run is never resumed from another start.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn

from ripe_mambaspike.data.settings import resolved_grid
from ripe_mambaspike.errors import ConfigError, RipeError
from ripe_mambaspike.models.accuracy import StartedFrom
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.causal import make_causal
from ripe_mambaspike.models.expand import expand
from ripe_mambaspike.models.labels import find_checkpoint
from ripe_mambaspike.models.pretrained import from_pretrained, weights_checksum
from ripe_mambaspike.models.registry import build_seeded, model_config
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipes import FROM_DATA

SPIKING_PARTS = ("entry", "stage1", "stage2", "stage3")  # what model.freeze=stages leaves as it is


class Start(NamedTuple):
    """A trained network and how a run uses it."""

    model: Model
    facts: StartedFrom


def load_start(recipe: Recipe, classes: tuple[str, ...]) -> Start | None:
    """The start of a recipe for these classes; None for one that starts with fresh weights."""
    settings = recipe.model
    if settings.pretrained is None:
        return None
    try:
        folder = find_checkpoint(settings.pretrained)
        model = from_pretrained(folder)
    except RipeError as error:
        raise ConfigError(f"model.pretrained: {error}", field="model.pretrained", path=error.path) from error
    checksum = weights_checksum(folder)
    if settings.pretrained_checksum not in (None, checksum):
        expected = f"the weights {settings.pretrained_checksum}, which the run began with"
        raise ConfigError.expected("model.pretrained", expected, checksum, path=folder)
    made_causal = _is_to_be_causal(recipe, model)
    if made_causal:
        assert isinstance(model, RipeMambaSpike)
        model = make_causal(model)
    _check_start(recipe, model)
    new_head = model.class_names != classes
    facts = StartedFrom(
        name=settings.pretrained, sha256=checksum, form=model.config.form, new_head=new_head, freeze=settings.freeze,
        lr_scale=recipe.optimizer.pretrained_lr_scale,
        expanded=settings.expand and model.config.form == "deployed" and isinstance(model, RipeMambaSpike),
        made_causal=made_causal,
    )  # fmt: skip
    return Start(model, facts)


def _is_to_be_causal(recipe: Recipe, model: Model) -> bool:
    """Whether a recipe asks for a causal network, and its start is not one."""
    return bool(recipe.model.fields.get("causal")) and isinstance(model, RipeMambaSpike) and not model.config.causal


def _check_start(recipe: Recipe, model: Model) -> None:
    name, most = recipe.model.pretrained, model.config.max_time_steps
    if model.config.form == "dual-kernel":
        raise ConfigError.expected("model.pretrained", "a network in its training or deployed form", "dual-kernel")
    if most is not None and recipe.data.time_steps > most:
        raise ConfigError.expected("data.time_steps", f"at most {most}, as '{name}' takes", recipe.data.time_steps)
    if recipe.model.freeze == "stages" and not isinstance(model, RipeMambaSpike):
        raise ConfigError.expected("model.freeze", f"none or all-but-head for '{model.name}'", "stages")


def with_start(recipe: Recipe, start: Start | None) -> Recipe:
    """The recipe with the checksum of its start."""
    checksum = None if start is None else start.facts.sha256
    return replace(recipe, model=replace(recipe.model, pretrained_checksum=checksum))


def start_network(recipe: Recipe, classes: tuple[str, ...], start: Start, clips: Iterable[Tensor] = ()) -> Model:
    """A network with the start's weights, a last layer for the classes, and the frozen parts without gradients.

    The norms of an expanded network get the statistics of these clips, batches [B, T, 2, H, W].
    """
    config = start.model.config.replace(num_classes=len(classes), in_size=resolved_grid(recipe.data))
    model = build_seeded(config, start.model.name, recipe.run.seed)
    own, weights = model.state_dict(), start.model.state_dict()
    if start.facts.new_head:
        last = {id(value) for value in model.last_layer.state_dict(keep_vars=True).values()}
        fresh = [name for name, value in model.state_dict(keep_vars=True).items() if id(value) in last]
        weights = {**weights, **{name: own[name] for name in fresh}}
    model.load_state_dict(weights)
    if start.facts.expanded:
        model = expand(model, clips).train()
    for parameter in frozen_parameters(model, recipe.model.freeze):
        parameter.requires_grad_(False)
    return model


def frozen_modules(model: Model, freeze: str) -> list[nn.Module]:
    """The parts of a network that a run leaves as they are, with their statistics."""
    if freeze == "none":
        return []
    parts = model.parts()
    names = SPIKING_PARTS if freeze == "stages" else [name for name in parts if parts[name] is not model.head]
    return [parts[name] for name in names]


def frozen_parameters(model: Model, freeze: str) -> list[nn.Parameter]:
    """The parameters that a run leaves as they are."""
    return [parameter for module in frozen_modules(model, freeze) for parameter in module.parameters()]


def unused_by_start(recipe: Recipe, model: Model) -> list[str]:
    """The settings of a recipe that a start decides instead, each with the reason."""
    name = recipe.model.pretrained
    if name is None:
        return []
    asked = model_config(recipe.model.name, **recipe.model.fields)
    unused = []
    if asked.architecture != model.config.architecture:
        unused.append(f"model.name: the network is that of '{name}', a {model.config.architecture}")
    else:
        fields = [field for field in asked.field_names() if field not in FROM_DATA]
        differing = [field for field in fields if getattr(asked, field) != getattr(model.config, field)]
        unused += [f"model.fields.{field}: as '{name}' has it, {getattr(model.config, field)}" for field in differing]
    if recipe.optimizer.tdm_lr_scale != 1:
        unused.append(f"optimizer.tdm_lr_scale: the temporal filters of '{name}' are trained already")
    return unused


def describe_start(facts: StartedFrom, num_classes: int) -> str:
    """What is printed when a run begins."""
    head = f"a new last layer for {num_classes} classes" if facts.new_head else "its own last layer"
    frozen = {"none": "", "stages": "; the spiking stages are frozen", "all-but-head": "; all but the head is frozen"}
    slow = "" if facts.freeze == "all-but-head" else f"; {facts.lr_scale:g} × the learning rate for all but the head"
    form = "expanded to its training form" if facts.expanded else f"{facts.form} form"
    form += ", made causal" * facts.made_causal
    return f"starting from '{facts.name}' ({form}) with {head}{frozen[facts.freeze]}{slow}"
