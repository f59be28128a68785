"""pooled_rates in C++ against its reference in float64."""

import pytest
import torch

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.pooled_rates import pooled_rates, pooled_rates_reference

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=f"no C++ operators: {unavailable_reason()}")

# (batch, steps), scales (height, width, channels), grid
CASES = [
    ((1, 1), [(1, 1, 2)], (1, 1)),
    ((2, 3), [(17, 17, 3), (9, 9, 33), (5, 5, 2)], (5, 5)),
    ((1, 10), [(16, 12, 32), (8, 6, 64)], (4, 3)),
    ((1, 4), [(9, 7, 5)], (4, 7)),
    ((1, 3), [(3, 4, 96)], (5, 6)),
    ((1, 2), [(64, 64, 3)], (16, 16)),
]


def relative(given, expected):
    return ((given.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-30)).item()


def drawn(case, numbers=False):
    torch.manual_seed(0)
    lead, scales, _ = case
    draw = [torch.rand(*lead, *scale) for scale in scales]
    return [d.bfloat16() if numbers else (d < 0.3).to(torch.uint8) for d in draw]


def computed(case, spikes, dtype):
    """(rates, gradients of the scales) by the operator."""
    carriers = [torch.zeros((), dtype=dtype).expand(one.shape).requires_grad_() for one in spikes]
    with kernels("native"):
        out = pooled_rates(spikes, carriers, case[2])
        cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(dtype)
        return out.detach(), torch.autograd.grad(out, carriers, cotangent)


def expected_of(case, spikes):
    wide = [one.double().requires_grad_() for one in spikes]
    out = pooled_rates_reference(wide, case[2])
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16().double()
    return out.detach(), torch.autograd.grad(out, wide, cotangent)


@pytest.mark.parametrize("numbers", [False, True], ids=["bytes", "numbers"])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=["f32", "bf16"])
def test_rates_and_gradients(case, dtype, tolerance, numbers):
    spikes = drawn(case, numbers)
    out, grads = computed(case, [one.to(dtype) if numbers else one for one in spikes], dtype)
    wanted, wanted_grads = expected_of(case, spikes)
    assert out.dtype == dtype
    assert out.shape == wanted.shape
    assert relative(out, wanted) < tolerance
    assert len(grads) == len(wanted_grads)
    for grad, expected in zip(grads, wanted_grads, strict=True):
        assert grad.dtype == dtype
        assert relative(grad, expected) < tolerance


@pytest.mark.parametrize("value", [0, 1])
def test_all_zero_and_all_one(value):
    spikes = [torch.full((1, 3, 5, 5, 3), value, dtype=torch.uint8)]
    out, _ = computed(((1, 3), None, (2, 2)), spikes, torch.float32)
    rates, changes = out.split(3, -1)
    assert (rates == value).all()
    assert (changes[:, 0] == value).all()
    assert (changes[:, 1:] == 0).all()


def test_same_bits_and_every_element_written(poisoned_empty):
    case = CASES[1]
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            out, grads = computed(case, drawn(case), torch.float32)
            results.append([out, *grads])
    finally:
        torch.set_num_threads(threads)
    for one, two, three in zip(*results, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_nan_spreads_no_further_than_it_should():
    case = ((1, 3), [(4, 4, 2)], (2, 2))
    spikes = [torch.zeros(1, 3, 4, 4, 2)]
    spikes[0][0, 1, 0, 1, 1] = torch.nan
    out, _ = computed(case, spikes, torch.float32)
    expected = torch.zeros(1, 3, 2, 2, 4, dtype=torch.bool)
    expected[0, 1:, 0, 0, 1] = expected[0, 1:, 0, 0, 3] = True
    assert torch.equal(out.isnan(), expected)
