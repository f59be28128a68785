"""The nodes of `ops/graph_nodes.py` in ONNX's operators, written for onnxruntime's kernels on a CPU.

Elementwise kernels are quick where the last dimension is long and no dimension of one is broadcast inside it, so the
scan keeps its states as [.., N, D], channels last. Positions are unrolled: what one of them reads and writes fits into
a cache. Lengths may be symbols.

Glossary: as in `traced_scan.py`: L tokens, D channels, N states a channel; chunks of K positions, M of them. `..` are
the batch and whatever is before it. All chunks advance together from zero; ONNX's Scan finds their initial states.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from ripe_mambaspike.ops.integer_conv import FILTER_GRID, ZERO

MAX_CHUNK = 16  # the largest K
CHUNKS_AXIS, POSITIONS_AXIS = -4, -3  # of [.., M, K, N, D]
UINT8 = 2  # ONNX's number of the type
Value = Any  # of a graph being built


def operators() -> Any:
    """ONNX's operators as functions; the exporter records what they are called with."""
    return importlib.import_module("onnxscript").opset18


def write_project(factor: Value, x: Value) -> Value:
    """`ops.membrane_attention.reference.project_node`: onnxruntime takes the one matrix for all steps."""
    return operators().MatMul(factor, x)


def write_integer_conv(x: Value, values: Value, scale: Value, bias: Value, stride: int) -> Value:
    """`ops.integer_conv.integer_conv_node`: the patches of the bytes, channels last, times the weights as one matrix.

    ConvInteger would be one node, but onnxruntime computes it more slowly than a convolution of floats.
    """
    op = operators()
    step, zero = op.Constant(value_float=1 / FILTER_GRID), op.Cast(op.Constant(value_int=ZERO), to=UINT8)
    channels, in_channels = values.shape[0], values.shape[1]
    last = op.Transpose(op.QuantizeLinear(x, op.CastLike(step, x), zero), perm=[0, 2, 3, 1])
    sides = constant_ints(op, [1, 2])
    padded = op.Pad(last, constant_ints(op, [1, 1, 1, 1]), zero, sides)
    ends, strides = (-2, -1, 2**31), constant_ints(op, [stride, stride])
    taps = [
        op.Slice(padded, constant_ints(op, [row, column]), constant_ints(op, [ends[row], ends[column]]), sides, strides)
        for row in range(3)
        for column in range(3)
    ]
    matrix = op.Reshape(op.Transpose(values, perm=[2, 3, 1, 0]), constant_ints(op, [9 * in_channels, channels]))
    sums = op.CastLike(op.MatMulInteger(op.Concat(*taps, axis=3), matrix, zero), x)
    unit = op.Mul(op.Reshape(op.CastLike(scale, x), constant_ints(op, [-1])), op.CastLike(step, x))
    return op.Transpose(op.Add(op.Mul(sums, unit), bias), perm=[0, 3, 1, 2])


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
        return op.Expand(op.Reshape(constant, constant_ints(op, [-1, *[1] * trailing])), size)

    def constant(value: float) -> Value:
        return op.CastLike(op.Constant(value_float=value), x)

    if rotation is not None:  # U = 2 Re m: with 2 m as the state, every number is the same but for its exponent
        gain, reset = op.Mul(gain, constant(2.0)), 2 * reset
        real, imag = (None if one is None else op.Mul(one, constant(2.0)) for one in (real, imag))
    driven = op.Mul(x, op.Reshape(gain, constant_ints(op, [-1, *[1] * trailing])))
    parts = _split(op, driven, steps, 1)
    decay, threshold = per_position(decay), per_position(threshold)
    rotation = None if rotation is None else per_position(rotation)
    step_axis = constant_ints(op, [1])
    real, imag = (None if one is None else op.Unsqueeze(one, step_axis) for one in (real, imag))
    spikes, potentials = [], []
    for part in parts:
        potential = part if real is None else op.Add(part, op.Mul(decay, real))
        turned = None if rotation is None or real is None else op.Mul(rotation, real)
        if rotation is not None and imag is not None:
            potential = op.Sub(potential, op.Mul(rotation, imag))
            turned = op.Add(op.Mul(decay, imag), turned)
        spike = op.CastLike(op.GreaterOrEqual(potential, threshold), x)
        if rotation is None:
            lost = op.Mul(spike, threshold)
        else:
            lost, imag = spike if reset == 1 else op.Mul(spike, constant(reset)), turned
        real = op.Sub(potential, lost)
        spikes.append(spike)
        potentials.append(potential)
    left = op.Squeeze(real, step_axis)
    zeros = op.Sub(left, left) if imag is None else op.Squeeze(imag, step_axis)
    if rotation is not None:
        left, zeros = op.Mul(left, constant(0.5)), op.Mul(zeros, constant(0.5))
    return _concat(op, spikes, 1), _concat(op, potentials, 1), left, zeros


