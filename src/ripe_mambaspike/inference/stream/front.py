"""The network's spiking part for windows in flight: every window moves on by one step, all of them in one go.

`StepFront` carries the state of each window and computes with the operators and the weights that a whole clip goes
through, each window by its own step's norms. A product or a sum has one order however many windows there are, so that
a window's answer has the bits of the clip's. `ClipFront` keeps the bins and runs the clip when it is asked: for
networks and machines that the operators do not cover.
"""

from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.models.fused import Plan, kernels_cover, plan
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.fused.hierarchy import classify
from ripe_mambaspike.nn.fused.layers import Layer
from ripe_mambaspike.nn.fused.stage import StagePlan
from ripe_mambaspike.ops.backend import backend
from ripe_mambaspike.ops.cpp.onward import neuron_state, onward_fire, onward_rates, rate_state
from ripe_mambaspike.ops.membrane_attention import AttentionWeights, attend
from ripe_mambaspike.ops.row_norm import row_norm
from ripe_mambaspike.ops.winograd import winograd_conv


class WindowOutput(NamedTuple):
    """What the network makes of a window's steps so far."""

    logits: Tensor  # [1, steps, classes]
    rates: tuple[float, ...]  # mean firing rate of what each stage hands on
    attention: Tensor  # of the last step [C, h, w]


class WindowFront(Protocol):
    """Windows by the number of their slot; a slot is cleared when a window takes it."""

    def clear(self, slot: int) -> None: ...

    def advance(self, slots: list[int], steps: list[int], bins: list[Tensor]) -> None:
        """One more bin [2, H, W] for each of the windows, which have done so many steps before."""

    def output(self, slot: int, steps: int) -> WindowOutput: ...


@torch.no_grad()
def make_front(model: RipeMambaSpike, slots: int, grid: tuple[int, int], steps: int) -> WindowFront:
    """The quickest way for this network on this machine that keeps the clip's bits."""
    weight = next(model.parameters())
    probe = torch.empty((1, steps, 2, *grid), dtype=model.dtype, device=weight.device)
    if steps > 1 and probe.dtype == torch.float32 and kernels_cover(model, probe) and backend(probe) == "native":
        planned = plan(model, probe)
        if model.config.num_tokens is None and all(isinstance(s.attention, AttentionWeights) for s in planned.stages):
            return StepFront(planned, slots, grid, steps)
    return ClipFront(model, slots)


class ClipFront:
    """Bins are kept until the window is looked at, which runs the network on all of them."""

    def __init__(self, model: RipeMambaSpike, slots: int) -> None:
        self.model = model
        self._bins: list[list[Tensor]] = [[] for _ in range(slots)]

    def clear(self, slot: int) -> None:
        self._bins[slot] = []

    def advance(self, slots: list[int], steps: list[int], bins: list[Tensor]) -> None:
        for slot, one in zip(slots, bins, strict=True):
            self._bins[slot].append(one)

    @torch.no_grad()
    def output(self, slot: int, steps: int) -> WindowOutput:
        device = next(self.model.parameters()).device
        clip = torch.stack(self._bins[slot][:steps]).unsqueeze(0).to(device, self.model.dtype)
        out = self.model.run(clip)
        assert out.attention is not None
        return WindowOutput(out.logits.cpu(), tuple(out.rates[1::2].tolist()), out.attention[0, -1].float().cpu())


class _Stage:
    """One stage: its weights, its grid, and the state of every slot."""

    def __init__(self, planned: StagePlan, following: Tensor | None, slots: int, grid: tuple[int, int]) -> None:
        assert isinstance(planned.first, Layer)
        assert isinstance(planned.second, Layer)
        self.plan, self.following, self.grid = planned, following, grid
        self.first: Layer = planned.first
        self.second: Layer = planned.second
        positions, channels = grid[0] * grid[1], self.first.kernel.shape[0]
        self.channels = channels
        self.size = positions * channels
        self.inner, self.outer = (neuron_state(slots, positions, channels) for _ in range(2))

    def clear(self, slot: int) -> None:
        self.inner.clear(slot)
        self.outer.clear(slot)

    def advance(self, operand: Tensor, slots: Tensor, steps: Tensor, keep_attention: bool) -> tuple[Any, Tensor]:
        """operand [B, C_in, H, W], channels together → what the second neuron gave, and A [B, P, C]."""
        plan, count = self.plan, len(slots)
        current = _convolved(operand, self.first.kernel, self.first.stride)
        affine = (self.first.scale[steps], self.first.shift[steps])
        inner = onward_fire(
            current, affine, plan.first_neuron, plan.inner_coefficient, self.inner, slots, keep_potential=True
        )
        features = self._features(inner.operand)
        rows = F.pad(steps, (1, 0))
        assert inner.potential is not None
        assert inner.earlier is not None
        weights: AttentionWeights = plan.attention
        (modulated, attention), _ = attend(
            inner.potential.unsqueeze(0),
            inner.earlier.unsqueeze(0),  # row i looks at row i − 1
            inner.potential.unsqueeze(0),
            features.unsqueeze(0),
            self.second.scale[rows],
            self.second.shift[rows],
            weights,
            keep_attention,
        )
        outer = onward_fire(
            modulated[0, 1:], None, plan.second_neuron, self.following, self.outer, slots, keep_potential=False
        )
        return outer, attention[0, 1 : 1 + count] if keep_attention else attention

    def _features(self, operand: Tensor) -> Tensor:
        """The second convolution of [1 + B, P, C]; the first row is no window's, and nothing comes of it."""
        second = self.second
        if second.winograd is None:
            return _convolved(_images(operand, self.grid), second.kernel, second.stride)
        features = torch.empty_like(operand)
        features[0].zero_()
        rows = operand[1:].unflatten(1, self.grid)
        features[1:] = winograd_conv(rows, second.winograd, self.channels).flatten(1, 2)
        return features


