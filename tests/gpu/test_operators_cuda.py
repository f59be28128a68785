"""Every operator's kernels on a GPU against its reference in float64: real sizes, both precisions, graphs, memory."""

import pytest
import torch
from tests.gpu.cuda_cases import (
    BFLOAT16,
    DEVICE,
    FIRING,
    FLOAT32,
    JOINS,
    POOLS,
    RUNS,
    SEEDS,
    assert_near,
    backward_of,
    captured_sizes,
    listed,
    real_sizes,
)
from tests.ops import operator_cases as cases_of
from tests.ops.operator_cases import assert_same_bits, cast, check, evaluate, relative
from tests.ops.operator_sizes import cases

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.joined_tokens import triton as joined
from ripe_mambaspike.ops.membrane_attention import triton_fire
from ripe_mambaspike.ops.operator import OPERATORS

pytestmark = pytest.mark.usefixtures("exact_float32")


def tolerance_of(name, run):
    """In bfloat16 the first convolution's product is rounded before the neuron integrates it."""
    return 6e-2 if name == "enter_fire" and run == BFLOAT16 else None


def check_attend_fire(i):
    """In bfloat16 the neuron integrates features that are rounded, as where two operators store and read them."""
    given, wanted = (evaluate("attend_fire", i, run, device=DEVICE) for run in (BFLOAT16, None))
    i = cast(i, torch.float64, DEVICE)
    modulated, _ = OPERATORS["attend"].reference(
        cases_of.AttendInputs(*i[:2], i.potential, *i[2:8], i.attention_gain, True, i.input_spikes)
    )
    stored = cases_of.NormFireInputs(modulated.bfloat16().double(), None, None, i.firing)
    spikes, _, _, operand, *_ = OPERATORS["norm_fire"].reference(stored)
    rounded = {"spikes": spikes.cpu(), "operand": operand.cpu()}
    assert_near(given[:1], [wanted[0] | rounded], wanted[:1])
    return given


@RUNS
@pytest.mark.parametrize(("name", "make"), listed(real_sizes))
def test_outputs_and_gradients(name, make, run, request):
    """And the same bits again, whatever memory held."""
    i = make()
    if name == "enter_fire":
        i = i._replace(firing=i.firing._replace(sharpness=2.0))
    if name == "attend_fire" and run == BFLOAT16:
        first = check_attend_fire(i)
    else:
        first = check(name, i, run, tolerance_of(name, run), seed=SEEDS.get(name))
    if name == "leaky_fire" or (name == "norm_fire" and not i.firing.relaxed):
        assert 0.1 < first[0]["spikes"].double().mean() < 0.9
    request.getfixturevalue("poisoned_empty")
    assert torch.empty(3, device=DEVICE).isnan().all()
    for _ in range(2):
        assert_same_bits(evaluate(name, i, run, seed=SEEDS.get(name)), first)


@pytest.mark.parametrize(("name", "make"), listed(lambda name: cases(name) if "pooled" in name else []))
def test_every_pooling_in_float32(name, make):
    """Compiled, a grid has gone wrong that was right in the interpreter."""
    check(name, make(), FLOAT32)


@pytest.mark.parametrize(("name", "make"), listed(lambda name: cases(name)[::3]))
def test_odd_sizes_in_bfloat16(name, make):
    """In float32 the interpreter runs them, whose products of bfloat16 are not those of a GPU."""
    i = make()
    if name == "enter_fire" and not i.firing.relaxed:
        pytest.skip("rounding decides about some spikes")
    if name == "enter_fire":
        i = i._replace(firing=i.firing._replace(sharpness=2.0))
    if name == "attend_fire" and not i.firing.relaxed:
        pytest.skip("see test_attention_and_neuron")
    if name == "attend_fire":
        check_attend_fire(i)
    else:
        check(name, i, BFLOAT16, tolerance_of(name, BFLOAT16))


@pytest.mark.parametrize("level", [-50.0, 50.0], ids=["silent", "saturated"])
def test_silence_and_saturation(level):
    i = cases_of.norm_fire_inputs((2, 16, 81, 32), relaxed=True)
    i = i._replace(shift=i.shift + level, firing=i.firing._replace(relaxed=False))
    outputs, _ = check("norm_fire", i, FLOAT32)
    assert (outputs["spikes"] == (level > 0)).all()


def test_pooled_bytes_of_even_cells_are_exact():
    i = cases_of.pooled_spikes_inputs(*POOLS[0])
    for run in (FLOAT32, BFLOAT16):
        (given,), (expected,) = (evaluate("pooled_spikes", i, one, device=DEVICE)[0].values() for one in (run, None))
        assert torch.equal(given.double(), expected)


