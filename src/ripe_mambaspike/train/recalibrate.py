"""Batch-norm statistics taken anew from clean clips, as deployment will see them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.norm import BatchNorm, TimeBatchNorm


@torch.no_grad()
def recalibrate(model: RipeMambaSpike, clips: Iterable[Tensor]) -> int:
    """Forget the running statistics and average them over these batches [B, T, 2, H, W]; how many there were.

    Every batch counts the same. Drop-path is off and nothing is learned; training itself never reads these numbers.
    """
    norms = [module for module in model.modules() if isinstance(module, BatchNorm | TimeBatchNorm)]
    count = 0
    with _tracking(model, norms):
        for norm in norms:
            norm.running_mean.zero_()
            norm.running_var.fill_(1.0)
        for x in clips:
            for norm in norms:
                norm.momentum = 1.0 / (count + 1)
            model.run(x)
            count += 1
    return count


@contextmanager
def _tracking(model: RipeMambaSpike, norms: list[BatchNorm | TimeBatchNorm]) -> Iterator[None]:
    """Norms in training, everything else in evaluation; afterwards all as it was."""
    modes = [(module, module.training) for module in model.modules()]
    momenta = [norm.momentum for norm in norms]
    model.train()
    model.hierarchy.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
