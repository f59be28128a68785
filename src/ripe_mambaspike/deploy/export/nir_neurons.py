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
Edges = list[tuple[str, str]]

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


def delay_node(channels: int, grid: Grid) -> Any:
    """A delay of one step."""
    return nir().Delay(delay=np.full((channels, *grid), STEP))


def scale_node(values: Array, grid: Grid) -> Any:
    """Scale each channel."""
    return nir().Scale(scale=spread(values, grid))


def neuron_graph(neuron: NeuronConstants, grid: Grid, metadata: dict[str, Any]) -> Any:
    """A neuron as a graph of its own: current in, spikes out; the node `potential` gives the potential before reset."""
    decay, gain, threshold = (array(value.double()) for value in (neuron.decay, neuron.gain, neuron.threshold))
    shape = np.array([len(decay), *grid])
    nodes: dict[str, Any] = {"input": nir().Input(input_type=shape)}
    # fires above its value, the network's neurons at theirs
    nodes["fire"] = nir().Threshold(threshold=spread(np.nextafter(threshold, -np.inf), grid))
    nodes["output"] = nir().Output(output_type=shape)
    edges: Edges = [("fire", "output"), ("potential", "fire")]
    if neuron.rotation is not None:
        _resonator(nodes, edges, decay, array(neuron.rotation.double()), gain, grid)
    elif np.all((decay > 0) & (decay < 1)):
        _integrator(nodes, edges, decay, gain, threshold, grid)
    else:
        _sum(nodes, edges, decay, gain, threshold, grid)
    return nir().NIRGraph(nodes, edges, metadata=metadata)


def _integrator(nodes: dict[str, Any], edges: Edges, decay: Array, gain: Array, threshold: Array, grid: Grid) -> None:
    """`u ← β(u − v s) + g x`: a leaky integrator of x and of the spike before, whose current takes v off."""
    nodes["potential"] = nir().LI(
        tau=spread(-STEP / np.log(decay), grid),
        r=spread(gain / (1 - decay), grid),
        v_leak=np.zeros((len(decay), *grid)),
    )
    nodes["before"] = delay_node(len(decay), grid)
    nodes["reset"] = scale_node(-decay * threshold / gain, grid)
    edges += [("input", "potential"), ("fire", "before"), ("before", "reset"), ("reset", "potential")]


def _sum(nodes: dict[str, Any], edges: Edges, decay: Array, gain: Array, threshold: Array, grid: Grid) -> None:
    """The same neuron if β rounds to 0 or 1, which no time constant gives: `u ← g x + β (u − v s)` as sums."""
    ones = np.ones_like(decay)
    nodes["current"], nodes["potential"] = scale_node(gain, grid), scale_node(ones, grid)
    _remainder(nodes, edges, -threshold, grid)
    nodes["leak"] = scale_node(decay, grid)
    edges += [("input", "current"), ("current", "potential"), ("potential", "left"), ("before", "leak")]
    edges += [("leak", "potential")]


def _resonator(nodes: dict[str, Any], edges: Edges, real: Array, imag: Array, gain: Array, grid: Grid) -> None:
    """`m ← α(m − s/2) + b x`, potential 2 Re m: two delayed sums that turn into each other."""
    ones = np.ones_like(real)
    nodes["current"], nodes["real"], nodes["imag"] = (
        scale_node(gain, grid),
        scale_node(ones, grid),
        scale_node(ones, grid),
    )
    nodes["potential"] = scale_node(2 * ones, grid)
    _remainder(nodes, edges, -CSILIF_RESET * ones, grid)
    nodes["imag_before"] = delay_node(len(real), grid)
    for name, values, source, target in (
        ("real_to_real", real, "before", "real"),
        ("imag_to_real", -imag, "imag_before", "real"),
        ("real_to_imag", imag, "before", "imag"),
        ("imag_to_imag", real, "imag_before", "imag"),
    ):
        nodes[name] = scale_node(values, grid)
        edges += [(source, name), (name, target)]
    edges += [("input", "current"), ("current", "real"), ("real", "potential"), ("real", "left")]
    edges += [("imag", "imag_before")]


def _remainder(nodes: dict[str, Any], edges: Edges, reset: Array, grid: Grid) -> None:
    """Nodes for the state after the reset (`left`) and the same one step `before`."""
    nodes["left"], nodes["reset"] = scale_node(np.ones_like(reset), grid), scale_node(reset, grid)
    nodes["before"] = delay_node(len(reset), grid)
    edges += [("fire", "reset"), ("reset", "left"), ("left", "before")]
