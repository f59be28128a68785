"""The ways to run a module."""

import pytest

from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode

WAYS = pytest.mark.parametrize(
    ("training", "mode"),
    [(True, HARD), (False, HARD), (False, ForwardMode(literal=True))],
    ids=["training", "eval", "literal"],
)
