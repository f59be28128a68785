"""The benchmarked networks: the deployed form of a registered one, the baseline, and any others beside each other."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.bench.machine import PRECISIONS
from ripe_mambaspike.bench.options import BenchOptions
from ripe_mambaspike.deploy.fuse.convert import fuse
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.inference.capture import capture
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import MambaSpikeConfig, ModelConfig, RipeConfig
from ripe_mambaspike.models.registry import create_model, list_models, model_config
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.calibrate import has_running_statistics, recalibrate
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.own_modules import unknown_name

SEED = 0
CALIBRATION_SIDE = 34  # small: statistics depend little on the size of the clip
MIN_SIDE, MAX_SIDE, MAX_TIME_STEPS, MAX_BATCH, MAX_REPEATS = 8, 4096, 4096, 65536, 10_000
REPEATS = {"cpu": 5, "cuda": 50}

Network = Callable[[Tensor], Tensor]
Progress = Callable[[str], None]


def quiet(_: str) -> None:
    """Report no progress."""


def precisions_of(choice: str) -> tuple[str, ...]:
    return ("float32", "bfloat16") if choice == "both" else (choice,)


def repeats_of(choice: int | None, device: torch.device) -> int:
    return REPEATS[device.type] if choice is None else choice


def batches_of(choice: Sequence[int], device: torch.device) -> Sequence[int]:
    return choice or ([1] if device.type == "cpu" else [1, 8, 64])


def check_sizes(
    *,
    in_sizes: Sequence[int] = (),
    time_steps: Sequence[int] = (),
    batches: Sequence[int] = (),
    repeats: int = 1,
    batch_option: str = "--batch",
) -> None:
    """Raise a ConfigError for a size outside its limits."""
    limits = (
        ("--in-size", in_sizes, MIN_SIDE, MAX_SIDE),
        ("--time-steps", time_steps, 1, MAX_TIME_STEPS),
        (batch_option, batches, 1, MAX_BATCH),
        ("--repeats", (repeats,), 1, MAX_REPEATS),
    )
    for option, values, least, most in limits:
        for value in values:
            if not least <= value <= most:
                raise ConfigError.expected(option, f"an int from {least} to {most}", value)


def ripe_config(name: str, time_steps: int | None, in_size: int | None) -> RipeConfig:
    """The config of a registered RIPE-MambaSpike, at its own size unless another is given."""
    if not isinstance(model_config(name), RipeConfig):
        raise ConfigError.expected("--model", "a RIPE-MambaSpike such as dvsgesture", name)
    config = resized_config(name, time_steps, in_size)
    assert isinstance(config, RipeConfig)
    return config


def resized_config(name: str, time_steps: int | None, in_size: int | None) -> ModelConfig:
    """The config of any registered network, at its own size unless another is given."""
    config = model_config(name)
    check_sizes(in_sizes=() if in_size is None else (in_size,), time_steps=() if time_steps is None else (time_steps,))
    return config.replace(time_steps=time_steps or config.time_steps, in_size=in_size or config.in_size)


def training_network(name: str, config: RipeConfig, device: torch.device, **fields: Any) -> RipeMambaSpike:
    """Fresh weights of seed 0, in the training form, with further fields of the config."""
    model = create_model(name, seed=SEED, **common_fields(config), **fields)
    assert isinstance(model, RipeMambaSpike)
    return model.to(device)


def deployed_network(name: str, config: RipeConfig, device: torch.device) -> RipeMambaSpike:
    """The same, with statistics measured on a synthetic clip (so that it fires), then fused."""
    model = training_network(name, config, torch.device("cpu"))
    clip = synthetic_clip(config.time_steps, CALIBRATION_SIDE, CALIBRATION_SIDE, samples=2, seed=1)
    with kernels("off"):
        recalibrate(model, [clip], run=model.front_end)
        return fuse(model, quiet=True).to(device).eval()


def baseline_network(name: str, config: RipeConfig, device: torch.device) -> Model:
    """Mamba-Spike for the same clips and classes."""
    if not isinstance(model_config(name), MambaSpikeConfig):
        raise ConfigError.expected("--baseline", "a Mamba-Spike such as mamba-spike", name)
    return create_model(name, seed=SEED, **common_fields(config)).to(device).eval()


def common_fields(config: ModelConfig) -> dict[str, Any]:
    """The fields that networks have in common when they are compared."""
    return {field: getattr(config, field) for field in ("num_classes", "time_steps", "in_size")}


def compared_configs(names: Sequence[str], like: ModelConfig) -> dict[str, ModelConfig]:
    """The config of each of these networks at the sizes of another; an error if one cannot have them."""
    configs = {name: model_config(name, **common_fields(like)) for name in names}
    for config in configs.values():
        config.check_size()
    return configs


def check_models(names: Sequence[str]) -> None:
    """Raise for a name that --models does not know."""
    known = list_models()
    for name in names:
        if name not in known:
            raise unknown_name("--models", name, known)


def refuse_with_models(options: BenchOptions, *fields: str) -> None:
    """Raise for options that have no meaning with --models."""
    usual = type(options)()
    for field in fields:
        if (given := getattr(options, field)) != getattr(usual, field):
            raise ConfigError.expected(f"--{field.replace('_', '-')}", "none with --models", given)


def compared_network(name: str, config: ModelConfig, device: torch.device) -> Model:
    """A network as it would be used: deployed if it can be; with statistics measured on a synthetic clip."""
    if isinstance(config, RipeConfig):
        return deployed_network(name, config, device)
    model = create_model(name, seed=SEED, **common_fields(config)).to(device).eval()
    if has_running_statistics(model):
        recalibrate(model, [synthetic_clip(config.time_steps, *config.in_size, samples=2, seed=1)])
    return model


def clips(config: ModelConfig, batch: int, device: torch.device) -> Tensor:
    """Synthetic events [B, T, 2, H, W]; a few different clips, repeated."""
    few = synthetic_clip(config.time_steps, *config.in_size, samples=min(batch, 8))
    return few.repeat(-(-batch // few.shape[0]), 1, 1, 1, 1)[:batch].contiguous().to(device)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def direct(model: Model, device: torch.device, precision: str, choice: str) -> Network:
    """A call of the network with the chosen kernels, without a gradient."""

    @torch.inference_mode()
    def call(x: Tensor) -> Tensor:
        with kernels(choice), autocast(device, precision):
            return model(x)

    return call


def captured(model: Model, example: Tensor, precision: str) -> tuple[Network, Tensor]:
    """The network prepared for clips like the example: prepared weights, and on a CUDA device one graph.
    Also returns the graph's static input, which need not be copied."""
    with kernels("auto"):
        prepared = capture(model, example, dtype=PRECISIONS[precision])

    def call(x: Tensor) -> Tensor:
        with kernels("auto"):
            return prepared(x)

    return call, prepared.example
