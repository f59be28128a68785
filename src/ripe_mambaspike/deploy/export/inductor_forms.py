"""The nodes of `ops/graph_nodes.py` in the forms that PyTorch's compiler turns into quick loops on a CPU.

    fire, project, attend, pool, rates   channels last, as oneDNN's convolutions leave their outputs
    project                              one product over all steps and positions: oneDNN's, with a packed weight
    pool, rates                          the cells' means, and sums that run over the steps
    scan                                 each position's output is a sum over its states, which stay in one loop

Tensors keep the shapes of the network's own operators; only their strides differ, which the compiler is free to choose.
Sizes are ints.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ripe_mambaspike.ops.graph_nodes import node_operator
from ripe_mambaspike.ops.mamba_inner.traced_scan import MAX_IN_TURN, advance, combine_chunks, split_chunks
from ripe_mambaspike.ops.membrane_attention.feature_maps import normalizer_of
from ripe_mambaspike.ops.neurons import NeuronConstants, neuron_steps
from ripe_mambaspike.ops.shapes import at_least_float32, packed


def rewrite_for_inductor(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The same program with these forms in place of the nodes."""
    return program.run_decompositions({node_operator(name): form for name, form in INDUCTOR_FORMS.items()})


def fire_form(
    x: Tensor,
    decay: Tensor,
    rotation: Tensor | None,
    gain: Tensor,
    threshold: Tensor,
    real: Tensor | None,
    imag: Tensor | None,
    reset: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`ops.neurons.fire_node`: x [B, T, C, ...]."""
    neuron = NeuronConstants(decay, rotation, gain, threshold)
    before = None if real is None else (real.movedim(1, -1), None if imag is None else imag.movedim(1, -1))
    spikes, potentials, (left, turned) = neuron_steps(x.movedim(2, -1), neuron, 1.0, False, before, reset)
    turned = torch.zeros_like(left) if turned is None else turned
    fired, potential = (torch.stack(parts, 1).to(x.dtype).movedim(-1, 2) for parts in (spikes, potentials))
    return fired, potential, left.movedim(-1, 1), turned.movedim(-1, 1)


def project_form(factor: Tensor, x: Tensor) -> Tensor:
    """`ops.membrane_attention.reference.project_node`: x [B, T, C, N], factor [C', C]."""
    last = x.transpose(2, 3)
    return F.linear(last.flatten(0, 2), factor).unflatten(0, last.shape[:3]).transpose(2, 3)


def attend_form(query: Tensor, key: Tensor, value: Tensor, epsilon: float) -> Tensor:
    """`ops.membrane_attention.feature_maps.attend_node`: [B, T, C, N] three times."""
    scale = normalizer_of(query, key.sum(-1, keepdim=True), epsilon).flatten(0, 1).transpose(1, 2)
    low, high = value.amin(-1, keepdim=True).clamp(max=0), value.amax(-1, keepdim=True).clamp(min=0)
    columns, keys, values = (one.flatten(0, 1) for one in (query, key, value))
    mixed = torch.bmm(keys, values.transpose(1, 2))
    attention = (torch.bmm(columns.transpose(1, 2), mixed) / scale).transpose(1, 2).unflatten(0, query.shape[:2])
    return torch.minimum(torch.maximum(attention, low), high)


def pool_form(x: Tensor, height: int, width: int) -> Tensor:
    """`ops.pooled_rates.reference.pool_node`."""
    return F.adaptive_avg_pool2d(x, (height, width))


def rates_form(spikes: Tensor) -> tuple[Tensor, Tensor]:
    """`ops.pooled_rates.reference.rates_node`: [B, T, C, ...] → [B, T, 2C, ...] and the sums [B, C, ...]."""
    rates: list[Tensor] = []
    changes: list[Tensor] = []
    total = torch.zeros_like(at_least_float32(spikes[:, 0]).movedim(1, -1))
    for step, now in enumerate(at_least_float32(spikes).movedim(2, -1).unbind(1), 1):
        total = total + now
        rate = total / step
        changes.append(rate - rates[-1] if rates else rate)
        rates.append(rate)
    both = torch.cat((torch.stack(rates, 1), torch.stack(changes, 1)), -1)
    return both.to(spikes.dtype).movedim(-1, 2), total.movedim(-1, 1)


def scan_form(
    x: Tensor, delta: Tensor, decay: Tensor, input_weight: Tensor, output_weight: Tensor, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`ops.mamba_inner.traced_scan.scan_node`; tensors of one position are [M, …, N, D], as in that file."""
    length, matrix = x.shape[-2], packed(decay.transpose(-1, -2))
    driving, into, out_of = (split_chunks(part).unbind() for part in (delta * x, input_weight, output_weight))
    rates = split_chunks(delta)
    drives = [drive.unsqueeze(-2) * weight.unsqueeze(-1) for drive, weight in zip(driving, into, strict=True)]
    decays = [torch.exp(rate.unsqueeze(-2) * matrix) for rate in rates.unbind()]
    begin = None if initial_state is None else initial_state.to(drives[0].dtype).transpose(-1, -2).unsqueeze(0)
    if drives[0].shape[0] > 1:
        leaves = advance(drives, decays, None)[-1]
        total = torch.exp(rates.sum(0).unsqueeze(-2) * matrix)
        combine = combine_chunks if leaves.shape[0] <= MAX_IN_TURN else _combine_by_doubling
        begin = combine(leaves, total, torch.zeros_like(leaves[:1]) if begin is None else begin)
    states = advance(drives, decays, begin)
    outputs = [(state * weight.unsqueeze(-1)).sum(-2) for state, weight in zip(states, out_of, strict=True)]
    y = torch.stack(outputs).movedim((0, 1), (-2, -3)).flatten(-3, -2)
    return y[..., :length, :], states[-1][-1].transpose(-1, -2)


def _combine_by_doubling(leaves: Tensor, total: Tensor, begin: Tensor) -> Tensor:
    """`combine_chunks` of many chunks in slices: a decomposition cannot make constant tensors."""
    leaves, total = torch.cat((begin, leaves[:-1])), torch.cat((torch.zeros_like(begin), total[:-1]))
    step = 1
    while step < leaves.shape[0]:
        leaves = torch.cat((leaves[:step], torch.addcmul(leaves[step:], total[step:], leaves[:-step])))
        total = torch.cat((total[:step], total[step:] * total[:-step]))
        step *= 2
    return leaves


INDUCTOR_FORMS: dict[str, Any] = {
    "fire": fire_form,
    "project": project_form,
    "attend": attend_form,
    "pool": pool_form,
    "rates": rates_form,
    "scan": scan_form,
}
