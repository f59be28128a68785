"""Random draws, all of them on the CPU and from an explicit generator, and changing the samples that were drawn."""

import hashlib
import random
from collections.abc import Callable

import torch
from torch import Tensor

from ripe_mambaspike.data.augment.checks import check_clips, check_whole


def batch_generator(seed: int, epoch: int, index: int) -> torch.Generator:
    """The generator of one batch: a function of these three numbers alone, so a resumed run sees the same draws.

    torch's CPU generator keeps 32 bits of a seed. In a long run two far-apart batches may thus share their draws,
    which does no harm; neighbouring batches have unrelated ones, because the numbers are hashed.
    """
    for name, value in (("seed", seed), ("epoch", epoch), ("batch index", index)):
        check_whole(name, value, 0)
    digest = hashlib.blake2b(f"augment {seed} {epoch} {index}".encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def uniform_draws(*shape: int, generator: torch.Generator) -> Tensor:
    """Numbers in [0, 1), float64."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def draw_mask(samples: int, probability: float, generator: torch.Generator) -> Tensor:
    """Which samples are hit: bool [samples], never any at 0 and all at 1."""
    return uniform_draws(samples, generator=generator) < probability


def draw_integer(chance: Tensor, most: Tensor | int) -> Tensor:
    """chance in [0, 1) as one of the whole numbers 0, 1, … most, each as likely; int64."""
    most = torch.as_tensor(most)
    return torch.minimum((chance * (most + 1)).floor().long(), most)  # a chance just below 1 may round up to 1


def symmetric_beta(alpha: float, generator: torch.Generator) -> float:
    """One number from Beta(α, α). torch's own Beta takes no generator; Python's, seeded from ours, does the same."""
    seed = int(torch.randint(2**62, (), generator=generator))
    return random.Random(seed).betavariate(alpha, alpha)


def edit_samples(
    x: Tensor, chosen: Tensor, change: Callable[..., Tensor], *parameters: Tensor, owned: bool = False
) -> Tensor:
    """x with `change(part, *parameters of the part)` in place of the chosen samples; the others are not copied.

    x [B, T, 2, H, W], chosen [B] bool and best on the CPU, parameters [B, …] beside it. An `owned` x is written to.
    """
    check_clips(x)
    index = chosen.nonzero().squeeze(1)
    if len(index) == 0:
        return x
    if len(index) == len(x):
        return change(x, *parameters)
    place = index.to(x.device, non_blocking=True)
    changed = change(x.index_select(0, place), *(parameter[index] for parameter in parameters))
    return x.index_copy_(0, place, changed) if owned else x.index_copy(0, place, changed)
