"""The scan's kernels on a GPU: many sequences, stored bfloat16, chunks, extreme steps and decays."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.cuda_cases import BFLOAT16, DEVICE, FLOAT32, MANY_SCANS, SCANS, SEEDS, assert_near, scan_inputs
from tests.ops.operator_cases import assert_same_bits, check, evaluate, relative

from ripe_mambaspike.ops.mamba_inner import reference as mamba_reference
from ripe_mambaspike.ops.mamba_inner import triton as mamba
from ripe_mambaspike.ops.mamba_inner import triton_scan_plan
from ripe_mambaspike.ops.mamba_inner.scan import selective_scan

pytestmark = pytest.mark.usefixtures("exact_float32")


@pytest.mark.parametrize("size", MANY_SCANS, ids=str)
def test_many_scans(size):
    """An output goes with the fourth power of u, rounded to bfloat16: among many tokens that alone can do 1e-2."""
    i, seed = scan_inputs(*size), SEEDS["mamba_inner"]
    check("mamba_inner", i, FLOAT32)
    given, wanted = (evaluate("mamba_inner", i, run, device=DEVICE, seed=seed) for run in (BFLOAT16, None))
    assert_near(given, rounding_scan(i, projection=False, seed=seed), wanted)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [*SCANS[3:8], (64, 600, 2, 64, 4, 2, 16)], ids=str)
def test_scan_of_numbers_stored_in_bfloat16(size, seed):
    """u, its projection and their gradients are stored; with these rounded the reference gives the same, for any
    gradient of the output. Two parts of u's gradient may cancel."""
    i = scan_inputs(*size)
    given, wanted = evaluate("mamba_inner", i, BFLOAT16, seed=seed), rounding_scan(i, projection=True, seed=seed)
    for got, exact in zip(given, wanted, strict=True):
        for name, expected in exact.items():
            assert relative(got[name], expected) < 1e-2, f"{name}: {relative(got[name], expected):.1e}"
    assert_same_bits(evaluate("mamba_inner", i, BFLOAT16, seed=seed), given)


class Stored(torch.autograd.Function):
    """A number that is written to memory in bfloat16, and whose gradient is."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad.bfloat16().to(grad.dtype)


class StoredGradient(Stored):
    @staticmethod
    def forward(ctx, x):
        return x.clone()


def rounding_scan(i, projection, seed):
    """The reference in float64 with u rounded to bfloat16; with its projection, and all gradients that are stored."""
    calls = count()

    def silu(x):  # of the convolution, which gives u, and then of the gate
        if next(calls) % 2:
            return F.silu(x)
        out = F.silu(StoredGradient.apply(x) if projection else x)
        return Stored.apply(out) if projection else out + (out.bfloat16().to(out.dtype) - out).detach()

    def linear(x, weight, bias=None):  # of u without a bias, and then of the step
        out = F.linear(x, weight, bias)
        return Stored.apply(out) if projection and bias is None else out

    def scan(u, *rest):  # its part of u's gradient is stored before the projection's is added
        return selective_scan(StoredGradient.apply(u) if projection else u, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mamba_reference, "F", SimpleNamespace(**vars(F) | {"silu": silu, "linear": linear}))
        patch.setattr(mamba_reference, "selective_scan", scan)
        return evaluate("mamba_inner", i, None, device=DEVICE, seed=seed)


@pytest.mark.parametrize("chunk", [16, 32, 96, 4096])
def test_scan_in_any_chunks(chunk, monkeypatch):
    monkeypatch.setattr(mamba, "cut_of", lambda sizes, groups=1: triton_scan_plan.cut_in(sizes, chunk))
    check("mamba_inner", scan_inputs(2, 330, 2, 64, 4, 2, 16), FLOAT32)


def test_scan_of_samples_in_turn_when_scratch_is_short(monkeypatch):
    monkeypatch.setattr(triton_scan_plan, "SCRATCH_BYTES", 1)
    check("mamba_inner", scan_inputs(3, 100, 2, 64, 4, 2, 16), FLOAT32)


@pytest.mark.parametrize(("step", "decay"), [(-12.0, 1.0), (30.0, 1.0), (3.0, 100.0), (0.0, 1e-4), (-14.0, 50.0)])
def test_extreme_steps_and_decays(step, decay):
    check("mamba_inner", scan_inputs(1, 200, 2, 64, 4, 2, 16, step=step, decay=decay), FLOAT32)
