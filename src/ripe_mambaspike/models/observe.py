"""One way to look into a run: spikes, spike counts, membrane potentials, attention and inputs by layer.

    out = model.run(x, observe=("spikes", "attention"))
    out.observed["stages.0.first_neuron.spikes"]  # [B, T, C, H, W]

`nn.stage.OBSERVABLE` lists what can be asked for. Layers come in the order in which an event meets them.
"""

from collections.abc import Collection, Iterator, Mapping

from torch import Tensor

from ripe_mambaspike.models.base import FrontEnd
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.state import State

MIN_CONTRAST = 0.01  # of the step's mean |attention|; a place that differs by less counts as background


def by_layer(observed: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """What was observed of one kind, by layer: {"stages.0.first_neuron": spikes, ...}."""
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
    """How far each place departs from the step's median place, mean over channels: [..., C, h, w] → [..., h, w].

    Zero is background. The attention's own values would not do: DS-MPA gives every resting position the same mean of
    the values, which is far from zero, so that the background would be drawn as strongly as what moves.
    """
    flat = attention.float().flatten(-2)
    contrast = (flat - flat.median(-1, keepdim=True).values).abs().mean(-2)
    level = flat.abs().mean((-2, -1)).unsqueeze(-1)
    return contrast.where(contrast > MIN_CONTRAST * level, contrast * 0).unflatten(-1, attention.shape[-2:])
