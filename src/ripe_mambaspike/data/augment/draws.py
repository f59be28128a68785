"""Random draws on the CPU from an explicit generator, and applying a change to the chosen samples."""

import hashlib
import random
from collections.abc import Callable

import torch
from torch import Tensor

from ripe_mambaspike.data.augment.checks import check_clips, check_whole


def batch_generator(seed: int, epoch: int, index: int) -> torch.Generator:
    """The generator of one batch: a function of these three numbers only, so a resumed run gets the same draws.

    torch's CPU generator uses 32 bits of a seed, so in a long run two distant batches may share their draws, which is
    harmless; neighbouring batches have unrelated ones, because the numbers are hashed.
    """
    for name, value in (("seed", seed), ("epoch", epoch), ("batch index", index)):
        check_whole(name, value, 0)
    digest = hashlib.blake2b(f"augment {seed} {epoch} {index}".encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def uniform_draws(*shape: int, generator: torch.Generator) -> Tensor:
    """Numbers in [0, 1), float64."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def draw_mask(samples: int, probability: float, generator: torch.Generator) -> Tensor:
    """Which samples are chosen: bool [samples]; none at probability 0, all at 1."""
    return uniform_draws(samples, generator=generator) < probability


def draw_integer(chance: Tensor, most: Tensor | int) -> Tensor:
    """Map uniform numbers in [0, 1) to integers 0, 1, …, most with equal probability; int64."""
    most = torch.as_tensor(most)
    return torch.minimum((chance * (most + 1)).floor().long(), most)  # a number just below 1 may round up to 1


def symmetric_beta(alpha: float, generator: torch.Generator) -> float:
    """One number from Beta(α, α). torch's Beta takes no generator, so Python's is used, seeded from this one."""
    seed = int(torch.randint(2**62, (), generator=generator))
    return random.Random(seed).betavariate(alpha, alpha)


def edit_samples(
    x: Tensor, chosen: Tensor, change: Callable[..., Tensor], *parameters: Tensor, owned: bool = False
) -> Tensor:
    """x with the chosen samples replaced by `change(samples, *their parameters)`; the others are not copied.

    x [B, T, 2, H, W], chosen [B] bool, preferably on the CPU, parameters [B, …]. An `owned` x is modified in place.
    """
    check_clips(x)
    index = chosen.nonzero().squeeze(1)
    if len(index) == 0:
        return x
    if len(index) == len(x):
        return change(x, *parameters)
    samples = index.to(x.device, non_blocking=True)
    changed = change(x.index_select(0, samples), *(parameter[index] for parameter in parameters))
    return x.index_copy_(0, samples, changed) if owned else x.index_copy(0, samples, changed)
