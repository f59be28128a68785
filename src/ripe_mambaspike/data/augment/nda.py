"""NDA (neuromorphic data augmentation): a few operations per sample, each drawn from the same eight."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.data.augment.checks import check_clips, check_generator, check_number, check_whole
from ripe_mambaspike.data.augment.draws import draw_integer, edit_samples, uniform_draws
from ripe_mambaspike.data.augment.geometry import affine_transform, cutout, roll, rotations, shears, temporal_cutout

OPERATIONS = ("identity", "shear_x", "shear_y", "roll_x", "roll_y", "rotate", "cutout", "temporal_cutout")
MAX_SHEAR = 0.3  # at magnitude 1: pixels of shift for each pixel from the centre
MAX_DEGREES = 15.0  # at magnitude 1


class NDADraw(NamedTuple):
    """One operation for each of B samples, on the CPU. Parameters that an operation does not use are neutral."""

    operation: Tensor  # [B] index into OPERATIONS
    matrices: Tensor  # [B, 2, 3] for `affine`: shear x, shear y and rotation
    shift_y: Tensor  # [B] pixels
    shift_x: Tensor
    top: Tensor  # [B] the cutout square, always whole inside the frame
    left: Tensor
    side: Tensor
    start: Tensor  # [B] the steps of temporal cutout
    length: Tensor

    def hit(self, *names: str) -> Tensor:
        """Which samples got one of these operations: bool [B]."""
        return torch.isin(self.operation, torch.tensor([OPERATIONS.index(name) for name in names]))


def apply_draw(x: Tensor, draw: NDADraw) -> Tensor:
    """Each sample's drawn operation, on all its steps and both polarities. x [B, T, 2, H, W]."""
    check_clips(x)
    return _apply(x.clone(), draw) if bool(draw.hit(*OPERATIONS[1:]).any()) else x


def _apply(owned: Tensor, draw: NDADraw) -> Tensor:
    out = edit_samples(owned, draw.hit("shear_x", "shear_y", "rotate"), affine_transform, draw.matrices, owned=True)
    out = edit_samples(out, draw.hit("roll_x", "roll_y"), roll, draw.shift_y, draw.shift_x, owned=True)
    out = edit_samples(out, draw.hit("cutout"), cutout, draw.top, draw.left, draw.side, owned=True)
    return edit_samples(out, draw.hit("temporal_cutout"), temporal_cutout, draw.start, draw.length, owned=True)


@dataclass(frozen=True)
class NDA:
    """`operations` draws a sample, one after the other, each uniform over the eight operations.

    Magnitude m bounds them: shear ±0.3·m, rotation ±15°·m, roll ±roll_cap·size·m pixels along its axis, a cutout side
    of up to cutout_cap·H·m (and no more than the frame), uniform in each case. Pixels are whole numbers that never
    pass the bound. The paper gives no length for temporal cutout: here up to cutout_cap·T·m steps, rounded, at least
    one (the paper's settings would otherwise cut none) and never all of them, so a clip of one step stays as it is.
    """

    operations: int = 1
    magnitude: float = 0.3
    roll_cap: float = 0.25
    cutout_cap: float = 0.25

    def __post_init__(self) -> None:
        check_whole("nda_operations", self.operations, 0, 100)
        check_number("nda_magnitude", self.magnitude)
        check_number("roll_cap", self.roll_cap)
        check_number("cutout_cap", self.cutout_cap)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        check_clips(x)
        check_generator(generator)
        samples, steps, _, height, width = x.shape
        for _ in range(self.operations):
            x = apply_draw(x, self.draw(samples, steps, height, width, generator))
        return x

    def draw(self, samples: int, steps: int, height: int, width: int, generator: torch.Generator) -> NDADraw:
        """One operation and its parameters for each sample. The number of random draws depends only on B."""
        operation = torch.randint(len(OPERATIONS), (samples,), generator=generator)
        strength, first, second = uniform_draws(3, samples, generator=generator)
        signed = (2 * strength - 1) * self.magnitude  # [−m, m)

        def only(name: str, value: Tensor) -> Tensor:
            return torch.where(operation == OPERATIONS.index(name), value, torch.zeros_like(value))

        side = only("cutout", _one_to(min(_pixels(self.cutout_cap * height * self.magnitude), height, width), strength))
        length = only("temporal_cutout", _one_to(self._most_steps(steps), strength))
        turned = operation == OPERATIONS.index("rotate")
        sheared = shears(*(MAX_SHEAR * only(name, signed) for name in ("shear_x", "shear_y")))
        return NDADraw(
            operation=operation,
            matrices=torch.where(turned[:, None, None], rotations(MAX_DEGREES * only("rotate", signed)), sheared),
            shift_y=only("roll_y", self._shift(height, strength)),
            shift_x=only("roll_x", self._shift(width, strength)),
            top=only("cutout", draw_integer(first, height - side)),
            left=only("cutout", draw_integer(second, width - side)),
            side=side,
            start=only("temporal_cutout", draw_integer(first, steps - length)),
            length=length,
        )

    def _shift(self, size: int, chance: Tensor) -> Tensor:
        most = _pixels(self.roll_cap * size * self.magnitude)
        return draw_integer(chance, 2 * most) - most

    def _most_steps(self, steps: int) -> int:
        wanted = self.cutout_cap * steps * self.magnitude
        return min(max(round(wanted), 1), steps - 1) if wanted > 0 else 0


def _pixels(bound: float) -> int:
    return math.floor(bound + 1e-9)  # 0.29·100 is 29 pixels, though floats make it 28.999…


def _one_to(most: int, chance: Tensor) -> Tensor:
    """1, 2, … most, each as likely; 0 where most is 0."""
    return draw_integer(chance, most - 1) + 1 if most else torch.zeros_like(chance, dtype=torch.long)
