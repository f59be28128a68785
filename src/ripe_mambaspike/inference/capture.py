"""A network prepared for one shape of input: weights in the operators' form, and on a GPU the whole pass as one graph.

    run = capture(fuse(model), example, dtype=torch.bfloat16)
    logits = run(clips)

On a GPU the graph reads `run.example`: clips are copied there, unless they were put there in the first place and
`run(run.example)` is called. What is captured are the weights as they are now; a network that is trained on is captured
anew.
"""

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError, MemoryNeededError
from ripe_mambaspike.models.base import Model, require_unmodified
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.fused import kernels_cover, plan, run_fused
from ripe_mambaspike.models.input_checks import check_finite
from ripe_mambaspike.models.memory import explain_model_memory
from ripe_mambaspike.nn.evaluation import evaluation
from ripe_mambaspike.ops.backend import log_once

WARM_UPS = 3  # runs before a graph is recorded: kernels compile, libraries choose


class Captured:
    """Per-step logits [B, T, classes] for inputs of one shape, precision and device."""

    def __init__(self, model: Model, example: Tensor, dtype: torch.dtype | None = None) -> None:
        require_unmodified(model, "capture")
        self.example = example.clone()
        self.model = model
        self.dtype = dtype or example.dtype
        self._graph: torch.cuda.CUDAGraph | None = None
        with torch.inference_mode(), evaluation(model), self._precision(), explain_model_memory(model, example):
            model(example)  # says what is wrong with the input, if anything is
            covered = isinstance(model.config, RipeConfig) and kernels_cover(model, example)
            self._plan = plan(model, example) if covered else None
        if example.is_cuda:
            self._record()

    def __call__(self, x: Tensor) -> Tensor:
        wanted = self.example
        if x.shape != wanted.shape or x.dtype != wanted.dtype or x.device != wanted.device:
            raise InputError(
                f"the input is {tuple(x.shape)} {x.dtype} on {x.device}; the network was captured for "
                f"{tuple(wanted.shape)} {wanted.dtype} on {wanted.device}"
            )
        check_finite(x)
        if self._graph is None:
            return self._compute(x)
        if x is not self.example:
            self.example.copy_(x)
        self._graph.replay()
        return self._logits.clone()

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.example.device.type, self.dtype, enabled=self.dtype != self.example.dtype)

    @torch.inference_mode()
    def _compute(self, x: Tensor) -> Tensor:
        with explain_model_memory(self.model, x, dtype=self.dtype):
            if self._plan is not None:
                return run_fused(self._plan, x, want_rates=False).logits
            with evaluation(self.model), self._precision():
                return self.model(x)

    def _record(self) -> None:
        """Run a few times beside the main stream, then record; a pass that cannot be recorded is run as it is."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._logits = self._compute(self.example)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._logits = self._compute(self.example)
        except (RuntimeError, MemoryNeededError) as error:
            torch.cuda.synchronize()
            log_once(
                f"the pass cannot be recorded as a CUDA graph ({str(error).splitlines()[0]}); it runs step by step"
            )
        else:
            self._graph = graph


def capture(model: Model, example: Tensor, dtype: torch.dtype | None = None) -> Captured:
    """The network ready for inputs like the example; `dtype` is what products are computed in."""
    return Captured(model, example, dtype)