def write_scan(
    x: Value, delta: Value, decay: Value, input_weight: Value, output_weight: Value, initial_state: Value | None
) -> tuple[Value, Value]:
    """`ops.mamba_inner.traced_scan.scan_node`: x, delta [.., L, D]; decay A [D, N] or [.., D, N]; B, C [.., L, N]."""
    op = operators()
    lead, length = [0] * (len(x.shape) - 2), x.shape[-2]
    channels, states, per_sequence = decay.shape[-2], decay.shape[-1], len(decay.shape) > 2
    count, chunk = None, MAX_CHUNK
    if isinstance(length, int):
        count = -(-length // MAX_CHUNK)
        chunk = -(-length // count)  # chunks of equal length need less padding
    tokens = op.Shape(x, start=-2, end=-1)
    padding = op.Concat(constant_ints(op, [0]), op.Mod(op.Neg(tokens), constant_ints(op, [chunk])), axis=0)

    def positions(value: Value, *last: int) -> list[Value]:
        """[.., L, F] → K times [.., M, 1, *last]; past the end there are zeros, which leave every state as it is."""
        padded = op.Pad(value, padding, None, constant_ints(op, [-2]))
        return _split(op, op.Reshape(padded, constant_ints(op, [*lead, -1, chunk, *last])), chunk, POSITIONS_AXIS)

    rates = positions(delta, 1, channels)
    driving = positions(op.Mul(delta, x), 1, channels)
    into, out_of = positions(input_weight, states, 1), positions(output_weight, 1, states)
    decay = _turned(op, decay, len(decay.shape))
    if per_sequence:
        decay = op.Unsqueeze(decay, constant_ints(op, [CHUNKS_AXIS, POSITIONS_AXIS]))
    decays = [op.Exp(op.Mul(rate, decay)) for rate in rates]
    inputs = [op.Mul(one, weight) for one, weight in zip(driving, into, strict=True)]

    begin = None
    if initial_state is not None:
        begin = op.Unsqueeze(_turned(op, initial_state, len(initial_state.shape)), constant_ints(op, [POSITIONS_AXIS]))
    if count != 1:
        total = op.Exp(op.Mul(op.Sum(*rates), decay))
        begin = _chunk_starts(op, _advance(op, decays, inputs, None)[-1], total, begin)
    elif begin is not None:
        begin = op.Unsqueeze(begin, constant_ints(op, [CHUNKS_AXIS]))
    held = _advance(op, decays, inputs, begin)
    y = [op.MatMul(weight, one) for weight, one in zip(out_of, held, strict=True)]
    y = op.Reshape(_concat(op, y, POSITIONS_AXIS), constant_ints(op, [*lead, -1, channels]))
    y = op.Slice(y, constant_ints(op, [0]), tokens, constant_ints(op, [-2]))
    last = op.Slice(held[-1], constant_ints(op, [-1]), constant_ints(op, [2**31]), constant_ints(op, [CHUNKS_AXIS]))
    last = op.Squeeze(last, constant_ints(op, [CHUNKS_AXIS, POSITIONS_AXIS]))
    return y, _turned(op, last, len(x.shape))


def _advance(op: Any, decays: Sequence[Value], inputs: Sequence[Value], state: Value | None) -> list[Value]:
    """The states after each position, from `state` (zeros if it is None)."""
    held = []
    for kept, drive in zip(decays, inputs, strict=True):
        state = drive if state is None else op.Add(op.Mul(kept, state), drive)
        held.append(state)
    return held


def _chunk_starts(op: Any, leaves: Value, total: Value, begin: Value | None) -> Value:
    """Every chunk's initial state [.., M, 1, N, D], from its final state from zero and its decay, one after the other.

    `begin` [.., 1, N, D] is the first chunk's. ONNX's Scan is a loop over the chunks, whose number may be a symbol.
    """
    if begin is None:
        axes = constant_ints(op, [CHUNKS_AXIS])
        first = op.Squeeze(op.Slice(leaves, constant_ints(op, [0]), constant_ints(op, [1]), axes), axes)
        begin = op.Sub(first, first)
    axis = [CHUNKS_AXIS]
    last = op.Scan(
        *(begin, total, leaves),
        body=_next_chunk(),
        num_scan_inputs=2,
        scan_input_axes=2 * axis,
        scan_output_axes=axis,
    )
    node = last.producer()
    node.resize_outputs(2)  # the exporter gives an operator with any number of outputs only one
    return node.outputs[1]


def _next_chunk() -> Any:
    """The body of the Scan: (state, total, leaf) → (total · state + leaf, state)."""
    ir = importlib.import_module("onnx_ir")
    state, total, leaf = (ir.Value(name=f"chunk.{name}") for name in ("state", "total", "leaf"))
    kept = ir.Node("", "Mul", [total, state], outputs=[ir.Value(name="chunk.kept")])
    after = ir.Node("", "Add", [kept.outputs[0], leaf], outputs=[ir.Value(name="chunk.after")])
    before = ir.Node("", "Identity", [state], outputs=[ir.Value(name="chunk.before")])
    outputs = [after.outputs[0], before.outputs[0]]
    return ir.Graph([state, total, leaf], outputs, nodes=[kept, after, before], name="next_chunk")


def _turned(op: Any, value: Value, rank: int) -> Value:
    """With the last two dimensions exchanged."""
    return op.Transpose(value, perm=[*range(rank - 2), rank - 1, rank - 2])


def constant_ints(op: Any, values: Sequence[int]) -> Value:
    return op.Constant(value_ints=list(values))


def _split(op: Any, value: Value, parts: int, axis: int) -> list[Value]:
    return [value] if parts == 1 else list(op.Split(value, axis=axis, num_outputs=parts))


def _concat(op: Any, values: Sequence[Value], axis: int) -> Value:
    return values[0] if len(values) == 1 else op.Concat(*values, axis=axis)
