"""Every operator's kernels on a GPU against its reference in float64: real sizes, both precisions, graphs, memory."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tests.ops import operator_cases as cases_of
from tests.ops.operator_cases import Run, assert_same_bits, cast, check, evaluate, relative

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.mamba_inner import reference as mamba_reference
from ripe_mambaspike.ops.mamba_inner import triton as mamba
from ripe_mambaspike.ops.mamba_inner import triton_scan_plan
from ripe_mambaspike.ops.membrane_attention import triton_fire

DEVICE = "cuda"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

FLOAT32, BFLOAT16 = Run("triton", torch.float32, DEVICE), Run("triton", torch.bfloat16, DEVICE)
POOLS = {  # samples and steps, scales (height, width, channels), grid
    "gesture": ((2, 16), [(64, 64, 32), (32, 32, 64), (16, 16, 128)], (16, 16)),
    "nmnist": ((3, 10), [(17, 17, 32), (9, 9, 64), (5, 5, 128)], (5, 5)),
    "daily": ((1, 10), [(56, 56, 96), (28, 28, 192), (14, 14, 384)], (14, 14)),
    "last scale": ((40, 3), [(9, 9, 40)], (9, 9)),
}
NEURONS = [(2, 16, 4096, 32), (1, 16, 1024, 64), (4, 10, 289, 96), (2, 10, 81, 384), (5, 1, 25, 3)]
ATTENTION = [
    (1, 16, 4096, 32), (8, 16, 289, 32), (2, 10, 81, 64), (1, 16, 256, 128), (40, 16, 64, 128), (2, 10, 25, 96),
    (3, 4, 49, 384), (1, 1, 25, 32), (2, 10, 1, 32),
]  # fmt: skip
SCANS = [  # batch, length, directions, channels, rank, states
    (1, 4096, 2, 64, 2, 16), (64, 512, 2, 64, 2, 16), (8, 784, 2, 384, 12, 16), (1, 300, 2, 768, 24, 16),
    (1, 50, 2, 33, 2, 64), (2, 130, 1, 96, 6, 16),
]  # fmt: skip
MANY_SCANS = [(64, 256, 2, 128, 4, 16), (64, 67, 2, 130, 5, 32)]
PATCHES = [
    (1, 2, 3, 64, 64, 32), (1, 4, 10, 9, 9, 64), (1, 1, 2, 14, 13, 384), (2, 2, 4, 128, 128, 2), (2, 2, 3, 64, 64, 32),
    (2, 1, 2, 28, 28, 192),
]  # fmt: skip
KINDS = cases_of.KINDS


def real_sizes(name):
    """Functions that make an operator's inputs at the networks' sizes."""
    made = {
        "norm_fire": [
            *(lambda s=size: cases_of.norm_fire_inputs(s, rotating=s[3] % 64 == 0, relaxed=True) for size in NEURONS),
            *(lambda r=r: cases_of.norm_fire_inputs((3, 16, 25, 128), rotating=r) for r in (False, True)),
        ],
        "attend": [lambda s=size: cases_of.attend_inputs(s) for size in ATTENTION],
        "attend_fire": [lambda s=size: cases_of.attend_fire_inputs(s, rotating=s[3] == 64, relaxed=True)
                        for size in [(2, 16, 289, 32), (2, 10, 81, 64), (1, 16, 100, 128), (1, 3, 25, 192)]],
        "enter_fire": [lambda s=size: cases_of.enter_fire_inputs(*s, rotating=s[1] == 32, relaxed=True)
                       for size in [(16, 32, 128, 128), (10, 32, 34, 34), (10, 96, 112, 100)]],
        "pooled_rates": [lambda p=pool, r=r: cases_of.rates_inputs(*p, relaxed=r)
                         for r, pool in zip((False, True, False, True), POOLS.values(), strict=True)],
        "pooled_spikes": [lambda p=pool, r=r: cases_of.pooled_spikes_inputs(*p, relaxed=r)
                          for r, pool in zip((False, True, False, False), POOLS.values(), strict=True)],
        "joined_tokens": [lambda s=size: cases_of.joined_inputs(*s)
                          for size in [(2, 16, 256, 32), (3, 10, 25, 32), (1, 10, 196, 96), (40, 3, 81, 24)]],
        "mamba_inner": [lambda s=size: cases_of.mamba_inputs(*s, step=-3.0) for size in SCANS],
        "row_norm": [lambda s=size: cases_of.row_norm_inputs(*s) for size in [(4096, 32), (2, 999, 96), (64, 64, 128)]],
        "step_moments": [lambda s=size: cases_of.step_moments_inputs(*s)
                         for size in [*NEURONS, (32, 10, 12544, 3), (64, 2, 4096, 32)]],
        "patch_moments": [lambda s=size: cases_of.patch_moments_inputs(*s) for size in PATCHES],
    }  # fmt: skip
    return made[name]


NAMES = ("norm_fire", "attend", "attend_fire", "enter_fire", "pooled_rates", "pooled_spikes", "joined_tokens",
         "mamba_inner", "row_norm", "step_moments", "patch_moments")  # fmt: skip


def listed(pick):
    return [pytest.param(name, make, id=f"{name}-{n}") for name in NAMES for n, make in enumerate(pick(name))]


@pytest.fixture(autouse=True)
def _exact_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def tolerance_of(name, run):
    """In bfloat16 the first convolution's product is rounded before the neuron integrates it."""
    return 6e-2 if name == "enter_fire" and run == BFLOAT16 else None


