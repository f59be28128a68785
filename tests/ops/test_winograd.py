"""The Winograd convolution is the convolution, as near as one in float32 comes, and the same bits every time."""

import pytest
import torch
import torch.nn.functional as F
from tests.raising import raises

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.convolve import convolve
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.winograd import winograd_conv, winograd_weights

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason="the C++ operators cannot be built here")

SHAPES = [(3, 8, 8, 16, 16), (2, 17, 13, 48, 16), (1, 3, 1, 16, 48), (2, 1, 6, 32, 32), (5, 9, 10, 64, 80)]


def dense(x, kernel, bias=None):
    return F.conv2d(x.permute(0, 3, 1, 2), kernel, bias, padding=1).permute(0, 2, 3, 1)


def random(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(batch, height, width, channels, outputs):
    kernel = random(outputs, channels, 3, 3, seed=1) / (9 * channels) ** 0.5
    return random(batch, height, width, channels, seed=0), kernel, random(outputs, seed=2)


@torch.no_grad()
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "×".join(map(str, shape)))
def test_it_is_the_convolution(shape, biased):
    x, kernel, bias = inputs(*shape)
    given = bias if biased else None
    exact = dense(x.double(), kernel.double(), None if given is None else given.double())
    out = winograd_conv(x, winograd_weights(kernel), shape[-1], given)
    assert out.is_contiguous()
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=1e-5)


@torch.no_grad()
def test_it_rounds_about_as_much_as_a_sum():
    x, kernel, _ = inputs(4, 16, 16, 64, 64)
    exact = dense(x.double(), kernel.double())
    errors = [
        (out.double() - exact).square().mean().sqrt()
        for out in (winograd_conv(x, winograd_weights(kernel), 64), dense(x, kernel))
    ]
    assert errors[0] < 2 * errors[1]


@torch.no_grad()
def test_an_image_has_the_same_bits_in_any_company():
    x, kernel, bias = inputs(7, 11, 14, 32, 48)
    weights = winograd_weights(kernel)
    together = winograd_conv(x, weights, 48, bias)
    for first in range(7):
        for last in range(first + 1, 8):
            assert torch.equal(winograd_conv(x[first:last], weights, 48, bias), together[first:last])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(winograd_conv(x, weights, 48, bias), together)
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def test_whole_numbers_are_exact():
    """Its additions meet no rounding where the sums are small and the weights divide by 60."""
    x = random(2, 6, 9, 16, seed=3).mul(2).round()
    kernel = random(16, 16, 3, 3, seed=4).mul(2).round() * 60
    out = winograd_conv(x, winograd_weights(kernel), 16)
    assert torch.equal(out, dense(x, kernel).contiguous())


@torch.no_grad()
def test_the_kernels_layout_changes_nothing():
    _, kernel, _ = inputs(*SHAPES[1])
    turned = kernel.contiguous(memory_format=torch.channels_last)
    assert torch.equal(winograd_weights(turned), winograd_weights(kernel))


def test_where_it_is_not_taken():
    kernel = torch.zeros(32, 16, 3, 3)
    assert winograd_weights(kernel) is None  # a gradient is wanted
    with torch.no_grad():
        assert winograd_weights(kernel) is not None
        assert winograd_weights(kernel[:24]) is None
        assert winograd_weights(kernel[:, :8]) is None
        assert winograd_weights(kernel.bfloat16()) is None
        with kernels("off"):
            assert winograd_weights(kernel) is None


@torch.no_grad()
def test_nothing_and_what_cannot_be():
    x, kernel, _ = inputs(2, 4, 4, 16, 32)
    weights = winograd_weights(kernel)
    for shape in ((0, 4, 4, 16), (2, 0, 4, 16), (2, 4, 0, 16)):
        assert winograd_conv(torch.zeros(shape), weights, 32).shape == (*shape[:3], 32)
    with raises(InputError, field="x") as caught:
        winograd_conv(x.double(), weights, 32)
    assert all(word in str(caught.value) for word in ("float32", "float64"))
    with raises(InputError, field="weights") as caught:
        winograd_conv(x, weights, 16)
    assert all(word in str(caught.value) for word in ("6144", "12288"))


@torch.no_grad()
def test_a_plan_that_was_kept_runs_without_it():
    x, kernel, _ = inputs(2, 4, 4, 16, 32)
    weights = winograd_weights(kernel)
    together = kernel.contiguous(memory_format=torch.channels_last)
    with kernels("plain"):
        plain = convolve(x[:, None], together, winograd=weights)
    assert torch.equal(plain, convolve(x[:, None], together))
    torch.testing.assert_close(convolve(x[:, None], together, winograd=weights), plain)
