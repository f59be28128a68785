"""What the fused operators do at their edges: thresholds, silence, NaN, extreme steps."""

import pytest
import torch
import torch.nn.functional as F
from tests.ops import operator_cases as case
from tests.ops.operator_cases import (
    NATIVE_BFLOAT16,
    NATIVE_FLOAT32,
    TRITON,
    Run,
    assert_same_bits,
    cast,
    check,
    evaluate,
    relative,
)
from tests.ops.operator_sizes import POOLS
from tests.raising import raises

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.enter_fire import enter_fire
from ripe_mambaspike.ops.joined_tokens import paired_kernel
from ripe_mambaspike.ops.mamba_inner import InnerWeights, mamba_inner
from ripe_mambaspike.ops.membrane_attention import AttentionWeights, attend
from ripe_mambaspike.ops.norm_fire import Firing, norm_fire
from ripe_mambaspike.ops.operator import OPERATORS
from ripe_mambaspike.ops.patch_moments import patch_moments
from ripe_mambaspike.ops.pooled_rates import pooled_rates
from ripe_mambaspike.ops.step_moments import step_moments

BACKENDS = pytest.mark.parametrize("run", [NATIVE_FLOAT32, TRITON])
CPU = pytest.mark.parametrize("run", [NATIVE_FLOAT32, NATIVE_BFLOAT16])


@BACKENDS
def test_fires_at_the_threshold(run):
    ones = torch.ones(2)
    x = torch.tensor([1.0, 1.0 - 2**-24]).view(1, 1, 1, 2)
    with kernels(run.backend):
        out, _ = norm_fire(x, None, None, Firing(ones * 0.5, None, ones, ones, None))
    assert out.spikes.flatten().tolist() == [1, 0]


@BACKENDS
@pytest.mark.parametrize("rotating", [False, True], ids=["leaky", "resonating"])
@pytest.mark.parametrize("level", [-50.0, 50.0], ids=["silent", "saturated"])
def test_silence_and_saturation(level, rotating, run):
    i = case.norm_fire_inputs((1, 4, 6, 4), relaxed=True, rotating=rotating)
    rotation = i.firing.rotation * 0.1 if rotating else None  # too slow to turn the state's sign within four steps
    firing = i.firing._replace(relaxed=False, rotation=rotation)
    outputs, _ = check("norm_fire", i._replace(shift=i.shift + level, firing=firing), run)
    assert (outputs["spikes"] == (level > 0)).all()


@CPU
def test_any_number_of_threads_gives_the_leaky_neurons_bits(run):
    """The gradients of decay and gain too, which are sums over all elements."""
    i, found = case.leaky_fire_inputs((3, 6, 5000)), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(evaluate("leaky_fire", i, run))
    finally:
        torch.set_num_threads(1)
    for one in found[1:]:
        assert_same_bits(one, found[0])


@BACKENDS
def test_outputs_that_are_not_wanted_are_empty_and_change_nothing(run):
    i = cast(case.norm_fire_inputs((1, 3, 25, 3)), torch.float32)
    a = cast(case.attend_inputs((1, 3, 25, 3)), torch.float32)
    with kernels(run.backend):
        kept, bare = (OPERATORS["norm_fire"](i._replace(keep_potential=keep)) for keep in (True, False))
        whole, alone = (OPERATORS["attend"](a._replace(keep_attention=keep)) for keep in (True, False))
    assert bare[2].numel() == alone[1].numel() == 0
    assert kept[2].numel()
    assert torch.equal(kept[0], bare[0])
    assert torch.equal(kept[3], bare[3])
    assert torch.equal(whole[0], alone[0])


