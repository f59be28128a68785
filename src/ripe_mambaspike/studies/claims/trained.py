"""Claims that need a trained network: temporal filters, the gap between the passes, rates, attention, energy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.account.energy import AC_PICOJOULES, ConvActivity, measure_activity
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.attention import MembraneAttention
from ripe_mambaspike.nn.eval_mode import eval_mode
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.neurons import ConstantsNeuron
from ripe_mambaspike.ops.membrane_attention.reference import project
from ripe_mambaspike.ops.tdm import shift
from ripe_mambaspike.studies.claims.attention import excess
from ripe_mambaspike.studies.claims.verdict import Claim, fact, number, printed_value, rounds_to
from ripe_mambaspike.train.objective import consistency

RATES = (0.015, 0.19)  # of §4.5
ENERGY = (0.09, 0.36)  # pJ a synapse, of §5
NEAR_IDENTITY = 0.1  # |λ|
LAYERS = [f"stage {level}, {which} neuron" for level in (1, 2, 3) for which in ("first", "second")]


@dataclass
class TrainedNetwork:
    """A trained network, clips [T, 2, H, W] that it was not trained on, and what its run logged."""

    model: RipeMambaSpike
    clips: Sequence[Tensor]
    gaps: Sequence[float] = ()  # mean square between the logits of both passes, by epoch
    sharpness: float | None = None  # α of the epoch of these weights; None: not known, or no relaxed pass


@dataclass
class _Seen:
    """Means over the clips, and extremes."""

    rates: Tensor = field(default_factory=lambda: torch.zeros(len(LAYERS), dtype=torch.float64))
    gap: float = 0.0
    outside: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # relative to the largest |V|, by stage
    unit: tuple[float, float] = (0.0, 0.0)  # of the last stage's A
    activity: list[ConvActivity] = field(default_factory=list)  # of every clip


@torch.no_grad()
def trained_claims(network: TrainedNetwork) -> tuple[list[Claim], list[str]]:
    """The claims, and a sentence for everything that this network does not allow to be checked."""
    notes: list[str] = []
    with eval_mode(network.model):
        seen = _observe(network)
    model = network.model
    parts = (_filters(model, notes), _gap(network, seen, notes), _rates(seen), _hull(model, seen, notes))
    return list(chain(*parts, _poles(model, notes), _energy(model, seen, notes))), notes


def _observe(network: TrainedNetwork) -> _Seen:
    model, seen = network.model, _Seen()
    for clip in network.clips:
        x = clip[None]
        out = model.run(x, observe=("spikes", "attention"))
        seen.rates += out.rates.double().cpu() / len(network.clips)
        for level, stage in enumerate(model.stages):
            spikes = out.observed[f"stages.{level}.first_neuron.spikes"]
            outside = _outside(stage, spikes, out.observed[f"stages.{level}.attention"])
            seen.outside[level] = max(seen.outside[level], outside)
        assert out.attention is not None
        low, high = (float(v) for v in out.attention.aminmax())
        seen.unit = min(seen.unit[0], low), max(seen.unit[1], high)
        if network.sharpness is not None:
            modes = [ForwardMode(relaxed=relaxed, sharpness=network.sharpness) for relaxed in (False, True)]
            hard, relaxed = model.run_passes(x, modes)
            seen.gap += float(consistency(hard.logits, relaxed.logits)) / len(network.clips)
        seen.activity += measure_activity(model, x)
    return seen


def _outside(stage: Any, spikes: Tensor, attention: Tensor) -> float:
    """How far A [B, T, C, H, W] is outside the hull of its values and zero, relative to the largest value."""
    if not isinstance(stage.attention, MembraneAttention):
        return 0.0
    factors = tuple(factor.double() for factor in stage.attention.value)
    values = project(shift(spikes.double().flatten(3))[0], factors)
    scale = float(values.abs().max())
    found = excess(attention.double().flatten(3), values)
    return found / scale if scale > 0 else found


def _coefficients(model: RipeMambaSpike) -> list[Tensor]:
    """λ of both filters of each stage [C_in + C]; empty without temporal filters."""
    stages: list[Any] = list(model.stages)
    found = [[conv.coefficient for conv in (stage.first_conv, stage.second_conv)] for stage in stages]
    return [torch.cat([one.detach().double().cpu() for one in pair]) for pair in found if None not in pair]


def _filters(model: RipeMambaSpike, notes: list[str]) -> Iterator[Claim]:
    found = _coefficients(model)
    if len(found) != len(model.stages):
        notes.append("The network has no temporal filters: λ by depth was not checked.")
        return
    first, deepest = float(found[0].mean()), float(found[-1].abs().mean())
    sizes = [float(one.abs().mean()) for one in found]
    shown = ", ".join(f"{size:.3f}" for size in sizes)
    yield number("trained.tdm.first", first)
    yield fact("trained.tdm.high-pass", f"mean λ {first:.3f}", first > 0)
    yield fact("trained.tdm.depth", shown, all(deeper < earlier for earlier, deeper in pairwise(sizes)))
    yield fact("trained.tdm.deepest", f"mean |λ| {deepest:.3f}", deepest <= NEAR_IDENTITY)


def _gap(network: TrainedNetwork, seen: _Seen, notes: list[str]) -> Iterator[Claim]:
    gaps = network.gaps
    if gaps:
        peak = max(gaps)
        shown = f"from {peak:.4g} in epoch {list(gaps).index(peak) + 1} to {gaps[-1]:.4g} in epoch {len(gaps)}"
        yield fact("trained.gap.falls", shown, gaps[-1] < peak)
        yield at_most("trained.gap.end", gaps[-1])
    else:
        notes.append("There is no log of a relaxed pass: how the gap fell over training was not checked.")
    if network.sharpness is not None:
        yield at_most("trained.gap.clips", seen.gap)
    else:
        notes.append("The sharpness of the relaxed pass is not known: the gap on the clips was not measured.")


def at_most(id: str, ours: float) -> Claim:
    """A printed bound: holds when ours is below it or rounds to it."""
    paper = fact(id, "", True).paper
    value, _, _ = printed_value(paper)
    return fact(id, f"{ours:.4g}", ours <= value or rounds_to(ours, paper))


def _rates(seen: _Seen) -> Iterator[Claim]:
    rates = seen.rates.tolist()
    low, high = RATES
    for layer, rate in zip(LAYERS, rates, strict=True):
        slug = layer.replace(", ", ".").replace(" ", "").removesuffix("neuron")
        yield fact("trained.rate.{slug}", f"{rate:.4f}", low <= rate <= high, slug=slug, layer=layer)
    stages = [(rates[2 * level] + rates[2 * level + 1]) / 2 for level in range(3)]
    shown = ", ".join(f"{rate:.4f}" for rate in stages)
    yield number("trained.rates.first", stages[0])
    yield fact("trained.rates.depth", shown, max(stages[1:]) < stages[0])


def _hull(model: RipeMambaSpike, seen: _Seen, notes: list[str]) -> Iterator[Claim]:
    stages: list[Any] = list(model.stages)
    limit = 100 * torch.finfo(model.dtype).eps  # V is summed over up to a few hundred channels
    if not all(isinstance(stage.attention, MembraneAttention) for stage in stages):
        notes.append(f"The attention '{model.config.attention}' has no values: its hull was not checked.")
        return
    for level, outside in enumerate(seen.outside, 1):
        yield fact("trained.hull.{level}", f"{outside:.1e} outside", outside <= limit, level=level, limit=limit)
    low, high = seen.unit
    yield fact("trained.attention.unit", f"[{low:.3f}, {high:.3f}]", low >= 0 and high <= 1)


def _poles(model: RipeMambaSpike, notes: list[str]) -> Iterator[Claim]:
    neurons = [part for part in model.modules() if isinstance(part, ConstantsNeuron)]
    if len(neurons) != len(LAYERS):
        notes.append("A neuron of this network has no poles that are known: its stability was not checked.")
        return
    sizes = []
    for neuron in neurons:
        decay, rotation = neuron.constants(torch.device("cpu"))[:2]
        imaginary = torch.zeros_like(decay) if rotation is None else rotation
        sizes.append(float(torch.hypot(decay.double(), imaginary.double()).max()))
    yield fact("trained.stable", f"largest |α| {max(sizes):.6f}", max(sizes) < 1)


def _energy(model: RipeMambaSpike, seen: _Seen, notes: list[str]) -> Iterator[Claim]:
    if not model.config.tdm:
        notes.append("The network has no temporal filters, so no pair of kernels: its energy was not checked.")
        return
    layers = [layer for layer in seen.activity if layer.binary]
    names = list(dict.fromkeys(layer.layer for layer in layers))
    clips = len(layers) // len(names)
    per_layer = [sum(layer.rate for layer in layers if layer.layer == name) / clips for name in names]
    costs = [2 * AC_PICOJOULES * rate for rate in per_layer]
    low, high = ENERGY
    event, dense = sum(x.event_picojoules for x in layers), sum(x.dense_picojoules for x in layers)
    product = sum(x.rate * x.macs for x in layers)
    shown = f"{min(costs):.3f}–{max(costs):.3f} pJ"
    inside = min(costs) >= low - 0.005 and max(costs) <= high + 0.005
    yield fact("trained.energy.range", shown, inside)
    yield number("trained.energy.pair", event / product if product else float("nan"))
    yield fact(
        "trained.energy.below", f"{event / clips / 1e6:.2f} µJ a clip, {dense / clips / 1e6:.2f} densely", event < dense
    )
