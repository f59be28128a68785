"""A network prepared for one input shape; on a GPU the whole forward pass is captured as one CUDA graph.

    run = capture(fuse(model), example, dtype=torch.bfloat16)
    logits = run(clips)

On a GPU the graph reads `run.example`: clips are copied there, unless the caller has put them there and calls
`run(run.example)`. The weights are captured as they are now: capture again after training.
"""

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.models.base import Model, Output, require_unmodified
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.cuda_graphs import no_recording, record_graph
from ripe_mambaspike.models.fused import kernels_cover, plan_network, run_fused
from ripe_mambaspike.models.input_checks import check_finite
from ripe_mambaspike.models.memory import explain_model_memory
from ripe_mambaspike.nn.eval_mode import eval_mode
from ripe_mambaspike.ops.compile_ahead import compile_ahead

MAX_SHAPES = 8  # graphs that `CapturedShapes` keeps; each holds the memory of one forward pass


class Captured:
    """Per-step logits [B, T, classes] for inputs of one shape, precision and device."""

    def __init__(
        self, model: Model, example: Tensor, dtype: torch.dtype | None = None, *, want_rates: bool = False
    ) -> None:
        require_unmodified(model, "capture")
        self.example = example.clone()
        self.model = model
        self.dtype = dtype or example.dtype
        self._want_rates = want_rates
        self._graph: torch.cuda.CUDAGraph | None = None
        with torch.inference_mode(), eval_mode(model), self._precision(), explain_model_memory(model, example):
            covered = isinstance(model.config, RipeConfig) and kernels_cover(model, example)
            self._plan = plan_network(model, example) if covered else None
            if example.is_cuda and self._plan is not None:
                compile_ahead(lambda: self._compute(self.example))
            with no_recording():
                model(example)  # raises if the input does not fit
        if example.is_cuda:  # without capture, the network is called directly
            self._graph, self._output = record_graph(lambda: self._compute(self.example))

    def __call__(self, x: Tensor) -> Tensor:
        return self.run(x).logits

    def run(self, x: Tensor) -> Output:
        """Logits, and the firing rates if they were asked for when it was captured."""
        expected = self.example
        if x.shape != expected.shape or x.dtype != expected.dtype or x.device != expected.device:
            raise InputError.expected(
                "x",
                f"{tuple(expected.shape)} {expected.dtype} on {expected.device}, as captured",
                f"{tuple(x.shape)} {x.dtype} on {x.device}",
            )
        check_finite(x)
        if self._graph is None:
            return self._compute(x)
        if x is not self.example:
            self.example.copy_(x)
        self._graph.replay()
        return Output(self._output.logits.clone(), self._output.rates.clone())

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.example.device.type, self.dtype, enabled=self.dtype != self.example.dtype)

    @torch.inference_mode()
    def _compute(self, x: Tensor) -> Output:
        with explain_model_memory(self.model, x, dtype=self.dtype):
            if self._plan is not None:
                return run_fused(self._plan, x, want_rates=self._want_rates)
            with eval_mode(self.model), self._precision():
                if self._want_rates:
                    return self.model.run(x)
                logits = self.model(x)
                return Output(logits, logits.new_empty(0))


def capture(model: Model, example: Tensor, dtype: torch.dtype | None = None) -> Captured:
    """Prepare a network for inputs of one shape; on a GPU the pass is recorded as one CUDA graph.

    Args:
        model: a network in evaluation mode
        example: clips [B, T, 2, H, W] of the shape and on the device of all later ones
        dtype: precision of matrix products and convolutions, such as `torch.bfloat16`; by default that of the example

    Returns:
        A function from clips [B, T, 2, H, W] to logits [B, T, num_classes].
    """
    return Captured(model, example, dtype)


class CapturedShapes:
    """A network that captures a CUDA graph for each new input shape.

    On a CPU, or with custom modules that cannot be captured, the network is called directly. `run` returns logits and
    firing rates, a call only the logits.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._captured: dict[tuple[object, ...], Captured] = {}
        self._capturable = model.modification() is None

    def __call__(self, x: Tensor) -> Tensor:
        return self._get(x, want_rates=False).run(x).logits if self._usable(x) else self.model(x)

    def run(self, x: Tensor) -> Output:
        """Logits [B, T, classes] and the mean firing rate of every spiking layer."""
        if self._usable(x):
            return self._get(x, want_rates=True).run(x)
        return self.model.run(x)

    def _usable(self, x: Tensor) -> bool:
        return x.is_cuda and self._capturable

    def _get(self, x: Tensor, want_rates: bool) -> Captured:
        key = (tuple(x.shape), x.dtype, x.device, want_rates)
        found = self._captured.pop(key, None)
        if found is None:
            while len(self._captured) >= MAX_SHAPES:
                del self._captured[next(iter(self._captured))]  # the least recently used
            found = Captured(self.model, x, want_rates=want_rates)
        self._captured[key] = found
        return found