@pytest.mark.parametrize("run", [FLOAT32, BFLOAT16], ids=["f32", "bf16"])
@pytest.mark.parametrize(("name", "make"), listed(real_sizes))
def test_outputs_and_gradients(name, make, run):
    check(name, make(), run, tolerance_of(name, run))


@pytest.mark.parametrize(("name", "make"), listed(lambda name: cases_of.cases(name)[::3]))
def test_odd_sizes_in_bfloat16(name, make):
    """In float32 the interpreter runs them, whose products of bfloat16 are not those of a GPU."""
    i = make()
    if name == "enter_fire" and not i.relaxed:
        pytest.skip("rounding decides about some spikes")
    check(name, i, BFLOAT16, tolerance_of(name, BFLOAT16))


@pytest.mark.parametrize("size", MANY_SCANS, ids=str)
def test_many_scans(size):
    """Sequences that are not cut: 8, 16 and 32 channels a warp.

    An output goes with the fourth power of u, which is rounded to bfloat16: among many tokens that alone can do 1e-2.
    """
    i = cases_of.mamba_inputs(*size, step=-3.0)
    check("mamba_inner", i, FLOAT32)
    given, wanted = (evaluate("mamba_inner", i, run, device=DEVICE) for run in (BFLOAT16, None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mamba_reference, "F", SimpleNamespace(**vars(F) | {"silu": rounding_silu()}))
        rounded = evaluate("mamba_inner", i, None, device=DEVICE)
    for got, near, exact in zip(given, rounded, wanted, strict=True):
        for name, expected in exact.items():
            assert relative(got[name], expected) < max(1e-2, 1.5 * relative(near[name], expected)), name


def rounding_silu():
    """silu; of u, though not of the gate, rounded to bfloat16. Its gradient passes."""
    calls = count()

    def silu(x):
        out = F.silu(x)
        return out if next(calls) % 2 else out + (out.bfloat16().to(out.dtype) - out).detach()

    return silu


@pytest.mark.parametrize("chunk", [16, 32, 96, 4096])
def test_scan_in_any_chunks(chunk, monkeypatch):
    monkeypatch.setattr(mamba, "cut_of", lambda sizes, groups=1: triton_scan_plan.cut_in(sizes, chunk))
    check("mamba_inner", cases_of.mamba_inputs(2, 330, 2, 64, 2, 16, step=-3.0), FLOAT32)


def test_scan_of_samples_in_turn_when_scratch_is_short(monkeypatch):
    monkeypatch.setattr(triton_scan_plan, "SCRATCH_BYTES", 1)
    check("mamba_inner", cases_of.mamba_inputs(3, 100, 2, 64, 2, 16, step=-3.0), FLOAT32)


@pytest.mark.parametrize(("step", "decay"), [(-12.0, -1.0), (30.0, -1.0), (3.0, -100.0), (0.0, -1e-4), (-14.0, -50.0)])
def test_extreme_steps_and_decays(step, decay):
    check("mamba_inner", cases_of.mamba_inputs(1, 200, 2, 64, 2, 16, step=step, decay=decay), FLOAT32)


@pytest.mark.parametrize("size", [(2, 16, 289, 32), (2, 10, 81, 64)], ids=str)
@pytest.mark.parametrize("run", [FLOAT32, BFLOAT16], ids=["f32", "bf16"])
def test_attention_and_neuron_in_one_kernel(size, run, monkeypatch):
    monkeypatch.setattr(triton_fire, "MIN_PROGRAMS", 1)
    for kind in KINDS:
        if kind["relaxed"] or run == FLOAT32:
            check("attend_fire", cases_of.attend_fire_inputs(size, **kind), run)


@pytest.mark.parametrize("run", [FLOAT32, BFLOAT16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_twice_the_same_bits_whatever_memory_held(name, run, request):
    i = real_sizes(name)[1]()
    first = evaluate(name, i, run)
    request.getfixturevalue("poisoned_empty")
    assert torch.empty(3, device=DEVICE).isnan().all()
    for _ in range(2):
        assert_same_bits(evaluate(name, i, run), first)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_captured_in_a_graph(name):
    i, operator = cast(real_sizes(name)[1](), torch.bfloat16, DEVICE), getattr(torch.ops.ripe, name)
    first = next(one[0] if isinstance(one, list) else one for one in i if isinstance(one, list | torch.Tensor))
    with kernels("triton"):
        operator(*i)  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = operator(*i)
        first.copy_(first.roll(1, 1))
        graph.replay()
        expected = operator(*i)
    for one, wanted in zip(flat(captured), flat(expected), strict=True):
        assert torch.equal(one, wanted)


def flat(found):
    if isinstance(found, torch.Tensor):
        return [found] if found.numel() and found.stride().count(0) < found.dim() else []
    return [tensor for part in found for tensor in flat(part)]


@torch.no_grad()
def test_more_elements_than_32_bits_count():
    if torch.cuda.mem_get_info()[0] < 48 * 2**30:
        pytest.skip("wants 48 GiB")
    few = cast(cases_of.norm_fire_inputs((1, 16, 1024, 1024), relaxed=True, keep=False), torch.bfloat16, DEVICE)
    few = few._replace(relaxed=False)
    many = few._replace(x=few.x.expand(130, -1, -1, -1).contiguous())
    assert many.x.numel() > 2**31
    with kernels("triton"):
        alone, together = (torch.ops.ripe.norm_fire(*one) for one in (few, many))
        for index in (0, 3):
            assert torch.equal(together[index][-1], alone[index][0])
        del together
        moments = [torch.ops.ripe.step_moments(one.x) for one in (many, few)]
        for one, wanted in zip(*moments, strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@torch.no_grad()
def test_more_images_than_32_bits_count(stride):
    """Only the last of the images is not silent: the moments are its own, spread over all."""
    last = (torch.randn(1, 1, 64, 64, 32, device=DEVICE) + 0.3).bfloat16()
    count = 2**31 // last.numel() + 2
    x = torch.zeros(count, *last.shape[1:], dtype=torch.bfloat16, device=DEVICE)
    x[-1] = last[0]
    with kernels("triton"):
        given, wanted = (torch.ops.ripe.patch_moments(one, stride) for one in (x, last))
    for one, other in zip(given, wanted, strict=True):
        assert relative((one * count).cpu(), other.cpu()) < 1e-4
