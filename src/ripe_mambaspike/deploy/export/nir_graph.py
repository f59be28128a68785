"""A deployed network's spiking front-end as NIR nodes, with a sentence for everything that they cannot express.

Every node is named after its part, such as `stage2.first_conv`. Its metadata has the name of the module and the tensors
that the node itself does not hold, so that the network can be rebuilt.
"""

import copy
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from ripe_mambaspike.deploy.export.nir_neurons import STEP, GraphBuilder, Grid, array, neuron_graph, nir
from ripe_mambaspike.deploy.forms import require_form
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.norm import TimeAffine
from ripe_mambaspike.nn.repconv import FusedConv
from ripe_mambaspike.nn.stage import SpikingStage
from ripe_mambaspike.ops.neurons import CSILIF_RESET

FORMAT = "ripe-front-end"
VERSION = 1
FRONT_END = ("entry.", "stages.")  # modules whose tensors are in the nodes; the others are in the graph's metadata
CONVENTIONS = (
    f"A step lasts {STEP} s, over which inputs are constant: an LI decays by exp(-step/tau), a Delay is one step.",
    "What several edges bring to a node is added up; before the first step everything is 0.",
    "A Threshold fires above its value and the network's neurons at theirs: it holds the next smaller number.",
    "A neuron is a graph of its own: NIR's LIF returns to v_reset, and these subtract when they fire.",
)


def front_end_graph(model: RipeMambaSpike, height: int, width: int) -> tuple[Any, list[str]]:
    """The NIRGraph for inputs of this size, and the sentences about what it does not express."""
    check_model(model)
    graph = GraphBuilder((height, width))
    graph.add("events", nir().Input(input_type=np.array([2, height, width])))
    last = graph.add("entry", _norm("entry", model.entry), "events")
    for level, (stage, grid) in enumerate(zip(model.stages, model.config.grids(height, width), strict=True)):
        last = _stage(graph, last, level, stage, grid)
    missing = not_expressed(model, height, width)
    state = model.state_dict()
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "dt": STEP,
        "name": model.name,
        "config": json.dumps(model.config.to_dict()),
        "conventions": json.dumps(CONVENTIONS),
        "not_expressed": json.dumps(missing),
        "parameters": {name: array(value) for name, value in state.items() if not name.startswith(FRONT_END)},
    }
    return graph.build(metadata), missing


def node_parameters(graph: Any) -> dict[str, Any]:
    """Every tensor of the network by its name, from the nodes and from the metadata."""
    found = dict(graph.metadata["parameters"])
    for node in graph.nodes.values():
        held = dict(node.metadata)
        module = text(held.pop("module", ""))
        if module.endswith("_conv"):
            held |= {"weight": node.weight, "bias": node.bias}
        found |= {f"{module}.{name}": value for name, value in held.items()}
    return found


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def check_model(model: Any) -> RipeMambaSpike:
    """The network, if NIR can hold its front-end."""
    model = require_form(model, "a NIR export", "deployed")
    if model.config.causal:
        raise ConfigError.expected("causal", "false for a NIR export", f"true of '{model.name}'")
    kind = str(model.dtype).removeprefix("torch.")
    if kind not in ("float32", "float64"):
        raise ConfigError.expected("dtype", "float32 or float64 for a NIR export", kind)
    return model


def not_expressed(model: RipeMambaSpike, height: int, width: int) -> list[str]:
    """Sentences on what the graph does not express."""
    config = model.config
    missing = []
    if norms := _changing_norms(model):
        missing.append(
            f"No NIR node changes its numbers with the step, and the norms over time do: {_join_names(norms)} have the "
            "mean of the steps' scales and shifts, and their metadata every step's."
        )
    if config.attention != "none":
        missing.append(
            f"No NIR node multiplies two signals, and the attention ({config.attention}) does: stage1.attention, "
            "stage2.attention and stage3.attention pass the features unchanged, and their metadata has its weights."
        )
    rates = "the three stages' spikes" if config.bridge == "mr-s3a" else "the last stage's spikes"
    missing.append(
        f"The bridge divides counts of {rates} by the steps so far and normalizes over channels, which no NIR node "
        "does: the graph ends with the stages' spikes, and the bridge's weights are metadata."
    )
    if config.num_tokens is not None:
        missing.append(f"Keeping the {config.num_tokens} most salient positions is a choice that no NIR node makes.")
    missing.append(
        f"The mixing of the tokens ({config.mixer}) and the head have no NIR nodes: their weights are metadata."
    )
    missing.append(
        f"NIR's neurons have the shape of their grid: the graph is for inputs of {width}×{height} and no others, and "
        f"its norms for at most {config.time_steps} steps."
    )
    return missing


