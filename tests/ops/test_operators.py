"""Every fused operator, in C++ and in Triton's interpreter, against its reference in float64: outputs and gradients."""

import pytest
import torch
from tests.ops.operator_cases import (
    NATIVE,
    NATIVE_BFLOAT16,
    NATIVE_FLOAT32,
    TRITON,
    Run,
    assert_same_bits,
    cast,
    check,
    evaluate,
    relative,
    step_moments_inputs,
)
from tests.ops.operator_sizes import cases, larger_cases, threaded_cases
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.operator import OPERATORS

SLOW_TRITON = pytest.param(Run("triton"), id="triton-f32", marks=pytest.mark.slow)
TRITON_ALONE = ("pooled_spikes", "joined_tokens", "stack_branches", "merge_branches", "step_affine")
NAMES = ("norm_fire", "leaky_fire", "attend", "attend_fire", "enter_fire", "pooled_rates", "mamba_inner", "row_norm",
         "step_moments", "patch_moments")  # fmt: skip


# The quick ones of an operator's cases in Triton's interpreter; the first two where none are named.
QUICK_IN_TRITON = {"pooled_rates": (6, 7), "joined_tokens": (1, 2), "attend": (0,), "attend_fire": (0,)}


def listed(names, pick=cases, interpreted=False):
    """Cases as parameters; where the interpreter runs them, all but a few of an operator are slow."""

    def is_slow(name, n):
        return interpreted and n not in QUICK_IN_TRITON.get(name, (0, 1))

    return [
        pytest.param(name, make, id=f"{name}-{n}", marks=[pytest.mark.slow] if is_slow(name, n) else [])
        for name in names
        for n, make in enumerate(pick(name))
    ]


@pytest.fixture(autouse=True)
def _short_tiles_in_the_interpreter(request):
    run = request.node.callspec.params.get("run") if hasattr(request.node, "callspec") else None
    if run is not None and run.backend == "triton":
        request.getfixturevalue("short_scan_tiles")


def test_every_operator_is_here():
    without_gradient = {"pooled_rates_backward", "winograd_weights", "winograd_conv"}
    assert set(OPERATORS) - without_gradient == {*NAMES, *TRITON_ALONE}


@pytest.mark.parametrize(("name", "make"), listed(NAMES))
@pytest.mark.parametrize("run", [NATIVE_FLOAT32, NATIVE_BFLOAT16])
def test_outputs_and_gradients(name, make, run):
    i = make()
    if name == "enter_fire" and run.dtype == torch.bfloat16 and not i.firing.relaxed:
        pytest.skip("rounding decides about some spikes")
    if name == "enter_fire" and run.dtype == torch.bfloat16:
        check(name, i._replace(firing=i.firing._replace(sharpness=2.0)), run, 3e-2)
    else:
        check(name, i, run)


@pytest.mark.parametrize(("name", "make"), listed((*NAMES, *TRITON_ALONE), interpreted=True))
@pytest.mark.parametrize("run", [TRITON])
def test_outputs_and_gradients_of_the_triton_kernels(name, make, run):
    check(name, make(), run)


@pytest.mark.parametrize(("name", "make"), listed(NAMES, larger_cases))
@pytest.mark.parametrize("run", [NATIVE_FLOAT32, NATIVE_BFLOAT16])
def test_larger_sizes(name, make, run):
    check(name, make(), run)


@pytest.mark.parametrize("name", ["norm_fire", "leaky_fire", "attend_fire", "enter_fire"])
def test_the_neurons_of_these_cases_fire_and_rest(name):
    for make in cases(name)[:2]:
        rate = OPERATORS[name].reference(make())[0].mean()
        assert 0.05 < rate < 0.95


