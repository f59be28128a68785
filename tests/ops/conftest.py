"""Checks shared by the operator tests.

An operator under test is a function of named tensors, `fn(**inputs)`; what it returns may be nested, only its
tensors count. Inputs are drawn in float64 and cast to the precision under test.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ripe_mambaspike.ops.backend import kernels


def tensors_of(result):
    """All tensors of a nested result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [tensor for part in result for tensor in tensors_of(part)]
    return []


def cast(inputs, dtype):
    return {name: tensor.detach().to(dtype).clone() for name, tensor in inputs.items()}


def evaluate_in(fn, inputs, dtype=torch.float64):
    """(outputs, {input name: gradient}) with one fixed random cotangent for every output."""
    leaves = {name: tensor.requires_grad_() for name, tensor in cast(inputs, dtype).items()}
    outputs = tensors_of(fn(**leaves))
    generator = torch.Generator().manual_seed(1)
    loss = 0.0
    for output in outputs:
        loss = loss + (output * torch.randn(output.shape, generator=generator, dtype=torch.float64)).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return [output.detach() for output in outputs], dict(zip(leaves, gradients, strict=True))


def assert_near(actual, expected, tolerance, what):
    """Equal to `tolerance` times the largest magnitude expected (at least one)."""
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(
        actual.double(), expected.double(), rtol=0, atol=tolerance * scale, msg=lambda text: f"{what}: {text}"
    )


def assert_same(actual, expected, tolerance):
    """Two results of `evaluate` are the same to the tolerance, gradients to four times it."""
    (outputs, gradients), (expected_outputs, expected_gradients) = actual, expected
    assert len(outputs) == len(expected_outputs)
    for index, (output, wanted) in enumerate(zip(outputs, expected_outputs, strict=True)):
        assert_near(output, wanted, tolerance, f"output {index}")
    for name, wanted in expected_gradients.items():
        assert_near(gradients[name], wanted, 4 * tolerance, f"gradient of {name}")


@pytest.fixture
def triton_kernels():
    """Operators use the Triton kernels wherever their tensors lie."""
    pytest.importorskip("triton", reason="Triton is not installed")
    with kernels("triton"):
        yield


@pytest.fixture
def short_scan_tiles(monkeypatch):
    """Tiles of four tokens: the interpreter takes long over every token of a tile, also past the end."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from ripe_mambaspike.ops.mamba_inner import triton_scan, triton_scan_plan

    monkeypatch.setattr(triton_scan_plan, "TILE", 4)
    for owner, name in ((triton_scan, "forward_tile"), (triton_scan, "backward_tile"),
                        (triton_scan_plan, "backward_tile")):  # fmt: skip
        monkeypatch.setattr(owner, name, lambda *_: 4)


@pytest.fixture
def evaluate():
    return evaluate_in


@pytest.fixture
def agree():
    """fn equals its slow float64 reference, in float64 almost to the bit and in float32 to rounding."""

    def check(fn, reference, inputs, float32=2e-6):
        expected = evaluate_in(reference, inputs)
        exact = evaluate_in(fn, inputs)
        assert {output.dtype for output in exact[0]} == {torch.float64}
        assert_same(exact, expected, 1e-12)
        assert_same(evaluate_in(fn, inputs, torch.float32), expected, float32)

    return check


@pytest.fixture
def agree_in_float32():
    """Two ways to compute one thing are the same to float32 rounding: outputs, states and every gradient."""

    def check(fn, other, inputs, tolerance=1e-6):
        actual, expected = (evaluate_in(f, inputs, torch.float32) for f in (fn, other))
        assert_same(actual, expected, tolerance)

    return check


@pytest.fixture
def reproducible(request):
    """Twice the same bits, and the same bits again, all finite, when uninitialized memory is NaN."""

    def check(fn, inputs, dtype=torch.float32):
        first, second = (evaluate_in(fn, inputs, dtype) for _ in range(2))
        request.getfixturevalue("poisoned_empty")
        assert torch.empty(3).isnan().all()
        nan_where_not_finite = evaluate_in(fn, inputs, dtype)
        for outputs, gradients in (second, nan_where_not_finite):
            for actual, expected in zip(outputs, first[0], strict=True):
                assert actual.isfinite().all()
                assert torch.equal(actual, expected)
            for name, expected in first[1].items():
                assert gradients[name].isfinite().all(), name
                assert torch.equal(gradients[name], expected), name

    return check


@pytest.fixture
def close_in_bfloat16():
    """bfloat16 inputs give what the same numbers give in float32; `states` trailing outputs are float32."""

    def check(fn, inputs, tolerance, states=0, gradient_tolerance=None):
        rounded = cast(inputs, torch.bfloat16)
        outputs, gradients = evaluate_in(fn, rounded, torch.bfloat16)
        expected_outputs, expected_gradients = evaluate_in(fn, rounded, torch.float32)
        dtypes = [output.dtype for output in outputs]
        assert dtypes == [torch.bfloat16] * (len(outputs) - states) + [torch.float32] * states
        for index, (output, wanted) in enumerate(zip(outputs, expected_outputs, strict=True)):
            assert_near(output, wanted, tolerance, f"output {index}")
        for name, wanted in expected_gradients.items():
            assert_near(gradients[name], wanted, gradient_tolerance or 2 * tolerance, f"gradient of {name}")

    return check


@pytest.fixture
def over_time():
    """Run `fn(*pieces, state) → (out, state)` over pieces of the sequences (dim 1) and join what comes out."""

    def run(fn, sequences, sizes, state=None):
        pieces = zip(*(sequence.split(sizes, 1) for sequence in sequences), strict=True)
        parts = []
        for piece in pieces:
            out, state = fn(*piece, state)
            parts.append(tensors_of(out))
        return [torch.cat(part, 1) for part in zip(*parts, strict=True)], state

    return run


class _Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def count_operations():
    """How many tensor operations fn dispatches, with or without its backward pass."""

    def count(fn, inputs, backward=True):
        given = cast(inputs, torch.float32)
        with _Counter() as counter:
            evaluate_in(fn, given, torch.float32) if backward else fn(**given)
        return counter.count

    return count
