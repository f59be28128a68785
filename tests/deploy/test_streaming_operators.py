"""Steps done one by one have the bits of all steps done together, whatever the other recordings in the call."""

import pytest
import torch

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.norm_fire import Neuron

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason="the C++ operators cannot be built here")

BATCH, STEPS = 3, 6
SLOTS = torch.tensor([3, 0, 4])


def uniform(*shape, low=0.3, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + low


@pytest.mark.parametrize("affine", [True, False], ids=["norm", "no norm"])
@pytest.mark.parametrize("resonating", [True, False], ids=["csilif", "lif"])
@pytest.mark.parametrize(("positions", "channels"), [(7, 5), (200, 3), (33, 64), (256, 32)], ids=lambda n: str(n))
def test_neurons(positions, channels, resonating, affine):
    from ripe_mambaspike.ops.cpp.onward import neuron_state, onward_fire
    from ripe_mambaspike.ops.norm_fire.cpu import norm_fire

    x = 3 * torch.randn(BATCH, STEPS, positions, channels, generator=torch.Generator().manual_seed(1))
    scale, shift = (uniform(STEPS, channels, seed=2), uniform(STEPS, channels, low=-0.5)) if affine else (None, None)
    rotation = uniform(channels, low=0.0, seed=3) if resonating else None
    neuron = Neuron(uniform(channels, low=0.0, seed=4), rotation, uniform(channels), uniform(channels, low=0.5))
    coefficient = uniform(channels, low=-0.5)
    spikes, potential, operand = norm_fire(x, scale, shift, *neuron, coefficient, False, 2.0, True)
    assert 0.02 < spikes.float().mean() < 0.98
    state = neuron_state(5, positions, channels)
    before = torch.zeros_like(spikes[:, 0])
    for step in range(STEPS):
        norm = (scale[step].expand(BATCH, -1), shift[step].expand(BATCH, -1)) if affine else None
        out = onward_fire(x[:, step], norm, neuron, coefficient, state, SLOTS, keep_potential=True)
        for mine, whole in ((out.spikes, spikes), (out.potential, potential), (out.operand, operand)):
            assert torch.equal(mine[1:], whole[:, step])
        assert torch.equal(out.earlier[:-1], before)
        assert torch.equal(out.counts, spikes[:, step].long().sum((1, 2)))
        before = out.spikes[1:]
    for slot in (1, 2):  # of no one
        assert state.potential[slot].abs().sum() == 0


@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (9, 7)], ids=lambda grid: "×".join(map(str, grid)))
def test_rates(grid):
    from ripe_mambaspike.ops.cpp.onward import onward_rates, rate_state
    from ripe_mambaspike.ops.pooled_rates.cpu import pooled_rates

    sizes = ((16, 16, 5), (9, 7, 32))
    spikes = [(uniform(BATCH, STEPS, *size, low=0, seed=size[2]) < 0.3).byte() for size in sizes]
    whole = pooled_rates(torch.zeros(()), spikes, *grid).flatten(2, 3)
    states = [rate_state(5, grid[0] * grid[1], size[2]) for size in sizes]
    for step in range(STEPS):
        now = [one[:, step] for one in spikes]
        assert torch.equal(onward_rates(now, grid, states, SLOTS, torch.full((BATCH,), step)), whole[:, step])


def test_what_does_not_fit_is_refused():
    from ripe_mambaspike.ops.cpp.onward import neuron_state, onward_fire

    neuron = Neuron(uniform(4), None, uniform(4), uniform(4))
    for x, said in ((torch.zeros(3, 5, 4).double(), "x is float64"), (torch.zeros(3, 6, 4), r"\[5, 4\] is wanted")):
        with pytest.raises(InputError, match=said):
            onward_fire(x, None, neuron, None, neuron_state(5, 5, 4), SLOTS, keep_potential=False)
