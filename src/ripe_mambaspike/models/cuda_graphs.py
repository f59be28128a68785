"""CUDA graphs: a pass recorded once and replayed as a whole.

A pass over one clip is about a hundred short kernels; launching them from Python takes twenty times
as long as computing them. `record` records any pass. `RecordedPasses` does it for `model(x)` in evaluation: an input of
a shape that comes for the third time is recorded, if it is small enough for launches to matter. The results have the
same bits. RIPE_CUDA_GRAPHS=off turns that off.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ripe_mambaspike.errors import MemoryNeededError
from ripe_mambaspike.ops.backend import log_once

WARM_UPS = 3  # runs before a graph is recorded: kernels compile, libraries choose
MIN_CALLS = 3  # with inputs of one shape, before `model(x)` records it
MAX_GRAPHS = 4  # that one network keeps; each holds the memory of a pass
MAX_ELEMENTS = 8 * 16 * 2 * 128 * 128  # of an input; the kernels of a larger one take longer than their launches

T = TypeVar("T")

_recording: ContextVar[bool] = ContextVar("recording", default=True)


@contextmanager
def no_recording() -> Iterator[None]:
    """Inside, `model(x)` launches its kernels one by one: for who records the pass, or measures its memory."""
    token = _recording.set(False)
    try:
        yield
    finally:
        _recording.reset(token)


def record(compute: Callable[[], T], warm_ups: int = WARM_UPS) -> tuple[torch.cuda.CUDAGraph | None, T]:
    """The graph of a pass and the output that it overwrites on each replay; None where the pass cannot be recorded."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_ups):
            output = compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = compute()
    except (RuntimeError, MemoryNeededError) as error:
        torch.cuda.synchronize()
        log_once(f"the pass cannot be recorded as a CUDA graph ({str(error).splitlines()[0]}); it runs step by step")
        return None, compute()
    return graph, output


class _Recorded(NamedTuple):
    plan: Any  # the prepared weights that the graph computes with
    graph: torch.cuda.CUDAGraph | None  # None where the pass cannot be recorded
    x: Tensor
    logits: Tensor


class RecordedPasses:
    """The graphs of one network, by the input's shape and all else that decides which kernels run."""

    def __init__(self) -> None:
        self._calls: dict[Any, int] = {}
        self._recorded: dict[Any, _Recorded] = {}
        self._lock = Lock()  # between copying an input in and its logits out

    def clear(self) -> None:
        self._calls.clear()
        self._recorded.clear()

    def run(self, plan: Any, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """compute(x) with the prepared weights `plan`, by a graph once the shape has come a few times."""
        if not _usable(x):
            return compute(x)
        key = (x.shape, x.dtype, x.device, torch.cuda.current_stream(x.device).stream_id, *_settings())
        with self._lock:
            found = self._recorded.get(key)
            if found is None or found.plan is not plan:
                self._recorded.pop(key, None)
                self._calls[key] = calls = self._calls.get(key, 0) + 1
                if calls < MIN_CALLS:
                    return compute(x)
                found = self._record(key, plan, x, compute)
            if found.graph is None:
                return compute(x)
            found.x.copy_(x)
            found.graph.replay()
            return found.logits.clone()

    def _record(self, key: Any, plan: Any, x: Tensor, compute: Callable[[Tensor], Tensor]) -> _Recorded:
        while len(self._recorded) >= MAX_GRAPHS:
            del self._recorded[next(iter(self._recorded))]
        if len(self._calls) > 16 * MAX_GRAPHS:
            self._calls.clear()
        with torch.inference_mode():
            example = x.clone()
            graph, logits = record(lambda: compute(example), warm_ups=1)
        self._recorded[key] = _Recorded(plan, graph, example, logits)
        return self._recorded[key]


def _usable(x: Tensor) -> bool:
    """Whether x is worth a graph, and may be recorded now."""
    if not x.is_cuda or x.numel() > MAX_ELEMENTS or torch.is_grad_enabled():
        return False
    if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return False
    return _recording.get() and os.environ.get("RIPE_CUDA_GRAPHS", "auto") != "off"


def _settings() -> tuple[Any, ...]:
    """PyTorch's switches that choose other kernels."""
    cudnn = torch.backends.cudnn
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        cudnn.enabled,
        cudnn.allow_tf32,
        cudnn.benchmark,
        cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
    )
