"""Networks by name."""

import difflib
from typing import Any

import torch

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import MambaSpikeConfig, ModelConfig, RipeConfig
from ripe_mambaspike.models.mamba_spike import MambaSpike
from ripe_mambaspike.models.ripe import RipeMambaSpike

DAILY = RipeConfig(
    num_classes=200,
    time_steps=10,
    in_size=(224, 224),
    stage_channels=(96, 192, 384),
    embed_dims=(96, 192, 384),
    drop_path_rate=0.2,
    head_hidden_size=1024,
)

CONFIGS: dict[str, ModelConfig] = {
    "dvsgesture": RipeConfig(),
    "cifar10dvs": RipeConfig(num_classes=10, time_steps=10, drop_path_rate=0.2),
    "ncaltech101": RipeConfig(num_classes=101, time_steps=10, drop_path_rate=0.2),
    "nmnist": RipeConfig(num_classes=10, time_steps=10, in_size=(34, 34)),
    "dailydvs200": DAILY,
    "dailydvs200-lite": DAILY.replace(stage_channels=(64, 128, 256), embed_dims=(64, 128, 256)),
    # Each baseline is counted as its row of the paper: the pooled one from a checkpoint of the released code.
    "mamba-spike": MambaSpikeConfig(),
    "mamba-spike-nmnist": MambaSpikeConfig(
        time_steps=10, in_size=(34, 34), channels=(32, 32, 64), embed_dim=128, depth=4
    ),
    "mamba-spike-pooled": MambaSpikeConfig(pool_size=8, conv_bias=True),
}


def list_models() -> list[str]:
    """Every name `create_model` knows."""
    return list(CONFIGS)


def model_config(name: str, **overrides: Any) -> ModelConfig:
    """The config registered under a name, with fields overridden."""
    if not isinstance(name, str) or name not in CONFIGS:
        close = difflib.get_close_matches(str(name), CONFIGS, 1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ConfigError(f"there is no model '{name}'{hint} (known models are {', '.join(CONFIGS)})")
    return CONFIGS[name].replace(f"model '{name}'", **overrides)


def build(config: ModelConfig, name: str) -> Model:
    """A network of this config with fresh weights from PyTorch's global generator; on the meta device of any size."""
    if isinstance(config, ModelConfig) and torch.get_default_device().type != "meta":
        config.check_size()
    if isinstance(config, RipeConfig):
        return RipeMambaSpike(config, name)
    if isinstance(config, MambaSpikeConfig):
        return MambaSpike(config, name)
    raise ConfigError(f"the config is a {type(config).__name__}; one of this package's configs is wanted")


def create_model(name: str, *, seed: int | None = None, **overrides: Any) -> Model:
    """A network by name; any field of its config may be overridden.

    `form="deployed"` builds the fused network directly. With a seed the weights are the same every time and the
    global generator is left as it was.
    """
    config = model_config(name, **overrides)
    if seed is None:
        return build(config, name)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ConfigError(f"seed is {seed!r}; a whole number is wanted")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(config, name)
