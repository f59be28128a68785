"""Steps one by one, in pieces, and in a batch of samples at different steps have the bits of the whole clip."""

import pytest
import torch

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.enter_fire import enter_fire
from ripe_mambaspike.ops.mamba_inner import InnerWeights, mamba_inner
from ripe_mambaspike.ops.membrane_attention import AttentionWeights, attend, attend_fire
from ripe_mambaspike.ops.norm_fire import Neuron, norm_fire
from ripe_mambaspike.ops.pooled_rates import pooled_rates

BATCH, STEPS = 3, 7
PIECES = [(1,) * STEPS, (3, 4), (2, 1, 4)]
NATIVE = pytest.mark.skipif(unavailable_reason() is not None, reason=f"no C++ operators: {unavailable_reason()}")
BACKENDS = [pytest.param("native", marks=NATIVE), "plain"]


class Drawn:
    """Random tensors, the same every time."""

    def __init__(self, dtype=torch.float32):
        self.generator, self.dtype = torch.Generator().manual_seed(3), dtype

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def uniform(self, *shape, low=0.0, high=1.0):
        return torch.rand(shape, generator=self.generator) * (high - low) + low

    def spikes(self, *shape):
        return (torch.rand(shape, generator=self.generator) < 0.3).to(torch.uint8)

    def neuron(self, channels, rotating):
        rotation = self.uniform(channels, high=0.3) if rotating else None
        gain, threshold = self.uniform(channels, low=0.5), self.uniform(channels, low=0.3)
        return Neuron(self.uniform(channels, low=0.4, high=0.95), rotation, gain, threshold)

    def table(self, rows, channels):
        return self.uniform(rows, channels, low=0.5, high=1.5), self.uniform(rows, channels, low=-0.3, high=0.3)

    def weights(self, channels):
        made = (self.normal(channels, channels) * channels**-0.5 for _ in range(3))
        return AttentionWeights(*made, self.uniform(channels, low=0.5, high=1.5))


def norm_fire_run(rows, rotating=True, dtype=torch.float32):
    d = Drawn(dtype)
    x, affine, neuron, coefficient = (
        d.normal(BATCH, STEPS, 11, 6),
        d.table(rows, 6),
        d.neuron(6, rotating),
        d.uniform(6),
    )

    def run(samples, steps, state, first):
        out, final = norm_fire(
            x[samples, steps],
            *affine,
            neuron,
            coefficient,
            first_step=first,
            initial_state=state,
            output_final_state=True,
        )
        return (out.spikes, out.potential, out.operand), final

    return run


def attend_run(rows, rotating=True, dtype=torch.float32):
    d = Drawn(dtype)
    potential, features = d.normal(BATCH, STEPS, 11, 6), d.normal(BATCH, STEPS, 11, 6)
    spikes, weights, affine = d.spikes(BATCH, STEPS, 11, 6), d.weights(6), d.table(rows, 6)

    def run(samples, steps, state, first):
        at = (samples, steps)
        return attend(
            potential[at], spikes[at], potential[at], features[at], *affine, weights, True,
            first_step=first, initial_state=state,
        )  # fmt: skip

    return run


def attend_fire_run(rows, rotating=True, dtype=torch.float32):
    d = Drawn(dtype)
    potential, features = d.normal(BATCH, STEPS, 140, 16), d.normal(BATCH, STEPS, 140, 16)
    spikes, weights, affine = d.spikes(BATCH, STEPS, 140, 16), d.weights(16), d.table(rows, 16)
    neuron, coefficient = d.neuron(16, rotating), d.uniform(16)

    def run(samples, steps, state, first):
        at = (samples, steps)
        return attend_fire(
            potential[at], spikes[at], features[at], *affine, weights, neuron, coefficient, keep_attention=True,
            first_step=first, initial_state=state, output_final_state=True,
        )  # fmt: skip

    return run


def enter_fire_run(rows, rotating=True, dtype=torch.float32):
    d = Drawn(dtype)
    x, kernel = d.uniform(BATCH, STEPS, 2, 9, 12).round(), d.normal(8, 2, 3, 3)
    entry, affine, neuron = d.table(rows, 2), d.table(rows, 8), d.neuron(8, rotating)
    before, after = d.uniform(2), d.uniform(8)

    def run(samples, steps, state, first):
        return enter_fire(
            x[samples, steps], entry, before, kernel, affine, neuron, after,
            first_step=first, initial_state=state, output_final_state=True,
        )  # fmt: skip

    return run


