"""Observing a run: spikes, spike counts, membrane potentials, attention and inputs by layer.

    out = model.run(x, observe=("spikes", "attention"))
    out.observed["stages.0.first_neuron.spikes"]  # [B, T, C, H, W]

`nn.stage.OBSERVABLE` lists what can be observed. Layers are in the order of computation.
"""

from collections.abc import Collection, Iterator, Mapping

from torch import Tensor

from ripe_mambaspike.models.base import FrontEnd
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.state import State

MIN_CONTRAST = 0.01  # relative to the step's mean |attention|; positions that differ by less are background


def by_layer(observed: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The observations of one kind, by layer: {"stages.0.first_neuron": spikes, ...}."""
    end = f".{kind}"
    return {name.removesuffix(end): value for name, value in observed.items() if name.endswith(end)}


def run_in_pieces(
    model: RipeMambaSpike,
    x: Tensor,
    steps_at_once: int,
    observe: Collection[str] = (),
    mode: ForwardMode = HARD,
) -> Iterator[FrontEnd]:
    """The front end over a recording [B, T, 2, H, W], so many steps at a time with carried state."""
    state: State | None = None
    first_step = 0
    for piece in x.split(steps_at_once, dim=1):
        front = model.front_end(piece, mode, state, first_step, observe)
        state, first_step = front.state, first_step + piece.shape[1]
        yield front


def attention_contrast(attention: Tensor) -> Tensor:
    """How far each position departs from the step's median, mean over channels: [..., C, h, w] → [..., h, w].

    Zero is background. The raw attention is not usable: DS-MPA gives every resting position the same mean of the
    values, which is far from zero, so that the background would look as strong as motion.
    """
    flat = attention.float().flatten(-2)
    contrast = (flat - flat.median(-1, keepdim=True).values).abs().mean(-2)
    level = flat.abs().mean((-2, -1)).unsqueeze(-1)
    return contrast.where(contrast > MIN_CONTRAST * level, contrast * 0).unflatten(-1, attention.shape[-2:])