@pytest.mark.parametrize("run", [NATIVE_FLOAT32, SLOW_TRITON])
@pytest.mark.parametrize(
    ("name", "only"), [(name, one) for name in ("norm_fire", "attend", "step_moments", "patch_moments")
                       for one in OPERATORS[name].outputs if one != "spikes" and not one.startswith("final")]
    + [("leaky_fire", "spikes"), ("leaky_fire", "final_state")]
)  # fmt: skip
def test_a_gradient_that_comes_alone(name, only, run):
    makes = cases(name)
    for make in (makes[0], *(makes[-2:] if name == "attend" else [])):  # the last two have no norm
        check(name, make(), run, only=only)


@pytest.mark.parametrize("run", [NATIVE_FLOAT32, SLOW_TRITON])
@pytest.mark.parametrize("index", range(6))
def test_moments_of_large_values(index, run):
    """x − mean loses what the mean's own rounding takes."""
    i = cases("step_moments")[index]()
    check("step_moments", step_moments_inputs(*i.x.shape, level=1000.0), run, 1e-4)


@pytest.mark.parametrize("run", [NATIVE_FLOAT32, NATIVE_BFLOAT16, SLOW_TRITON])
@pytest.mark.parametrize("name", NAMES)
def test_twice_the_same_bits_whatever_memory_held(name, run, request):
    made = [make() for make in (cases if run.backend == "triton" else threaded_cases)(name)[:2]]
    first = [evaluate(name, i, run) for i in made]
    request.getfixturevalue("poisoned_empty")
    for _ in range(2):
        for i, expected in zip(made, first, strict=True):
            assert_same_bits(evaluate(name, i, run), expected)


# At stride 1 the products of patches are PyTorch's, whose sums depend on the number of threads.
@NATIVE
@pytest.mark.parametrize(
    ("name", "make"), [one for one in listed(NAMES, threaded_cases) if one.id != "patch_moments-1"]
)
def test_the_number_of_threads_changes_the_rounding_of_parameters_gradients_alone(name, make):
    i, run = make(), Run("native")
    expected, expected_grads = evaluate(name, i, run)
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            outputs, grads = evaluate(name, i, run)
            assert_same_bits([outputs], [expected])
            assert_same_bits([evaluate(name, i, run)[1]], [grads])
            for one, grad in grads.items():
                assert relative(grad, expected_grads[one]) < (1e-6 if name == "norm_fire" else 1e-5), one
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", [*NAMES, *TRITON_ALONE])
def test_registration(name, index):
    """Schema, shapes without data, and the gradient's registration."""
    i, operator = cast(cases(name)[index](), torch.float32), OPERATORS[name]
    arguments = operator.named(i)
    learned = [arguments[one] for one in operator.gradients]
    tests = ["test_schema", "test_faketensor", *(["test_autograd_registration"] if learned else [])]
    with kernels("plain"):
        if learned:
            found = operator.forward(i)
            results = dict(zip(operator.outputs, (found,) if isinstance(found, torch.Tensor) else found, strict=True))
            grads = (one if one.is_floating_point() and one.numel() else None for one in results.values())
            backward = getattr(torch.ops.ripe, f"{name}_backward").default
            given = (*arguments.values(), *grads, *(results[one] for one in operator.saved))
            torch.library.opcheck(backward, given, test_utils=tests[:2])
        for one in learned:
            if one is not None:
                one.requires_grad_()
        torch.library.opcheck(getattr(torch.ops.ripe, name).default, tuple(arguments.values()), test_utils=tests)


@pytest.mark.parametrize("name", NAMES)
def test_calling_an_operator_equals_the_registered_one_and_gives_shapes_to_fake_tensors(name):
    i = cast(cases(name)[0](), torch.float32)
    operator, registered = OPERATORS[name], getattr(torch.ops.ripe, name)
    with kernels("plain"), torch.no_grad():
        found, expected = tree_leaves(operator(i)), tree_leaves(registered(*operator.flatten(i)))
        with FakeTensorMode() as mode:
            fake = tree_leaves(operator(tree_map_only(torch.Tensor, mode.from_tensor, i)))
    for one, other, shaped in zip(found, expected, fake, strict=True):
        assert not any(one.stride()) or torch.equal(one, other)  # a proxy stores nothing
        assert (shaped.shape, shaped.dtype) == (other.shape, other.dtype)
