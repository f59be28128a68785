"""Every operator with a state, at sizes at which its clip is computed in pieces.

`RUNS[name](setting)` gives `run(samples, steps, state, first_step) → (outputs, final state)` over one drawn clip.
"""

from typing import NamedTuple

import torch

from ripe_mambaspike.ops.enter_fire import enter_fire
from ripe_mambaspike.ops.leaky_fire import leaky_fire
from ripe_mambaspike.ops.mamba_inner import InnerWeights, mamba_inner
from ripe_mambaspike.ops.membrane_attention import AttentionWeights, attend, attend_fire
from ripe_mambaspike.ops.norm_fire import Firing, norm_fire
from ripe_mambaspike.ops.pooled_rates import pooled_rates

BATCH, STEPS = 3, 7
PIECES = [(1,) * STEPS, (3, 4), (2, 1, 4)]


class Setting(NamedTuple):
    rows: int = STEPS  # of the norms' tables
    rotating: bool = True
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    relaxed: bool = False  # of attend_fire: nothing flips where sums round differently
    positions: int = 140  # of attend_fire
    size: tuple[int, int] = (11, 6)  # positions and channels of norm_fire
    normed: bool = True  # whether norm_fire has a norm
    grid: tuple[int, int] = (3, 4)  # of the rates


def in_place(state):
    """Whether a state has rows, so that operators update it."""
    nested = state if isinstance(state, tuple | list) else ()
    return getattr(state, "rows", None) is not None or any(map(in_place, nested))


class Drawn:
    """Random tensors, the same every time."""

    def __init__(self, setting):
        self.generator, self.dtype, self.device = torch.Generator().manual_seed(3), setting.dtype, setting.device

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator).to(self.device, self.dtype)

    def uniform(self, *shape, low=0.0, high=1.0):
        return (torch.rand(shape, generator=self.generator) * (high - low) + low).to(self.device)

    def spikes(self, *shape):
        return (torch.rand(shape, generator=self.generator) < 0.3).to(self.device, torch.uint8)

    def firing(self, channels, setting, relaxed=False):
        rotation = self.uniform(channels, high=0.3) if setting.rotating else None
        gain, threshold = self.uniform(channels, low=0.5), self.uniform(channels, low=0.3)
        decay = self.uniform(channels, low=0.4, high=0.95)
        return Firing(decay, rotation, gain, threshold, self.uniform(channels), relaxed)

    def table(self, rows, channels):
        return self.uniform(rows, channels, low=0.5, high=1.5), self.uniform(rows, channels, low=-0.3, high=0.3)

    def weights(self, channels):
        made = (self.normal(channels, channels) * channels**-0.5 for _ in range(3))
        return AttentionWeights(*made, self.uniform(channels, low=0.5, high=1.5))


def norm_fire_run(setting):
    d = Drawn(setting)
    channels = setting.size[1]
    x, firing = d.normal(BATCH, STEPS, *setting.size), d.firing(channels, setting)
    affine = d.table(setting.rows, channels) if setting.normed else (None, None)

    def run(samples, steps, state, first):
        options = {"first_step": first, "initial_state": state, "output_final_state": not in_place(state)}
        out, final = norm_fire(x[samples, steps], *affine, firing, **options)
        return (out.spikes, out.potential, out.operand), final

    return run


def leaky_fire_run(setting):
    """A hard reset, or a soft one in place of the rotation."""
    d = Drawn(setting)
    x, decay, gain = d.normal(BATCH, STEPS, 6, 11), d.uniform(1, low=0.5), d.uniform(1, low=0.5)

    def run(samples, steps, state, first):
        options = {"threshold": 0.5, "hard_reset": setting.rotating, "initial_state": state}
        spikes, final = leaky_fire(x[samples, steps], decay, gain, **options)
        return (spikes,), final

    return run


def attend_run(setting):
    d = Drawn(setting)
    potential, features = d.normal(BATCH, STEPS, 11, 6), d.normal(BATCH, STEPS, 11, 6)
    spikes, weights, affine = d.spikes(BATCH, STEPS, 11, 6), d.weights(6), d.table(setting.rows, 6)

    def run(samples, steps, state, first):
        at = (samples, steps)
        return attend(
            potential[at], spikes[at], potential[at], features[at], *affine, weights, True,
            first_step=first, initial_state=state,
        )  # fmt: skip

    return run


def attend_fire_run(setting):
    d = Drawn(setting)
    potential, features = d.normal(BATCH, STEPS, setting.positions, 16), d.normal(BATCH, STEPS, setting.positions, 16)
    spikes, weights, affine = d.spikes(BATCH, STEPS, setting.positions, 16), d.weights(16), d.table(setting.rows, 16)
    firing = d.firing(16, setting, setting.relaxed)

    def run(samples, steps, state, first):
        at = (samples, steps)
        return attend_fire(
            potential[at], spikes[at], features[at], *affine, weights, firing, keep_attention=True,
            first_step=first, initial_state=state, output_final_state=not in_place(state),
        )  # fmt: skip

    return run


