"""attend and attend_fire in C++ against their references in float64, at odd sizes."""

import pytest
import torch

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.membrane_attention import AttentionWeights, attend, attend_fire, attend_reference
from ripe_mambaspike.ops.norm_fire import Neuron, norm_fire_reference

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=f"no C++ operators: {unavailable_reason()}")

SIZES = [(1, 1, 1, 2), (2, 10, 25, 3), (1, 16, 81, 32), (1, 3, 289, 96), (2, 3, 25, 128), (1, 2, 9, 384)]
LONG = (1, 2, 4096, 5)
BORDER = [(3, 4, positions, 33) for positions in (32, 33, 34)]  # fewer positions than channels go another way
MANY_FEW = [(6, 10, 5, 18), (1, 2, 130, 140)]  # several sums of the weights' gradients; more than a block elsewhere
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=["f32", "bf16"]
)
WIDE = ("potential", "features", "query", "key", "value")  # in the activations' precision
SPIKING = pytest.mark.parametrize("spiking", [0.0, 0.3, 1.0], ids=["silent", "some", "all"])


def relative(given, expected):
    return ((given.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-30)).item()


def drawn(size, spiking=0.3, relaxed=False):
    """Inputs in float64, exact in bfloat16."""
    torch.manual_seed(0)
    steps, channels = size[1], size[3]
    spikes = torch.rand(size) if relaxed else (torch.rand(size) < spiking).float()
    inputs = {
        "potential": torch.randn(size),
        "spikes": spikes,
        "features": torch.randn(size),
        "scale": torch.rand(steps, channels) + 0.5,
        "shift": 0.3 * torch.randn(steps, channels),
        "query": torch.randn(channels, channels) / channels**0.5,
        "key": torch.randn(channels, channels) / channels**0.5,
        "value": torch.randn(channels, channels) / channels**0.5,
        "gain": torch.rand(channels) + 0.5,
    }
    return {name: t.bfloat16().double() for name, t in inputs.items()}


def cast(inputs, dtype):
    small = torch.float32 if dtype == torch.bfloat16 else dtype
    return {name: t.to(dtype if name in WIDE else small) for name, t in inputs.items() if name != "spikes"}


def computed(inputs, dtype, bytes_=True, plain=False, only=None):
    """((modulated, A), gradients) by the operator."""
    given = {name: t.requires_grad_() for name, t in cast(inputs, dtype).items()}
    spikes = inputs["spikes"].to(torch.uint8 if bytes_ else dtype)
    carrier = torch.zeros((), dtype=dtype).expand(spikes.shape).requires_grad_()
    potential, features, scale, shift, query, key, value, gain = given.values()
    norm = (None, None) if plain else (scale, shift)
    weights = AttentionWeights(query, key, value, gain)
    with kernels("native"):
        outputs = attend(potential, spikes, carrier, features, *norm, weights, keep_attention=True)
        return outputs, gradients(outputs, {**given, "spikes": carrier}, plain, only)


def expected_of(inputs, plain=False, only=None):
    given = {name: t.clone().requires_grad_() for name, t in inputs.items()}
    potential, spikes, features, scale, shift, query, key, value, gain = given.values()
    norm = (None, None) if plain else (scale, shift)
    outputs = attend_reference(potential, spikes, features, *norm, AttentionWeights(query, key, value, gain))
    return outputs, gradients(outputs, given, plain, only)


def gradients(outputs, given, plain, only):
    leaves = {name: t for name, t in given.items() if not (plain and name in ("scale", "shift"))}
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(out.shape, generator=generator).bfloat16().to(out.dtype) for out in outputs]
    chosen = slice(None) if only is None else slice(only, only + 1)
    grads = torch.autograd.grad(outputs[chosen], list(leaves.values()), cotangents[chosen], allow_unused=True)
    return {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None}


def assert_agree(actual, expected, tolerance):
    outputs, grads = actual
    wanted, wanted_grads = expected
    for given, one in zip(outputs, wanted, strict=True):
        assert relative(given, one) < tolerance
    for name, one in wanted_grads.items():
        assert relative(grads[name], one) < tolerance, name


@SPIKING
@pytest.mark.parametrize("size", [*SIZES, LONG, *BORDER, *MANY_FEW], ids=str)
@PRECISIONS
def test_outputs_and_gradients(size, dtype, tolerance, spiking):
    inputs = drawn(size, spiking)
    actual, expected = computed(inputs, dtype), expected_of(inputs)
    assert {out.dtype for out in actual[0]} == {dtype}
    for name, grad in actual[1].items():
        assert grad.dtype == (dtype if name in (*WIDE, "spikes") else torch.float32), name
    assert set(actual[1]) == set(inputs)
    assert_agree(actual, expected, tolerance)


@PRECISIONS
def test_relaxed_spikes_are_numbers(dtype, tolerance):
    inputs = drawn((2, 3, 25, 33), relaxed=True)
    assert_agree(computed(inputs, dtype, bytes_=False), expected_of(inputs), tolerance)


def test_without_a_norm():
    inputs = drawn((2, 3, 25, 33))
    assert_agree(computed(inputs, torch.float32, plain=True), expected_of(inputs, plain=True), 1e-5)


@pytest.mark.parametrize("only", [0, 1], ids=["out", "attention"])
def test_a_gradient_that_comes_alone(only):
    inputs = drawn((2, 3, 25, 33))
    assert_agree(computed(inputs, torch.float32, only=only), expected_of(inputs, only=only), 1e-5)


