"""A causal network with the weights of one that reads in both directions, to be trained further.

What both have is taken as it is. A causal block has the forward direction alone, with its share of the merging
projection; a causal norm has one affine for all steps, the mean of those that the steps had. The backward direction is
missing, and firing rates are leaky means instead of cumulative ones, so it classifies worse until it is trained.
"""

import torch
from torch import Tensor

from ripe_mambaspike.models.base import require_unmodified
from ripe_mambaspike.models.registry import meta_model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.mamba import BidirectionalMamba


@torch.no_grad()
def make_causal(model: RipeMambaSpike) -> RipeMambaSpike:
    """The causal network that is nearest to a network, in its form; the network is left as it is."""
    require_unmodified(model, "make_causal")
    made = meta_model(model.config.replace(causal=True), name=model.name)
    assert isinstance(made, RipeMambaSpike)
    weights = model.state_dict()
    for name, block in model.named_modules():
        if isinstance(block, BidirectionalMamba):
            share = block.merge.weight.chunk(2, 1)[0]
            weights[f"{name}.forward_mamba.out_proj.weight"] = share @ block.forward_mamba.out_proj.weight
    kept = {name: _fitted(weights[name], wanted) for name, wanted in made.state_dict().items()}
    made.load_state_dict(kept, assign=True)
    made.labels = model.labels
    return made.train(model.training)


def _fitted(value: Tensor, wanted: Tensor) -> Tensor:
    """One row for all steps, where there was one for each."""
    if value.shape != wanted.shape:
        value = value.mean(0, keepdim=True)
    return value.clone()
