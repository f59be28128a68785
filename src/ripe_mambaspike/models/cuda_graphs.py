"""CUDA graphs: a pass captured once and replayed as a whole.

A pass over one clip is about a hundred short kernels; launching them from Python takes twenty times
as long as computing them. `record_graph` captures any pass. `RecordedPasses` does it for `model(x)` in evaluation: the
third call with an input shape is captured, if it is small enough for launches to matter. `RecordedUpdates` does it for
the steps of a stream, which update a state in place. The results are bit-identical. RIPE_CUDA_GRAPHS=off disables this.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ripe_mambaspike.errors import MemoryNeededError
from ripe_mambaspike.ops.backend import log_once

WARM_UPS = 3  # runs before a capture: kernels compile, libraries choose algorithms
MIN_CALLS = 3  # with one input shape, before `model(x)` is captured
MAX_GRAPHS = 4  # per network; each holds the memory of a pass
MAX_UPDATE_GRAPHS = 16  # per function of a stream
MAX_ELEMENTS = 8 * 16 * 2 * 128 * 128  # of an input; with more, kernels take longer than their launches

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


def record_graph(compute: Callable[[], T], warm_ups: int = WARM_UPS) -> tuple[torch.cuda.CUDAGraph | None, T]:
    """The graph of a pass and the output that each replay overwrites; None if the pass cannot be captured."""
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
        log_once(f"the pass cannot be captured as a CUDA graph ({str(error).splitlines()[0]}); running it without one")
        return None, compute()
    return graph, output


class _Recorded(NamedTuple):
    plan: Any  # the prepared weights that the graph computes with
    graph: torch.cuda.CUDAGraph | None  # None if the pass cannot be captured
    x: Tensor
    logits: Tensor


class RecordedPasses:
    """The graphs of one network, by the input's shape and all settings that select kernels."""

    def __init__(self) -> None:
        self._calls: dict[Any, int] = {}
        self._recorded: dict[Any, _Recorded] = {}
        self._lock = Lock()  # held from copying an input in until its logits are copied out

    def clear(self) -> None:
        self._calls.clear()
        self._recorded.clear()

    def run(self, plan: Any, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """compute(x) with the prepared weights `plan`, by a graph once the shape was used a few times."""
        if x.numel() > MAX_ELEMENTS or not _usable(x):
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
            graph, logits = record_graph(lambda: compute(example), warm_ups=1)
        self._recorded[key] = _Recorded(plan, graph, example, logits)
        return self._recorded[key]


class RecordedUpdates(Generic[T]):
    """A function of tensors that updates other tensors in place, by a graph for each of its input shapes.

    `updated` are all tensors that it changes: recording runs it several times and restores them. The outputs are
    overwritten by the next call with the same shapes.
    """

    def __init__(self, compute: Callable[..., T], updated: Sequence[Tensor] = ()) -> None:
        self._compute, self._updated = compute, updated
        self._calls: dict[Any, int] = {}
        self._recorded: dict[Any, tuple[torch.cuda.CUDAGraph | None, tuple[Tensor, ...], T]] = {}

    @torch.inference_mode()
    def __call__(self, *inputs: Tensor) -> T:
        if not _usable(inputs[0]):
            return self._compute(*inputs)
        key = (*(one.shape for one in inputs), *_settings())
        found = self._recorded.get(key)
        if found is None:
            self._calls[key] = calls = self._calls.get(key, 0) + 1
            if calls < MIN_CALLS or len(self._recorded) >= MAX_UPDATE_GRAPHS:
                return self._compute(*inputs)
            found = self._recorded[key] = self._record(inputs)
        graph, places, output = found
        if graph is None:
            return self._compute(*inputs)
        for place, given in zip(places, inputs, strict=True):
            place.copy_(given)
        graph.replay()
        return output

    def _record(self, inputs: tuple[Tensor, ...]) -> tuple[torch.cuda.CUDAGraph | None, tuple[Tensor, ...], T]:
        places = tuple(one.clone() for one in inputs)
        kept = [one.clone() for one in self._updated]
        graph, output = record_graph(lambda: self._compute(*places), warm_ups=1)
        for one, value in zip(self._updated, kept, strict=True):
            one.copy_(value)
        return graph, places, output


def _usable(x: Tensor) -> bool:
    """Whether a pass over x can be captured now."""
    if torch.compiler.is_compiling() or not x.is_cuda or torch.is_grad_enabled():
        return False
    if torch.cuda.is_current_stream_capturing():
        return False
    return _recording.get() and os.environ.get("RIPE_CUDA_GRAPHS", "auto") != "off"


def _settings() -> tuple[Any, ...]:
    """PyTorch's global settings that select kernels."""
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
