"""Operators that a traced program keeps as one node each, for a format that has an implementation of its own for them.

    @graph_node("scan", lambda x, weight: torch.empty_like(x))
    def scan_node(x: Tensor, weight: Tensor) -> Tensor: ...

registers `torch.ops.ripe_graph.scan`. The function is its reference. Inside `with graph_nodes("scan"):` an operator
calls its node when torch.export traces it; everywhere else it is traced through. One node in place of hundreds is quick
to trace, and the format is free to write it in the way that suits its runtime (`deploy/export/onnx_operators.py`,
`deploy/export/inductor_forms.py`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

NAMESPACE = "ripe_graph"
_kept: ContextVar[frozenset[str]] = ContextVar("graph_nodes", default=frozenset())


@contextmanager
def graph_nodes(*names: str) -> Iterator[None]:
    """Inside, torch.export finds one node for each operator of these names."""
    token = _kept.set(frozenset(names))
    try:
        yield
    finally:
        _kept.reset(token)


def keeps_node(name: str) -> bool:
    """Whether the operator of this name is to call its node."""
    return name in _kept.get() and torch.compiler.is_exporting()


def node_operator(name: str) -> Any:
    """What a traced program calls in the node of this name."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def graph_node(name: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Register a function of tensors and numbers; `fake` gives empty outputs of the right shapes."""

    def register(reference: Callable[..., Any]) -> Any:
        operator = torch.library.custom_op(f"{NAMESPACE}::{name}", reference, mutates_args=())
        operator.register_fake(fake)
        return operator

    return register
