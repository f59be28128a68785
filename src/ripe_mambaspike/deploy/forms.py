"""Checks of the networks that deployment functions accept."""

import copy

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import Model, require_unmodified
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.attention import ATTENTIONS, MembraneAttention, NoAttention, SigmoidGate
from ripe_mambaspike.nn.neurons import LIF, NEURONS, CSiLIF, SiLIF

PACKAGE_LAYERS = (LIF, SiLIF, CSiLIF, MembraneAttention, NoAttention, SigmoidGate)


def require_form(model: object, what: str, *forms: str) -> RipeMambaSpike:
    """The model if it is an unmodified RIPE-MambaSpike network in one of these forms, else a ConfigError."""
    if not isinstance(model, RipeMambaSpike):
        given = f"'{model.name}'" if isinstance(model, Model) else f"a {type(model).__name__}"
        raise ConfigError.expected("model", f"a RIPE-MambaSpike network for {what}", given)
    if model.config.form not in forms:
        got, hint = model.config.form, "fuse it first" if model.config.form == "training" else ""
        raise ConfigError.expected("form", f"{' or '.join(forms)} for {what}", f"{got} of '{model.name}'", hint=hint)
    require_unmodified(_without_registered(model), what)
    return model


def _without_registered(model: RipeMambaSpike) -> RipeMambaSpike:
    """The network with user-registered layers of its config replaced by the package's own.

    Such a layer is what the config names, not a modification.
    """
    standing_in = None
    for level, stage in enumerate(model.stages):
        kinds = {"first_neuron": NEURONS, "second_neuron": NEURONS, "attention": ATTENTIONS}
        for name, registry in kinds.items():
            layer = getattr(stage, name)
            if type(layer) not in PACKAGE_LAYERS and type(layer) in registry.values():
                standing_in = standing_in or copy.deepcopy(model)
                other = NoAttention() if name == "attention" else LIF(model.config.stage_channels[level])
                setattr(standing_in.stages[level], name, other)
    return standing_in or model
