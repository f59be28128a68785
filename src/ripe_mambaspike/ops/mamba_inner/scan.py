"""The selective scan of Mamba: a linear recurrence whose decay and input weights depend on the input.

    h_l = exp(Δ_l A) h_{l−1} + Δ_l B_l x_l          y_l = C_l h_l + D x_l

The sequence is split into chunks that all advance together, one position at a time; the chunks' final states are then
combined by doubling (log₂ of the number of chunks), and the positions are swept once more with the right initial
states. So the number of tensor operations depends on the chunk length alone, never on L, and no quotient or logarithm
of a decay is formed: nothing can overflow.

Glossary: L tokens, D channels, N states a channel; a chunk has K positions, there are M of them. Inside this file
tensors are [K, B, D, N, M] or parts of it: the same position of all chunks is contiguous.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ripe_mambaspike.ops.mamba_inner.traced_scan import traced_scan
from ripe_mambaspike.ops.shapes import at_least_float32

MAX_CHUNK = 32
MAX_ELEMENTS = 2**20  # of one [K, B, D, N, M] at a time: such blocks stay in a CPU's caches
MAX_ELEMENTS_ELSEWHERE = 2**27  # other devices prefer few large blocks


def selective_scan(
    x: Tensor,
    delta: Tensor,
    decay: Tensor,
    input_weight: Tensor,
    output_weight: Tensor,
    skip: Tensor | None = None,
    initial_state: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Scan x over its tokens.

    x, delta [B, L, D] (delta ≥ 0); decay A [D, N] (negative); input_weight B and output_weight C [B, L, N];
    skip D [D]; state [B, D, N]. Returns (y [B, L, D], final state [B, D, N]); computed in float32 at least,
    y in x's precision.
    """
    dtype = x.dtype
    tensors = map(at_least_float32, (x, delta, decay, input_weight, output_weight))
    x, delta, decay, input_weight, output_weight = tensors
    if torch.compiler.is_exporting():
        y, final = traced_scan(x, delta, decay, input_weight, output_weight, initial_state)
        return (y if skip is None else y + x * at_least_float32(skip)).to(dtype), final
    if initial_state is None:
        initial_state = x.new_zeros(x.shape[0], *decay.shape)
    layout = _Layout(x.shape[1], chunk or max(1, min(MAX_CHUNK, math.isqrt(x.shape[1]))))
    y, final = _Scan.apply(
        *map(layout.cut, (x, delta)),
        decay,
        *map(layout.cut, (input_weight, output_weight)),
        at_least_float32(initial_state),
    )
    y = layout.join(y)
    if skip is not None:
        y = torch.addcmul(y, x, at_least_float32(skip))
    return y.to(dtype), final


class _Layout:
    """How L tokens are split into M chunks of K positions."""

    def __init__(self, length: int, chunk: int) -> None:
        self.length, self.chunk = length, chunk
        self.count = math.ceil(length / chunk)

    def cut(self, x: Tensor) -> Tensor:
        """[B, L, F] → [K, B, F, M]; positions past the end are zero, which leaves every state as it is."""
        if padding := self.count * self.chunk - self.length:
            x = torch.nn.functional.pad(x, (0, 0, 0, padding))
        return x.unflatten(1, (self.count, self.chunk)).permute(2, 0, 3, 1).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """The inverse of `cut`."""
        return x.permute(1, 3, 0, 2).flatten(1, 2)[:, : self.length]


