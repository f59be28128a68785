"""What every network offers, whatever it is made of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.nn.altered import Alteration, own_alteration


class Output(NamedTuple):
    """Everything a pass gives."""

    logits: Tensor  # per step [B, T, classes]
    rates: Tensor  # mean firing rate of every spiking layer, in order [layers]
    attention: Tensor | None = None  # the last stage's map [B, T, C, h, w]
    token_indices: Tensor | None = None  # positions kept [B, k], None when all were


class Model(nn.Module):
    """A network with its config; `model(x)` gives per-step logits [B, T, classes]."""

    config: ModelConfig
    name: str
    head: Any
    package_methods: ClassVar[Mapping[str, Any]]  # of the package's own class, whatever a subclass has

    def __init__(self, config: ModelConfig, name: str) -> None:
        super().__init__()
        self.config, self.name = config, name

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the head's weights, and so of the input that is wanted."""
        head: Any = self.head[-1] if isinstance(self.head, nn.Sequential) else self.head
        dtype: torch.dtype = head.weight.dtype
        return dtype

    def parts(self) -> dict[str, nn.Module]:
        """The network's parts in the order an event sees them."""
        return dict(self.named_children())

    def parameter_count(self) -> int:
        """Parameters, learned and frozen, without buffers."""
        return sum(parameter.numel() for parameter in self.parameters())

    def alteration(self) -> Alteration | None:
        """What somebody hooked, subclassed or replaced inside the network, None when all is as the package made it."""
        raise NotImplementedError

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Class of every clip [B]: argmax of the logits' mean over the steps, taken in float32."""
        return clip_logits(self(x)).argmax(-1)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write `config.json` and `model.safetensors` into the folder; returns it."""
        from ripe_mambaspike.models.pretrained import save_pretrained

        return save_pretrained(self, folder)


def refuse_altered(model: Model, what: str) -> None:
    """Raise unless the network is as the package made it: `what` computes with its weights and calls no module."""
    own = own_alteration(model, model.package_methods)
    found = Alteration("", own) if own else model.alteration()
    if found is not None:
        raise ConfigError(
            f"{what}: expected the package's own modules without hooks, since they are not called one by one; "
            f"got a network where {found}",
            field=found.name,
        )


def clip_logits(logits: Tensor) -> Tensor:
    """Per-step logits [B, T, classes] → the clip's [B, classes], averaged in float32: half precision makes ties."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).mean(1)
