"""Networks with nothing left at its initial value, so that an identity cannot hold by accident."""

import torch
from torch import Tensor, nn

from ripe_mambaspike.models.registry import create_model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.attention import MembraneAttention
from ripe_mambaspike.nn.neurons import CSiLIF, SiLIF
from ripe_mambaspike.nn.norm import BatchNorm, TimeBatchNorm
from ripe_mambaspike.nn.repconv import RepConv


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(rng: torch.Generator, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return torch.rand(shape, generator=rng, dtype=torch.float64) * (high - low) + low


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def binary(rng: torch.Generator, *shape: int, rate: float = 0.3) -> Tensor:
    return torch.rand(shape, generator=rng, dtype=torch.float64).lt(rate).double()


def relative_error(ours: Tensor, expected: Tensor) -> float:
    return float((ours - expected).abs().max() / expected.abs().max())


@torch.no_grad()
def randomise(module: nn.Module, seed: int) -> None:
    """Random statistics, affines, filter coefficients, gains and thresholds, wherever the module has them."""
    rng = generator(seed)

    def fill(tensor: Tensor, low: float, high: float) -> None:
        tensor.copy_(uniform(rng, *tensor.shape, low=low, high=high))

    for part in module.modules():
        if isinstance(part, BatchNorm | TimeBatchNorm):
            fill(part.weight, 0.5, 1.5)
            fill(part.bias, -0.5, 0.5)
            fill(part.running_mean, -0.5, 0.5)
            fill(part.running_var, 0.5, 2.0)
        elif isinstance(part, RepConv) and part.coefficient is not None:
            fill(part.coefficient, -1.5, 1.5)
        elif isinstance(part, MembraneAttention):
            fill(part.gain, 0.5, 1.5)
        elif isinstance(part, SiLIF | CSiLIF):
            fill(part.threshold, 0.2, 0.6)


def random_network(seed: int, steps: int = 4) -> RipeMambaSpike:
    """The DVS-Gesture network in its training form at few steps, evaluated with random statistics, in float64."""
    model = create_model("dvsgesture", seed=seed, steps=steps).double().eval()
    assert isinstance(model, RipeMambaSpike)
    randomise(model, seed)
    return model