@RUNS
@pytest.mark.parametrize("programs", [1, 1 << 20], ids=["one segment", "every step"])
@pytest.mark.parametrize("size", JOINS, ids=str)
def test_tokens_joined_in_other_segments(monkeypatch, size, programs, run):
    monkeypatch.setattr(joined, "MIN_PROGRAMS", programs)
    i = cases_of.joined_inputs(*size)
    assert_same_bits(evaluate("joined_tokens", i, run), check("joined_tokens", i, run))


@RUNS
@pytest.mark.parametrize("rotating", [False, True], ids=["leaky", "resonating"])
@pytest.mark.parametrize("size", FIRING, ids=str)
@pytest.mark.parametrize("programs", [1, 1 << 30], ids=["one kernel", "two"])
@torch.no_grad()
def test_attention_and_neuron(programs, size, rotating, run, monkeypatch):
    """Of the same modulated features the neuron fires the same, but within rounding of its threshold."""
    monkeypatch.setattr(triton_fire, "MIN_PROGRAMS", programs)
    relaxed = cases_of.attend_fire_inputs(size, rotating=rotating, relaxed=True)
    spikes = (relaxed.spikes < 0.3).to(torch.uint8)
    i = relaxed._replace(spikes=spikes, firing=relaxed.firing._replace(relaxed=False))
    if run == FLOAT32:
        check("attend_fire", relaxed, run)
    given = cast(i, run.dtype, DEVICE)
    with kernels("triton"):
        spikes, operand, attention, *_ = OPERATORS["attend_fire"](given)
        again, *_ = OPERATORS["attend_fire"](given._replace(keep_attention=False))
        inputs = (*given[:2], given.potential, *given[2:8], given.attention_gain, True)
        current, wanted_attention = OPERATORS["attend"](cases_of.AttendInputs(*inputs))
    assert torch.equal(spikes, again)
    wanted, _, potential, *_ = OPERATORS["norm_fire"].reference(
        cases_of.NormFireInputs(current.double(), None, None, cast(i, torch.float64, DEVICE).firing)
    )
    coefficient, threshold = given.firing.coefficient, given.firing.threshold
    near = ((potential - threshold).abs() < (1e-4 if run == FLOAT32 else 4e-2)).cumsum(1) > 0
    tolerance = run.tolerance("attend_fire", "attention")
    assert relative(attention, wanted_attention) < tolerance
    assert near.float().mean() < 0.7
    assert torch.equal(spikes.double()[~near], wanted[~near])
    fired = spikes.float()
    before = torch.cat((torch.zeros_like(fired[:, :1]), fired[:, :-1]), 1)
    assert relative(operand, (1 + coefficient) * fired - coefficient * before) < tolerance


@pytest.mark.parametrize(("name", "make"), listed(captured_sizes))
@torch.no_grad()
def test_captured_in_a_graph(name, make):
    """Forward and backward."""
    i = cast(make(), torch.bfloat16, DEVICE)
    first = next(one[0] if isinstance(one, list) else one for one in i if isinstance(one, list | torch.Tensor))
    with kernels("triton"):
        forward_and_backward(name, i)  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = forward_and_backward(name, i)
        first.copy_(first.roll(1, 1))
        graph.replay()
        expected = forward_and_backward(name, i)
    assert captured
    for one, wanted in zip(captured, expected, strict=True):
        assert torch.equal(one, wanted)


def forward_and_backward(name, i):
    """All outputs, and the gradients if the outputs are also their own cotangents."""
    operator = OPERATORS[name]
    found = operator(i)
    results = dict(zip(operator.outputs, (found,) if isinstance(found, torch.Tensor) else found, strict=True))
    grads = []
    if name == "pooled_rates":
        sizes = [[one.shape[dim] for one in i.spikes] for dim in (4, 2, 3)]
        grads = torch.ops.ripe.pooled_rates_backward(results["rates"], *sizes)
    elif operator.gradients:
        cotangents = (one if one.is_floating_point() and stored(one) else None for one in results.values())
        grads = backward_of(name)(*operator.flatten(i), *cotangents, *(results[one] for one in operator.saved))
    return flat((list(results.values()), grads))


def stored(x):
    """Whether it has elements of its own: a gradient's proxy has none."""
    return bool(x.numel()) and any(x.stride())


def flat(found):
    if isinstance(found, torch.Tensor):
        return [found] if stored(found) else []
    return [tensor for part in found for tensor in flat(part)]
