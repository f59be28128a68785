"""The Triton attention on a GPU against its reference, which is computed in float64 on the same inputs."""

import pytest
import torch

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.membrane_attention import AttentionWeights, attend, attend_fire, attend_reference
from ripe_mambaspike.ops.norm_fire import Neuron, norm_fire_reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

NAMES = ("potential", "spikes", "features", "scale", "shift", "query", "key", "value", "gain")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
SIZES = [
    (2, 16, 289, 32),
    (1, 16, 4096, 32),
    (2, 10, 81, 64),
    (8, 10, 81, 64),
    (8, 16, 289, 32),
    (1, 16, 256, 128),
    (40, 16, 64, 128),
    (2, 10, 25, 96),
    (2, 3, 100, 192),
    (3, 4, 49, 384),
    (1, 1, 25, 32),
    (2, 10, 1, 32),
    (2, 3, 25, 3),
    (1, 2, 7, 2),
]


@pytest.fixture(autouse=True)
def _triton():
    with kernels("triton"):
        yield


def draw(batch, steps, positions, channels, dtype, *, rate=0.3, affine=True):
    """Inputs in float32, those that arrive in `dtype` rounded to it."""
    generator = torch.Generator("cuda").manual_seed(batch + steps + positions + channels)

    def normal(*shape):
        return torch.randn(shape, generator=generator, device="cuda")

    wide, square = (batch, steps, positions, channels), (channels, channels)
    rounded = {
        "potential": normal(*wide),
        "features": normal(*wide),
        "query": normal(*square) / channels**0.5,
        "key": normal(*square) / channels**0.5,
        "value": normal(*square) / channels**0.5,
    }
    rounded = {name: given.to(dtype).float() for name, given in rounded.items()}
    spikes = (torch.rand(wide, generator=generator, device="cuda") < rate).float()
    scale = 1 + 0.3 * normal(steps, channels) if affine else None
    shift = 0.3 * normal(steps, channels) if affine else None
    given = {**rounded, "spikes": spikes, "scale": scale, "shift": shift, "gain": normal(channels)}
    return {name: given[name] for name in NAMES}


def cotangents_for(inputs, dtype):
    generator = torch.Generator("cuda").manual_seed(7)
    shape = inputs["features"].shape
    return [torch.randn(shape, generator=generator, device="cuda").to(dtype).float() for _ in range(2)]


def gradients_of(outputs, leaves, cotangents):
    wanted = {name: leaf for name, leaf in leaves.items() if leaf is not None}
    cotangents = [by.to(out.dtype) for out, by in zip(outputs, cotangents, strict=True)]
    found = torch.autograd.grad(outputs, list(wanted.values()), cotangents, allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(wanted.items(), found, strict=True)
    }


def expected_of(inputs, cotangents):
    leaves = {name: None if t is None else t.double().requires_grad_() for name, t in inputs.items()}
    weights = AttentionWeights(*(leaves[name] for name in NAMES[5:]))
    outputs = attend_reference(*(leaves[name] for name in NAMES[:5]), weights)
    return outputs, gradients_of(outputs, leaves, cotangents)


def cast(inputs, dtype):
    """In the precisions the operator takes: parameters per channel stay float32."""
    fixed = ("scale", "shift", "gain")
    return {name: None if t is None else t.to(torch.float32 if name in fixed else dtype) for name, t in inputs.items()}


def given_by(inputs, cotangents, dtype, hard=True):
    leaves = {name: None if t is None else t.detach().requires_grad_() for name, t in cast(inputs, dtype).items()}
    spikes = leaves["spikes"].detach()
    carrier = torch.zeros((), dtype=dtype, device="cuda").expand(spikes.shape).requires_grad_()
    leaves["spikes"] = carrier
    weights = AttentionWeights(*(leaves[name] for name in NAMES[5:]))
    given = spikes.to(torch.uint8) if hard else spikes
    rest = (leaves[name] for name in NAMES[2:5])
    outputs = attend(leaves["potential"], given, carrier, *rest, weights, keep_attention=True)
    return outputs, gradients_of(outputs, leaves, cotangents)


def relative(given, expected):
    """The largest difference over the largest magnitude; over one where nothing is expected."""
    return (given.double() - expected.double()).abs().max().item() / (expected.abs().max().item() or 1.0)


