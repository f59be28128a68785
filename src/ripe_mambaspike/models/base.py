"""What every network offers, whatever it is made of."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.cuda_graphs import RecordedPasses
from ripe_mambaspike.models.labels import Labels
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.hierarchy import linear_head
from ripe_mambaspike.nn.modified import Modification, module_modification
from ripe_mambaspike.nn.state import State
from ripe_mambaspike.ops.cpp.memory_hash import MemoryHash


class Output(NamedTuple):
    """All outputs of a pass."""

    logits: Tensor  # per step [B, T, num_classes]
    rates: Tensor  # mean firing rate of every spiking layer, in order [layers]
    attention: Tensor | None = None  # the last stage's map [B, T, C, h, w]
    token_indices: Tensor | None = None  # positions kept [B, k]; None if all were
    state: State | None = None  # of a causal network that was given one: the state for the next steps
    observed: Mapping[str, Tensor] = MappingProxyType({})  # what `observe` requested, by the module's name


class FrontEnd(NamedTuple):
    """The outputs of the spiking part and the bridge for some steps of a recording."""

    features: Tensor  # the bridge's mixture [B, T, N, d]
    attention: Tensor  # the last stage's map [B, T, C, h, w]
    rates: Tensor  # mean firing rate of every spiking layer, in order [layers]
    token_scores: Tensor | None  # of every position so far [B, N], if tokens are selected
    state: State  # for the next steps
    observed: dict[str, Tensor]  # what was requested, by the module's name


class PreparedPlan(NamedTuple):
    """Prepared weights and what they were made from."""

    tensors: list[Tensor]  # all parameters and buffers
    versions: list[int]  # their identities, version counters and addresses
    contents: MemoryHash | None  # on the CPU
    plan: Any

    def is_current(self, versions: list[int], full_check: bool) -> bool:
        same = self.versions == versions
        return same and (self.contents is None or self.contents.is_unchanged(full=full_check))


class PreparedWeights:
    """Weights prepared for the fused operators, by device, dtype and kind of kernels.

    An entry is valid as long as every parameter and buffer is the same tensor, with the same version and address
    (see `models.fused.prepared_plan`). Changes through `tensor.data` do not change the version. On the CPU a hash of
    the memory notices them: of whole tensors always, of single numbers if the input is not small. On a GPU call
    `model.eval()` after them, which drops all entries, as `model.train()` and `model.to()` do.
    """

    def __init__(self) -> None:
        self.entries: dict[Any, PreparedPlan] = {}
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
    labels: Labels | None = None  # class names and the binning it was trained on, if known
    package_methods: ClassVar[Mapping[str, Any]]  # methods of the package's own class, to detect overrides
    has_relaxed_pass: ClassVar[bool] = False  # whether it can replace spikes by sigmoids
    answers_once: ClassVar[bool] = False  # whether its logits are those of the whole clip [B, 1, num_classes]

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

    def run(self, x: Tensor, *, observe: Collection[str] = ()) -> Output:
        """A pass over clips [B, T, 2, H, W] with all its outputs; `observe` names what to keep by layer."""
        raise NotImplementedError

    @property
    def uses_sharpness(self) -> bool:
        """Whether the sharpness of a ForwardMode changes what it computes."""
        return type(self).run_passes is not Model.run_passes

    def run_passes(self, x: Tensor, modes: Sequence[ForwardMode]) -> list[Output]:
        """A pass in each mode; here the hard one alone."""
        if len(modes) != 1 or modes[0].relaxed:
            raise ConfigError.expected("passes", f"1 for '{self.name}', which has no relaxed pass", len(modes))
        return [self.run(x)]

    def num_spiking_layers(self) -> int:
        """The number of firing rates that a pass returns."""
        raise NotImplementedError

    def forward_features(self, x: Tensor) -> Tensor:
        """Clips [B, T, 2, H, W] → the tokens that the head reads [B, T, k, d]."""
        raise NotImplementedError

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Tokens of `forward_features` → logits [B, T, num_classes]; with `pre_logits` the input of the last Linear."""
        raise NotImplementedError

    @property
    def num_classes(self) -> int:
        return self.config.num_classes

    @property
    def num_features(self) -> int:
        """The input width of the last Linear, which is also the width of embeddings (num_classes 0)."""
        raise NotImplementedError

    def get_classifier(self) -> nn.Module:
        """The last layer: a Linear, or an Identity if num_classes is 0."""
        return self.last_layer

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the head's weights, which the input must have."""
        weight = getattr(self.last_layer, "weight", None)
        return weight.dtype if isinstance(weight, Tensor) else next(self.parameters()).dtype

    @property
    def last_layer(self) -> nn.Module:
        """The head, or the last layer of it."""
        head: nn.Module = self.head
        return head[-1] if isinstance(head, nn.Sequential) and len(head) else head

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The class names in the order of the outputs; None if unknown."""
        return None if self.labels is None else self.labels.classes

    def parts(self) -> dict[str, nn.Module]:
        """The network's parts in the order of computation."""
        return dict(self.named_children())

    def parameter_count(self) -> int:
        """The number of parameters, learned and frozen, without buffers."""
        return sum(parameter.numel() for parameter in self.parameters())

    def reset_classifier(self, num_classes: int, class_names: Sequence[str] | None = None) -> None:
        """Replace the last layer by one with fresh weights; with num_classes 0 the network returns embeddings.

        The earlier class names and their dataset are dropped; the binning is kept.
        """
        names = None if class_names is None else tuple(class_names)
        if names is not None and (len(set(names)) != num_classes or len(names) != num_classes):
            raise ConfigError.expected("class_names", f"{num_classes} names that differ", len(names))
        labels = self.labels
        if labels is None and names is not None:
            labels = Labels(names, None, None, self.config.time_steps, self.config.in_size, "time", binary=False)
        config = self.config.replace(num_classes=num_classes)
        if labels is not None:
            labels = labels.with_classes(num_classes, names) if num_classes else None
        last = self.last_layer
        if not isinstance(last, nn.Linear | nn.Identity):
            raise ConfigError.expected("head", "one that ends in a Linear", f"a {type(last).__name__}")
        like = next(self.parameters())
        width = last.in_features if isinstance(last, nn.Linear) else self.num_features
        fresh = linear_head(width, num_classes).to(like.device, self.dtype)
        if last is self.head:
            self.head = fresh
        else:
            self.head[-1] = fresh
        self.config, self.labels = config, labels

    def modification(self) -> Modification | None:
        """The first module that was hooked, subclassed or replaced; None for an unmodified network."""
        raise NotImplementedError

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Class of every clip [B]: argmax of the logits' mean over the steps, taken in float32."""
        if self.num_classes == 0:
            raise ConfigError.expected("num_classes", "at least 1 to predict a class", 0)
        logits = clip_logits(self(x))
        if not bool(logits.isfinite().all()):
            raise InputError.expected("x", "clips with finite logits", "some with NaN or Inf")
        return logits.argmax(-1)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write `config.json`, `model.safetensors` and, if known, `labels.json` into the folder; returns it."""
        from ripe_mambaspike.models.pretrained import save_pretrained

        return save_pretrained(self, folder)

    def push_to_hub(self, hub_id: str, **options: Any) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face Hub (extra `hub`); returns the commit's address."""
        from ripe_mambaspike.models.hub import push_to_hub

        return push_to_hub(self, hub_id, **options)


class Architecture(NamedTuple):
    config: type[ModelConfig]
    model: type[Model]


ARCHITECTURES: dict[str, Architecture] = {}  # by their name in config.json
Network = TypeVar("Network", bound=type[Model])


def register_architecture(config: type[ModelConfig]) -> Callable[[Network], Network]:
    """A decorator that registers the network class for a config type."""

    def add(model: Network) -> Network:
        ARCHITECTURES[config.architecture] = Architecture(config, model)
        return model

    return add


def require_unmodified(model: Model, what: str) -> None:
    """Raise for a modified network: `what` computes with its weights instead of calling its modules."""
    own = module_modification(model, model.package_methods)
    found = Modification("", own) if own else model.modification()
    if found is not None:
        raise modified_error(found, what)


def modified_error(found: Modification, what: str) -> ConfigError:
    """The error for a modification that would be ignored."""
    return ConfigError(
        f"{what}: expected the package's own modules without hooks, since not all of them are called, "
        f"got a network where {found}",
        field=found.name,
    )


def clip_logits(logits: Tensor) -> Tensor:
    """Per-step logits [B, T, classes] → the clip's [B, classes], averaged in float32 to avoid ties."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).mean(1)
