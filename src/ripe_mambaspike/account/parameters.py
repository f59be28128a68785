"""Parameter counts of a network, by building it on PyTorch's meta device (without memory)."""

from dataclasses import dataclass

from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import ModelConfig, RipeConfig
from ripe_mambaspike.models.registry import meta_model

BYTES = {"fp32": 4, "fp16": 2, "int8": 1}


@dataclass(frozen=True)
class Parameters:
    training: int
    deployed: int
    by_part: dict[str, int]  # of the deployed network
    training_by_part: dict[str, int]
    dual_kernel: int | None  # of the accumulate-only form, if there is one

    @property
    def weight_bytes(self) -> dict[str, int]:
        """The parameter count of the deployed network."""
        return {kind: size * self.deployed for kind, size in BYTES.items()}


def count_parameters(config: ModelConfig) -> Parameters:
    """Count the network in its training and deployed forms, whatever form the config names."""
    if not isinstance(config, RipeConfig):
        model = meta_model(config)
        parts = _by_part(model)
        return Parameters(model.parameter_count(), model.parameter_count(), parts, parts, None)
    training, deployed = meta_model(config, "training"), meta_model(config, "deployed")
    dual = meta_model(config, "dual-kernel").parameter_count() if config.tdm else None
    return Parameters(
        training.parameter_count(), deployed.parameter_count(), _by_part(deployed), _by_part(training), dual
    )


def _by_part(model: Model) -> dict[str, int]:
    parts = model.parts()
    return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
