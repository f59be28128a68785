"""A whole training step as one CUDA graph: thousands of small launches become one.

The graph holds the step for one shape of batch and one set of settings; a new epoch's sharpness or shares need a new
one. It is taken over the same function that runs without it, so both take the same step.
"""

import torch
from torch import Tensor
from torch.optim import Optimizer

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.train.objective import Parts
from ripe_mambaspike.train.step import StepSettings, training_step

WARM_UPS = 3


class CapturedStep:
    """Call it with a batch like the first; it takes the step and gives the parts of the loss.

    Recording takes a few steps to warm up; the network and the optimiser are put back as they were afterwards.
    """

    def __init__(
        self, model: RipeMambaSpike, optimiser: Optimizer, x: Tensor, y: Tensor, settings: StepSettings
    ) -> None:
        if not x.is_cuda:
            raise InputError(f"the batch is on {x.device}; a step can be captured on a CUDA device alone")
        self.x, self.y = x.clone(), y.clone()
        self._arguments = (model, optimiser, self.x, self.y, settings)
        kept = _snapshot(model, optimiser)
        self._record(optimiser)
        _restore(model, optimiser, kept)

    def _record(self, optimiser: Optimizer) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                training_step(*self._arguments)
        torch.cuda.current_stream().wait_stream(stream)
        optimiser.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._parts = training_step(*self._arguments)

    def __call__(self, x: Tensor | None = None, y: Tensor | None = None) -> Parts:
        """The parts are the graph's own memory: the next call overwrites them."""
        for held, given in ((self.x, x), (self.y, y)):
            if given is not None:
                if given.shape != held.shape:
                    raise InputError(
                        f"the batch has shape {tuple(given.shape)}; the step was captured for {tuple(held.shape)}"
                    )
                held.copy_(given)
        self._graph.replay()
        return self._parts


def capture_step(
    model: RipeMambaSpike, optimiser: Optimizer, x: Tensor, y: Tensor, settings: StepSettings
) -> CapturedStep:
    """The training step for batches like (x, y), recorded."""
    return CapturedStep(model, optimiser, x, y, settings)


Kept = tuple[list[Tensor], dict[int, dict[str, Tensor]]]


def _snapshot(model: RipeMambaSpike, optimiser: Optimizer) -> Kept:
    tensors = [t.detach().clone() for t in model.state_dict().values()]
    moments = {
        id(parameter): {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}
        for parameter, state in optimiser.state.items()
    }
    return tensors, moments


@torch.no_grad()
def _restore(model: RipeMambaSpike, optimiser: Optimizer, kept: Kept) -> None:
    """Everything as it was, in place, because the graph reads it there; state that is new starts from zero."""
    tensors, moments = kept
    for held, value in zip(model.state_dict().values(), tensors, strict=True):
        held.copy_(value)
    for parameter, state in optimiser.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                before = moments.get(id(parameter), {}).get(name)
                value.zero_() if before is None else value.copy_(before)
