"""Checks that a network matches its config, since saving and rebuilding use the config alone."""

import logging
from types import FunctionType
from typing import Any

from torch import nn

from ripe_mambaspike.models.base import Model
from ripe_mambaspike.nn.modified import Modification

LOG = logging.getLogger("ripe_mambaspike")
IGNORED_SETTINGS = {"training", "momentum", "num_batches_tracked", "drop_rates"}  # of training alone
SIMPLE_TYPES = (bool, int, float, str, tuple, list, FunctionType, type(None))


def sync_num_classes(model: Model) -> None:
    """Update the config and the class names for a head that was replaced by hand."""
    last = model.last_layer
    count = last.out_features if isinstance(last, nn.Linear) else model.config.num_classes
    if count != model.config.num_classes:
        model.config = model.config.replace(num_classes=count)
    if model.labels is not None and len(model.labels.classes) != count:
        LOG.warning(
            f"labels: expected {count} class names for the head, got {len(model.labels.classes)}; dropping them "
            "(reset_classifier takes new ones)"
        )
        model.labels = model.labels.with_classes(count, None)


def difference_from_config(model: Model, built: Model) -> Modification | None:
    """The first module that differs from the one the config builds; hooks are ignored."""
    theirs = dict(built.named_modules())
    for name, module in model.named_modules():
        other = theirs.pop(name, None)
        if other is None:
            return Modification(name, f"is a {type(module).__name__} that the config does not know")
        if name and type(module) is not type(other):
            return Modification(name, f"is a {type(module).__name__}, and the config says {type(other).__name__}")
        if "forward" in module.__dict__:
            return Modification(name, "has a forward of its own")
        if differing := _first_difference(*(_shapes(one) for one in (module, other))):
            return Modification(".".join(filter(None, (name, differing))), "has another shape than the config says")
        if name and (differing := _first_difference(*(_settings(one) for one in (module, other)))):
            return Modification(name, f"has another {differing} than the config says")
    if theirs:
        return Modification(next(iter(theirs)), "is missing")
    return None


def _first_difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    return next((name for name in sorted(ours | theirs) if ours.get(name) != theirs.get(name)), None)


def _shapes(module: nn.Module) -> dict[str, Any]:
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return {name: tensor.shape for name, tensor in own}


def _settings(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in module.__dict__.items()
        if isinstance(value, SIMPLE_TYPES) and name not in IGNORED_SETTINGS and not name.startswith("_")
    }