@pytest.mark.parametrize("run", [NATIVE_FLOAT32, pytest.param(Run("triton"), id="triton-f32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["norm_fire", "attend", "mamba_inner"])
def test_a_gradient_need_not_be_contiguous(name, run):
    """Nor have a stride: that of a plain sum is one number read everywhere."""
    small = {
        "norm_fire": lambda: case.norm_fire_inputs((1, 3, 5, 3)),
        "attend": lambda: case.attend_inputs((1, 2, 5, 16)),
        "mamba_inner": lambda: case.mamba_inputs(1, 3, 1, 4),
    }
    i = cast(small[name](), torch.float32)
    leaf = next(iter(i)).requires_grad_()
    with kernels(run.backend):
        out = OPERATORS[name](i)[3 if name == "norm_fire" else 0]
        for grad in (torch.randn(out.mT.shape).mT, torch.ones(()).expand(out.shape)):
            given, expected = (
                torch.autograd.grad(out, leaf, by, retain_graph=True)[0] for by in (grad, grad.contiguous())
            )
            assert torch.equal(given, expected)


@CPU
def test_nan_stays_where_it_is(run):
    i = case.norm_fire_inputs((1, 4, 25, 3), relaxed=True)
    i = i._replace(firing=i.firing._replace(relaxed=False))
    i.x[0, 1, 7, 2] = torch.nan
    outputs, grads = evaluate("norm_fire", i, run)
    expected = torch.zeros(1, 4, 25, 3, dtype=torch.bool)
    expected[0, 1:, 7, 2] = True
    assert torch.equal(outputs["potential"].isnan(), expected)
    assert outputs["operand"].isfinite().all()
    assert grads["x"][0, 1, 7, 2].isnan()
    assert grads["x"].isnan().sum() <= 4
    assert grads["decay"].isnan().tolist() == [False, False, True]


@CPU
@pytest.mark.parametrize("channels", [3, 33])
def test_nan_in_the_potential_reaches_its_whole_step(channels, run):
    i = case.attend_inputs((1, 4, 25, channels))
    i.potential[0, 2, 7, 2] = torch.nan
    outputs, grads = evaluate("attend", i, run)
    assert outputs["modulated"][:, 2].isnan().all()
    assert outputs["attention"][:, 2].isnan().all()
    assert outputs["modulated"][:, [0, 1, 3]].isfinite().all()
    assert grads["query"].isnan().all()


@CPU
@pytest.mark.parametrize("half", [0, 1], ids=["inner", "gate"])
def test_nan_in_a_token_reaches_those_that_see_it(half, run):
    i = case.mamba_inputs(2, 20, 2, 16, states=16)
    i.inputs[0, 10, :, half * 16 + 3] = torch.nan
    bad = evaluate("mamba_inner", i, run)[0]["out"].isnan()
    assert not bad[1].any()
    assert bad[0, 10, :, 3].all()
    if half:
        assert bad.sum() == 2  # a gate concerns its own output alone, in both directions
    else:
        assert bad[0, 10:, 0].all()
        assert bad[0, :11, 1].all()
        assert not bad[0, :10, 0].any()
        assert not bad[0, 11:, 1].any()


def test_nan_in_a_spike_reaches_its_cell():
    spikes = torch.zeros(1, 3, 4, 4, 2)
    spikes[0, 1, 0, 1, 1] = torch.nan
    with kernels("native"):
        out, _ = pooled_rates([spikes], [spikes], (2, 2))
    expected = torch.zeros(1, 3, 2, 2, 4, dtype=torch.bool)
    expected[0, 1:, 0, 0, 1] = expected[0, 1:, 0, 0, 3] = True
    assert torch.equal(out.isnan(), expected)


@BACKENDS
def test_the_first_step_passes_unchanged(run):
    i = cast(case.attend_inputs((1, 2, 6, 16), normed=False), torch.float32)
    weights = AttentionWeights(i.query, i.key, i.value, i.gain)
    with kernels(run.backend):
        (out, attention), _ = attend(*i[:6], weights, keep_attention=True)
    assert torch.equal(out[:, 0], i.features[:, 0])
    assert (attention[:, 0] == 0).all()
    assert (attention[:, 1] != 0).all()


@BACKENDS
def test_large_potentials_do_not_overflow(run):
    i = case.attend_inputs((1, 3, 9, 16))
    check("attend", i._replace(potential=40 * i.potential), run, 2e-5)


@BACKENDS
@pytest.mark.parametrize("value", [0, 1])
def test_rates_of_all_zero_and_all_one(value, run):
    spikes = torch.full((1, 3, 5, 5, 4), value, dtype=torch.uint8)
    with kernels(run.backend):
        out, _ = pooled_rates([spikes], [torch.zeros(spikes.shape)], (2, 2))
    rates, changes = out.split(4, -1)
    assert (rates == value).all()
    assert (changes[:, 0] == value).all()
    assert (changes[:, 1:] == 0).all()


def test_bytes_that_start_anywhere():
    """Triton reads four bytes as one number only from an address where a number may lie."""
    memory = (torch.rand(1 + 2 * 4 * 4 * 4) < 0.5).byte()
    spikes = memory[1:].view(1, 2, 4, 4, 4)
    found = []
    for backend in ("triton", "plain"):
        with kernels(backend):
            found.append(pooled_rates([spikes], [torch.zeros(spikes.shape)], (2, 2))[0])
    assert relative(*found) < 2e-6


def test_counts_may_come_as_bytes():
    i = cast(case.enter_fire_inputs(2, 16, 8, 8), torch.float32)
    arguments = (i[1:3], i.filter_coefficient, i.kernel, i[5:7], i.firing)
    for backend in ("triton", "native"):
        with torch.no_grad(), kernels(backend):
            whole, bytes_ = (enter_fire(x, *arguments)[0] for x in (i.x, i.x.to(torch.uint8)))
        assert all(torch.equal(a, b) for a, b in zip(whole, bytes_, strict=True))


@BACKENDS
def test_the_variance_of_a_small_wobble_on_a_large_value(run):
    """A difference of two large sums would lose it."""
    x = 1000 + 0.1 * torch.randn(2, 2, 4096 if run.backend == "native" else 130, 3)
    with kernels(run.backend):
        mean, variance = step_moments(x)
        constant = step_moments(torch.full((2, 3, 9, 4), 0.1))
    assert relative(mean, x.double().mean((0, 2))) < 1e-6
    assert relative(variance, x.double().var((0, 2), correction=0)) < 1e-4
    torch.testing.assert_close(constant[0], torch.full((3, 4), 0.1), rtol=1e-6, atol=0)
    assert (constant[1] < 1e-14).all()


@pytest.mark.parametrize("stride", [1, 2])
def test_many_patches_are_summed_without_losing_digits(monkeypatch, stride):
    i = case.patch_moments_inputs(stride, 40, 1, 33, 33, 2)
    x = torch.randn(i.x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3.3
    i = i._replace(x=x)
    expected, _ = evaluate("patch_moments", i)
    for pixels, tolerance in ((None, 5e-6), (33 * 33 * 3, 1e-6)):  # 40 = 13 × 3 + 1
        if pixels is not None:
            monkeypatch.setattr("ripe_mambaspike.ops.patch_moments.cpu.MAX_PIXELS_PER_SUM", pixels)
        for name, given in evaluate("patch_moments", i, Run("native"))[0].items():
            assert relative(given, expected[name]) < tolerance, name


@BACKENDS
@pytest.mark.parametrize("channels", [3, 16])
def test_the_second_moment_is_symmetric_and_holds_the_variance(channels, run):
    i = case.patch_moments_inputs(1, 2, 1, 4, 5, channels)
    outputs, _ = evaluate("patch_moments", i, run)
    mean, second = outputs.values()
    torch.testing.assert_close(second, second.T, rtol=0, atol=1e-6)
    kernel = torch.randn(9 * channels)
    weight = kernel.view(1, 3, 3, channels).permute(0, 3, 1, 2)
    out = F.conv2d(i.x.float().flatten(0, 1).permute(0, 3, 1, 2), weight, padding=1)
    torch.testing.assert_close(kernel @ mean, out.mean(), rtol=1e-5, atol=1e-5)
    variance = kernel @ second @ kernel - (kernel @ mean) ** 2
    torch.testing.assert_close(variance, out.var(correction=0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("stride", [1, 2])
def test_silence_has_no_moments_and_the_constant_gradient_of_the_mean(stride):
    x = torch.zeros(1, 2, 4, 4, 3, requires_grad=True)
    with kernels("native"):
        mean, second = patch_moments(x, stride)
        mean.sum().backward()
    assert not mean.any()
    assert not second.any()
    counts = OPERATORS["patch_moments"].reference(case.PatchMomentsInputs(torch.ones_like(x), stride))[0].sum()
    assert x.grad.sum().item() == pytest.approx(counts.item())


def test_all_spikes_and_no_spikes():
    ones = torch.ones(3)
    for threshold, expected in ((-5 * ones, 1), (5 * ones, 0)):
        with kernels("native"):
            firing = Firing(0.5 * ones, None, ones, threshold, 0.5 * ones)
            out, _ = norm_fire(torch.zeros(1, 4, 25, 3), None, None, firing)
        assert (out.spikes == expected).all()
        assert torch.equal(out.operand[:, 0], torch.full((1, 25, 3), 1.5 * expected))
        assert torch.equal(out.operand[:, 1:], torch.full((1, 3, 25, 3), float(expected)))


@pytest.mark.parametrize(
    ("step", "decay"), [(60.0, -1e4), (60.0, -1e-4), (-40.0, -16.0), (-100.0, -1e30), (60.0, -2e38)], ids=str
)
def test_extreme_steps_and_decays(step, decay):
    """States that vanish at once, that never fade, and steps below the smallest float."""
    i = case.mamba_inputs(1, 40, 2, 16, states=16, step=step, decay=decay)
    (outputs, grads), (wanted, wanted_grads) = evaluate("mamba_inner", i, Run("native")), evaluate("mamba_inner", i)
    for given, expected in ((outputs, wanted), (grads, wanted_grads)):
        for name, one in given.items():
            assert one.isfinite().all(), name
            scale = max(expected[name].abs().max().item(), 1e-30)
            assert (one - expected[name]).abs().max() <= 2e-5 * scale, name


def test_large_inputs_saturate():
    i = case.mamba_inputs(1, 9, 1, 16)
    i = i._replace(inputs=1e4 * i.inputs)
    assert relative(evaluate("mamba_inner", i, Run("native"))[0]["out"], evaluate("mamba_inner", i)[0]["out"]) < 1e-5


def test_every_exponential_is_exact_to_rounding():
    """Two tokens, one state: each output is a product of few factors, so its own relative error shows theirs."""
    channels = 512
    i = case.mamba_inputs(1, 2, 1, channels, rank=1, states=1, biased=False, taps=1)
    inputs = torch.ones_like(i.inputs)
    inputs[:, 1] = 1e-3  # the second output is then what the decay left of the first token, times a small number
    step, exponent = torch.linspace(-12, 6, channels).double(), torch.rand(channels).double() * 4
    i = i._replace(
        inputs=inputs.float().double(),
        conv1d_weight=torch.ones_like(i.conv1d_weight),
        x_proj=torch.ones_like(i.x_proj) / channels,
        dt_proj=torch.zeros_like(i.dt_proj),
        dt_bias=step[None],
        A=(-(exponent / F.softplus(step))[None, :, None]).float().double(),
        D=torch.zeros_like(i.D),
    )
    expected = evaluate("mamba_inner", i)[0]["out"]
    given = evaluate("mamba_inner", i, Run("native"))[0]["out"]
    assert ((given - expected).abs() / expected.abs()).max() <= 2e-6


def test_directions_mirror_each_other():
    """The second direction is the first over the tokens from last to first."""
    i = cast(case.mamba_inputs(1, 37, 1, 16, states=16), torch.float32)
    weights = InnerWeights(*(torch.cat((one, one)) for one in i[1:8]))
    with kernels("native"):
        both, _ = mamba_inner(torch.cat((i.inputs, i.inputs.flip(1)), 2), weights)
    assert torch.equal(both[:, :, 0], both[:, :, 1].flip(1))


def test_the_number_of_states_is_checked():
    i = cast(case.mamba_inputs(1, 4, 1, 6, states=3), torch.float32)
    with kernels("triton"), raises(ConfigError, field="states") as caught:
        torch.ops.ripe.mamba_inner(*i)
    assert "64" in str(caught.value)
    assert "got 3" in str(caught.value)


def test_a_convolution_over_spikes_is_the_one_over_rates():
    """The algebra, in float64: rates of a convolution are the convolution of rates, borders and first step included."""
    given = case.rates_inputs(*POOLS["17-9-5"], relaxed=True)
    channels = [one.shape[-1] for one in given.spikes]
    kernel = torch.randn(6, 2 * sum(channels), 3, 3, dtype=torch.float64)
    bias, weight, shift = torch.randn(3, 6, dtype=torch.float64)

    def convolve(x, kernel):
        return F.conv2d(x.flatten(0, 1).permute(0, 3, 1, 2), kernel, None, 1, 1).flatten(2).mT.unflatten(0, x.shape[:2])

    rates, _ = OPERATORS["pooled_rates"].reference(given)
    mixed = F.layer_norm(convolve(rates, kernel) + bias, (6,), weight, shift)
    attended = torch.randn_like(mixed)
    expected = F.layer_norm(mixed + attended, (6,), shift, weight)
    pooled = OPERATORS["pooled_spikes"].reference(case.pooled_spikes_inputs(*POOLS["17-9-5"], relaxed=True))
    i = case.joined_inputs(1, 1, 1, 6)._replace(
        convolved=convolve(pooled, paired_kernel(kernel, channels)), bias=bias, weight=weight, shift=shift,
        attended=attended, outer_weight=shift, outer_shift=weight,
    )  # fmt: skip
    torch.testing.assert_close(OPERATORS["joined_tokens"].reference(i), expected, rtol=1e-12, atol=1e-12)


def test_no_gradient_through_a_state():
    i = cast(case.norm_fire_inputs((1, 3, 4, 3)), torch.float32)
    x = i.x.requires_grad_()
    with kernels("native"), raises(InputError, field="output_final_state"):
        norm_fire(x, i.scale, i.shift, i.firing, output_final_state=True)
    with kernels("native"), raises(InputError, field="first_step"):
        norm_fire(x, i.scale, i.shift, i.firing, first_step=1)
    with raises(InputError, field="initial_state"):
        mamba_inner(torch.zeros(1, 2, 2, 4), InnerWeights(*[None] * 7), output_final_state=True)