class StepFront:
    """All windows in flight, one step at a time, with the deployed network's own operators."""

    def __init__(self, planned: Plan, slots: int, grid: tuple[int, int], steps: int) -> None:
        self.plan, self.steps = planned, steps
        self._before = torch.zeros(slots, 2, *grid)  # the normed events a step ago
        self._stages: list[_Stage] = []
        for stage, following in zip(planned.stages, (*planned.coefficients[1:], None), strict=True):
            grid = (-(-grid[0] // 2), -(-grid[1] // 2))
            self._stages.append(_Stage(stage, following, slots, grid))
        self.grid = grid
        positions, channels = grid[0] * grid[1], self._stages[-1].channels
        self._rates = [rate_state(slots, positions, stage.channels) for stage in self._stages[-planned.scales :]]
        assert planned.bridge.kernel is not None
        self._features = torch.zeros(slots, steps, positions, planned.bridge.kernel.shape[0])
        self._attention = torch.zeros(slots, steps, positions, channels)
        self._fired = torch.zeros(slots, len(self._stages), dtype=torch.int64)

    def clear(self, slot: int) -> None:
        for stage in self._stages:
            stage.clear(slot)
        for state in (*self._rates, self._before, self._fired):
            state[slot].zero_()

    @torch.no_grad()
    def advance(self, slots: list[int], steps: list[int], bins: list[Tensor]) -> None:
        where, when = torch.tensor(slots), torch.tensor(steps)
        operand = self._enter(torch.stack(bins), where, when)
        spikes = []
        attention = operand
        for level, stage in enumerate(self._stages):
            last = level == len(self._stages) - 1
            outer, attention = stage.advance(operand, where, when, keep_attention=last)
            operand = _images(outer.operand[1:], stage.grid)
            self._fired[where, level] += outer.counts
            spikes.append(outer.spikes[1:].view(-1, *stage.grid, stage.channels))
        rates = onward_rates(spikes[-len(self._rates) :], self.grid, self._rates, where, when)
        bridge = self.plan.bridge
        assert bridge.kernel is not None
        mixed = _convolved(_images(rates, self.grid), bridge.kernel, 1, bridge.bias, bridge.winograd)
        self._features[where, when] = row_norm(mixed, *bridge.norm, bridge.norm[0].dtype)
        self._attention[where, when] = attention

    @torch.no_grad()
    def output(self, slot: int, steps: int) -> WindowOutput:
        attention = self._attention[slot : slot + 1, :steps]
        tokens = self._features[slot : slot + 1, :steps] + F.linear(attention, *self.plan.bridge.attention)
        logits = classify(self.plan.hierarchy, tokens)
        sizes = [steps * stage.size for stage in self._stages]
        rates = tuple(int(fired) / size for fired, size in zip(self._fired[slot], sizes, strict=True))
        return WindowOutput(logits, rates, attention[0, -1].T.clone().unflatten(-1, self.grid))

    def _enter(self, x: Tensor, slots: Tensor, steps: Tensor) -> Tensor:
        """Events [B, 2, H, W] through the entry norm and the first temporal filter."""
        scale, shift = (value[steps][..., None, None] for value in self.plan.entry)
        normed = torch.addcmul(shift, x, scale)
        coefficient = self.plan.coefficients[0]
        if coefficient is None:
            return normed.contiguous(memory_format=torch.channels_last)
        now = (1 + coefficient[:, None, None]) * normed
        now.addcmul_(self._before[slots], -coefficient[:, None, None])
        self._before[slots] = normed
        return now.contiguous(memory_format=torch.channels_last)


def _images(rows: Tensor, grid: tuple[int, int]) -> Tensor:
    """[B, P, C] → [B, C, H, W], channels together."""
    return rows.unflatten(1, grid).permute(0, 3, 1, 2)


def _convolved(
    images: Tensor, kernel: Tensor, stride: int, bias: Tensor | None = None, winograd: Tensor | None = None
) -> Tensor:
    """[B, C_in, H, W] → [B, P, C]. A clip has several images, and one alone might go through another routine."""
    if winograd is not None:
        return winograd_conv(images.permute(0, 2, 3, 1), winograd, kernel.shape[0], bias).flatten(1, 2)
    alone = len(images) == 1
    given = torch.cat((images, images)).contiguous(memory_format=torch.channels_last) if alone else images
    out = F.conv2d(given, kernel, bias, stride, 1).permute(0, 2, 3, 1).contiguous().flatten(1, 2)
    return out[:1] if alone else out
