"""RIPE-MambaSpike: a compact classifier for event cameras.

model = create_model("dvsgesture", classes=5)      # trains as a multi-branch network
logits = model(events)                             # (batch, steps, 2, height, width) → (batch, steps, classes)
small = fuse(model)                                # deploys as a fused one of 0.87 M parameters
small.save_pretrained("gestures")                  # config.json + model.safetensors
small = from_pretrained("gestures")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ripe_mambaspike.deploy.fuse import dual_kernel, fuse
    from ripe_mambaspike.errors import RipeError
    from ripe_mambaspike.models.pretrained import from_pretrained
    from ripe_mambaspike.models.registry import create_model, list_models

__version__ = "0.1.0"
__all__ = ["RipeError", "create_model", "dual_kernel", "from_pretrained", "fuse", "list_models"]

_HOMES = {
    "RipeError": "errors",
    "create_model": "models.registry",
    "dual_kernel": "deploy.fuse",
    "from_pretrained": "models.pretrained",
    "fuse": "deploy.fuse",
    "list_models": "models.registry",
}


def __getattr__(name: str) -> Any:
    """Names are looked up when first used, so that `ripe --help` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