def _stage(graph: GraphBuilder, last: str, level: int, stage: nn.Module, grid: Grid) -> str:
    """Append the nodes of one stage, which ends with `grid`; returns the name of its second neuron."""
    assert isinstance(stage, SpikingStage)
    assert isinstance(stage.second_conv, FusedConv)
    prefix, module = f"stage{level + 1}.", f"stages.{level}."
    channels = len(stage.second_conv.bias)
    for half in ("first", "second"):
        last = _filtered(graph, last, prefix + half, f"{module}{half}_conv", getattr(stage, f"{half}_conv"))
        graph.grid = grid
        norm, neuron = f"{half}_norm", f"{half}_neuron"
        last = graph.add(prefix + norm, _norm(module + norm, getattr(stage, norm)), last)
        if half == "second":
            last = graph.scale(f"{prefix}attention", np.ones(channels), last)
            graph.nodes[last].metadata = _metadata(f"{module}attention", stage.attention)
        last = graph.add(prefix + neuron, _neuron(module + neuron, getattr(stage, neuron), grid), last)
    graph.add(f"{prefix}spikes", nir().Output(output_type=np.array([channels, *grid])), last)
    return last


def _filtered(graph: GraphBuilder, last: str, prefix: str, module: str, conv: nn.Module) -> str:
    """`(1 + λ) x − λ x of the step before`, both into the convolution."""
    assert isinstance(conv, FusedConv)
    held: dict[str, Any] = {"module": module}
    sources = [last]
    if conv.coefficient is not None:
        coefficient = array(conv.coefficient.double())
        held["coefficient"] = array(conv.coefficient)
        now = graph.scale(f"{prefix}_now", 1 + coefficient, last)
        delayed = graph.delay(f"{prefix}_delay", len(coefficient), last)
        sources = [now, graph.scale(f"{prefix}_before", -coefficient, delayed)]
    node = nir().Conv2d(
        input_shape=graph.grid,
        weight=array(conv.weight),
        stride=conv.stride,
        padding=1,
        dilation=1,
        groups=1,
        bias=array(conv.bias),
        metadata=held,
    )
    return graph.add(f"{prefix}_conv", node, *sources)


def _norm(module: str, norm: nn.Module) -> Any:
    """A scale and a shift of every channel, the steps' mean, as a 1×1 convolution with a diagonal kernel.

    A grouped convolution would be shorter, but nir 1.0.8 cannot read one back: it takes a group's channels for all.
    """
    assert isinstance(norm, TimeAffine)
    held = _metadata(module, norm)
    scale, shift = held["scale"].mean(0), held["shift"].mean(0)
    if not _changes(norm):
        scale, shift = held["scale"][0], held["shift"][0]
    weight = np.diag(scale)[:, :, None, None].copy()
    return nir().Conv2d(
        input_shape=None, weight=weight, stride=1, padding=0, dilation=1, groups=1, bias=shift, metadata=held
    )


def _neuron(module: str, neuron: Any, grid: Grid) -> Any:
    """A neuron as a graph of its own, made from its constants."""
    if not hasattr(neuron, "constants"):
        got = f"{type(neuron).__name__} in {module}"
        raise ConfigError.expected("neurons", "neurons with constants for a NIR export", got)
    constants = copy.deepcopy(neuron).double().constants(torch.device("cpu"))
    reset_factor = getattr(neuron, "reset_factor", CSILIF_RESET)
    return neuron_graph(constants, grid, _metadata(module, neuron), reset_factor)


def _metadata(module: str, part: nn.Module) -> dict[str, Any]:
    """The module's name and all its tensors."""
    return {"module": module, **{name: array(value) for name, value in part.state_dict().items()}}


def _changing_norms(model: RipeMambaSpike) -> list[str]:
    norms = {"entry": model.entry}
    for level, stage in enumerate(model.stages, 1):
        norms |= {f"stage{level}.{half}_norm": getattr(stage, f"{half}_norm") for half in ("first", "second")}
    return [name for name, norm in norms.items() if _changes(norm)]


def _changes(norm: nn.Module) -> bool:
    assert isinstance(norm, TimeAffine)
    return any(bool((values != values[:1]).any()) for values in (norm.scale, norm.shift))


def _join_names(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
