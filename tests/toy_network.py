"""A small spiking network of plain layers, as the networks of other authors are built, for tests of what takes any."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ripe_mambaspike.models.base import ARCHITECTURES, register_architecture
from ripe_mambaspike.models.mamba_spike import RecurrentSpikingConv
from ripe_mambaspike.models.peers.base import PeerConfig, PeerModel
from ripe_mambaspike.models.registry import _MODELS, create_model, register_model
from ripe_mambaspike.nn.hierarchy import linear_head
from ripe_mambaspike.nn.leaky import LeakyNeuron
from ripe_mambaspike.nn.plain_norm import PlainBatchNorm

TOY = "toy-snn"
SMALL = {  # networks of any kind, and fields that make them small
    TOY: {},
    "event-mlp": {"grid_size": 5, "hidden_size": 8},
    "mamba-spike-pooled": {"channels": (4, 4, 6), "embed_dim": 8, "depth": 1, "pool_size": 2},
}


@dataclass(frozen=True)
class ToyConfig(PeerConfig):
    architecture: ClassVar[str] = TOY

    width: int = 6


class Toy(PeerModel):
    """Two spiking convolutions, the second after a max-pool, and their mean rates through a Linear."""

    config: ToyConfig

    def __init__(self, config: ToyConfig, name: str) -> None:
        super().__init__(config, name)
        self.first = nn.Conv2d(2, config.width, 3, 2, 1, bias=False)
        self.first_norm, self.first_neuron = PlainBatchNorm(config.width), LeakyNeuron()
        self.second = nn.Conv2d(config.width, config.width, 3, 1, 1, bias=False)
        self.second_norm = PlainBatchNorm(config.width)
        self.second_neuron = LeakyNeuron(hard_reset=False, learn_tau=True)
        self.head = linear_head(config.width, config.num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        sizes = x.shape[:2]
        spikes, _ = self.first_neuron(self.first_norm(self.first(x.flatten(0, 1))).unflatten(0, sizes))
        pooled = nn.functional.max_pool2d(spikes.flatten(0, 1), 2)
        spikes, _ = self.second_neuron(self.second_norm(self.second(pooled)).unflatten(0, sizes))
        return spikes.mean((3, 4))


@contextmanager
def registered_toy() -> Iterator[None]:
    """Inside, the toy can be created, saved and loaded by its name."""
    register_architecture(ToyConfig)(Toy)
    register_model(TOY)(ToyConfig)
    try:
        yield
    finally:
        del ARCHITECTURES[TOY], _MODELS[TOY]


@torch.no_grad()
def make_small(name: str, seed: int = 0, **fields: object) -> nn.Module:
    """A small network in evaluation, with norms or kernels so loud that all its layers spike."""
    sizes = {"time_steps": 3, "in_size": 18, "num_classes": 4}
    model = create_model(name, seed=seed, **{**sizes, **SMALL[name], **fields})
    for part in model.modules():
        if isinstance(part, PlainBatchNorm):
            part.weight.uniform_(1.5, 2.5)
            part.running_mean.uniform_(-0.2, 0.2)
            part.running_var.uniform_(0.1, 0.3)
        elif isinstance(part, RecurrentSpikingConv):
            part.conv.weight.mul_(5)
    return model.eval()
