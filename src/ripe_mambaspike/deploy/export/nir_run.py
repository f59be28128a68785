"""Runs a NIR graph step by step, as NIR defines its nodes; the package `nir` itself runs nothing.

Time is divided into steps of `dt`, over which every input is constant: an integrator then follows its equation exactly.
The inputs of a node are summed. Every loop contains a delay, which returns its input of some steps ago.
"""

from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.errors import InputError

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]  # (input, state) → (output, state); the first state is None
Signals = Mapping[str, Tensor]  # what every node gave in this step
Replacement = Callable[[Tensor, int, Signals, Any], tuple[Tensor, Any]]  # (input, step, signals, state)


def run_graph(
    graph: Any,
    x: Tensor,
    dt: float,
    *,
    watch: Iterable[str] | None = None,
    replaced: Mapping[str, Replacement] | None = None,
) -> dict[str, Tensor]:
    """Run the graph on x [B, T, ...]; returns its outputs, or those of the nodes to watch, at every step [B, T, ...].

    A node inside an inner graph is named `graph/node`. A replaced node is computed by the function given for it.
    """
    nodes, edges = flat_nodes(graph)
    kinds = {name: type(node).__name__ for name, node in nodes.items()}
    sources: dict[str, list[str]] = {name: [] for name in nodes}
    for source, target in edges:
        sources[target].append(source)
    entries = list(graph.inputs)
    if len(entries) != 1:
        raise InputError.expected("inputs", "one input of the NIR graph", len(entries))
    expected = tuple(int(side) for side in nodes[entries[0]].input_type["input"])
    if x.ndim < 3 or tuple(x.shape[2:]) != expected:
        raise InputError.expected("x", f"steps of shape {expected}", tuple(x.shape[2:]))
    kept = list(graph.outputs) if watch is None else list(watch)
    if unknown := [name for name in kept if name not in nodes]:
        raise InputError.expected("watch", f"NIR nodes ({', '.join(nodes)})", unknown[0])
    order = _order(sources, kinds)
    delays = [name for name in order if kinds[name] == "Delay"]
    lengths = {name: _steps(name, nodes[name], dt) for name in delays}
    steps = {name: _step(name, nodes[name], dt, x) for name in order if name not in lengths}
    past: dict[str, list[Tensor]] = {name: [] for name in delays}
    states: dict[str, Any] = dict.fromkeys(order)
    seen: dict[str, list[Tensor]] = {name: [] for name in kept}
    for index, frame in enumerate(x.unbind(1)):
        signals: dict[str, Tensor] = {}
        for name in delays:
            shape = (len(x), *nodes[name].delay.shape)
            ready = len(past[name]) >= lengths[name]
            signals[name] = past[name].pop(0) if ready else x.new_zeros(shape)
        for name in order:
            if name in lengths:
                continue
            given = frame if name == entries[0] else _total(sources[name], signals, name)
            if replaced and name in replaced:
                signals[name], states[name] = replaced[name](given, index, signals, states[name])
            else:
                signals[name], states[name] = steps[name](given, states[name])
        for name in delays:
            past[name].append(_total(sources[name], signals, name))
        for name in kept:
            seen[name].append(signals[name])
    return {name: torch.stack(values, 1) for name, values in seen.items()}


def flat_nodes(graph: Any, prefix: str = "") -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """All nodes and edges of a graph and of the graphs inside it; edges lead to an inner graph's input and output."""
    nodes: dict[str, Any] = {}
    edges: list[tuple[str, str]] = []
    ends: dict[str, tuple[str, str]] = {}
    for name, node in graph.nodes.items():
        full = prefix + name
        if type(node).__name__ != "NIRGraph":
            nodes[full] = node
            continue
        if len(node.inputs) != 1 or len(node.outputs) != 1:
            raise InputError.expected(full, "one input and one output of an inner NIR graph", "more")
        ends[full] = (f"{full}/{next(iter(node.inputs))}", f"{full}/{next(iter(node.outputs))}")
        inner, inner_edges = flat_nodes(node, f"{full}/")
        nodes.update(inner)
        edges += inner_edges
    for source, target in graph.edges:
        before, after = prefix + source, prefix + target
        edges.append((ends.get(before, (before, before))[1], ends.get(after, (after, after))[0]))
    return nodes, edges


