"""What every network offers, whatever it is made of."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.cuda_graphs import RecordedPasses
from ripe_mambaspike.models.labels import Labels
from ripe_mambaspike.nn.hierarchy import linear_head
from ripe_mambaspike.nn.modified import Modification, module_modification
from ripe_mambaspike.nn.state import State


class Output(NamedTuple):
    """Everything a pass gives."""

    logits: Tensor  # per step [B, T, num_classes]
    rates: Tensor  # mean firing rate of every spiking layer, in order [layers]
    attention: Tensor | None = None  # the last stage's map [B, T, C, h, w]
    token_indices: Tensor | None = None  # positions kept [B, k], None when all were
    state: State | None = None  # of a causal network that was given one: what the next steps go on from
    observed: Mapping[str, Tensor] = MappingProxyType({})  # what `observe` asked for, by the module's name


class FrontEnd(NamedTuple):
    """What the spiking part and the bridge give for some steps of a recording."""

    features: Tensor  # the bridge's mixture [B, T, N, d]
    attention: Tensor  # the last stage's map [B, T, C, h, w]
    rates: Tensor  # mean firing rate of every spiking layer, in order [layers]
    token_scores: Tensor | None  # of every position so far [B, N], where tokens are selected
    state: State  # what the next steps go on from
    observed: dict[str, Tensor]  # what was asked for, by the module's name


class PreparedWeights:
    """What was made from the weights for the fused operators, by device, precision and kind of kernels.

    An entry is used as long as every parameter and buffer is the same tensor, in the same version, at the same address
    (see `models.fused.prepared_plan`). Changes made through `tensor.data` have no version: after them call
    `model.eval()`, which drops all entries, as `model.train()` and `model.to()` do.
    """

    def __init__(self) -> None:
        self.entries: dict[Any, tuple[list[Tensor], list[int], Any]] = {}
        self.graphs = RecordedPasses()  # of small inputs, on a GPU

    def clear(self) -> None:
        self.entries.clear()
        self.graphs.clear()

    def __deepcopy__(self, memo: Any) -> "PreparedWeights":
        return PreparedWeights()

    def __reduce__(self) -> Any:
        return PreparedWeights, ()


class Model(nn.Module):
    """A network with its config; `model(x)` gives per-step logits [B, T, num_classes]."""

    config: ModelConfig
    name: str
    head: Any
    labels: Labels | None = None  # class names and the binning it was trained on, where known
    package_methods: ClassVar[Mapping[str, Any]]  # of the package's own class, whatever a subclass has

    def __init__(self, config: ModelConfig, name: str) -> None:
        super().__init__()
        self.config, self.name = config, name
        self.prepared_weights = PreparedWeights()

    def train(self, mode: bool = True) -> Self:
        self.prepared_weights.clear()
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self.prepared_weights.clear()
        return super()._apply(fn, recurse)

    def forward_features(self, x: Tensor) -> Tensor:
        """Clips [B, T, 2, H, W] → the tokens that the head reads [B, T, k, d]."""
        raise NotImplementedError

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Tokens of `forward_features` → logits [B, T, num_classes]; with `pre_logits` what the last Linear reads."""
        raise NotImplementedError

    @property
    def num_classes(self) -> int:
        return self.config.num_classes

    @property
    def num_features(self) -> int:
        """The width that the last Linear reads, and so of the embeddings of a network with num_classes 0."""
        raise NotImplementedError

    def get_classifier(self) -> nn.Module:
        """The last layer: a Linear, or an Identity where num_classes is 0."""
        return self.last_layer

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the head's weights, and so of the input it expects."""
        weight = getattr(self.last_layer, "weight", None)
        return weight.dtype if isinstance(weight, Tensor) else next(self.parameters()).dtype

    @property
    def last_layer(self) -> nn.Module:
        """The head, or what it ends in."""
        head: nn.Module = self.head
        return head[-1] if isinstance(head, nn.Sequential) and len(head) else head

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """In the order of the outputs, None where they are not known."""
        return None if self.labels is None else self.labels.classes

    def parts(self) -> dict[str, nn.Module]:
        """The network's parts in the order an event sees them."""
        return dict(self.named_children())

    def parameter_count(self) -> int:
        """Parameters, learned and frozen, without buffers."""
        return sum(parameter.numel() for parameter in self.parameters())

    def reset_classifier(self, num_classes: int, class_names: Sequence[str] | None = None) -> None:
        """Replace the last layer by one with fresh weights; with num_classes 0 the network gives embeddings.

        Names of the earlier classes and their dataset are dropped; how recordings are binned is kept.
        """
        names = None if class_names is None else tuple(class_names)
        if names is not None and (len(set(names)) != num_classes or len(names) != num_classes):
            raise ConfigError(
                f"class_names: expected {num_classes} names that differ, got {len(names)}", field="class_names"
            )
        labels = self.labels
        if labels is None and names is not None:
            labels = Labels(names, None, None, self.config.time_steps, self.config.in_size, "time", binary=False)
        config = self.config.replace(num_classes=num_classes)
        if labels is not None:
            labels = labels.with_classes(num_classes, names) if num_classes else None
        last = self.last_layer
        if not isinstance(last, nn.Linear | nn.Identity):
            raise ConfigError(f"head: expected one that ends in a Linear, got a {type(last).__name__}", field="head")
        like = next(self.parameters())
        width = last.in_features if isinstance(last, nn.Linear) else self.num_features
        fresh = linear_head(width, num_classes).to(like.device, self.dtype)
        if last is self.head:
            self.head = fresh
        else:
            self.head[-1] = fresh
        self.config, self.labels = config, labels

    def modification(self) -> Modification | None:
        """What somebody hooked, subclassed or replaced inside the network, None when all is as the package made it."""
        raise NotImplementedError

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Class of every clip [B]: argmax of the logits' mean over the steps, taken in float32."""
        if self.num_classes == 0:
            raise ConfigError("num_classes: expected at least 1 to predict a class, got 0", field="num_classes")
        logits = clip_logits(self(x))
        if not bool(logits.isfinite().all()):
            raise InputError("x: expected clips that the network has finite logits for, got some it has not", field="x")
        return logits.argmax(-1)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write `config.json`, `model.safetensors` and, where known, `labels.json` into the folder; returns it."""
        from ripe_mambaspike.models.pretrained import save_pretrained

        return save_pretrained(self, folder)


class Architecture(NamedTuple):
    config: type[ModelConfig]
    model: type[Model]


ARCHITECTURES: dict[str, Architecture] = {}  # by the name that config.json has for them
Network = TypeVar("Network", bound=type[Model])


def register_architecture(config: type[ModelConfig]) -> Callable[[Network], Network]:
    """A decorator for a new kind of network: which class builds a config of this type."""

    def add(model: Network) -> Network:
        ARCHITECTURES[config.architecture] = Architecture(config, model)
        return model

    return add


def require_unmodified(model: Model, what: str) -> None:
    """Raise unless the network is as the package made it: `what` computes with its weights and calls no module."""
    own = module_modification(model, model.package_methods)
    found = Modification("", own) if own else model.modification()
    if found is not None:
        raise modified_error(found, what)


def modified_error(found: Modification, what: str) -> ConfigError:
    """The error where an alteration would go unnoticed."""
    return ConfigError(
        f"{what}: expected the package's own modules without hooks, since not all are called one by one; "
        f"got a network where {found}",
        field=found.name,
    )


def clip_logits(logits: Tensor) -> Tensor:
    """Per-step logits [B, T, classes] → the clip's [B, classes], averaged in float32: half precision makes ties."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).mean(1)
