"""An export that was just written, run beside the network it was made from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.deploy.export.manifest import RUNNABLE
from ripe_mambaspike.deploy.export.parity import ParityResult, compare_outputs, require_parity
from ripe_mambaspike.deploy.export.run import Exported, format_module, load_exported
from ripe_mambaspike.errors import VerificationError
from ripe_mambaspike.models.observe import by_layer
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.models.ripe import RipeMambaSpike

CLIP, STEPS = "clip graph", "step and tail graphs"


class FrontParity(NamedTuple):
    """A front-end's spikes beside PyTorch's."""

    clips: int
    spikes: int  # that fired in PyTorch
    differing: int  # with what the file carries beside its graph
    by_graph_alone: float  # share of the spikes' places that the nodes alone, without it, get right

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


@torch.no_grad()
def check_front(path: Path, model: RipeMambaSpike, clips: Tensor) -> FrontParity:
    """The NIR file's front-end against the network's, spike by spike, in float64: no order of sums can matter there."""
    front = format_module("nir").load(path)
    wide = clips.double()
    fired = differing = right = places = 0
    reference = front.network.double()
    own = {name: tensor.double() for name, tensor in model.state_dict().items()}
    for name, tensor in reference.state_dict().items():
        if not torch.equal(tensor, own[name]):
            raise VerificationError(f"{path.name} gives {name} back otherwise than it was; the same numbers are wanted")
    for clip in wide.split(1):
        ours = by_layer(reference.front_end(clip, observe=("spikes",)).observed, "second_neuron.spikes").values()
        for spikes, restored, alone in zip(ours, front.restored(clip), front(clip), strict=True):
            fired += int(spikes.sum())
            differing += int((spikes != restored).sum())
            right += int((spikes == alone).sum())
            places += spikes.numel()
    if differing:
        raise VerificationError(
            f"{path.name} does not agree with the network: {differing} of {fired:,} spikes differ; none is wanted"
        )
    return FrontParity(len(clips), fired, differing, right / places)


def check_export(folder: Path, to: str, model: RipeMambaSpike, clips: Tensor) -> dict[str, ParityResult]:
    """Every way to run what lies in the folder, against the network [with the same weights]; raises where one fails."""
    found = {}
    for how, load in _ways(folder, to).items():
        found[how] = compare_outputs(load, model, clips)
        require_parity(found[how], f"the {how} in {to}")
    return found


def _ways(folder: Path, to: str) -> dict[str, Callable[[], Callable[[Tensor], Tensor]]]:
    if to not in RUNNABLE:
        return {"network": lambda: from_pretrained(folder)}
    kinds = load_exported(folder, trust=True).kinds  # it was written a moment ago, by this very process
    ways: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {}
    if "clip" in kinds:
        ways[CLIP] = lambda: _ready(load_exported(folder, trust=True), "clip")
    if {"step", "tail"} <= set(kinds):
        ways[STEPS] = lambda: _ready(load_exported(folder, trust=True), "step", "tail").by_steps
    return ways


def _ready(exported: Exported, *kinds: str) -> Exported:
    """With these graphs loaded: what loads when it is first called would be timed as a prediction."""
    for kind in kinds:
        exported.runs[kind]
    return exported