def _order(sources: Mapping[str, list[str]], kinds: Mapping[str, str]) -> list[str]:
    """Topological order of the nodes within a step; a delay reads the step before."""
    waits = {name: [] if kinds[name] == "Delay" else given for name, given in sources.items()}
    try:
        return list(TopologicalSorter(waits).static_order())
    except CycleError as error:
        loop = " → ".join(error.args[1])
        raise InputError.expected("edges", "a delay in every loop", f"{loop} without one") from error


def _total(sources: list[str], signals: Signals, name: str) -> Tensor:
    if not sources:
        raise InputError.expected(name, "an edge that leads to this NIR node", "none")
    total = signals[sources[0]]
    for source in sources[1:]:
        total = total + signals[source]
    return total


def _steps(name: str, node: Any, dt: float) -> int:
    """The length of a delay in steps."""
    counts = np.asarray(node.delay, np.float64) / dt
    whole = np.round(counts)
    if whole.size == 0 or whole.min() < 1 or whole.max() != whole.min() or np.abs(counts - whole).max() > 1e-3:
        raise InputError.expected(name, f"one delay of whole steps of {dt} s", "others")
    return int(whole.flat[0])


def _step(name: str, node: Any, dt: float, like: Tensor) -> Step:
    kind = type(node).__name__
    if kind not in STEPS:
        raise InputError.expected(name, f"a NIR node of {', '.join(STEPS)}, Delay", kind)
    return STEPS[kind](node, dt, like)


def _pass(node: Any, dt: float, like: Tensor) -> Step:
    return lambda x, state: (x, None)


def _scale(node: Any, dt: float, like: Tensor) -> Step:
    scale = _tensor(node.scale, like)
    return lambda x, state: (x * scale, None)


def _threshold(node: Any, dt: float, like: Tensor) -> Step:
    """1 above the threshold, which is rounded down to the signals' dtype."""
    exact = torch.as_tensor(np.asarray(node.threshold), device=like.device)
    threshold = exact.to(like.dtype)
    below = torch.nextafter(threshold, torch.full_like(threshold, -torch.inf))
    threshold = torch.where(threshold.to(torch.float64) > exact.to(torch.float64), below, threshold)
    return lambda x, state: ((x > threshold).to(x.dtype), None)


def _convolution(node: Any, dt: float, like: Tensor) -> Step:
    weight, bias = _tensor(node.weight, like), _tensor(node.bias, like)
    stride, padding, dilation = (_pair(value) for value in (node.stride, node.padding, node.dilation))
    groups = int(node.groups)
    return lambda x, state: (F.conv2d(x, weight, bias, stride, padding, dilation, groups), None)


def _integrator(node: Any, dt: float, like: Tensor) -> Step:
    """`τ dv/dt = (v_leak − v) + R I` over a step of constant I: v ← βv + (1−β)(v_leak + R I), β = exp(−dt/τ)."""
    decay = torch.exp(-dt / torch.as_tensor(node.tau, dtype=torch.float64)).to(like)
    resistance, leak = _tensor(node.r, like), _tensor(node.v_leak, like)

    def step(x: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        before = torch.zeros_like(x) if state is None else state
        potential = decay * before + (1 - decay) * (leak + resistance * x)
        return potential, potential

    return step


def _tensor(values: Any, like: Tensor) -> Tensor:
    return torch.as_tensor(np.asarray(values), device=like.device).to(like.dtype)


def _pair(value: Any) -> Any:
    return value if isinstance(value, str) else tuple(int(one) for one in np.broadcast_to(value, 2))


STEPS: dict[str, Callable[[Any, float, Tensor], Step]] = {
    "Input": _pass,
    "Output": _pass,
    "Scale": _scale,
    "Conv2d": _convolution,
    "LI": _integrator,
    "Threshold": _threshold,
}
