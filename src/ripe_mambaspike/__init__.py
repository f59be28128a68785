"""RIPE-MambaSpike: a compact classifier for event cameras.

model = create_model("dvsgesture", classes=5)      # trains as a multi-branch network
recording = read("gesture.aedat4")                 # any camera's file
events = bin_events(recording, steps=16, grid=128) # (steps, 2, height, width)
logits = model(events[None])                       # (batch, steps, 2, height, width) → (batch, steps, classes)
small = fuse(model)                                # deploys as a fused one of 0.87 M parameters
small.save_pretrained("gestures")                  # config.json + model.safetensors
small = from_pretrained("gestures")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ripe_mambaspike.api import load
    from ripe_mambaspike.data.loading import load_dataset
    from ripe_mambaspike.deploy.fuse.convert import dual_kernel, fuse
    from ripe_mambaspike.errors import RipeError
    from ripe_mambaspike.events.binning import bin_events
    from ripe_mambaspike.events.reading import read, read_chunks
    from ripe_mambaspike.events.recording import Recording
    from ripe_mambaspike.events.writing import write
    from ripe_mambaspike.inference.capture import capture
    from ripe_mambaspike.inference.classifier import Classifier
    from ripe_mambaspike.inference.predict import Prediction, predict
    from ripe_mambaspike.inference.streamer import Streamer
    from ripe_mambaspike.models.pretrained import from_pretrained
    from ripe_mambaspike.models.registry import create_model, list_models
    from ripe_mambaspike.nn.calibrate import recalibrate

__version__ = "0.1.0"
__all__ = [
    "Classifier",
    "Prediction",
    "Recording",
    "RipeError",
    "Streamer",
    "bin_events",
    "capture",
    "create_model",
    "dual_kernel",
    "from_pretrained",
    "fuse",
    "list_models",
    "load",
    "load_dataset",
    "predict",
    "read",
    "read_chunks",
    "recalibrate",
    "write",
]

_HOMES = {
    "Classifier": "inference.classifier",
    "Prediction": "inference.predict",
    "Recording": "events.recording",
    "RipeError": "errors",
    "Streamer": "inference.streamer",
    "bin_events": "events.binning",
    "capture": "inference.capture",
    "create_model": "models.registry",
    "dual_kernel": "deploy.fuse.convert",
    "from_pretrained": "models.pretrained",
    "fuse": "deploy.fuse.convert",
    "list_models": "models.registry",
    "load": "api",
    "load_dataset": "data.loading",
    "predict": "inference.predict",
    "read": "events.reading",
    "read_chunks": "events.reading",
    "recalibrate": "nn.calibrate",
    "write": "events.writing",
}


def __getattr__(name: str) -> Any:
    """Names are looked up when first used, so that `ripe --help` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
