"""Networks by name: `create_model("dvsgesture", num_classes=5)`, `list_models("*lite*")`, `@register_model`."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import torch

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import ARCHITECTURES, Model
from ripe_mambaspike.models.config import MambaSpikeConfig, ModelConfig, RipeConfig
from ripe_mambaspike.models.mamba_spike import MambaSpike
from ripe_mambaspike.models.peers import import_peers
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.registry import Registry
from ripe_mambaspike.own_modules import unknown_name

__all__ = ["MambaSpike", "RipeMambaSpike", "build", "create_model", "list_models", "model_config", "register_model"]

ADAPTABLE = ("num_classes", "in_size", "drop_path_rate")  # fields of a pretrained network that can be changed
_MODELS = Registry("model")
register_model = _MODELS.register  # a decorator for a function that returns the config of the network of this name


@register_model("dvsgesture")
def dvsgesture() -> ModelConfig:
    return RipeConfig()


@register_model("cifar10dvs")
def cifar10dvs() -> ModelConfig:
    return RipeConfig(num_classes=10, time_steps=10, drop_path_rate=0.2)


@register_model("ncaltech101")
def ncaltech101() -> ModelConfig:
    return RipeConfig(num_classes=101, time_steps=10, drop_path_rate=0.2)


@register_model("nmnist")
def nmnist() -> ModelConfig:
    return RipeConfig(num_classes=10, time_steps=10, in_size=(34, 34))


@register_model("dailydvs200")
def dailydvs200() -> ModelConfig:
    return RipeConfig(
        num_classes=200,
        time_steps=10,
        in_size=(224, 224),
        stage_channels=(96, 192, 384),
        embed_dims=(96, 192, 384),
        drop_path_rate=0.2,
        head_hidden_size=1024,
    )


@register_model("dailydvs200-lite")
def dailydvs200_lite() -> ModelConfig:
    return dailydvs200().replace(stage_channels=(64, 128, 256), embed_dims=(64, 128, 256))


# Each baseline is counted as its row of the paper: the pooled one from a checkpoint of the released code.
@register_model("mamba-spike")
def mamba_spike() -> ModelConfig:
    return MambaSpikeConfig()


@register_model("mamba-spike-nmnist")
def mamba_spike_nmnist() -> ModelConfig:
    return MambaSpikeConfig(time_steps=10, in_size=(34, 34), channels=(32, 32, 64), embed_dim=128, depth=4)


@register_model("mamba-spike-pooled")
def mamba_spike_pooled() -> ModelConfig:
    return MambaSpikeConfig(pool_size=8, conv_bias=True)


def list_models(pattern: str = "*") -> list[str]:
    """The names that `create_model` accepts, optionally those that match a pattern such as "*lite*"."""
    return [name for name in _MODELS if fnmatchcase(name, pattern)]


def model_config(name: str, **overrides: Any) -> ModelConfig:
    """The config registered under a name, with fields overridden."""
    if not isinstance(name, str) or name not in _MODELS:
        raise unknown_name("model", name, _MODELS)
    config: ModelConfig = _MODELS[name]()
    return config.replace(f"model '{name}'", **overrides)


def build(config: ModelConfig, name: str) -> Model:
    """A network of this config with fresh weights from PyTorch's global generator; on the meta device of any size."""
    if not isinstance(config, ModelConfig):
        raise ConfigError.expected("config", "a ModelConfig", f"a {type(config).__name__}")
    if torch.get_default_device().type != "meta":
        config.check_size()
    return ARCHITECTURES[config.architecture].model(config, name)


def meta_model(config: ModelConfig, form: str | None = None, name: str | None = None) -> Model:
    """The network on the meta device, without memory: to be counted, compared or given its weights."""
    with torch.device("meta"):
        return build(config.replace(form=form) if form else config, name or config.architecture)


def create_model(name: str, *, pretrained: bool = False, seed: int | None = None, **overrides: Any) -> Model:
    """A network by name; any field of its config may be overridden.

    With `pretrained` the weights are those of a shipped network, named itself (`list_pretrained`) or by the registered
    network that it is. It may be given another `num_classes`, with a new last layer, and another `in_size`. Shipped
    networks are deployed ones; `form="training"` gives a training form with branches that computes the same (`expand`).

    Args:
        name: one of `list_models`, or with `pretrained` also one of `list_pretrained`
        pretrained: take the weights of a shipped network
        seed: make the same weights every time, and leave the global generator as it was
        **overrides: fields of the config, such as `num_classes`, `time_steps` and `in_size`; `num_classes=0` gives
            embeddings instead of logits, `form="deployed"` builds the fused network directly
    """
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ConfigError.expected("seed", "an int", repr(seed))
    if pretrained:
        return _with_seed(seed, lambda: _pretrained_model(name, overrides))
    return build_seeded(model_config(name, **overrides), name, seed)


def build_seeded(config: ModelConfig, name: str, seed: int | None) -> Model:
    """A network with fresh weights, which are the same every time if there is a seed."""
    return _with_seed(seed, lambda: build(config, name))


def _with_seed(seed: int | None, make: Callable[[], Model]) -> Model:
    if seed is None:
        return make()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _pretrained_model(name: str, overrides: dict[str, Any]) -> Model:
    """A shipped network in training mode, as every new network is."""
    from ripe_mambaspike.models.expand import expand
    from ripe_mambaspike.models.pretrained import from_pretrained
    from ripe_mambaspike.models.shipped import pretrained_name, weights_folder

    model: Model = from_pretrained(weights_folder() / pretrained_name(name))
    if overrides.get("form") == "training":
        model = expand(model)
    own, config = model.config, model.config.replace(f"model '{name}'", **overrides)
    for key in overrides:
        if key not in ADAPTABLE and getattr(config, key) != getattr(own, key):
            raise ConfigError.expected(key, f"{getattr(own, key)!r}, as the weights have it", repr(overrides[key]))
    if config.num_classes != model.num_classes:
        model.reset_classifier(config.num_classes)
    model.config = config
    return model.train()


import_peers()
