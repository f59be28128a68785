"""The nodes of `ops/graph_nodes.py` in ONNX's operators, written for onnxruntime's kernels on a CPU.

Elementwise kernels are quick where the last dimension is long and no dimension of one is broadcast inside it, so the
scan keeps its states as [.., N, D], channels last. Positions are unrolled: what one of them reads and writes fits into
a cache. Lengths may be symbols.

Glossary: as in `traced_scan.py`: L tokens, D channels, N states a channel; chunks of K positions, M of them. `..` are
the batch and whatever is before it.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ripe_mambaspike.ops import mamba_inner, neurons
from ripe_mambaspike.ops.graph_nodes import NAMESPACE

CHUNK = 32  # K
GROUP = 16  # chunks that are combined one after the other
DOUBLINGS = 9  # of groups, where their number is a symbol
MAX_TOKENS = CHUNK * GROUP * 2**DOUBLINGS
CHUNKS_AXIS, POSITIONS_AXIS = -4, -3  # of [.., M, K, N, D]
Value = Any  # of a graph being built


def translations() -> dict[Any, Callable[..., Any]]:
    """For `torch.onnx.export`: the function that writes each operator."""
    assert mamba_inner and neurons  # which register the nodes
    nodes = getattr(torch.ops, NAMESPACE)
    return {
        nodes.scan.default: write_scan,
        nodes.fire.default: write_fire,
        torch.ops.aten.softplus.default: write_softplus,
    }


def operators() -> Any:
    """ONNX's operators as functions; the exporter records what they are called with."""
    return importlib.import_module("onnxscript").opset18


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


def write_fire(
    x: Value,
    decay: Value,
    rotation: Value | None,
    gain: Value,
    threshold: Value,
    real: Value | None,
    imag: Value | None,
    reset: float,
) -> tuple[Value, Value, Value, Value]:
    """`ops.neurons.fire_node`: x [B, T, C, ...]; constants are expanded once to the size of a step."""
    op = operators()
    steps, trailing = x.shape[1], len(x.shape) - 3
    size = op.Shape(x, start=2)

    def per_position(constant: Value) -> Value:
        return op.Expand(op.Reshape(constant, _ints(op, [-1, *[1] * trailing])), size)

    driven = op.Mul(x, op.Reshape(gain, _ints(op, [-1, *[1] * trailing])))
    parts = _split(op, driven, steps, 1)
    decay, threshold = per_position(decay), per_position(threshold)
    rotation = None if rotation is None else per_position(rotation)
    step_axis = _ints(op, [1])
    real, imag = (None if one is None else op.Unsqueeze(one, step_axis) for one in (real, imag))
    kappa = None if rotation is None else op.CastLike(op.Constant(value_float=float(reset)), x)
    spikes, potentials = [], []
    for part in parts:
        potential = part if real is None else op.Add(part, op.Mul(decay, real))
        if rotation is None:
            spike = op.CastLike(op.GreaterOrEqual(potential, threshold), x)
            real = op.Sub(potential, op.Mul(spike, threshold))
        else:
            turned = None if real is None else op.Mul(rotation, real)
            if imag is not None:
                potential = op.Sub(potential, op.Mul(rotation, imag))
                turned = op.Add(op.Mul(decay, imag), turned)
            inner, imag = potential, turned
            potential = op.Add(inner, inner)
            spike = op.CastLike(op.GreaterOrEqual(potential, threshold), x)
            real = op.Sub(inner, op.Mul(spike, kappa))
        spikes.append(spike)
        potentials.append(potential)
    left = op.Squeeze(real, step_axis)
    zeros = op.Sub(left, left) if imag is None else op.Squeeze(imag, step_axis)
    return _concat(op, spikes, 1), _concat(op, potentials, 1), left, zeros


