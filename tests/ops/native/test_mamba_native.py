"""The inside of a Mamba in C++ against its reference in float64: outputs and every gradient."""

import pytest
import torch

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.mamba_inner import InnerWeights, mamba_inner, mamba_inner_reference

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))

# B, L, D, E, R, N, has a bias
CASES = [
    (1, 1, 1, 6, 1, 4, True),
    (2, 1, 2, 16, 2, 16, True),
    (1, 7, 2, 6, 3, 4, False),
    (2, 7, 1, 64, 2, 16, True),
    (1, 33, 2, 16, 1, 16, True),
    (2, 33, 1, 100, 3, 4, False),
    (2, 33, 2, 100, 2, 16, True),
    (1, 130, 2, 64, 2, 16, False),
    (2, 130, 2, 100, 3, 16, True),
]


def drawn(batch, length, directions, channels, rank=2, states=16, biased=True, taps=4):
    """Inputs and weights as they look in training: slow and fast decays, small and large steps."""

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    weights = InnerWeights(
        conv=normal(directions, channels, taps) / 2,
        conv_bias=normal(directions, channels) / 10 if biased else None,
        x_proj=normal(directions, rank + 2 * states, channels) / channels**0.5,
        dt_proj=normal(directions, channels, rank) / rank**0.5,
        dt_bias=normal(directions, channels) - 3,
        decay=-torch.rand(directions, channels, states, dtype=torch.float64) * states - 0.01,
        skip=normal(directions, channels),
    )
    return normal(batch, length, directions, 2 * channels), weights


def rounded(inputs, weights):
    """To float32, so that the reference in float64 is given the same numbers."""
    return inputs.float(), InnerWeights(*(None if weight is None else weight.float() for weight in weights))


def with_gradients(fn, inputs, weights, activations, parameters):
    """[output, gradient of every given argument] in these precisions."""
    leaves = [inputs.to(activations)]
    for name, weight in weights._asdict().items():
        leaves.append(None if weight is None else weight.to(activations if name == "x_proj" else parameters))
    leaves = [None if leaf is None else leaf.detach().clone().requires_grad_() for leaf in leaves]
    out = fn(leaves[0], InnerWeights(*leaves[1:]))
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, [leaf for leaf in leaves if leaf is not None], cotangent)]


def natively(inputs, weights, activations=torch.float32):
    with kernels("native"):
        return with_gradients(mamba_inner, inputs, weights, activations, torch.float32)


def assert_within(given, expected, tolerance):
    """Largest difference over largest magnitude, for the output and every gradient."""
    assert len(given) == len(expected)
    for index, (actual, wanted) in enumerate(zip(given, expected, strict=True)):
        assert actual.shape == wanted.shape
        difference, largest = (actual.double() - wanted.double()).abs().max(), wanted.abs().max()
        assert difference <= tolerance * largest, f"result {index} is off by {difference:.1e} of {largest:.1e}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_equal_the_reference(case):
    inputs, weights = rounded(*drawn(*case))
    expected = with_gradients(mamba_inner_reference, inputs, weights, torch.float64, torch.float64)
    assert_within(natively(inputs, weights), expected, 3e-6)


@pytest.mark.parametrize("case", [CASES[3], CASES[5], CASES[8]], ids=str)
def test_bfloat16_gives_what_the_same_numbers_give_in_float32(case):
    inputs, weights = drawn(*case)
    inputs, weights = inputs.bfloat16(), weights._replace(x_proj=weights.x_proj.bfloat16())
    expected = with_gradients(mamba_inner_reference, inputs, weights, torch.float32, torch.float32)
    given = natively(inputs, weights, torch.bfloat16)
    assert given[0].dtype == given[1].dtype == torch.bfloat16
    assert [result.dtype for result in given[2:]].count(torch.float32) == len(given) - 3
    assert_within(given, expected, 1e-2)


