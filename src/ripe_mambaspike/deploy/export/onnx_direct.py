"""PyTorch's own operators in ONNX, where the exporter has none or a slow one, and which need no decomposition.

The exporter traces a program a second time to decompose its operators. A network that calls only operators that can be
written as they are is spared that (`needs_no_decomposition`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ripe_mambaspike.deploy.export.onnx_operators import (
    Value,
    constant_ints,
    operators,
    write_fire,
    write_integer_conv,
    write_project,
    write_scan,
)
from ripe_mambaspike.ops.graph_nodes import node_operator

# The nodes of `ops/graph_nodes.py` that are kept, and the functions that write them.
WRITTEN_NODES: dict[str, Callable[..., Any]] = {
    "scan": write_scan,
    "fire": write_fire,
    "project": write_project,
    "integer_conv": write_integer_conv,
}

# Operators of `torch.ops.aten` that PyTorch's exporter writes as they are.
DIRECT = """
    add.Tensor addcmul.default amax.default amin.default arange.default arange.start bmm.default cat.default
    chunk.default clamp.default clone.default conv2d.default cumsum.default div.Tensor div.Tensor_mode
    exp.default expand.default flip.default ge.Tensor index_select.default layer_norm.default
    lift_fresh_copy.default linear.default lt.Tensor matmul.default maximum.default mean.dim minimum.default
    mul.Tensor neg.default new_zeros.default pad.default relu.default reshape.default select.int sigmoid.default
    silu.default slice.Tensor softmax.int split_with_sizes.default squeeze.dim stack.default sub.Tensor
    sum.dim_IntList sym_size.int transpose.int unbind.int unsqueeze.default view_as.default zeros_like.default
"""


def translations() -> dict[Any, Callable[..., Any]]:
    """For `torch.onnx.export`: the function that writes each operator."""
    aten = torch.ops.aten
    return {
        **{node_operator(name): written for name, written in WRITTEN_NODES.items()},
        aten.softplus.default: write_softplus,
        aten.flatten.using_ints: write_flatten,
        aten.unflatten.int: write_unflatten,
        aten.to.dtype: write_cast,
        aten.__and__.Tensor: write_and,
        aten.rsub.Scalar: write_rsub,
        aten.detach_.default: write_detach,
    }


def needs_no_decomposition(program: torch.export.ExportedProgram) -> bool:
    """Whether every operator of the program can be written as it is."""
    direct = {*translations(), *(_overload(name) for name in DIRECT.split())}
    called = {node.target for node in program.graph.nodes if node.op == "call_function"}
    return {target for target in called if isinstance(target, torch._ops.OpOverload)} <= direct


def _overload(name: str) -> Any:
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def write_cast(x: Value, dtype: int, non_blocking: bool = False, copy: bool = False, memory_format: int = 0) -> Value:
    """The exporter gives the dtype as ONNX's number."""
    return operators().Cast(x, to=dtype)


def write_and(one: Value, other: Value) -> Value:
    return operators().And(one, other)


def write_detach(x: Value) -> Value:
    return operators().Identity(x)


def write_rsub(x: Value, other: Value, alpha: float = 1) -> Value:
    """other − x; `other` is a number, or a value where it depends on a symbol."""
    op = operators()
    if isinstance(other, int | float):
        other = op.Constant(value_int=other) if isinstance(other, int) else op.Constant(value_float=other)
    scaled = x if alpha == 1 else op.Mul(x, op.CastLike(op.Constant(value_float=float(alpha)), x))
    return op.Sub(op.CastLike(other, x), scaled)


def write_flatten(x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """One Reshape, and the sizes after the joined ones where they are symbols."""
    rank = len(x.shape)
    start, end = start_dim % rank, end_dim % rank
    return _reshape(operators(), x, [*[0] * start, -1], end + 1) if start < end else operators().Identity(x)


def write_unflatten(x: Value, dim: int, sizes: Sequence[Value]) -> Value:
    """One Reshape, if at most one of the sizes is a symbol."""
    op, dim = operators(), dim % len(x.shape)
    fixed = [size if isinstance(size, int) else -1 for size in sizes]
    if fixed.count(-1) <= 1:
        return _reshape(op, x, [*[0] * dim, *fixed], dim + 1)
    parts = [
        constant_ints(op, [size]) if isinstance(size, int) else op.Reshape(size, constant_ints(op, [1]))
        for size in sizes
    ]
    return op.Reshape(x, op.Concat(*[constant_ints(op, [0])] * dim, *parts, op.Shape(x, start=dim + 1), axis=0))


def _reshape(op: Any, x: Value, first: list[int], kept: int) -> Value:
    """x in the sizes `first` (0 stands for its own), and then its own from dimension `kept` on."""
    own = [size for size in x.shape[kept:] if isinstance(size, int)]
    if len(own) == len(x.shape) - kept:
        return op.Reshape(x, constant_ints(op, [*first, *own]))
    return op.Reshape(x, op.Concat(constant_ints(op, first), op.Shape(x, start=kept), axis=0))


def write_softplus(x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """max(x, 0) + log(1 + e), e = exp(−|βx|); onnxruntime's own kernel computes one number at a time.

    log(1 + e) is log(u) · e / (u − 1) with u = 1 + e rounded (Kahan): exact to the last digits for every e.
    """
    op = operators()
    scaled = x if beta == 1 else op.Mul(x, beta)
    small = op.Exp(op.Neg(op.Abs(scaled)))
    one = op.CastLike(op.Constant(value_float=1.0), x)
    tiny = op.CastLike(op.Constant(value_float=1e-30), x)
    above = op.Add(small, one)
    log = op.Mul(op.Log(above), op.Div(small, op.Max(op.Sub(above, one), tiny)))
    return op.Add(op.Relu(x), log if beta == 1 else op.Div(log, beta))
