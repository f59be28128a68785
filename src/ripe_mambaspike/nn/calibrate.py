"""Re-estimation of running statistics on clean data."""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.nn.eval_mode import eval_mode

MAX_BATCHES = 50


@torch.no_grad()
def recalibrate(
    model: nn.Module,
    loader: Iterable[Any],
    device: torch.device | str | None = None,
    max_batches: int | None = MAX_BATCHES,
    *,
    run: Callable[[Tensor], object] | None = None,
    frozen: Collection[nn.Module] = (),
) -> int:
    """Reset all running statistics and re-estimate them as means over the loader's first batches; returns their number.

    The loader yields clips [B, T, 2, H, W] or (clips, labels, …), which are moved to `device` (by default the
    network's). Every batch has the same weight. Dropout and drop-path are off, no parameter changes, and every module
    keeps its mode; on an error the statistics are restored too. The norms in `frozen` modules keep theirs.
    """
    norms = _norms(model, frozen)
    if not norms:
        raise ConfigError.expected("model", "norms with running statistics (the training form)", "none")
    batches = islice(_clips(loader), max_batches)
    first = next(batches, None)
    if first is None:
        raise InputError.expected("loader", "at least one batch", "none")
    if device is None:
        device = next((parameter.device for parameter in model.parameters()), first.device)
    kept = [(norm.momentum, norm.num_batches_tracked, *_copies(norm)) for norm in norms]
    count = 0
    try:
        with eval_mode(model):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # the average over all batches
                norm.train()
            for batch in chain((first,), batches):
                (run or model)(batch.to(device))
                count += 1
    except BaseException:
        for norm, (_, seen, mean, variance) in zip(norms, kept, strict=True):
            norm.running_mean.copy_(mean)  # type: ignore[union-attr]
            norm.running_var.copy_(variance)  # type: ignore[union-attr]
            norm.num_batches_tracked = seen
        raise
    finally:
        for norm, (momentum, *_) in zip(norms, kept, strict=True):
            norm.momentum = momentum
    return count


def has_running_statistics(model: nn.Module, frozen: Collection[nn.Module] = ()) -> bool:
    """Whether there is anything to re-estimate outside the `frozen` modules."""
    return bool(_norms(model, frozen))


def _norms(model: nn.Module, frozen: Collection[nn.Module] = ()) -> list[_BatchNorm]:
    kept = {id(inner) for module in frozen for inner in module.modules()}
    found = (m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None)
    return [norm for norm in found if id(norm) not in kept]


def _clips(loader: Iterable[Any]) -> Iterator[Tensor]:
    for batch in loader:
        clips = batch[0] if isinstance(batch, tuple | list) and len(batch) else batch
        if not isinstance(clips, Tensor):
            wanted = "batches of clips or of (clips, labels)"
            raise InputError.expected("loader", wanted, f"a {type(batch).__name__}")
        yield clips


def _copies(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean.clone(), norm.running_var.clone()