def write_scan(
    x: Value, delta: Value, decay: Value, input_weight: Value, output_weight: Value, initial_state: Value | None
) -> tuple[Value, Value]:
    """`ops.mamba_inner.traced_scan.scan_node`: x, delta [.., L, D], decay A [D, N] or [.., D, N], B and C [.., L, N]."""
    op = operators()
    lead, length = [0] * (len(x.shape) - 2), x.shape[-2]
    channels, states = decay.shape[-2], decay.shape[-1]
    count = -(-length // CHUNK) if isinstance(length, int) else None
    tokens = op.Shape(x, start=-2, end=-1)
    padding = op.Concat(_ints(op, [0]), op.Mod(op.Neg(tokens), _ints(op, [CHUNK])), axis=0)

    def positions(value: Value, *last: int) -> list[Value]:
        """[.., L, F] → K times [.., M, 1, *last]; past the end there are zeros, which leave every state as it is."""
        padded = op.Pad(value, padding, None, _ints(op, [-2]))
        return _split(op, op.Reshape(padded, _ints(op, [*lead, -1, CHUNK, *last])), CHUNK, POSITIONS_AXIS)

    rates = positions(delta, 1, channels)
    driving = positions(op.Mul(delta, x), 1, channels)
    into, out_of = positions(input_weight, states, 1), positions(output_weight, 1, states)
    decay = op.Transpose(decay, perm=[*range(len(decay.shape) - 2), len(decay.shape) - 1, len(decay.shape) - 2])
    if len(decay.shape or x.shape) > 2:
        decay = op.Unsqueeze(decay, _ints(op, [CHUNKS_AXIS, POSITIONS_AXIS]))
    decays = [op.Exp(op.Mul(rate, decay)) for rate in rates]
    inputs = [op.Mul(one, weight) for one, weight in zip(driving, into, strict=True)]

    begin = None
    if initial_state is not None:
        rank = len(initial_state.shape)
        turned = op.Transpose(initial_state, perm=[*range(rank - 2), rank - 1, rank - 2])
        begin = op.Unsqueeze(turned, _ints(op, [CHUNKS_AXIS, POSITIONS_AXIS]))
    if count == 1:
        state = begin
    else:
        total = op.Exp(op.Mul(_sum(op, rates), decay))
        state = _chunk_starts(op, _advance(op, decays, inputs, None)[-1], total, begin, count)
    held = _advance(op, decays, inputs, state)
    y = [op.MatMul(weight, one) for weight, one in zip(out_of, held, strict=True)]
    y = op.Reshape(_concat(op, y, POSITIONS_AXIS), _ints(op, [*lead, -1, channels]))
    y = op.Slice(y, _ints(op, [0]), tokens, _ints(op, [-2]))
    last = op.Slice(held[-1], _ints(op, [-1]), _ints(op, [2**31]), _ints(op, [CHUNKS_AXIS]))
    last = op.Squeeze(last, _ints(op, [CHUNKS_AXIS, POSITIONS_AXIS]))
    rank = len(x.shape)
    return y, op.Transpose(last, perm=[*range(rank - 2), rank - 1, rank - 2])


def _advance(op: Any, decays: Sequence[Value], inputs: Sequence[Value], state: Value | None) -> list[Value]:
    """The states after each position, from `state` (zeros if it is None)."""
    held = []
    for kept, drive in zip(decays, inputs, strict=True):
        state = drive if state is None else op.Add(op.Mul(kept, state), drive)
        held.append(state)
    return held


def _chunk_starts(op: Any, leaves: Value, total: Value, begin: Value | None, count: int | None) -> Value:
    """Every chunk's initial state [.., M, 1, N, D], from its final state from zero and its decay.

    Groups of chunks advance together, as the positions of chunks do; their own initial states are found by doubling.
    """
    chunks = op.Shape(leaves, start=CHUNKS_AXIS, end=CHUNKS_AXIS + 1)
    if count is not None and count <= GROUP:
        group, parts = count, [_split(op, one, count, CHUNKS_AXIS) for one in (total, leaves)]
        starts = begin
    else:
        group = GROUP
        padding = op.Concat(_ints(op, [0]), op.Mod(op.Neg(chunks), _ints(op, [GROUP])), axis=0)
        parts = []
        for one in (total, leaves):
            padded = op.Pad(one, padding, None, _ints(op, [CHUNKS_AXIS]))
            shape = op.Concat(
                op.Shape(one, end=CHUNKS_AXIS), _ints(op, [-1, GROUP]), op.Shape(one, start=-2), axis=0
            )
            parts.append(_split(op, op.Reshape(padded, shape), GROUP, POSITIONS_AXIS))
        groups = None if count is None else -(-count // GROUP)
        whole = parts[0][0]
        for one in parts[0][1:]:
            whole = op.Mul(whole, one)
        starts = _group_starts(op, _advance(op, *parts, None)[-1], whole, begin, groups)
    if starts is None:
        starts = op.Sub(parts[1][0], parts[1][0])
    held = [starts, *_advance(op, [one for one in parts[0][:-1]], parts[1][:-1], starts)]
    if count is not None and count <= GROUP:
        return _concat(op, held, CHUNKS_AXIS)
    joined = _concat(op, held, POSITIONS_AXIS)
    shape = op.Concat(op.Shape(leaves, end=CHUNKS_AXIS), _ints(op, [-1, 1]), op.Shape(leaves, start=-2), axis=0)
    return op.Slice(op.Reshape(joined, shape), _ints(op, [0]), chunks, _ints(op, [CHUNKS_AXIS]))


def _group_starts(op: Any, leaves: Value, total: Value, begin: Value | None, count: int | None) -> Value:
    """Every group's initial state, by doubling; the row of the overall initial state comes first, with decay zero."""
    axes, zero = _ints(op, [CHUNKS_AXIS]), _ints(op, [0])
    first = op.Slice(leaves, zero, _ints(op, [1]), axes)
    nothing = op.Sub(first, first)
    begin = nothing if begin is None else begin
    before = [op.Slice(one, zero, _ints(op, [-1]), axes) for one in (leaves, total)]
    leaves, total = op.Concat(begin, before[0], axis=CHUNKS_AXIS), op.Concat(nothing, before[1], axis=CHUNKS_AXIS)
    groups = op.Squeeze(op.Shape(leaves, start=CHUNKS_AXIS, end=CHUNKS_AXIS + 1))
    rows = op.Range(op.Constant(value_int=0), groups, op.Constant(value_int=1))
    doublings = DOUBLINGS if count is None else (count - 1).bit_length()
    for doubling in range(doublings):
        earlier = op.Max(op.Sub(rows, _ints(op, [2**doubling])), zero)
        leaves = op.Add(leaves, op.Mul(total, op.Gather(leaves, earlier, axis=CHUNKS_AXIS)))
        if doubling < doublings - 1:
            total = op.Mul(total, op.Gather(total, earlier, axis=CHUNKS_AXIS))
    return leaves


def _ints(op: Any, values: Sequence[int]) -> Value:
    return op.Constant(value_ints=list(values))


def _split(op: Any, value: Value, parts: int, axis: int) -> list[Value]:
    return [value] if parts == 1 else list(op.Split(value, axis=axis, num_outputs=parts))


def _concat(op: Any, values: Sequence[Value], axis: int) -> Value:
    return values[0] if len(values) == 1 else op.Concat(*values, axis=axis)


def _sum(op: Any, values: Sequence[Value]) -> Value:
    return op.Sum(*values)
