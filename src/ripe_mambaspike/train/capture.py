"""A whole training step as one CUDA graph: thousands of small launches become one.

The graph is for one batch shape and one set of settings; a new epoch's sharpness or loss weights need a new one, unless
the network does not use them. It captures the function that runs without it, so both take the same step.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.models.base import Model, require_unmodified
from ripe_mambaspike.ops.compile_ahead import compile_ahead
from ripe_mambaspike.train.objective import LossTerms
from ripe_mambaspike.train.step import Batch, StepSettings, accumulated_step

WARMUP_STEPS = 3


class CapturedStep:
    """A captured training step: call it with batches of the same shapes; it returns the terms of the loss.

    Capturing takes a few steps to warm up; the network and the optimizer are restored afterwards.
    """

    def __init__(self, model: Model, optimizer: Optimizer, batches: Sequence[Batch], settings: StepSettings) -> None:
        for x, _ in batches:
            if not x.is_cuda:
                raise InputError.expected("x", "a batch on a CUDA device", f"one on {x.device}")
        require_unmodified(model, "capture_step")
        self.batches = [(x.clone(), y.clone()) for x, y in batches]
        self._model, self._optimizer = model, optimizer
        compile_step(model, optimizer, self.batches, settings)
        snapshot = _snapshot(model, optimizer)
        try:
            self._warm_up(settings)
        finally:
            _restore(model, optimizer, snapshot)
        self._recorded: StepSettings | None = None
        self.record(settings)

    def record(self, settings: StepSettings) -> None:
        """Capture the step with other settings, without running it; nothing is done where the step is the same."""
        used = used_settings(self._model, settings)
        if used == self._recorded:
            return
        self._recorded = None
        self._optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._terms = accumulated_step(self._model, self._optimizer, self.batches, settings)
        self._recorded = used

    def _warm_up(self, settings: StepSettings) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_STEPS):
                accumulated_step(self._model, self._optimizer, self.batches, settings)
        torch.cuda.current_stream().wait_stream(stream)

    def __call__(self, *batches: Batch) -> LossTerms:
        """Run one step; without batches, on the last ones again. The next call overwrites the returned terms."""
        if batches and [x.shape for x, _ in batches] != [x.shape for x, _ in self.batches]:
            shapes, wanted = ([tuple(x.shape) for x, _ in group] for group in (batches, self.batches))
            raise InputError.expected("batches", f"the captured shapes {wanted}", shapes)
        for held, given in zip(self.batches, batches, strict=False):
            for mine, theirs in zip(held, given, strict=True):
                mine.copy_(theirs)
        self._graph.replay()
        return self._terms


def capture_step(model: Model, optimizer: Optimizer, x: Tensor, y: Tensor, settings: StepSettings) -> CapturedStep:
    """Capture the training step for batches like (x, y)."""
    return CapturedStep(model, optimizer, [(x, y)], settings)


def compile_step(model: Model, optimizer: Optimizer, batches: Sequence[Batch], settings: StepSettings) -> None:
    """Compile the kernels of a step; the network and the optimizer stay as they are."""
    if model.modification() is not None:  # a module of the user's would see a step without kernels
        return
    snapshot = _snapshot(model, optimizer)
    compile_ahead(
        lambda: accumulated_step(model, optimizer, batches, settings), lambda: _restore(model, optimizer, snapshot)
    )


def used_settings(model: Model, settings: StepSettings) -> StepSettings:
    """The settings without those that change nothing in the step of this network."""
    if not model.has_relaxed_pass:
        settings = replace(settings, weights=replace(settings.weights, relaxed_share=0.0, consistency=0.0))
    return settings if model.uses_sharpness else replace(settings, sharpness=StepSettings.sharpness)


Snapshot = tuple[list[Tensor], dict[int, dict[str, Tensor]]]


def _snapshot(model: Model, optimizer: Optimizer) -> Snapshot:
    tensors = [t.detach().clone() for t in model.state_dict().values()]
    moments = {
        id(parameter): {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}
        for parameter, state in optimizer.state.items()
    }
    return tensors, moments


@torch.no_grad()
def _restore(model: Model, optimizer: Optimizer, snapshot: Snapshot) -> None:
    """Restore everything in place, because the graph uses these tensors; new optimizer state is set to zero."""
    tensors, moments = snapshot
    for held, value in zip(model.state_dict().values(), tensors, strict=True):
        held.copy_(value)
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                before = moments.get(id(parameter), {}).get(name)
                value.zero_() if before is None else value.copy_(before)
