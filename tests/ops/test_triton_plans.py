"""However the Triton kernels divide their work, they compute the same; run by Triton's interpreter."""

import pytest
import torch
from tests.ops import operator_cases as case
from tests.ops.operator_cases import Run, assert_same_bits, cast, check, evaluate, relative
from tests.ops.operator_sizes import JOINS, POOLS

from ripe_mambaspike.ops.backend import kernels

IN_TRITON = Run("triton")


@pytest.fixture
def plan(monkeypatch):
    from ripe_mambaspike.ops.membrane_attention import triton_plan

    return lambda name, value: monkeypatch.setattr(triton_plan, name, value)


@pytest.mark.parametrize("limits", [{"float32": 128}, {"float32": 0, "SLICE_BYTES": 1}, {"PROGRAMS": 1}], ids=str)
def test_attention_by_other_plans(limits, plan, monkeypatch):
    """More channels in a program; the wide route, the batch in slices; one chunk for many."""
    from ripe_mambaspike.ops.membrane_attention.triton_plan import FUSED_CHANNELS

    for name, value in limits.items():
        if name == "float32":
            monkeypatch.setitem(FUSED_CHANNELS, torch.float32, value)
        else:
            plan(name, value)
    sizes = {128: (1, 2, 20, 96), 0: (3, 2, 9, 8)}
    check("attend", case.attend_inputs(sizes.get(limits.get("float32"), (1, 3, 130, 16))), IN_TRITON)


UNNORMED = {"normed": False, "filtered": False}
SLOW_KINDS = [
    {},
    {"relaxed": True},
    UNNORMED,
    {"rotating": True, **UNNORMED},
    {"rotating": True, "relaxed": True, "sharpness": 1.5},
]


@pytest.mark.parametrize(
    "kind",
    [{"rotating": True}, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW_KINDS)],
    ids=str,
)
def test_attention_and_neuron_in_one_kernel_or_two(kind, monkeypatch, poisoned_empty):
    from ripe_mambaspike.ops.membrane_attention import triton_fire

    i, results = case.attend_fire_inputs((1, 4, 35, 16), **kind), []
    for enough in (1, 1, 1 << 30):
        monkeypatch.setattr(triton_fire, "MIN_PROGRAMS", enough)
        results.append(evaluate("attend_fire", i, IN_TRITON)[0] if results else check("attend_fire", i, IN_TRITON)[0])
    one, again, two = results
    for name, expected in one.items():
        assert torch.equal(again[name], expected), name
        hard = expected.dtype == torch.uint8
        assert torch.equal(two[name], expected) if hard else relative(two[name], expected) < 1e-6, name


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 7])
def test_a_handful_of_tokens_in_bfloat16(length):
    """They are computed in float32, so that the interpreter can show it: within the rounding of the results."""
    check("mamba_inner", case.mamba_inputs(1, length, 2, 6), Run("triton", torch.bfloat16))


def test_the_attention_gradient_of_a_handful_of_numbers_in_bfloat16():
    """As above; the attention itself is computed in bfloat16."""
    i, grad = case.attend_inputs((1, 2, 7, 2), normed=False), torch.randn(1, 2, 7, 2).bfloat16()
    found = []
    for backend, dtype in (("triton", torch.bfloat16), ("plain", torch.float64)):
        with kernels(backend):
            found.append(torch.ops.ripe.attend_backward(*cast(i, dtype), grad.to(dtype), None))
    assert all(relative(one, expected) < 1e-2 for one, expected in zip(*found, strict=True))
    assert [one.dtype for one in found[0][5:]] == [torch.bfloat16] * 3 + [torch.float32]


@pytest.mark.parametrize(("stride", "channels"), [(1, 16), (2, 9), pytest.param(1, 70, marks=pytest.mark.slow)])
def test_patches_in_several_splits_and_blocks(monkeypatch, stride, channels):
    """Longer sums than one program takes, and a temporary in parts."""
    from ripe_mambaspike.ops.patch_moments import triton

    monkeypatch.setattr("ripe_mambaspike.ops.patch_moments.triton_kernels.PROGRAMS", 4)
    monkeypatch.setattr(triton, "MAX_TEMPORARY_BYTES", 9 * channels * 12 * 4 * 2)
    monkeypatch.setattr(triton, "MAX_CONV_ELEMENTS", 2 * channels * 6 * 7)
    check("patch_moments", case.patch_moments_inputs(stride, 3, 1, 6, 7, channels), IN_TRITON)


@pytest.mark.parametrize("pixels", [1, 31, 1000, 2_097_152, 30_000_000])
@pytest.mark.parametrize("programs", [1, 4, 117])
def test_splits_cover_all_pixels_and_none_is_empty(pixels, programs):
    from ripe_mambaspike.ops.patch_moments.triton_kernels import MAX_PARTIALS_BYTES, _split

    part, step = 13 * 32 * 32, 64
    splits, steps = _split(pixels, programs, part, step)
    assert splits * steps * step >= pixels > (splits - 1) * steps * step
    assert 4 * splits * part <= MAX_PARTIALS_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wanted", [1, 6, 4096], ids=["one segment", "some", "every step"])
@pytest.mark.parametrize("size", JOINS, ids=str)
def test_tokens_joined_in_other_segments(monkeypatch, size, wanted, dtype, request):
    """Inputs are exact in bfloat16, and everything behind them is float32."""
    from ripe_mambaspike.ops.joined_tokens import triton

    monkeypatch.setattr(triton, "MIN_PROGRAMS", wanted)
    i, run = case.joined_inputs(*size), Run("triton", dtype)
    first = check("joined_tokens", i, run)
    request.getfixturevalue("poisoned_empty")
    assert_same_bits(evaluate("joined_tokens", i, run), first)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0, 0.2, 1])
@pytest.mark.parametrize("pool", list(POOLS)[:8])
def test_pooled_spikes_in_bfloat16(pool, rate):
    i = case.pooled_spikes_inputs(*POOLS[pool], rate=rate)
    runs = (Run("triton", torch.bfloat16), None)
    (given,), (expected,) = (evaluate("pooled_spikes", i, run)[0].values() for run in runs)
    assert ((given - expected).abs() <= expected * 2**-7).all()  # the interpreter cuts off
    if pool == "16-8-4":
        assert torch.equal(given.double(), expected)  # sixteenths have few enough digits


def test_a_row_of_one_number():
    check("row_norm", case.row_norm_inputs(1, 1), IN_TRITON)
