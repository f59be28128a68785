"""RepConv against a sum of PyTorch modules, and the kernel it says it is."""

import pytest
import torch
import torch.nn.functional as F
from tests.nn.ways import WAYS

from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.repconv import DualKernelConv, FusedConv, RepConv

SHAPES = pytest.mark.parametrize(
    ("in_channels", "channels", "stride", "branches"), [(2, 6, 2, 5), (4, 4, 1, 7), (4, 4, 2, 5), (3, 5, 1, 5)]
)
SIZES = pytest.mark.parametrize("size", [(9, 7), (8, 6), (5, 5), (1, 2)])


def clip(channels, size, steps=4):
    return torch.randn(2, steps, channels, *size, dtype=torch.float64)


def slow_tdm(x, coefficient):
    """(1 + λ) x_t − λ x_{t−1}, step by step."""
    before, out = torch.zeros_like(x[:, 0]), []
    weight = coefficient[:, None, None]
    for x_t in x.unbind(1):
        out.append((1 + weight) * x_t - weight * before)
        before = x_t
    return torch.stack(out, 1)


def over_steps(x, fn):
    return fn(x.flatten(0, 1)).unflatten(0, x.shape[:2])


@SHAPES
def test_number_of_branches_and_parameters(in_channels, channels, stride, branches):
    conv = RepConv(in_channels, channels, stride)
    assert len(conv.branches) == branches
    kernels = in_channels * channels * (9 + 1 + 3 + 3 + 1) + channels * channels * 9
    assert sum(p.numel() for p in conv.parameters()) == kernels + 2 * channels * branches + in_channels
    assert not any(part.bias is not None for part in conv.modules() if isinstance(part, torch.nn.Conv2d))


@SHAPES
@SIZES
@WAYS
def test_equals_the_sum_of_its_branches(
    randomize, twin_repconv, same, in_channels, channels, stride, branches, size, training, mode
):
    conv = randomize(RepConv(in_channels, channels, stride).double()).train(training)
    twins = twin_repconv(conv)
    x = clip(in_channels, size).requires_grad_()
    out, state = conv(x, mode)
    filtered = slow_tdm(x, conv.coefficient)
    expected = over_steps(filtered, lambda flat: sum(twin(flat) for twin in twins))
    same(out, expected)
    assert torch.equal(state["input"], x[:, -1])
    cotangent = torch.randn_like(out)
    wanted = torch.autograd.grad(expected, [x, conv.coefficient, *twins.parameters()], cotangent)
    ours = [p for branch in conv.branches for p in (*(c.weight for c in branch.convs), *branch.norm.parameters())]
    same(list(torch.autograd.grad(out, [x, conv.coefficient, *ours], cotangent)), list(wanted), 1e-10)
    for branch, twin in zip(conv.branches, twins, strict=True):
        same(branch.norm.running_mean, twin[-1].running_mean)
        same(branch.norm.running_var, twin[-1].running_var)


@SHAPES
@SIZES
def test_the_kernel_is_exact(randomize, same, in_channels, channels, stride, branches, size):
    conv = randomize(RepConv(in_channels, channels, stride).double()).eval()
    kernel, bias = conv.kernel_and_bias()
    assert kernel.shape == (channels, in_channels, 3, 3)
    x = clip(in_channels, size)
    filtered = slow_tdm(x, conv.coefficient)
    same(
        conv(x, ForwardMode(literal=True))[0],
        over_steps(filtered, lambda flat: F.conv2d(flat, kernel, bias, stride, 1)),
        1e-13,
    )


def test_the_kernel_of_a_float32_network_is_computed_in_float64(randomize):
    conv = randomize(RepConv(4, 4, 1))
    kernel, bias = conv.kernel_and_bias()
    assert kernel.dtype == bias.dtype == torch.float64
    exact, exact_bias = conv.double().kernel_and_bias()
    assert torch.equal(kernel, exact)
    assert torch.equal(bias, exact_bias)


def average_branch(conv):
    """What the pooling branch alone adds for a map of ones: all the others are silenced by γ = 0."""
    mode = ForwardMode(literal=True)
    with torch.no_grad():
        for branch in list(conv.branches)[:-1]:
            branch.norm.weight.zero_()
        return conv(torch.ones(1, 1, 1, 4, 4), mode)[0][0, 0, 0]


def test_the_average_pool_counts_zeros():
    out = average_branch(RepConv(1, 1, 1).eval())
    expected = torch.tensor([[4, 6, 6, 4], [6, 9, 9, 6], [6, 9, 9, 6], [4, 6, 6, 4]]) / 9
    torch.testing.assert_close(out, expected / (1 + 1e-5) ** 0.5)


@pytest.mark.parametrize("stride", [1, 2])
def test_plain_is_one_convolution_and_its_norm(randomize, twin_norm, same, stride):
    conv = randomize(RepConv(4, 4, stride, branches=False).double())
    assert len(conv.branches) == 1
    x = clip(4, (9, 7))
    twin = twin_norm(conv.branches[0].norm)
    weight = conv.branches[0].convs[0].weight
    expected = over_steps(slow_tdm(x, conv.coefficient), lambda flat: twin(F.conv2d(flat, weight, None, stride, 1)))
    same(conv(x)[0], expected)


def test_without_the_filter_there_is_no_coefficient(randomize, same):
    conv = randomize(RepConv(4, 4, 1, tdm_enabled=False).double()).eval()
    assert conv.coefficient is None
    kernel, bias = conv.kernel_and_bias()
    x = clip(4, (5, 6))
    same(conv(x, ForwardMode(literal=True))[0], over_steps(x, lambda flat: F.conv2d(flat, kernel, bias, 1, 1)))


@pytest.mark.parametrize("stride", [1, 2])
def test_two_kernels_equal_the_filter_and_one(randomize, same, stride):
    fused = randomize(FusedConv(3, 4, stride).double())
    dual = DualKernelConv(3, 4, stride).double()
    with torch.no_grad():
        fused.bias.normal_()
        scale = fused.coefficient[:, None, None]
        dual.weight_now.copy_(fused.weight * (1 + scale))
        dual.weight_before.copy_(fused.weight * scale)
        dual.bias.copy_(fused.bias)
    x = (clip(3, (7, 5)) > 0).double()
    expected = F.conv2d(slow_tdm(x, fused.coefficient).flatten(0, 1), fused.weight, fused.bias, stride, 1)
    same(fused(x)[0].flatten(0, 1), expected)
    same(dual(x)[0].flatten(0, 1), expected)


@pytest.mark.parametrize("kind", ["rep", "fused", "dual"])
def test_pieces_with_carried_state_equal_one_call(randomize, same, kind):
    made = {"rep": RepConv(3, 4, 2), "fused": FusedConv(3, 4, 2), "dual": DualKernelConv(3, 4, 2)}[kind]
    conv = randomize(made.double()).eval()
    if kind == "dual":
        torch.nn.init.normal_(conv.weight_before)
    x = clip(3, (5, 4), steps=5)
    state, out = None, []
    for piece in x.split((1, 3, 1), 1):
        y, state = conv(piece, initial_state=state)
        out.append(y)
    same(torch.cat(out, 1), conv(x)[0])
    assert torch.equal(state["input"], x[:, -1])
