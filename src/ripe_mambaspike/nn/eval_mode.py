"""Evaluation: a network temporarily in `eval()` mode, and the device it runs on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ripe_mambaspike.errors import ConfigError


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside, `model.eval()`; afterwards, also after an error, each module's mode is restored."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def choose_device(name: str | None = "auto", field: str = "device") -> torch.device:
    """The device for "cpu", "cuda" or "auto" (CUDA if available); `field` is named in the error."""
    if name not in (None, "auto", "cpu", "cuda"):
        raise ConfigError(f"{field}: expected auto, cpu or cuda, got '{name}'", field=field)
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError(f"{field}: expected cpu or auto, as PyTorch sees no CUDA device here, got cuda", field=field)
    return torch.device("cuda" if name != "cpu" and available else "cpu")