def check(inputs, dtype, hard=True):
    cotangents = cotangents_for(inputs, dtype)
    outputs, gradients = given_by(inputs, cotangents, dtype, hard)
    wanted_outputs, wanted = expected_of(inputs, cotangents)
    found = {"out": outputs[0], "attention": outputs[1], **{f"gradient of {n}": g for n, g in gradients.items()}}
    expected = {"out": wanted_outputs[0], "attention": wanted_outputs[1]}
    expected |= {f"gradient of {n}": g for n, g in wanted.items()}
    errors = {name: relative(found[name], expected[name]) for name in expected}
    assert found.keys() == expected.keys()
    assert max(errors.values()) < TOLERANCE[dtype], errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_outputs_and_gradients(sizes, dtype):
    check(draw(*sizes, dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("channels", [32, 192])
@pytest.mark.parametrize("rate", [0.0, 0.02, 0.95, 2.0], ids=["silent", "few", "many", "saturated"])
def test_from_no_spikes_to_all(rate, channels, dtype):
    check(draw(2, 4, 81, channels, dtype, rate=rate, affine=False), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("channels", [64, 192])
def test_relaxed_spikes(channels, dtype):
    inputs = draw(2, 4, 81, channels, dtype)
    inputs["spikes"] = torch.sigmoid(inputs["potential"]).to(dtype).float()
    check(inputs, dtype, hard=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [(1, 16, 256, 32), (2, 4, 81, 128), (2, 4, 81, 192)], ids=str)
def test_twice_the_same_bits_and_everything_is_written(sizes, dtype, poisoned_empty):
    inputs = draw(*sizes, dtype)
    cotangents = cotangents_for(inputs, dtype)
    (first, first_gradients), (second, second_gradients) = (given_by(inputs, cotangents, dtype) for _ in range(2))
    for one, other in zip((*first, *first_gradients.values()), (*second, *second_gradients.values()), strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


def neuron_of(channels, resonating):
    generator = torch.Generator("cuda").manual_seed(3)
    decay, rotation, drive, threshold = torch.rand(4, channels, generator=generator, device="cuda")
    return Neuron(0.5 + 0.4 * decay, rotation if resonating else None, 0.5 + drive, 0.5 + 0.5 * threshold)


@pytest.mark.parametrize("alone", [True, False], ids=["one kernel", "two"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [(2, 16, 289, 32), (2, 10, 81, 64), (1, 16, 100, 128), (1, 3, 25, 192)], ids=str)
@pytest.mark.parametrize("resonating", [True, False], ids=["resonating", "leaky"])
def test_attend_fire(monkeypatch, resonating, sizes, dtype, alone):
    from ripe_mambaspike.ops.membrane_attention import triton_fire as attention_fire

    monkeypatch.setattr(attention_fire, "ENOUGH_PROGRAMS", 1 if alone else 1 << 30)
    inputs, channels = draw(*sizes, dtype), sizes[-1]
    neuron, coefficient = neuron_of(channels, resonating), torch.linspace(0.1, 0.9, channels, device="cuda")
    given = cast(inputs, dtype)
    weights = AttentionWeights(*(given[name] for name in NAMES[5:]))
    first = (given["potential"], given["spikes"].to(torch.uint8), *(given[name] for name in NAMES[2:5]))
    fired, operand, attention = attend_fire(*first, weights, neuron, coefficient, keep_attention=True)
    again, *_ = attend_fire(*first, weights, neuron, coefficient)
    assert torch.equal(fired, again)

    carrier = torch.zeros_like(given["spikes"])
    current, wanted_attention = attend(*first[:2], carrier, *first[2:], weights, keep_attention=True)
    # Given the same modulated features the neuron must fire the same, but within rounding of its threshold.
    wanted, potential, _ = norm_fire_reference(current.float(), None, None, neuron, None)
    near = ((potential - neuron.threshold).abs() < (1e-4 if dtype == torch.float32 else 4e-2)).cumsum(1) > 0
    assert relative(attention, wanted_attention) < TOLERANCE[dtype]
    assert near.float().mean() < 0.7
    assert torch.equal(fired.float()[~near], wanted[~near])
    spikes = fired.float()
    before = torch.cat([torch.zeros_like(spikes[:, :1]), spikes[:, :-1]], 1)
    assert relative(operand, (1 + coefficient) * spikes - coefficient * before) < TOLERANCE[dtype]


@pytest.mark.parametrize("channels", [32, 192])
def test_a_graph_repeats_it(channels):
    inputs = cast(draw(2, 4, 81, channels, torch.bfloat16), torch.bfloat16)
    weights = AttentionWeights(*(inputs[name] for name in NAMES[5:]))
    spikes, carrier = inputs["spikes"].to(torch.uint8), torch.zeros_like(inputs["spikes"])
    arguments = (inputs["potential"], spikes, carrier, *(inputs[name] for name in NAMES[2:5]), weights)
    expected, _ = attend(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = attend(*arguments)
    out.fill_(7)
    graph.replay()
    assert torch.equal(out, expected)