def enter_fire_run(setting):
    d = Drawn(setting)
    x, kernel = d.uniform(BATCH, STEPS, 2, 9, 12).round(), d.normal(8, 2, 3, 3)
    entry, affine, firing = d.table(setting.rows, 2), d.table(setting.rows, 8), d.firing(8, setting)
    before = d.uniform(2)

    def run(samples, steps, state, first):
        return enter_fire(
            x[samples, steps], entry, before, kernel, affine, firing,
            first_step=first, initial_state=state, output_final_state=not in_place(state),
        )  # fmt: skip

    return run


def rates_run(setting, keep=None):
    d = Drawn(setting)
    spikes = [d.spikes(BATCH, STEPS, 7, 9, 5), d.spikes(BATCH, STEPS, 3, 4, 6)]
    proxies = [torch.zeros((), dtype=setting.dtype, device=setting.device).expand(one.shape) for one in spikes]

    def run(samples, steps, state, first):
        given = [[one[samples, steps] for one in group] for group in (spikes, proxies)]
        rates, final = pooled_rates(
            *given,
            setting.grid,
            keep=keep,
            first_step=first,
            initial_state=state,
            output_final_state=not in_place(state),
        )
        return (rates,), final

    return run


def leaky_run(setting):
    return rates_run(setting, keep=0.9)


def mamba_run(setting):
    d = Drawn(setting)
    inputs, inner = d.normal(BATCH, STEPS, 1, 2 * 20), 20
    weights = InnerWeights(
        d.uniform(1, inner, 4, low=-0.5), d.uniform(1, inner), d.normal(1, 2 + 2 * 4, inner) * 0.3,
        d.uniform(1, inner, 2), d.uniform(1, inner, low=-4, high=-1), d.uniform(1, inner, 4, low=-8, high=-1),
        d.uniform(1, inner),
    )  # fmt: skip

    def run(samples, steps, state, first):
        out, final = mamba_inner(
            inputs[samples, steps], weights, initial_state=state, output_final_state=not in_place(state)
        )
        return (out,), final

    return run


RUNS = {
    "norm_fire": norm_fire_run,
    "leaky_fire": leaky_fire_run,
    "attend": attend_run,
    "attend_fire": attend_fire_run,
    "enter_fire": enter_fire_run,
    "pooled_rates": rates_run,
    "leaky_rates": leaky_run,
    "mamba_inner": mamba_run,
}


def mapped(fn, *states):
    """Apply to every tensor of nested states."""
    first = states[0]
    if first is None:
        return None
    if isinstance(first, torch.Tensor):
        return fn(*states)
    if isinstance(first, list):
        return [mapped(fn, *parts) for parts in zip(*states, strict=True)]
    return type(first)(*(mapped(fn, *parts) for parts in zip(*states, strict=True)))


def same(left, right, exact):
    if exact:
        assert torch.equal(left, right)
    else:
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    return left


ALL = slice(None)


def check_pieces(run, pieces, exact):
    """The clip in pieces gives the whole clip's outputs and final state."""
    whole, last = run(ALL, ALL, None, 0)
    for sizes in pieces:
        state, begin, parts = None, 0, []
        for size in sizes:
            out, state = run(ALL, slice(begin, begin + size), state, begin)
            parts.append(out)
            begin += size
        for piece, expected in zip(zip(*parts, strict=True), whole, strict=True):
            same(torch.cat(piece, 1), expected, exact)
        mapped(lambda left, right: same(left, right, exact), state, last)


def check_samples(run, exact, device="cpu"):
    """Sample i has done i steps before the batch; those that have done none start from a state of zeros."""
    whole, _ = run(ALL, ALL, None, 0)
    _, like = run(ALL, slice(0, 1), None, 0)
    states = [mapped(lambda one: torch.zeros_like(one[:1]), like)]
    for sample in range(1, BATCH):
        states.append(run(slice(sample, sample + 1), slice(0, sample), None, 0)[1])
    state = mapped(lambda *rows: torch.cat(rows), *states)
    samples = torch.arange(BATCH, device=device)
    at = (samples[:, None], samples[:, None] + torch.arange(STEPS - BATCH + 1, device=device))
    out, _ = run(at[0], at[1], state, samples)
    for given, expected in zip(out, whole, strict=True):
        same(given, expected[at], exact)


def with_rows(state, rows):
    """The state with these rows in each of its parts that can have them."""
    if isinstance(state, list):
        return [with_rows(part, rows) for part in state]
    if not isinstance(state, tuple):
        return state
    if "rows" in state._fields:
        return state._replace(rows=rows)
    return type(state)(*(with_rows(part, rows) for part in state))


def check_rows(run):
    """A state in rows of larger tensors is updated there, other rows stay, and the outputs are those of one apart."""
    rows = torch.tensor([4, 0, 2])
    _, state = run(ALL, slice(0, 2), None, 0)
    larger = with_rows(mapped(lambda one: one.new_ones(5, *one.shape[1:]).index_copy_(0, rows, one), state), rows)
    for begin, end in ((2, 3), (3, 6)):
        expected, state = run(ALL, slice(begin, end), state, begin)
        found, final = run(ALL, slice(begin, end), larger, begin)
        assert final is None
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
        mapped(lambda one, other: same(one[rows], other, exact=True), with_rows(larger, None), state)
        mapped(lambda one: same(one[[1, 3]], torch.ones_like(one[:2]), exact=True), with_rows(larger, None))
