"""The deployed spiking front-end for export: entry norm, three stages and the bridge's mixture, states in and out.

It holds a deployed network's own modules and computes with `graph_ops`. One way through serves the whole clip (all
steps, from zero states) and a single step (T = 1, states handed in). Tensors are [B, T, C, H, W].
"""

from typing import Any

import torch
from torch import Tensor, nn

from ripe_mambaspike.deploy.export import graph_ops as ops
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.attention import MembraneAttention, SigmoidGate
from ripe_mambaspike.nn.neurons import CSiLIF
from ripe_mambaspike.ops.membrane_attention.reference import sigmoid_attention
from ripe_mambaspike.ops.pooled_rates.reference import cumulative_rates

States = dict[str, Tensor]  # by name, each [B, C, H, W]


class NeuronLayer(nn.Module):
    """A neuron whose per-channel constants are ready numbers: every runtime fires at the same ones."""

    first: Tensor  # decay, or the real part of the pole [C, 1]
    second: Tensor | None  # the imaginary part
    gain: Tensor
    threshold: Tensor

    def __init__(self, neuron: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.states = ("real", "imag") if isinstance(neuron, CSiLIF) else ("u",)
        constants = neuron.constants(torch.device("cpu"))
        self.potential = float(len(self.states))  # of one unit of what is compared: U is u, or 2 Re m
        constants = constants._replace(threshold=constants.threshold / self.potential)
        for name, value in zip(("first", "second", "gain", "threshold"), constants, strict=True):
            self.register_buffer(name, None if value is None else value.detach().to(dtype)[:, None])

    def forward(self, x: Tensor, states: States) -> tuple[Tensor, Tensor, States]:
        """→ spikes, potentials before the reset, and the states left; zeros where none are given."""
        shape = x.shape
        drive = x.flatten(3) * self.gain
        zero = torch.zeros_like(drive[:, :1])
        left = tuple(states[name].flatten(2).unsqueeze(1) if states else zero for name in self.states)
        fired, levels = [], []
        for now in drive.split(1, 1):
            if self.second is None:
                after = ops.leaky_step(now, left, self.first, self.threshold)
            else:
                after = ops.resonating_step(now, left, self.first, self.second, self.threshold)
            left = after.state
            fired.append(after.fired)
            levels.append(after.level)
        final = {name: part.squeeze(1).reshape(_one_step(shape)) for name, part in zip(self.states, left, strict=True)}
        spikes = torch.cat(fired, 1).to(x.dtype).reshape(shape)
        return spikes, self.potential * torch.cat(levels, 1).reshape(shape), final


class StageLayer(nn.Module):
    """One spiking stage."""

    def __init__(self, stage: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.first_conv, self.first_norm = stage.first_conv, stage.first_norm
        self.second_conv, self.second_norm = stage.second_conv, stage.second_norm
        self.attention = stage.attention
        self.first_neuron = NeuronLayer(stage.first_neuron, dtype)
        self.second_neuron = NeuronLayer(stage.second_neuron, dtype)
        filters = stage.first_conv.coefficient is not None
        self.kept = ["input"] if filters else []
        self.kept += [f"first_neuron.{part}" for part in self.first_neuron.states]
        self.kept += ["inner_spikes"] if filters or isinstance(stage.attention, MembraneAttention) else []
        self.kept += [f"second_neuron.{part}" for part in self.second_neuron.states]

    def forward(self, x: Tensor, step: Tensor | None, states: States) -> tuple[Tensor, Tensor, States]:
        """→ spikes, attention, and the states left; `step` says which step x is, None that it begins at the first."""
        current = affine(self.first_norm, _convolve(self.first_conv, x, _before(x, states.get("input"))), step)
        inner, potential, first = self.first_neuron(current, _within(states, "first_neuron"))
        before = _before(inner, states.get("inner_spikes"))
        current = affine(self.second_norm, _convolve(self.second_conv, inner, before), step)
        current, attention = _attend(self.attention, potential, before, current)
        spikes, _, second = self.second_neuron(current, _within(states, "second_neuron"))
        left = {"input": x[:, -1], "inner_spikes": inner[:, -1]}
        left |= _called("first_neuron", first) | _called("second_neuron", second)
        return spikes, attention, {name: left[name] for name in self.kept}


class FrontEnd(nn.Module):
    """Events to the bridge's features and the last attention map; and what tokens are selected by."""

    def __init__(self, model: RipeMambaSpike) -> None:
        super().__init__()
        config = model.config
        self.config = config
        self.entry: Any = model.entry
        self.stages = nn.ModuleList(StageLayer(stage, model.dtype) for stage in model.stages)
        self.mixture, self.norm = model.bridge.mixture, model.bridge.norm
        self.read = range(3) if config.bridge == "mr-s3a" else range(2, 3)
        self.state_names = [
            f"stage{level}.{name}"
            for level, stage in enumerate(self.stages, 1)
            for name in stage.kept  # type: ignore[union-attr]
        ]
        self.state_names += [f"bridge.total{level + 1}" for level in self.read]
        self.state_names += [] if config.num_tokens is None else ["tokens.total", "tokens.earliness"]

    def forward(
        self, x: Tensor, step: Tensor | None = None, states: States | None = None
    ) -> tuple[Tensor, Tensor, States]:
        """x [B, T, 2, H, W] → features [B, T, N, d], attention [B, T, C, h, w], and the states left."""
        states = states or {}
        current = affine(self.entry, x, step)
        left: States = {}
        spikes = []
        for level, stage in enumerate(self.stages, 1):
            current, attention, after = stage(current, step, _within(states, f"stage{level}"))
            left |= _called(f"stage{level}", after)
            spikes.append(current)
        rates = []
        for level in self.read:
            name = f"bridge.total{level + 1}"
            pooled = _on_grid(spikes[level], current.shape[3], current.shape[4])
            rate, left[name] = _rates(pooled, step, states.get(name))
            rates.append(rate.flatten(0, 1))
        features = self.norm(ops.packed(self.mixture(rates).flatten(2).transpose(1, 2)))
        features = features.unflatten(0, (x.shape[0], x.shape[1]))
        if self.config.num_tokens is not None:
            left |= _called("tokens", _salience(current, step, _within(states, "tokens")))
        return features, attention, left

    def state_shapes(self, batch: int, height: int, width: int) -> list[tuple[int, ...]]:
        """Of every state, in the order of their names."""
        grids = [(height, width), *self.config.grids(height, width)]
        channels = (2, *self.config.stage_channels)
        shapes: list[tuple[int, ...]] = []
        for name in self.state_names:
            part, _, rest = name.partition(".")
            if part == "tokens":
                shapes.append((batch, grids[3][0] * grids[3][1]))
            elif part == "bridge":
                shapes.append((batch, channels[int(rest[-1])], *grids[3]))
            else:
                level = int(part[-1]) - (rest == "input")
                shapes.append((batch, channels[level], *grids[level]))
        return shapes


def _one_step(shape: torch.Size) -> tuple[int, ...]:
    return (shape[0], *shape[2:])


def affine(norm: Any, x: Tensor, step: Tensor | None) -> Tensor:
    """`scale_t x_t + shift_t` from the first step on, or of the one step given."""
    rows = (
        part[: x.shape[1]] if step is None else part.index_select(0, step.reshape(1))
        for part in (norm.scale, norm.shift)
    )
    scale, shift = (part[:, :, None, None] for part in rows)
    return x * scale + shift


def _convolve(conv: Any, x: Tensor, before: Tensor) -> Tensor:
    out: Tensor = conv.convolve(
        x if conv.coefficient is None else ops.filtered(x, before, conv.coefficient), conv.weight, conv.bias
    )
    return out


def _before(x: Tensor, state: Tensor | None) -> Tensor:
    """x one step later; the state, when there is one, is the step before the only one."""
    return ops.step_before(x) if state is None else state.unsqueeze(1)


def _attend(layer: Any, potential: Tensor, before: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Modulated features and the attention map."""
    potential, before = (part.flatten(3).flatten(0, 1) for part in (potential, before))
    if isinstance(layer, SigmoidGate):
        gate = torch.sigmoid(ops.project(potential, (layer.weight,)) + layer.bias[:, None]).reshape(features.shape)
        return gate * features, gate
    if not isinstance(layer, MembraneAttention):
        return features, torch.zeros_like(features)
    attend = ops.sigmoid_attention if layer.attend is sigmoid_attention else ops.convex_attention
    query, key, value = layer.projections()
    attention = attend(ops.project(potential, query), ops.project(potential, key), ops.project(before, value)).reshape(
        features.shape
    )
    return features + attention * layer.gain[:, None, None] * features, attention


def _on_grid(spikes: Tensor, height: int, width: int) -> Tensor:
    """[B, T, C, H, W] → [B, T, C, height, width]."""
    if spikes.shape[3] is height and spikes.shape[4] is width:
        return spikes
    return ops.pool_to(spikes.flatten(0, 1), height, width).unflatten(0, (spikes.shape[0], spikes.shape[1]))


def _rates(pooled: Tensor, step: Tensor | None, total: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rates and their changes [B, T, 2C, h, w], and the spikes so far [B, C, h, w]."""
    if step is None or total is None:
        return cumulative_rates(pooled)
    now = pooled.squeeze(1) + total
    rate = now / (step + 1)
    change = rate - total / step.clamp(min=1)  # before the first step the total is zero
    return torch.cat((rate, change), 1).unsqueeze(1), now


def _salience(spikes: Tensor, step: Tensor | None, states: States) -> States:
    """Of every position [B, N]: its spikes so far, and exp(−the step of the first), 0 where there was none yet."""
    counts = spikes.float().sum(2).flatten(2)
    if step is None:
        steps = torch.arange(counts.shape[1], dtype=counts.dtype, device=counts.device)
        early = torch.where(counts > 0, torch.exp(-steps)[:, None], 0.0).amax(1)
        return {"total": counts.sum(1), "earliness": early}
    counts = counts.squeeze(1)
    early = torch.where(counts > 0, torch.exp(-step.to(counts.dtype)), 0.0)
    return {"total": states["total"] + counts, "earliness": torch.maximum(states["earliness"], early)}


def _within(states: States, part: str) -> States:
    """The states of one part, by their names inside it."""
    return {name.removeprefix(f"{part}."): value for name, value in states.items() if name.startswith(f"{part}.")}


def _called(part: str, states: States) -> States:
    return {f"{part}.{name}": value for name, value in states.items()}
