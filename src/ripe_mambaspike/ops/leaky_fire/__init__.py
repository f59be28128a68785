"""The leaky neuron of published spiking networks, over all steps in one operator.

    u_t = decay · v_{t−1} + gain · x_t   the membrane potential
    s_t = 1 where u_t ≥ threshold        the spikes
    v_t = u_t · (1 − s_t)                the hard reset, to zero, or
    v_t = u_t − threshold · s_t          the soft reset, by subtraction

Backward, s_t has the slope of a surrogate at u_t − threshold (`ops.spikes.SLOPES`). With `detach_reset` the s_t in the
reset counts as a constant.

Every element has its own membrane, so the operator sees a dense tensor as [G, T, N], in the order of its memory: G
elements of the dimensions outside time, N of those inside. States are float32, or float64 for a float64 input.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.ops.backend import backend
from ripe_mambaspike.ops.operator import Operator
from ripe_mambaspike.ops.shapes import sum_dtype
from ripe_mambaspike.ops.spikes import SLOPES

TIME = 1  # the dimension of steps


class LeakyFireInputs(NamedTuple):
    x: Tensor  # [G, T, N]
    decay: Tensor  # one element
    gain: Tensor  # one element
    initial_state: Tensor | None  # [G, N], None for zeros
    threshold: float
    hard_reset: bool
    detach_reset: bool
    surrogate: str
    sharpness: float


def leaky_fire(
    x: Tensor,
    decay: Tensor,
    gain: Tensor,
    *,
    threshold: float = 1.0,
    hard_reset: bool = True,
    detach_reset: bool = True,
    surrogate: str = "atan",
    sharpness: float = 2.0,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x [B, T, ...] → (spikes [B, T, ...] in x's dtype, the membrane after the last reset [B, ...]).

    decay and gain have one element each. x may lie in any order in memory, with time before or after the batch, or
    with the channels last: the spikes have the same order. There are gradients for x, decay, gain and initial_state.
    """
    i = LeakyFireInputs(
        x, decay, gain, initial_state, float(threshold), hard_reset, detach_reset, surrogate, float(sharpness)
    )
    _check(i)
    if torch.compiler.is_exporting():  # the order in memory, which is no matter to the values, would become a guard
        return LEAKY_FIRE.reference(i)
    compute = LEAKY_FIRE.reference if backend(x) is None else LEAKY_FIRE
    order = memory_order(x)
    before = order.index(TIME)
    rest = [dim if dim < TIME else dim - 1 for dim in order if dim != TIME]  # of the state, which has no time
    sizes = [x.shape[dim] for dim in order]
    groups, each = math.prod(sizes[:before]), math.prod(sizes[before + 1 :])
    if initial_state is not None:
        initial_state = initial_state.permute(rest).reshape(groups, each)
    flat = x.permute(order).contiguous().view(groups, x.shape[TIME], each)
    spikes, final = compute(i._replace(x=flat, initial_state=initial_state))
    state_sizes = sizes[:before] + sizes[before + 1 :]
    return spikes.view(sizes).permute(_inverse(order)), final.view(state_sizes).permute(_inverse(rest))


def memory_order(x: Tensor) -> list[int]:
    """The dimensions of x from the one with the largest stride to the one with the smallest.

    Time is never the last but comes first instead: the kernels need neighbors that do not depend on each other.
    """
    order = sorted(range(x.ndim), key=x.stride, reverse=True)
    place = order.index(TIME)
    if all(x.shape[dim] == 1 for dim in order[place + 1 :]):
        order.insert(0, order.pop(place))
    return order


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(dim) for dim in range(len(order))]


def _check(i: LeakyFireInputs) -> None:
    if i.surrogate not in SLOPES:
        raise ConfigError.expected("surrogate", f"one of {', '.join(SLOPES)}", repr(i.surrogate))
    if i.x.ndim < 2 or i.x.shape[TIME] == 0 or not i.x.is_floating_point():
        raise InputError.expected("x", "floats [B, T, ...] with a step or more", f"{i.x.dtype} {list(i.x.shape)}")
    for name, one in (("decay", i.decay), ("gain", i.gain)):
        if one.numel() != 1:
            raise InputError.expected(name, "one element", str(list(one.shape)))
    wanted = [i.x.shape[0], *i.x.shape[2:]]
    if i.initial_state is not None and list(i.initial_state.shape) != wanted:
        raise InputError.expected("initial_state", f"the shape {wanted}", str(list(i.initial_state.shape)))


def empty_leaky_fire(i: LeakyFireInputs) -> tuple[Tensor, Tensor]:
    """Both outputs, uninitialized."""
    return i.x.new_empty(i.x.shape), i.x.new_empty((i.x.shape[0], i.x.shape[2]), dtype=sum_dtype(i.x))


LEAKY_FIRE = Operator(
    "leaky_fire",
    LeakyFireInputs,
    ("spikes", "final_state"),
    empty_leaky_fire,
    gradients=("x", "decay", "gain", "initial_state"),
)
