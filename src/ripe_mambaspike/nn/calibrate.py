"""Running statistics measured anew on clean data."""

from collections.abc import Callable, Iterable
from itertools import chain

import torch
from torch import Tensor, nn

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.nn.evaluation import evaluation
from ripe_mambaspike.nn.norm import BatchNorm, TimeBatchNorm


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Tensor], run: Callable[[Tensor], object] | None = None) -> None:
    """Reset every running statistic, then make it the mean over the batches. Drop-path stays off.

    Every module is left in the mode it was in.
    """
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        raise InputError("recalibrate was given no batches; at least one is wanted")
    norms = [module for module in model.modules() if isinstance(module, BatchNorm | TimeBatchNorm)]
    momentum = [norm.momentum for norm in norms]
    with evaluation(model):
        for norm in norms:
            norm.running_mean.zero_()
            norm.running_var.fill_(1)
            norm.train()
        try:
            for seen, batch in enumerate(chain((first,), batches), 1):
                for norm in norms:
                    norm.momentum = 1 / seen
                (run or model)(batch)
        finally:
            for norm, value in zip(norms, momentum, strict=True):
                norm.momentum = value
