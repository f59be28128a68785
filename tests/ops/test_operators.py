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
    cases,
    cast,
    check,
    evaluate,
    larger_cases,
    relative,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.operator import OPERATORS

SLOW_TRITON = pytest.param(Run("triton"), id="triton-f32", marks=pytest.mark.slow)
TRITON_ALONE = ("pooled_spikes", "joined_tokens")
NAMES = ("norm_fire", "attend", "attend_fire", "enter_fire", "pooled_rates", "mamba_inner", "row_norm",
         "step_moments", "patch_moments")  # fmt: skip


def listed(names, pick=cases, quick=1000):
    """Cases as parameters; all but the first few of an operator are slow where the interpreter runs them."""
    return [
        pytest.param(name, make, id=f"{name}-{n}", marks=[] if n < quick else [pytest.mark.slow])
        for name in names
        for n, make in enumerate(pick(name))
    ]


@pytest.fixture(autouse=True)
def _short_tiles(request, monkeypatch):
    """The interpreter takes long over every token of the scan's tiles, also past the end."""
    run = request.node.callspec.params.get("run") if hasattr(request.node, "callspec") else None
    if run is not None and run.backend == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
        from ripe_mambaspike.ops.mamba_inner import triton_scan, triton_scan_plan

        monkeypatch.setattr(triton_scan_plan, "TILE", 4)
        for owner, name in ((triton_scan, "forward_tile"), (triton_scan, "backward_tile"),
                            (triton_scan_plan, "backward_tile")):  # fmt: skip
            monkeypatch.setattr(owner, name, lambda *_: 4)


def test_every_operator_is_here():
    without_gradient = {"pooled_rates_backward", "winograd_weights", "winograd_conv"}
    assert set(OPERATORS) - without_gradient == {*NAMES, *TRITON_ALONE}


@pytest.mark.parametrize(("name", "make"), listed(NAMES))
@pytest.mark.parametrize("run", [NATIVE_FLOAT32, NATIVE_BFLOAT16])
def test_outputs_and_gradients(name, make, run):
    i = make()
    if name == "enter_fire" and run.dtype == torch.bfloat16 and not i.relaxed:
        pytest.skip("rounding decides about some spikes")
    check(name, i, run, 3e-2 if name == "enter_fire" and run.dtype == torch.bfloat16 else None)


@pytest.mark.parametrize(("name", "make"), listed((*NAMES, *TRITON_ALONE), quick=2))
@pytest.mark.parametrize("run", [TRITON])
def test_outputs_and_gradients_of_the_triton_kernels(name, make, run):
    check(name, make(), run)


@pytest.mark.parametrize(("name", "make"), listed(NAMES, larger_cases))
@pytest.mark.parametrize("run", [NATIVE_FLOAT32, NATIVE_BFLOAT16])
def test_larger_sizes(name, make, run):
    check(name, make(), run)


@pytest.mark.parametrize("run", [NATIVE_FLOAT32, SLOW_TRITON])
@pytest.mark.parametrize(
    ("name", "only"), [(name, one) for name in ("norm_fire", "attend", "step_moments", "patch_moments")
                       for one in OPERATORS[name].outputs if one != "spikes" and not one.startswith("final")]
)  # fmt: skip
def test_a_gradient_that_comes_alone(name, only, run):
    check(name, cases(name)[0](), run, only=only)


@pytest.mark.parametrize("run", [NATIVE_FLOAT32, NATIVE_BFLOAT16, SLOW_TRITON])
@pytest.mark.parametrize("name", NAMES)
def test_twice_the_same_bits_whatever_memory_held(name, run, request):
    i = cases(name)[0]()
    first = evaluate(name, i, run)
    request.getfixturevalue("poisoned_empty")
    for _ in range(2):
        assert_same_bits(evaluate(name, i, run), first)


@NATIVE
@pytest.mark.parametrize("name", [name for name in NAMES if larger_cases(name)])
def test_the_number_of_threads_changes_the_rounding_of_parameters_gradients_alone(name):
    i, run = larger_cases(name)[-1](), Run("native")
    expected, expected_grads = evaluate(name, i, run)
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            outputs, grads = evaluate(name, i, run)
            assert_same_bits([outputs], [expected])
            assert_same_bits([evaluate(name, i, run)[1]], [grads])
            for one, grad in grads.items():
                assert relative(grad, expected_grads[one]) < 1e-5, one
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("name", NAMES)
def test_registration(name):
    """Schema, shapes without data, and the gradient's registration; once with state where there is one."""
    i = cast(cases(name)[0](), torch.float32)
    learned = [getattr(i, field) for field in OPERATORS[name].gradients]
    tests = ["test_schema", "test_faketensor", *(["test_autograd_registration"] if learned else [])]
    for one in learned:
        if one is not None:
            one.requires_grad_()
    with kernels("plain"):
        torch.library.opcheck(getattr(torch.ops.ripe, name).default, tuple(i), test_utils=tests)


@pytest.mark.parametrize("name", NAMES)
def test_calling_an_operator_equals_the_registered_one_and_gives_shapes_to_fake_tensors(name):
    i = cast(cases(name)[0](), torch.float32)
    operator, registered = OPERATORS[name], getattr(torch.ops.ripe, name)
    with kernels("plain"), torch.no_grad():
        found, expected = tree_leaves(operator(*i)), tree_leaves(registered(*i))
        with FakeTensorMode() as mode:
            fake = tree_leaves(operator(*tree_map_only(torch.Tensor, mode.from_tensor, tuple(i))))
    for one, other, shaped in zip(found, expected, fake, strict=True):
        assert not any(one.stride()) or torch.equal(one, other)  # a proxy stores nothing
        assert (shaped.shape, shaped.dtype) == (other.shape, other.dtype)