class _Scan(torch.autograd.Function):
    """Saves only its inputs for the backward pass, which recomputes the states."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, decay: Tensor, b: Tensor, c: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, delta, decay, b, c, state)
        y, final = torch.empty_like(x), torch.empty_like(state)
        scratch = _Scratch()
        for batch, channels in _blocks(x, decay):
            here = (slice(None), batch, channels)
            block = _Block(x[here], delta[here], decay[channels], b[:, batch], scratch)
            states, final[batch, channels] = block.states(state[batch, channels])
            torch.sum(states.mul_(c[:, batch, None]), 3, out=y[here])
        return y, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, grad_final: Tensor) -> tuple[Tensor, ...]:
        """g_l = C_l dy_l + exp(Δ_{l+1} A) g_{l+1} is the same recurrence backwards; the rest are sums over it."""
        x, delta, decay, b, c, state = ctx.saved_tensors
        grad_x, grad_delta, grad_state = (torch.empty_like(t) for t in (x, delta, state))
        grad_decay, grad_b, grad_c = (torch.zeros_like(t) for t in (decay, b, c))
        scratch = _Scratch()
        for batch, channels in _blocks(x, decay):
            here = (slice(None), batch, channels)
            block = _Block(x[here], delta[here], decay[channels], b[:, batch], scratch)
            states, _ = block.states(state[batch, channels])
            grad_out = grad_y[here].unsqueeze(3)
            seen = c[:, batch, None] * grad_out
            grads, grad_state[batch, channels] = block.costates(seen, grad_final[batch, channels])

            grad_c[:, batch] += (states * grad_out).sum(2)
            grad_b[:, batch] += (grads * block.drive.unsqueeze(3)).sum(2)
            grad_drive = (grads * b[:, batch, None]).sum(3)  # of Δ x
            grad_exponent = grads.mul_(block.decays)  # of Δ A, times h_{l−1}
            grad_exponent[0] *= block.starts
            grad_exponent[1:] *= states[:-1]
            grad_decay[channels] += (grad_exponent * delta[here].unsqueeze(3)).sum((0, 1, 4))
            grad_delta[here] = (grad_exponent * decay[channels, :, None]).sum(3) + grad_drive * x[here]
            grad_x[here] = grad_drive * delta[here]
        return grad_x, grad_delta, grad_decay, grad_b, grad_c, grad_state


class _Scratch:
    """Large temporaries of equal shape, reused from block to block: fresh memory costs more than the arithmetic."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def product(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(left.shape, right.shape)
        if name not in self.kept or self.kept[name].shape != shape:
            self.kept[name] = left.new_empty(shape)
        return torch.mul(left, right, out=self.kept[name])


class _Block:
    """Some samples and channels: the decay and the input of every position, and the two sweeps over them."""

    def __init__(self, x: Tensor, delta: Tensor, decay: Tensor, b: Tensor, scratch: "_Scratch") -> None:
        decay = decay[..., None]
        self.drive = delta * x
        self.decays = scratch.product("decays", delta.unsqueeze(3), decay).exp_()
        self.inputs = scratch.product("inputs", b.unsqueeze(2), self.drive.unsqueeze(3))
        self.total = torch.exp(delta.sum(0).unsqueeze(2) * decay)  # over a whole chunk [B, D, N, M]

    def states(self, begin: Tensor) -> tuple[Tensor, Tensor]:
        """All states [K, B, D, N, M] and the last one, from `begin` [B, D, N]. They overwrite the inputs."""
        decays, inputs = self.decays.unbind(), self.inputs.unbind()
        local = inputs[0].clone()
        for decay, drive in zip(decays[1:], inputs[1:], strict=True):
            torch.addcmul(drive, decay, local, out=local)
        self.starts, final = _combine_chunks(local, self.total, begin)
        state = self.starts
        for decay, drive in zip(decays, inputs, strict=True):
            state = torch.addcmul(drive, decay, state, out=drive)
        return self.inputs, final

    def costates(self, seen: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """g_l = seen_l + decay_{l+1} g_{l+1}, overwriting `seen`, and the gradient of the initial state."""
        steps = list(zip(self.decays.unbind(), seen.unbind(), strict=True))[::-1]
        local = torch.zeros_like(self.total)
        for decay, grad in steps:
            local = local.add_(grad).mul_(decay)
        carried, begin = _combine_chunks(local.flip(-1), self.total.flip(-1), end)
        carried = carried.flip(-1)
        for decay, grad in steps:
            carried = grad.add_(carried) * decay
        return seen, begin


def _combine_chunks(local: Tensor, total: Tensor, begin: Tensor) -> tuple[Tensor, Tensor]:
    """Every chunk's initial state [.., M] and the last one's final state, given the final states from zero."""
    leaves = torch.cat((begin.unsqueeze(-1), local), -1)
    total = torch.cat((torch.zeros_like(total[..., :1]), total), -1)
    step = 1
    while step < leaves.shape[-1]:
        joined = torch.addcmul(leaves[..., step:], total[..., step:], leaves[..., :-step])
        leaves = torch.cat((leaves[..., :step], joined), -1)
        total = torch.cat((total[..., :step], total[..., step:] * total[..., :-step]), -1)
        step *= 2
    return leaves[..., :-1], leaves[..., -1]


def _blocks(x: Tensor, decay: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of batch and channels that cover x exactly once."""
    positions, batch, channels, count = x.shape
    most = MAX_ELEMENTS if x.device.type == "cpu" else MAX_ELEMENTS_ELSEWHERE
    fitting = max(1, most // (positions * count * decay.shape[1]))
    width = min(fitting, channels)
    samples = max(1, fitting // channels)
    for first in range(0, batch, samples):
        for channel in range(0, channels, width):
            yield slice(first, first + samples), slice(channel, channel + width)
