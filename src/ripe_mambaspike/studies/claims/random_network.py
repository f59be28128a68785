"""Seeded random tensors and networks for the checks."""

import torch
from torch import Tensor

from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.models.registry import create_model
from ripe_mambaspike.models.ripe import RipeMambaSpike


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_uniform(rng: torch.Generator, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return torch.rand(shape, generator=rng, dtype=torch.float64) * (high - low) + low


def random_normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def random_binary(rng: torch.Generator, *shape: int, rate: float = 0.3) -> Tensor:
    return torch.rand(shape, generator=rng, dtype=torch.float64).lt(rate).double()


def relative_error(ours: Tensor, expected: Tensor) -> float:
    return float((ours - expected).abs().max() / expected.abs().max())


def random_network(seed: int, steps: int = 4) -> RipeMambaSpike:
    """The DVS-Gesture network in its training form at few steps, evaluated with random statistics, in float64."""
    model = create_model("dvsgesture", seed=seed, time_steps=steps).double().eval()
    assert isinstance(model, RipeMambaSpike)
    randomize(model, seed)
    return model
