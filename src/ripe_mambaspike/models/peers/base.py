"""What the networks of other authors have in common.

A network is a config and a class:

    @dataclass(frozen=True)
    class PocketConfig(PeerConfig):
        architecture: ClassVar[str] = "pocket"
        width: int = 32

    @register_architecture(PocketConfig)
    class Pocket(PeerModel[PocketConfig]):
        def __init__(self, config: PocketConfig, name: str) -> None:
            super().__init__(config, name)
            ...
            self.add_head(config.width)                     # the last Linear

        def forward_features(self, x: Tensor) -> Tensor:    # [B, T, 2, H, W] → [B, S, d], S = T or 1
            ...

Everything else follows: `model(x)` gives logits [B, S, num_classes], neurons (`nn.leaky.LeakyNeuron`) report their
spikes, and the network is trained, saved, evaluated, captured, counted and exported as any other.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.base import Model, Output
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.input_checks import check_input, nan_where_not_finite
from ripe_mambaspike.nn.hierarchy import linear_head
from ripe_mambaspike.nn.leaky import LeakyNeuron
from ripe_mambaspike.nn.modified import Modification, module_modification
from ripe_mambaspike.nn.spike_log import SpikeLog


@dataclass(frozen=True)
class PeerConfig(ModelConfig):
    """The config of such a network: fields of its own follow those of every network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form != "training":
            self._refuse("form", f"'training', since {self.architecture} has nothing to fuse")

    @property
    def max_time_steps(self) -> int | None:
        """Any number of steps, unless a network's parameters depend on it."""
        return None

    def approximate_parameters(self) -> dict[str, int]:
        from ripe_mambaspike.models.registry import meta_model

        return {"num_classes": meta_model(self).parameter_count()}


Config = TypeVar("Config", bound=PeerConfig)


class PeerModel(Model, Generic[Config]):
    """A network that is called module by module; subclasses define `forward_features` and `self.head`."""

    config: Config
    head: nn.Module
    head_width: int | None = None  # of the features that the head reads, as `add_head` was given it
    one_size: ClassVar[bool] = False  # whether some weight depends on the input's size

    def add_head(self, width: int) -> None:
        """The last layer: a Linear that reads features [B, S, width], or an Identity for embeddings."""
        self.head_width = width
        self.head = linear_head(width, self.config.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Events binned to [B, T, 2, H, W] → logits [B, S, num_classes]: of every step, or S = 1 of the whole clip."""
        return self.run(x).logits

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Features [B, S, d] → logits [B, S, num_classes]."""
        return tokens if pre_logits else self.head(tokens)

    @property
    def num_features(self) -> int:
        if self.head_width is not None:
            return self.head_width
        last = self.last_layer
        if not isinstance(last, nn.Linear):
            raise ConfigError.expected("num_features", "a property of the network's own where it has no head", "none")
        return last.in_features

    def check(self, x: Tensor) -> None:
        """Raise unless this network can read x."""
        check_input(x, self.config.max_time_steps, self.dtype, training=self.training)
        if self.one_size and tuple(x.shape[3:]) != self.config.in_size:
            given, wanted = ("×".join(map(str, size)) for size in (x.shape[3:], self.config.in_size))
            raise InputError.expected("x", f"{wanted}, the network's input size", given)

    def run(self, x: Tensor, *, observe: Collection[str] = ()) -> Output:
        """A pass with all its outputs; "spikes" can be observed."""
        if unknown := [name for name in observe if name != "spikes"]:
            raise ConfigError.expected("observe", f"'spikes' for {self.name}", repr(unknown[0]))
        self.check(x)
        with SpikeLog() as log:
            logits = self.forward_head(self.forward_features(x))
        observed = log.by_name({module: name for name, module in self.named_modules()}) if observe else {}
        return Output(nan_where_not_finite(logits, x), log.rates(x), observed=observed)

    def num_spiking_layers(self) -> int:
        return sum(isinstance(module, LeakyNeuron) for module in self.modules())

    def modification(self) -> Modification | None:
        if _has_any_global_hook():
            return Modification("", "has a global module hook")
        for name, module in self.named_modules():
            if name and (own := module_modification(module, {"forward": type(module).forward})) is not None:
                return Modification(name, own)
        return None


PeerModel.package_methods = {"forward": PeerModel.forward, "run": PeerModel.run}
