"""The accumulate-only convolution in C++ against dense convolutions, and its count against one made by hand."""

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.nn.repconv import DualKernelConv
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.sparse_conv import AccumulateConvInputs, accumulate_conv, reference

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))

# B, T, H, W, Cin, C
SHAPES = [
    (1, 1, 1, 1, 3, 2),
    (2, 3, 5, 7, 2, 3),
    (1, 10, 9, 9, 32, 32),
    (2, 5, 17, 18, 32, 64),
    (1, 4, 8, 5, 64, 128),
    (1, 2, 6, 6, 130, 200),
    (1, 2, 4, 4, 96, 384),
]


def dense_conv(*given):
    return reference.dense_conv(AccumulateConvInputs(*given))


def drawn(batch, steps, height, width, in_channels, channels, rate=0.2):
    spikes = (torch.rand(batch, steps, height, width, in_channels) < rate).byte()
    now, before = torch.randn(2, channels, in_channels, 3, 3)
    return spikes, now, before, torch.randn(channels)


def natively(*arguments):
    with kernels("native"):
        return accumulate_conv(*arguments)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("whole", [True, False], ids=["both", "now_alone"])
def test_equals_the_dense_convolution(shape, stride, whole):
    spikes, now, before, bias = drawn(*shape)
    if not whole:
        before = bias = None
    out, additions = natively(spikes, now, before, bias, stride)
    expected, count = dense_conv(spikes, now, before, bias, stride)
    assert out.dtype == torch.float32
    assert out.is_contiguous()
    assert out.shape == expected.shape
    assert (out - expected).abs().max() <= 5e-6 * max(1, expected.abs().max())
    assert additions == count


@pytest.mark.parametrize("stride", [1, 2])
def test_the_reference_is_the_dual_kernel_layer(stride):
    spikes = drawn(2, 4, 7, 6, 5, 8)[0]
    layer = DualKernelConv(5, 8, stride)
    with torch.no_grad():
        for parameter in (layer.weight_before, layer.bias):
            parameter.normal_()
        expected = layer(spikes.movedim(-1, 2).float())[0].movedim(2, -1)
        weights = (layer.weight_now, layer.weight_before, layer.bias)
        torch.testing.assert_close(dense_conv(spikes, *weights, stride)[0], expected)
        torch.testing.assert_close(natively(spikes, *weights, stride)[0], expected)


@pytest.mark.parametrize(
    ("stride", "place", "reached"),
    [(1, (2, 2), 9), (1, (0, 0), 4), (1, (0, 3), 6), (2, (2, 2), 1), (2, (1, 1), 4), (2, (0, 1), 2), (2, (5, 5), 1)],
    ids=str,
)
@pytest.mark.parametrize("convolve", [natively, dense_conv], ids=["native", "reference"])
def test_additions_of_a_single_spike(stride, place, reached, convolve):
    """It counts the outputs a spike reaches, times the channels, now and again one step later."""
    spikes = torch.zeros(1, 2, 6, 6, 4, dtype=torch.uint8)
    spikes[0, 0, *place, 1] = 1
    now, before = torch.ones(2, 20, 4, 3, 3)
    out, additions = convolve(spikes, now, before, None, stride)
    assert additions == 2 * reached * 20
    assert out[0, 0].sum() == reached * 20
    assert torch.equal(out[0, 1], -out[0, 0])


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_no_spikes_and_all_spikes(rate):
    spikes, now, before, bias = drawn(2, 3, 5, 6, 33, 17, rate=1.1 * rate)
    out, additions = natively(spikes, now, before, bias, 1)
    expected, count = dense_conv(spikes, now, before, bias, 1)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
    assert additions == count
    if rate == 0:
        assert torch.equal(out, bias.expand_as(out))
        assert additions == 0


def test_samples_do_not_mix():
    spikes, now, before, bias = drawn(2, 5, 6, 6, 8, 16)
    both = natively(spikes, now, before, bias, 1)[0]
    for sample in range(2):
        assert torch.equal(both[sample], natively(spikes[sample, None], now, before, bias, 1)[0][0])


def test_same_bits_for_any_number_of_threads_and_memory(poisoned_empty):
    given = drawn(2, 9, 20, 12, 16, 40)
    first, additions = natively(*given, 1)
    torch.set_num_threads(2)
    try:
        second, again = natively(*given, 1)
    finally:
        torch.set_num_threads(1)
    assert first.isfinite().all()
    assert torch.equal(first, second)
    assert additions == again


def test_other_layouts_of_the_same_tensors():
    spikes, now, before, bias = drawn(1, 3, 6, 6, 8, 16)
    strided = spikes.movedim(-1, 2).contiguous().movedim(2, -1)
    channels_last = now.contiguous(memory_format=torch.channels_last)
    assert torch.equal(natively(spikes, now, before, bias, 1)[0], natively(strided, channels_last, before, bias, 1)[0])


@pytest.mark.parametrize("choice", ["native", "off"])
def test_what_it_refuses(choice):
    spikes, now, before, bias = drawn(1, 2, 4, 4, 8, 16)
    with kernels(choice):
        with raises(InputError, field="spikes") as caught:
            accumulate_conv(spikes * 2, now, before, bias)
        assert "above 1" in str(caught.value)
        with raises(InputError, field="spikes") as caught:
            accumulate_conv(spikes.float(), now, before, bias)
        assert "torch.float32" in str(caught.value)
        with raises(InputError, field="stride") as caught:
            accumulate_conv(spikes, now, before, bias, 3)
        assert "got 3" in str(caught.value)
        with raises(InputError, field="weight_before"):
            accumulate_conv(spikes, now, before[:, :4], bias)
        with raises(InputError, field="weight_now"):
            accumulate_conv(spikes, now[:, :4], None, bias)
        with raises(InputError, field="bias"):
            accumulate_conv(spikes, now, None, bias[:4])
