"""The network's neurons and temporal filters as loops of NIR's primitives.

NIR's own LIF resets to a fixed potential; these neurons subtract, and one of them has a complex pole. Both are
expressed exactly by an integrator or a delayed sum, a threshold, and a delay of one step that feeds back the spike. NIR
sums the inputs of a node. Derived constants are stored in float64, whatever the network's dtype, so that in float64 a
loop fires exactly as the network does.
"""

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.ops.neurons import CSILIF_RESET
from ripe_mambaspike.ops.norm_fire import NeuronConstants

Array = NDArray[Any]
Grid = tuple[int, int]

STEP = 0.004  # seconds a step lasts in the file: the neurons' own unit, in which τ = −STEP / ln β


def nir() -> Any:
    """The package nir, imported on first use; it has no types."""
    return importlib.import_module("nir")


def array(values: Tensor) -> Array:
    """As an array, a single number as numpy's: that is what NIR files take."""
    return values.detach().cpu().numpy().copy()[()]


def spread(values: Array, grid: Grid) -> Array:
    """Per-channel values [C] expanded to every position [C, H, W], as NIR's nodes expect."""
    return np.broadcast_to(values[:, None, None], (*values.shape, *grid)).copy()


class GraphBuilder:
    """A NIR graph in the making: nodes over a grid, each with the nodes whose outputs it sums."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.nodes: dict[str, Any] = {}
        self.edges: list[tuple[str, str]] = []

    def add(self, name: str, node: Any, *sources: str) -> str:
        """Add a node; a source may be added later. Returns its name."""
        self.nodes[name] = node
        self.edges += [(source, name) for source in sources]
        return name

    def scale(self, name: str, values: Array, *sources: str) -> str:
        """A factor for each channel."""
        return self.add(name, nir().Scale(scale=spread(values, self.grid)), *sources)

    def delay(self, name: str, channels: int, source: str) -> str:
        """A delay of one step."""
        return self.add(name, nir().Delay(delay=np.full((channels, *self.grid), STEP)), source)

    def build(self, metadata: dict[str, Any]) -> Any:
        return nir().NIRGraph(self.nodes, self.edges, metadata=metadata)


def neuron_graph(
    neuron: NeuronConstants, grid: Grid, metadata: dict[str, Any], reset_factor: float = CSILIF_RESET
) -> Any:
    """A neuron as a graph of its own: current in, spikes out; the node `potential` gives the potential before reset.

    `reset_factor` is κ of a rotating neuron.
    """
    decay, gain, threshold = (array(value.double()) for value in (neuron.decay, neuron.gain, neuron.threshold))
    shape = np.array([len(decay), *grid])
    graph = GraphBuilder(grid)
    graph.add("input", nir().Input(input_type=shape))
    # fires above its value, the network's neurons at theirs
    graph.add("fire", nir().Threshold(threshold=spread(np.nextafter(threshold, -np.inf), grid)), "potential")
    graph.add("output", nir().Output(output_type=shape), "fire")
    if neuron.rotation is not None:
        _resonator(graph, decay, array(neuron.rotation.double()), gain, reset_factor)
    elif np.all((decay > 0) & (decay < 1)):
        _integrator(graph, decay, gain, threshold)
    else:
        _sum(graph, decay, gain, threshold)
    return graph.build(metadata)


def _integrator(graph: GraphBuilder, decay: Array, gain: Array, threshold: Array) -> None:
    """`u ← β(u − v s) + g x`: a leaky integrator of x and of the spike before, whose current takes v off."""
    tau, resistance = spread(-STEP / np.log(decay), graph.grid), spread(gain / (1 - decay), graph.grid)
    graph.add("potential", nir().LI(tau=tau, r=resistance, v_leak=np.zeros_like(tau)), "input", "reset")
    graph.delay("before", len(decay), "fire")
    graph.scale("reset", -decay * threshold / gain, "before")


def _sum(graph: GraphBuilder, decay: Array, gain: Array, threshold: Array) -> None:
    """The same neuron if β rounds to 0 or 1, which no time constant gives: `u ← g x + β (u − v s)` as sums."""
    graph.scale("current", gain, "input")
    graph.scale("potential", np.ones_like(decay), "current", "leak")
    _remainder(graph, -threshold, "potential")
    graph.scale("leak", decay, "before")


def _resonator(graph: GraphBuilder, real: Array, imag: Array, gain: Array, reset_factor: float) -> None:
    """`m ← α(m − κ s) + b x`, potential 2 Re m: two delayed sums that turn into each other."""
    ones = np.ones_like(real)
    graph.scale("current", gain, "input")
    graph.scale("real", ones, "real_to_real", "imag_to_real", "current")
    graph.scale("imag", ones, "real_to_imag", "imag_to_imag")
    graph.scale("potential", 2 * ones, "real")
    _remainder(graph, -reset_factor * ones, "real")
    graph.delay("imag_before", len(real), "imag")
    graph.scale("real_to_real", real, "before")
    graph.scale("imag_to_real", -imag, "imag_before")
    graph.scale("real_to_imag", imag, "before")
    graph.scale("imag_to_imag", real, "imag_before")


def _remainder(graph: GraphBuilder, reset: Array, membrane: str) -> None:
    """Nodes for the membrane after the reset (`left`) and the same one step `before`."""
    graph.scale("reset", reset, "fire")
    graph.scale("left", np.ones_like(reset), "reset", membrane)
    graph.delay("before", len(reset), "left")
