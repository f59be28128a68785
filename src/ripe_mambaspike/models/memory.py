"""Memory estimates of a pass, and a clear error if memory runs out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.data.clip_cache import free_memory
from ripe_mambaspike.errors import MemoryNeededError
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.flops import token_counts
from ripe_mambaspike.models.fused import kernels_cover
from ripe_mambaspike.ops.backend import precision

OUT_OF_MEMORY_PHRASES = (
    "allocate memory",
    "not enough memory",
    "out of memory",
    "ALLOC_FAILED",
)  # PyTorch, CUDA and its libraries
FLOAT32 = 4


def activation_bytes(
    config: RipeConfig, shape: Sequence[int], itemsize: int, *, training: bool, passes: int = 1
) -> int:
    """Estimated peak bytes of passes over clips [B, T, 2, H, W] on the fused path, beyond weights and input.

    Derived from the operators' outputs and saved tensors; measurements are within a factor of 1.5, since workspaces of
    GPU libraries and kernels are unknown. `itemsize` is that of the activations; `training` includes everything saved
    for gradients, for every pass (the first one hard, the others relaxed).
    """
    samples, steps, _, height, width = shape
    grids = config.grids(height, width)
    stages = [steps * h * w * c for (h, w), c in zip(grids, config.stage_channels, strict=True)]
    positions = grids[-1][0] * grids[-1][1]
    scales = config.stage_channels if config.bridge == "mr-s3a" else config.stage_channels[-1:]
    rates = steps * positions * 2 * sum(scales)
    mixed = steps * positions * config.bridge_width
    bridge = (rates + 2 * mixed) * itemsize + 2 * mixed * FLOAT32
    # Per level: each direction's inputs (twice the inner channels), the parts read from them and the result (the inner
    # channels each); the normed tokens.
    directions = 1 if config.causal else 2
    levels = []
    for count, level in zip(token_counts(config, (height, width)), config.levels(), strict=True):
        held = (4 * directions * level.sizes.inner(level.width) if level.mixes else 0) + level.width
        levels.append(steps * count * (held * itemsize + 3 * level.width * FLOAT32))
    if not training:
        return samples * _largest(stages, bridge, levels, itemsize)
    kept = steps * 2 * height * width * (itemsize + FLOAT32) + stages[-1] * itemsize + bridge + sum(levels)
    total = 0
    for index in range(passes):
        spike = itemsize if index else 1
        # Per stage: operand, output of both convolutions, the potential, modulated features, and one set of spikes.
        total += samples * (kept + sum(stages) * (6 * itemsize + spike))
    # Statistics of the branches: second moments of the patches and their algebra, independent of the batch.
    inputs = (2, *(c for c in config.stage_channels for _ in range(2)))[:-1]
    moments = sum((9 * channels) ** 2 for channels in inputs) * FLOAT32
    return total + (4 * passes + 5) * moments


def _largest(stages: Sequence[int], bridge: int, levels: Sequence[int], itemsize: int) -> int:
    """Elements for one sample's inference: the largest stage, bridge or level, with the spikes kept before it."""
    held = []
    spikes = operand = 0
    for size in stages:
        # Potential, two operands, the convolution's output and the spikes of both neurons.
        held.append(spikes + operand + size * (4 * itemsize + 2))
        spikes, operand = spikes + size, size * itemsize
    return max(*held, spikes + 2 * operand + max(bridge, *levels))


@contextmanager
def explain_model_memory(model: Any, x: Tensor, passes: int = 1, dtype: torch.dtype | None = None) -> Iterator[None]:
    """Inside, running out of memory raises a MemoryNeededError; `dtype` is that of products, if not x's."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_memory_error(error):
            raise
        raise out_of_memory_error(error, model, x, passes, dtype) from error


def out_of_memory_error(
    error: Exception, model: Any, x: Tensor, passes: int = 1, dtype: torch.dtype | None = None
) -> MemoryNeededError:
    """The error: what was requested, its estimated memory and what was left. Gradients count if enabled."""
    samples, steps, _, height, width = x.shape
    training = torch.is_grad_enabled()
    asked = f"{'a training pass' if training else 'a pass'} of batch {samples}, {steps} steps of {height}×{width},"
    needs = ""
    if isinstance(model.config, RipeConfig):
        itemsize = (dtype or precision(x)).itemsize
        needed = activation_bytes(model.config, x.shape, itemsize, training=training, passes=passes)
        about = "about" if kernels_cover(model, x) else "more than"  # the reference path keeps more
        needs = f" needs {about} {readable_bytes(needed)} beyond the weights and"
    free = free_memory(x.device)
    left = "" if free is None else f" with {readable_bytes(free)} left"
    hint = "reduce the batch" if samples > 1 else "reduce the side or the number of steps"
    return MemoryNeededError(f"{asked}{needs} ran out of memory on {x.device.type}{left}; {hint}")


def is_memory_error(error: BaseException) -> bool:
    """Whether the error means that memory ran out."""
    kinds = torch.OutOfMemoryError | MemoryError | MemoryNeededError
    return isinstance(error, kinds) or any(words in str(error) for words in OUT_OF_MEMORY_PHRASES)


def readable_bytes(count: int) -> str:
    """Bytes as human-readable text."""
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 28 else f"{count / (1 << 20):.1f} MiB"
