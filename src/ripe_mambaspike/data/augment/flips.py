"""Three flips of a clip: its polarities, its columns, its time steps. Counts are preserved; each is an involution."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ripe_mambaspike.data.augment.checks import check_clips, check_flag, check_generator, check_number
from ripe_mambaspike.data.augment.draws import draw_mask, edit_samples

Chosen = tuple[Tensor, Tensor]  # clips [B, T, 2, H, W] and which of them were changed [B] bool


def flip_polarity(x: Tensor, chosen: Tensor) -> Tensor:
    """Swap ON and OFF in the chosen samples. x [B, T, 2, H, W], chosen [B] bool."""
    return edit_samples(x, chosen, lambda part: part.flip(2))


def flip_horizontal(x: Tensor, chosen: Tensor) -> Tensor:
    """Swap left and right in the chosen samples. x [B, T, 2, H, W], chosen [B] bool."""
    return edit_samples(x, chosen, lambda part: part.flip(4))


def reverse_time(x: Tensor, chosen: Tensor, swap_polarity: bool = False) -> Tensor:
    """Reverse the time steps of the chosen samples. x [B, T, 2, H, W], chosen [B] bool.

    A scene played backwards darkens where it brightened: `swap_polarity` also swaps ON and OFF.
    """
    return edit_samples(x, chosen, lambda part: part.flip(1, 2) if swap_polarity else part.flip(1))


@dataclass(frozen=True)
class PolarityFlip:
    """`flip_polarity`, each sample with a probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_number("polarity_flip", self.probability)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return _at_random(x, self.probability, generator, flip_polarity)[0]


@dataclass(frozen=True)
class HorizontalFlip:
    """`flip_horizontal`, each sample with a probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_number("horizontal_flip", self.probability)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.choose(x, generator)[0]

    def choose(self, x: Tensor, generator: torch.Generator) -> Chosen:
        """The clips, and which of them were mirrored [B]."""
        return _at_random(x, self.probability, generator, flip_horizontal)


@dataclass(frozen=True)
class TimeReversal:
    """`reverse_time`, each sample with a probability.

    The paper does not say whether reversal swaps the polarities, as physics would. Public code only reverses the order
    of the steps, so that is the default.
    """

    probability: float = 0.5
    swap_polarity: bool = False

    def __post_init__(self) -> None:
        check_number("time_reversal", self.probability)
        check_flag("swap_polarity", self.swap_polarity)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.choose(x, generator)[0]

    def choose(self, x: Tensor, generator: torch.Generator) -> Chosen:
        """The clips, and which of them were reversed [B]."""
        return _at_random(x, self.probability, generator, lambda x, c: reverse_time(x, c, self.swap_polarity))


def _at_random(
    x: Tensor, probability: float, generator: torch.Generator, flip: Callable[[Tensor, Tensor], Tensor]
) -> Chosen:
    check_clips(x)
    check_generator(generator)
    if not probability:
        return x, torch.zeros(len(x), dtype=torch.bool)
    chosen = draw_mask(len(x), probability, generator)
    return flip(x, chosen), chosen
