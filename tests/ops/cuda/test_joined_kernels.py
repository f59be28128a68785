"""The bridge without its rates by Triton kernels, in the interpreter where there is no GPU, against float64."""

import pytest
import torch
import torch.nn.functional as F

from ripe_mambaspike.ops.joined_tokens import (
    joined_tokens,
    joined_tokens_reference,
    paired_kernel,
    pooled_spikes,
    pooled_spikes_reference,
)
from ripe_mambaspike.ops.joined_tokens import triton as kernels_of
from ripe_mambaspike.ops.pooled_rates import pooled_rates_reference

pytestmark = pytest.mark.slow

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
POOLS = {  # steps, scales (height, width, channels), grid
    "17-9-5": (3, [(17, 17, 3), (9, 9, 2), (5, 5, 4)], (5, 5)),
    "16-8-4": (2, [(16, 16, 2), (8, 8, 3), (4, 4, 5)], (4, 4)),
    "oblong": (2, [(7, 5, 3), (3, 2, 70)], (3, 2)),
    "one step": (1, [(6, 5, 2)], (4, 3)),
    "wide cells": (1, [(13, 13, 2)], (2, 2)),
    "finer grid than image": (2, [(2, 3, 3)], (5, 4)),
    "one cell": (3, [(3, 3, 1)], (1, 1)),
    "even cells of six": (2, [(6, 4, 2)], (2, 2)),
}
JOINS = {  # samples, steps, positions, width
    "one sample": (1, 16, 9, 32),
    "odd": (3, 10, 7, 24),
    "one step": (2, 1, 5, 32),
    "one position": (1, 3, 1, 8),
    "wide": (2, 5, 3, 192),
}


def relative(given, expected):
    """Largest difference over largest magnitude."""
    return ((given.double().cpu() - expected.double()).abs().max() / expected.abs().max()).item()


def scales_of(case):
    steps, sizes, grid = POOLS[case]
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(2, steps, *size, generator=generator, dtype=torch.float64) for size in sizes], grid


def join_case(case, dtype=torch.float64):
    """convolved, bias, norm, attended and outer; the activations rounded to `dtype`."""
    samples, steps, positions, width = JOINS[case]
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    convolved, attended = (draw(samples, steps, positions, wide).to(dtype).double() for wide in (2 * width, width))
    bias, weight, shift, outer_weight, outer_shift = draw(5, width)
    return convolved, bias, (weight, shift), attended, (outer_weight, outer_shift)


def rounded(case, dtype):
    convolved, bias, norm, attended, outer = case
    vectors = [tuple(t.float().to(DEVICE) for t in pair) for pair in (norm, outer)]
    return convolved.to(DEVICE, dtype), bias.float().to(DEVICE), vectors[0], attended.to(DEVICE, dtype), vectors[1]


@pytest.mark.parametrize("case", POOLS)
def test_pooled_numbers(case):
    spikes, grid = scales_of(case)
    given = pooled_spikes([one.float().to(DEVICE) for one in spikes], torch.empty(0, device=DEVICE), grid)
    expected = pooled_spikes_reference(spikes, grid)
    assert given.shape == expected.shape
    assert given.is_contiguous()
    assert relative(given, expected) < 1e-6


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0], ids=["silent", "sparse", "saturated"])
@pytest.mark.parametrize("case", POOLS)
def test_pooled_bytes(case, density):
    numbers, grid = scales_of(case)
    spikes = [(one < density).byte().to(DEVICE) for one in numbers]
    expected = pooled_spikes_reference([one.double().cpu() for one in spikes], grid)
    given = pooled_spikes(spikes, torch.empty(0, device=DEVICE), grid).cpu()
    assert (given - expected).abs().max() < 1e-6
    half = pooled_spikes(spikes, torch.empty(0, device=DEVICE, dtype=torch.bfloat16), grid).cpu()
    assert half.dtype == torch.bfloat16
    assert ((half - expected).abs() <= expected * 2**-7).all()  # the interpreter cuts off
    if case == "16-8-4":
        assert torch.equal(half.double(), expected)  # sixteenths have few enough digits


@pytest.mark.parametrize("wanted", [1, 6, 4096], ids=["walked", "in segments", "every step apart"])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-5)], ids=str)
@pytest.mark.parametrize("case", JOINS)
def test_joined_tokens(monkeypatch, case, dtype, limit, wanted):
    """Rounded inputs are exact here, and everything behind them is float32."""
    monkeypatch.setattr(kernels_of, "WANTED", wanted)
    inputs = join_case(case, dtype)
    expected = joined_tokens_reference(*inputs)
    given = joined_tokens(*rounded(inputs, dtype))
    assert given.dtype == torch.float32
    assert given.shape == expected.shape
    assert relative(given, expected) < limit


@pytest.mark.parametrize("wanted", [1, 6, 512])
def test_twice_the_same_bits_and_everything_written(monkeypatch, poisoned_empty, wanted):
    monkeypatch.setattr(kernels_of, "WANTED", wanted)
    inputs = rounded(join_case("odd"), torch.float32)
    first, second = joined_tokens(*inputs), joined_tokens(*inputs)
    assert first.isfinite().all()
    assert torch.equal(first, second)
    numbers, grid = scales_of("17-9-5")
    spikes, like = [(one < 0.3).byte().to(DEVICE) for one in numbers], torch.zeros(0, device=DEVICE)
    pooled = pooled_spikes(spikes, like, grid)
    assert pooled.isfinite().all()
    assert torch.equal(pooled, pooled_spikes(spikes, like, grid))


def test_a_convolution_over_spikes_is_the_one_over_rates():
    """The algebra, in float64: rates of a convolution are the convolution of rates, borders and first step included."""
    spikes, grid = scales_of("17-9-5")
    channels = [one.shape[-1] for one in spikes]
    kernel = torch.randn(6, 2 * sum(channels), 3, 3, dtype=torch.float64)
    bias, weight, shift = torch.randn(3, 6, dtype=torch.float64)

    def convolve(x, kernel):
        return F.conv2d(x.flatten(0, 1).permute(0, 3, 1, 2), kernel, None, 1, 1).flatten(2).mT.unflatten(0, x.shape[:2])

    mixed = F.layer_norm(convolve(pooled_rates_reference(spikes, grid), kernel) + bias, (6,), weight, shift)
    attended = torch.randn_like(mixed)
    expected = F.layer_norm(mixed + attended, (6,), shift, weight)
    convolved = convolve(pooled_spikes_reference(spikes, grid), paired_kernel(kernel, channels))
    given = joined_tokens_reference(convolved, bias, (weight, shift), attended, (shift, weight))
    torch.testing.assert_close(given, expected, rtol=1e-12, atol=1e-12)


def test_registered_with_their_shapes():
    spikes, grid = scales_of("17-9-5")
    numbers, like = [one.float().to(DEVICE) for one in spikes], torch.zeros(2, device=DEVICE)
    convolved, bias, norm, attended, outer = rounded(join_case("odd"), torch.float32)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(torch.ops.ripe.pooled_spikes.default, (numbers, like, *grid), test_utils=tests)
    given = (convolved, bias, *norm, attended, *outer)
    torch.library.opcheck(torch.ops.ripe.joined_tokens.default, given, test_utils=tests)
