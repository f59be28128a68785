"""Three flips of a clip: its polarities, its columns, its time steps. Counts are preserved; each is an involution."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ripe_mambaspike.data.augment.checks import check_clips, check_flag, check_generator, check_number
from ripe_mambaspike.data.augment.draws import draw_mask, edit_samples


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
class RandomFlip:
    """A flip of each sample with a probability. Subclasses say which, and the field of the settings it belongs to."""

    field: ClassVar[str]
    probability: float = 0.5

    def __post_init__(self) -> None:
        check_number(self.field, self.probability)

    def flip(self, x: Tensor, chosen: Tensor) -> Tensor:
        raise NotImplementedError

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.choose(x, generator)[0]

    def choose(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The clips [B, T, 2, H, W], and which of them were changed [B] bool."""
        check_clips(x)
        check_generator(generator)
        if not self.probability:
            return x, torch.zeros(len(x), dtype=torch.bool)
        chosen = draw_mask(len(x), self.probability, generator)
        return self.flip(x, chosen), chosen


@dataclass(frozen=True)
class PolarityFlip(RandomFlip):
    """`flip_polarity`, each sample with a probability."""

    field = "polarity_flip"

    def flip(self, x: Tensor, chosen: Tensor) -> Tensor:
        return flip_polarity(x, chosen)


@dataclass(frozen=True)
class HorizontalFlip(RandomFlip):
    """`flip_horizontal`, each sample with a probability."""

    field = "horizontal_flip"

    def flip(self, x: Tensor, chosen: Tensor) -> Tensor:
        return flip_horizontal(x, chosen)


@dataclass(frozen=True)
class TimeReversal(RandomFlip):
    """`reverse_time`, each sample with a probability.

    The paper does not say whether reversal swaps the polarities, as physics would. Public code only reverses the order
    of the steps, so that is the default.
    """

    field = "time_reversal"
    swap_polarity: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("swap_polarity", self.swap_polarity)

    def flip(self, x: Tensor, chosen: Tensor) -> Tensor:
        return reverse_time(x, chosen, self.swap_polarity)