@pytest.mark.parametrize("activations", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_twice_the_same_bits_whatever_memory_held(activations, threads, poisoned_empty):
    inputs, weights = drawn(2, 70, 2, 100)
    torch.set_num_threads(threads)
    try:
        first, second = (natively(inputs, weights, activations) for _ in range(2))
    finally:
        torch.set_num_threads(1)
    for one, other in zip(first, second, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


def test_the_number_of_threads_does_not_change_the_output():
    inputs, weights = drawn(1, 130, 2, 64)
    alone = natively(inputs, weights)[0]
    torch.set_num_threads(2)
    try:
        together = natively(inputs, weights)[0]
    finally:
        torch.set_num_threads(1)
    assert torch.equal(alone, together)


@pytest.mark.parametrize(
    ("dt_bias", "decay"), [(60.0, -1e4), (60.0, -1e-4), (-40.0, -16.0), (-100.0, -1e30), (60.0, -2e38)], ids=str
)
def test_extreme_steps_and_decays(dt_bias, decay):
    """States that vanish at once, that never fade, and steps below the smallest float."""
    inputs, weights = drawn(1, 40, 2, 16)
    weights = weights._replace(
        dt_bias=torch.full_like(weights.dt_bias, dt_bias), decay=torch.full_like(weights.decay, decay)
    )
    inputs, weights = rounded(inputs, weights)
    expected = with_gradients(mamba_inner_reference, inputs, weights, torch.float64, torch.float64)
    given = natively(inputs, weights)
    for index, (actual, wanted) in enumerate(zip(given, expected, strict=True)):
        assert actual.isfinite().all(), index
        scale = max(wanted.abs().max().item(), 1e-30)
        assert (actual - wanted).abs().max() <= 2e-5 * scale, index


def test_every_exponential_is_exact_to_rounding():
    """Two tokens, one state: each output is a product of few factors, so its own relative error shows theirs."""
    channels = 512
    inputs = torch.full((1, 2, 1, 2 * channels), 1.0, dtype=torch.float64)
    inputs[:, 1] = 1e-3  # the second output is then what the decay left of the first token, times a small number
    _, weights = drawn(1, 2, 1, channels, rank=1, states=1, biased=False, taps=1)
    step = torch.linspace(-12, 6, channels, dtype=torch.float64)
    exponent = torch.rand(channels, dtype=torch.float64) * 4
    weights = weights._replace(
        conv=torch.ones_like(weights.conv),
        x_proj=torch.ones_like(weights.x_proj) / channels,
        dt_proj=torch.zeros_like(weights.dt_proj),
        dt_bias=step[None],
        decay=-(exponent / torch.nn.functional.softplus(step))[None, :, None],
        skip=torch.zeros_like(weights.skip),
    )
    inputs, weights = rounded(inputs, weights)
    expected = mamba_inner_reference(inputs.double(), InnerWeights(*(w if w is None else w.double() for w in weights)))
    relative = (natively(inputs, weights)[0] - expected).abs() / expected.abs()
    assert relative.max() <= 2e-6


def test_large_inputs_saturate():
    inputs, weights = drawn(1, 9, 1, 16)
    inputs, weights = rounded(1e4 * inputs, weights)
    expected = with_gradients(mamba_inner_reference, inputs, weights, torch.float64, torch.float64)
    assert_within(natively(inputs, weights)[:1], expected[:1], 1e-5)


@pytest.mark.parametrize("half", [0, 1], ids=["inner", "gate"])
@pytest.mark.parametrize("activations", [torch.float32, torch.bfloat16], ids=str)
def test_nan_in_gives_nan_out_and_only_where_it_is_seen(half, activations):
    inputs, weights = drawn(2, 20, 2, 16)
    inputs[0, 10, :, half * 16 + 3] = torch.nan
    out = natively(inputs, weights, activations)[0]
    bad = out.isnan()
    assert not bad[1].any()
    assert bad[0, 10, :, 3].all()
    if half:
        assert bad.sum() == 2  # a gate concerns its own output alone, in both directions
    else:
        assert bad[0, 10:, 0].all()
        assert bad[0, :11, 1].all()
        assert not bad[0, :10, 0].any()
        assert not bad[0, 11:, 1].any()


def test_directions_mirror_each_other():
    """The second direction is the first over the tokens from last to first."""
    inputs, weights = drawn(1, 37, 1, 16)
    twice = InnerWeights(*(torch.cat((weight, weight)) for weight in weights))
    both = natively(torch.cat((inputs, inputs.flip(1)), 2), twice)[0]
    assert torch.equal(both[:, :, 0], both[:, :, 1].flip(1))


def test_other_kernel_widths():
    inputs, weights = rounded(*drawn(1, 9, 2, 20, taps=2))
    expected = with_gradients(mamba_inner_reference, inputs, weights, torch.float64, torch.float64)
    assert_within(natively(inputs, weights), expected, 3e-6)
