"""Pooled rates on a GPU, at the sizes of training, against the reference."""

import pytest
import torch
from comparing import relative

from ripe_mambaspike.ops.pooled_rates import pooled_rates, pooled_rates_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

CASES = {  # samples, steps, scales (height, width, channels), grid
    "gesture": (2, 16, [(64, 64, 32), (32, 32, 64), (16, 16, 128)], (16, 16)),
    "nmnist": (3, 10, [(17, 17, 32), (9, 9, 64), (5, 5, 128)], (5, 5)),
    "daily": (1, 10, [(56, 56, 96), (28, 28, 192), (14, 14, 384)], (14, 14)),
    "one step": (1, 1, [(17, 9, 3), (5, 5, 2)], (5, 4)),
    "one cell": (2, 7, [(13, 13, 5)], (1, 1)),
}


def drawn(case, dtype):
    samples, steps, sizes, grid = CASES[case]
    generator = torch.Generator("cuda").manual_seed(0)
    scales = [torch.rand(samples, steps, *size, generator=generator, device="cuda") for size in sizes]
    return [one.to(dtype) if dtype.is_floating_point else (one < 0.3).to(dtype) for one in scales], grid


def carriers_of(spikes, dtype):
    return [torch.empty((), dtype=dtype, device="cuda").expand(one.shape).requires_grad_() for one in spikes]


@pytest.mark.parametrize("kind", [torch.uint8, None], ids=["bytes", "numbers"])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_rates_and_gradients_are_the_references(case, dtype, limit, kind):
    spikes, grid = drawn(case, kind or dtype)
    carriers = carriers_of(spikes, dtype)
    numbers = [one.double().requires_grad_() for one in spikes]
    out, expected = pooled_rates(spikes, carriers, grid), pooled_rates_reference(numbers, grid)
    assert out.dtype == dtype
    assert relative(out, expected) < limit
    cotangent = torch.randn(out.shape, device="cuda").to(dtype)
    given = torch.autograd.grad(out, carriers, cotangent)
    for one, wanted in zip(given, torch.autograd.grad(expected, numbers, cotangent.double()), strict=True):
        assert one.dtype == dtype
        assert relative(one, wanted) < limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_twice_the_same_bits(dtype):
    spikes, grid = drawn("nmnist", torch.uint8)
    first, second = (pooled_rates(spikes, carriers_of(spikes, dtype), grid) for _ in range(2))
    assert torch.equal(first, second)
    sizes = [[one.shape[i] for one in spikes] for i in (4, 2, 3)]
    backward = torch.ops.ripe.pooled_rates_backward
    for one, other in zip(backward(first, *sizes), backward(first, *sizes), strict=True):
        assert torch.equal(one, other)


def test_captured_in_a_graph():
    spikes, grid = drawn("nmnist", torch.uint8)
    carriers = [one.detach() for one in carriers_of(spikes, torch.bfloat16)]
    sizes = [[one.shape[i] for one in spikes] for i in (4, 2, 3)]

    def both():
        out = torch.ops.ripe.pooled_rates(spikes, carriers, *grid)
        return [out, *torch.ops.ripe.pooled_rates_backward(out, *sizes)]

    both()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for one in spikes:
        one.copy_(1 - one)
    graph.replay()
    for one, wanted in zip(captured, both(), strict=True):
        assert torch.equal(one, wanted)
