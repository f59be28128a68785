"""Small networks of other authors in which every neuron fires, and events for them."""

import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.leaky import LeakyNeuron
from ripe_mambaspike.nn.plain_norm import PlainBatchNorm


def clip(steps=4, size=32, samples=2, dtype=torch.float32, seed=0):
    """Event counts [samples, steps, 2, size, size]."""
    return synthetic_clip(steps, size, size, samples, seed).to(dtype)


@torch.no_grad()
def loud_network(name, dtype=torch.float32, **fields):
    """The network in evaluation, its norms adapted to `clip` and then loud enough that every layer fires."""
    fields = {"in_size": 32, "time_steps": 4, "num_classes": 5, **fields}
    model = create_model(name, seed=0, **fields).to(dtype)
    for module in model.modules():
        if isinstance(module, PlainBatchNorm):
            module.weight.uniform_(1.5, 2.5)
            module.bias.uniform_(0.5, 2.0)
            module.momentum = 1.0  # the running statistics become those of the next batch
    model.train()(clip(fields["time_steps"], 32, dtype=dtype))
    return model.eval()


def neurons(model):
    """The network's neurons by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LeakyNeuron)}


def fire_by_hand(current, threshold=1.0):
    """The neuron of τ = 2 with a hard reset, step by step and element by element of [B, T, ...]."""
    spikes = torch.zeros_like(current)
    for at in torch.cartesian_prod(*(torch.arange(n) for n in (current.shape[0], *current.shape[2:]))).tolist():
        membrane = 0.0
        for step in range(current.shape[1]):
            where = (at[0], step, *at[1:])
            membrane += (float(current[where]) - membrane) / 2
            if membrane >= threshold:
                spikes[where] = 1
                membrane = 0.0
    return spikes