def rates_run(rows, rotating=True, dtype=torch.float32, keep=None):
    d = Drawn(dtype)
    spikes = [d.spikes(BATCH, STEPS, 7, 9, 5), d.spikes(BATCH, STEPS, 3, 4, 6)]
    proxies = [torch.zeros((), dtype=dtype).expand(one.shape) for one in spikes]

    def run(samples, steps, state, first):
        given = [[one[samples, steps] for one in group] for group in (spikes, proxies)]
        rates, final = pooled_rates(
            *given, (3, 4), keep=keep, first_step=first, initial_state=state, output_final_state=True
        )
        return (rates,), final

    return run


def leaky_run(rows, rotating=True, dtype=torch.float32):
    return rates_run(rows, rotating, dtype, keep=0.9)


def mamba_run(rows, rotating=True, dtype=torch.float32):
    d = Drawn(dtype)
    inputs, inner = d.normal(BATCH, STEPS, 1, 2 * 20), 20
    weights = InnerWeights(
        d.uniform(1, inner, 4, low=-0.5), d.uniform(1, inner), d.normal(1, 2 + 2 * 5, inner) * 0.3,
        d.uniform(1, inner, 2), d.uniform(1, inner, low=-4, high=-1), d.uniform(1, inner, 5, low=-8, high=-1),
        d.uniform(1, inner),
    )  # fmt: skip

    def run(samples, steps, state, first):
        out, final = mamba_inner(inputs[samples, steps], weights, initial_state=state, output_final_state=True)
        return (out,), final

    return run


RUNS = {
    "norm_fire": norm_fire_run,
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


def is_exact(name, backend):
    """Mamba's projection is PyTorch's product, whose rounding depends on the number of tokens."""
    return backend == "native" and name != "mamba_inner"


ALL = slice(None)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [STEPS, STEPS + 3, 1], ids=["table", "longer", "shared"])
@pytest.mark.parametrize("name", RUNS)
@torch.no_grad()
def test_pieces_equal_the_whole(name, rows, backend):
    if rows != STEPS and name in ("pooled_rates", "leaky_rates", "mamba_inner"):
        pytest.skip("has no norm")
    run, exact = RUNS[name](rows), is_exact(name, backend)
    with kernels(backend):
        whole, last = run(ALL, ALL, None, 0)
        for sizes in PIECES:
            state, begin, parts = None, 0, []
            for size in sizes:
                out, state = run(ALL, slice(begin, begin + size), state, begin)
                parts.append(out)
                begin += size
            for piece, expected in zip(zip(*parts, strict=True), whole, strict=True):
                same(torch.cat(piece, 1), expected, exact)
            mapped(lambda left, right: same(left, right, exact), state, last)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rotating", [True, False])
@pytest.mark.parametrize("name", RUNS)
@torch.no_grad()
def test_samples_at_different_steps(name, rotating, backend):
    """Sample i has done i steps before the batch; those that have done none start from a state of zeros."""
    run, exact = RUNS[name](STEPS, rotating), is_exact(name, backend)
    with kernels(backend):
        whole, _ = run(ALL, ALL, None, 0)
        _, like = run(ALL, slice(0, 1), None, 0)
        states = [mapped(lambda one: torch.zeros_like(one[:1]), like)]
        for sample in range(1, BATCH):
            states.append(run(slice(sample, sample + 1), slice(0, sample), None, 0)[1])
        state = mapped(lambda *rows: torch.cat(rows), *states)
        count = STEPS - BATCH + 1
        at = (torch.arange(BATCH)[:, None], torch.arange(BATCH)[:, None] + torch.arange(count))
        out, _ = run(at[0], at[1], state, torch.arange(BATCH))
        for given, expected in zip(out, whole, strict=True):
            same(given, expected[at], exact)


@NATIVE
@pytest.mark.parametrize("name", [name for name in RUNS if name != "mamba_inner"])
@torch.no_grad()
def test_pieces_equal_the_whole_in_bfloat16(name):
    run = RUNS[name](STEPS, dtype=torch.bfloat16)
    with kernels("native"):
        whole, _ = run(ALL, ALL, None, 0)
        first, state = run(ALL, slice(0, 3), None, 0)
        second, _ = run(ALL, slice(3, STEPS), state, 3)
        for *parts, expected in zip(first, second, whole, strict=True):
            assert torch.equal(torch.cat(parts, 1), expected)
