"""Which networks a step of deployment takes."""

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import Model, require_unmodified
from ripe_mambaspike.models.ripe import RipeMambaSpike


def require_form(model: object, what: str, *forms: str) -> RipeMambaSpike:
    """The model, where it is an unmodified RIPE-MambaSpike network in one of these forms; else a ConfigError."""
    if not isinstance(model, RipeMambaSpike):
        given = f"'{model.name}'" if isinstance(model, Model) else f"a {type(model).__name__}"
        raise ConfigError(f"model: expected a RIPE-MambaSpike network for {what}, got {given}", field="model")
    if model.config.form not in forms:
        raise ConfigError(
            f"form: expected {' or '.join(forms)} for {what}, got {model.config.form} of '{model.name}'"
            + ("; fuse it first" if model.config.form == "training" else ""),
            field="form",
        )
    require_unmodified(model, what)
    return model
