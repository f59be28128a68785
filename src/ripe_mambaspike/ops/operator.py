"""Small things the operators' registrations share."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def carrier_of(x: Tensor) -> Tensor:
    """A tensor of x's shape and precision that holds nothing; gradients flow through it."""
    return x.new_empty(()).expand(x.shape)


def nothing_like(x: Tensor) -> Tensor:
    """An empty tensor in the place of one that is not wanted: operators cannot return None."""
    return x.new_empty(0)


def or_none(inputs: Sequence[Tensor | None], grads: Sequence[Tensor]) -> list[Any]:
    """The gradients, None where the input was None."""
    return [None if given is None else grad for given, grad in zip(inputs, grads, strict=True)]