def test_the_first_step_passes_unchanged():
    inputs = drawn((1, 2, 25, 3))
    (out, attention), _ = computed(inputs, torch.float32, plain=True)
    assert torch.equal(out[:, 0], inputs["features"][:, 0].float())
    assert (attention[:, 0] == 0).all()
    assert (attention[:, 1] != 0).all()


def test_attention_is_empty_unless_kept():
    inputs = drawn((1, 3, 25, 3))
    potential, features, scale, shift, query, key, value, gain = cast(inputs, torch.float32).values()
    weights = AttentionWeights(query, key, value, gain)
    arguments = (potential, inputs["spikes"].to(torch.uint8), potential, features, scale, shift, weights)
    with kernels("native"):
        out, nothing = attend(*arguments)
        kept = attend(*arguments, keep_attention=True)
    assert nothing.numel() == 0
    assert torch.equal(out, kept[0])


@pytest.mark.parametrize("size", [(2, 5, 289, 32), (2, 5, 25, 40)], ids=["many", "few"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_same_bits_and_every_element_written(count, size, poisoned_empty):
    inputs = drawn(size)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        (outputs, grads), (again, grads_again) = (computed(inputs, torch.float32) for _ in range(2))
    finally:
        torch.set_num_threads(threads)
    for one, two in zip((*outputs, *grads.values()), (*again, *grads_again.values()), strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, two)


@pytest.mark.parametrize("channels", [3, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_nan_in_the_potential_reaches_its_whole_step(dtype, channels):
    inputs = drawn((1, 4, 25, channels))
    inputs["potential"][0, 2, 7, 2] = torch.nan
    (out, attention), grads = computed(inputs, dtype)
    assert out[:, 2].isnan().all()
    assert attention[:, 2].isnan().all()
    assert out[:, [0, 1, 3]].isfinite().all()
    assert grads["query"].isnan().all()


def neuron_of(channels, resonating, dtype):
    torch.manual_seed(3)
    decay, turn, gain, threshold = (t.bfloat16().to(dtype) for t in torch.rand(4, channels))
    return Neuron(0.3 + 0.5 * decay, turn - 0.5 if resonating else None, gain + 0.3, 0.5 + threshold)


def fired(inputs, dtype, resonating, relaxed, native):
    """(spikes, operand, A, potential of the neuron or None)."""
    size = inputs["potential"].shape
    small = torch.float32 if dtype == torch.bfloat16 else dtype
    neuron = neuron_of(size[3], resonating, small)
    coefficient = torch.linspace(-1, 1, size[3], dtype=small)
    potential, features, scale, shift, query, key, value, gain = cast(inputs, dtype).values()
    weights = AttentionWeights(query, key, value, gain)
    if not native:
        out, attention = attend_reference(potential, inputs["spikes"], features, scale, shift, weights)
        spikes, above, operand = norm_fire_reference(out, None, None, neuron, coefficient, relaxed=relaxed)
        return spikes, operand, attention, above - neuron.threshold
    spikes = inputs["spikes"].to(dtype if relaxed else torch.uint8)
    with kernels("native"):
        options = {"relaxed": relaxed, "keep_attention": True}
        arguments = (potential, spikes, features, scale, shift, weights, neuron, coefficient)
        return *attend_fire(*arguments, **options), None


def quiet(inputs, resonating, margin):
    """The features pushed away wherever rounding could decide about a spike."""
    for _ in range(300):
        near = fired(inputs, torch.float64, resonating, False, native=False)[3].abs() < margin
        if not near.any():
            return inputs
        inputs["features"] = (inputs["features"] + 0.25 * near).bfloat16().double()
    raise AssertionError("some potential stays near its threshold")


@pytest.mark.parametrize("relaxed", [False, True], ids=["hard", "relaxed"])
@pytest.mark.parametrize("resonating", [False, True], ids=["leaky", "resonating"])
@pytest.mark.parametrize("size", [(1, 1, 1, 2), (2, 10, 25, 3), (1, 6, 81, 32), (1, 3, 130, 96)], ids=str)
@PRECISIONS
def test_attention_and_neuron(size, resonating, relaxed, dtype, tolerance):
    inputs = drawn(size, relaxed=relaxed)
    if not relaxed:
        inputs = quiet(inputs, resonating, 1e-4 if dtype == torch.float32 else 4e-3)
    spikes, operand, attention, _ = fired(inputs, dtype, resonating, relaxed, native=True)
    wanted_spikes, wanted_operand, wanted_attention, _ = fired(inputs, torch.float64, resonating, relaxed, native=False)
    assert spikes.dtype == (dtype if relaxed else torch.uint8)
    assert operand.dtype == attention.dtype == dtype
    assert relative(attention, wanted_attention) < tolerance
    assert relative(operand, wanted_operand) < tolerance
    if relaxed:
        assert relative(spikes, wanted_spikes) < tolerance
    else:
        assert torch.equal(spikes.double(), wanted_spikes)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_firing_has_the_same_bits(count, poisoned_empty):
    inputs = drawn((2, 5, 289, 32))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = fired(inputs, torch.float32, True, False, native=True)
        torch.set_num_threads(count)
        together = fired(inputs, torch.float32, True, False, native=True)
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(alone[:3], together[:3], strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, two)
