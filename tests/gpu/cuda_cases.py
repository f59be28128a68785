"""Sizes of the networks at which operators are tried on a GPU, and how results are compared."""

import pytest
import torch
from tests.ops import operator_cases as cases_of
from tests.ops.operator_cases import Run, cast, relative
from tests.ops.operator_sizes import KINDS, LEAKY, made

DEVICE = "cuda"
FLOAT32, BFLOAT16 = Run("triton", torch.float32, DEVICE), Run("triton", torch.bfloat16, DEVICE)
RUNS = pytest.mark.parametrize("run", [FLOAT32, BFLOAT16], ids=["f32", "bf16"])
GESTURE, NMNIST, DAILY = (  # scales (height, width, channels), grid
    ([(64, 64, 32), (32, 32, 64), (16, 16, 128)], (16, 16)),
    ([(17, 17, 32), (9, 9, 64), (5, 5, 128)], (5, 5)),
    ([(56, 56, 96), (28, 28, 192), (14, 14, 384)], (14, 14)),
)
POOLS = [  # samples and steps, scales, grid
    ((2, 16), *GESTURE), ((3, 10), *NMNIST), ((1, 10), *DAILY), ((1, 1), [(17, 9, 3), (5, 5, 2)], (5, 4)),
    ((2, 7), [(13, 13, 5)], (1, 1)), ((1, 16), *GESTURE), ((40, 3), [(9, 9, 40)], (9, 9)),
]  # fmt: skip
NEURONS = [(2, 16, 4096, 32), (1, 16, 1024, 64), (4, 10, 289, 96), (2, 10, 81, 384), (3, 16, 25, 128), (5, 1, 25, 3)]
LEAKY_SIZES = [  # groups, steps, elements
    (2, 16, 131072), (1, 4, 1 << 20), (8, 10, 73984), (32, 20, 2048), (3, 5, 999), (300, 1, 100), (1, 100, 4097),
    (64, 8, 10),
]  # fmt: skip
ATTENTION = [
    (2, 16, 289, 32), (1, 16, 4096, 32), (1, 16, 256, 32), (2, 10, 81, 64), (8, 10, 81, 64), (8, 16, 289, 32),
    (1, 16, 256, 128), (40, 16, 64, 128), (2, 4, 81, 128), (2, 10, 25, 96), (2, 3, 100, 192), (3, 4, 49, 384),
    (1, 1, 25, 32), (2, 10, 1, 32), (2, 3, 25, 3), (1, 2, 7, 2),
]  # fmt: skip
FIRING = [(2, 16, 289, 32), (2, 10, 81, 64), (1, 16, 100, 128), (1, 3, 25, 192)]
JOINS = [  # samples, steps, positions, width
    (2, 16, 256, 32), (1, 16, 256, 32), (3, 10, 25, 32), (1, 10, 196, 96), (40, 3, 81, 24), (1, 1, 20, 8),
    (2, 7, 1, 16),
]  # fmt: skip
SCANS = [  # batch, length, directions, channels, taps, rank, states
    (1, 1, 1, 6, 4, 1, 4), (2, 1, 2, 6, 4, 2, 16), (1, 7, 2, 32, 4, 3, 16), (2, 33, 2, 64, 3, 2, 4),
    (2, 130, 1, 96, 4, 6, 16), (1, 130, 2, 40, 4, 3, 16), (1, 70, 2, 128, 1, 4, 32), (1, 50, 2, 33, 2, 2, 64),
    (1, 300, 2, 768, 4, 24, 16), (1, 4096, 2, 64, 4, 2, 16), (1, 1024, 2, 256, 4, 8, 16), (64, 512, 2, 64, 4, 2, 16),
    (8, 784, 2, 384, 4, 12, 16), (1, 600, 2, 64, 4, 2, 16),
]  # fmt: skip
MANY_SCANS = [  # 64 sequences and more are not cut: 8, 16 and 32 channels a warp
    (64, 256, 2, 128, 4, 4, 16), (64, 128, 2, 256, 4, 8, 16), (64, 130, 2, 72, 4, 3, 16), (64, 67, 2, 130, 4, 5, 32),
]  # fmt: skip
PATCHES = [  # stride, [B, T, H, W, C]
    (1, 2, 3, 64, 64, 32), (1, 4, 10, 17, 17, 32), (1, 4, 10, 9, 9, 64), (1, 8, 10, 5, 5, 128), (1, 1, 2, 28, 28, 96),
    (1, 1, 2, 14, 13, 384), (1, 3, 1, 1, 1, 32), (1, 3, 1, 1, 7, 16), (1, 3, 1, 2, 3, 48), (1, 2, 2, 6, 5, 3),
    (2, 2, 4, 128, 128, 2), (2, 4, 10, 34, 34, 2), (2, 2, 3, 64, 64, 32), (2, 4, 10, 17, 17, 32), (2, 4, 10, 9, 9, 64),
    (2, 1, 2, 28, 28, 192), (2, 3, 1, 1, 1, 32), (2, 3, 1, 2, 3, 16),
]  # fmt: skip


def scan_inputs(batch, length, directions, channels, taps, rank, states, biased=True, step=-3.0, decay=1.0):
    """As in a network: the decays of a channel's states are 1, 2, … and differ a little between channels."""
    generator, each = torch.Generator().manual_seed(0), (directions, channels)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    i = cases_of.MambaInnerInputs(
        inputs=normal(batch, length, directions, 2 * channels).bfloat16(),
        conv1d_weight=0.5 * normal(*each, taps),
        conv1d_bias=0.1 * normal(*each) if biased else None,
        x_proj=(normal(directions, rank + 2 * states, channels) / channels**0.5).bfloat16(),
        dt_proj=0.5 * normal(*each, rank),
        dt_bias=normal(*each) + step,
        A=-decay * torch.arange(1, states + 1) * (1 + 0.1 * torch.rand(*each, states, generator=generator)),
        D=normal(*each),
    )
    return cast(i, torch.float64)


def real_sizes(name):
    """Functions that make an operator's inputs at the networks' sizes."""
    lists = {
        "norm_fire": lambda: made(
            cases_of.norm_fire_inputs,
            *((size, kind) for size in NEURONS for kind in KINDS),
            *(((2, 10, 289, 32), {"normed": normed, "filtered": filtered, "keep": False})
              for normed in (False, True) for filtered in (False, True)),
            *(((4, 16, 1024, 96), {"rotating": rotating}) for rotating in (False, True)),
        ),
        "leaky_fire": lambda: made(
            cases_of.leaky_fire_inputs,
            *((size, kind) for size in LEAKY_SIZES for kind in (LEAKY[0], {**LEAKY[-2], "resumed": False})),
            *(((2, 16, 8192), kind) for kind in LEAKY),
        ),
        "attend": lambda: made(
            cases_of.attend_inputs,
            *((size, {}) for size in ATTENTION),
            *(((2, 4, 81, channels), {"rate": rate, "normed": False})
              for channels in (32, 192) for rate in (0, 0.02, 0.95, 1)),
            *(((2, 4, 81, channels), {"relaxed": True}) for channels in (64, 192)),
        ),
        "attend_fire": lambda: made(
            cases_of.attend_fire_inputs,
            *((size, {"rotating": rotating, "relaxed": True}) for size in FIRING for rotating in (False, True)),
        ),
        "enter_fire": lambda: made(
            cases_of.enter_fire_inputs,
            *((*size, {"rotating": size[1] == 32, "relaxed": True})
              for size in [(16, 32, 128, 128), (10, 32, 34, 34), (10, 96, 112, 100)]),
        ),
        "pooled_rates": lambda: made(
            cases_of.rates_inputs, *((*pool, {"relaxed": relaxed}) for pool in POOLS[:5] for relaxed in (False, True))
        ),
        "pooled_spikes": lambda: made(
            cases_of.pooled_spikes_inputs, *((*pool, {"relaxed": relax}) for pool in POOLS for relax in (False, True))
        ),
        "joined_tokens": lambda: made(cases_of.joined_inputs, *JOINS),
        "mamba_inner": lambda: made(scan_inputs, *SCANS, (*SCANS[3], False)),
        "row_norm": lambda: made(cases_of.row_norm_inputs, (4096, 32), (2, 999, 96), (64, 64, 128)),
        "step_moments": lambda: made(
            cases_of.step_moments_inputs, *NEURONS, (32, 10, 12544, 3), (64, 2, 4096, 32), level=0.5
        ),
        "patch_moments": lambda: made(cases_of.patch_moments_inputs, *PATCHES),
        "step_affine": lambda: made(cases_of.step_affine_inputs, (16, 16, 32), (10, 10, 64), (1, 16, 128), (3, 5, 7)),
        "stack_branches": lambda: made(
            cases_of.stack_branches_inputs, (32, 2), (32, 32), (64, 32), (128, 128), (5, 3, {"branched": False})
        ),
        "merge_branches": lambda: made(
            cases_of.merge_branches_inputs, (5, 32, 2), (7, 32, 32), (5, 64, 32), (7, 64, 64), (7, 128, 128), (7, 3, 5)
        ),
    }  # fmt: skip
    return lists[name]()


def captured_sizes(name):
    """Sizes at which an operator takes other ways; the second of the real ones for the rest."""
    lists = {
        "norm_fire": lambda: made(
            cases_of.norm_fire_inputs, *(((2, 16, 1024, 32), {"relaxed": relaxed}) for relaxed in (False, True))
        ),
        "attend": lambda: made(cases_of.attend_inputs, ((2, 4, 81, 32), {}), ((2, 4, 81, 192), {})),
        "mamba_inner": lambda: made(scan_inputs, (1, 512, 2, 64, 4, 2, 16), (64, 512, 2, 64, 4, 2, 16)),
        "patch_moments": lambda: made(cases_of.patch_moments_inputs, (1, 2, 3, 9, 9, 32), (2, 2, 3, 9, 9, 32)),
        "pooled_rates": lambda: made(cases_of.rates_inputs, POOLS[1]),
    }
    return lists[name]() if name in lists else real_sizes(name)[1:2]


NAMES = ("norm_fire", "leaky_fire", "attend", "attend_fire", "enter_fire", "pooled_rates", "pooled_spikes",
         "joined_tokens", "mamba_inner", "row_norm", "step_moments", "patch_moments", "step_affine",
         "stack_branches", "merge_branches")  # fmt: skip


def listed(pick):
    return [pytest.param(name, make, id=f"{name}-{n}") for name in NAMES for n, make in enumerate(pick(name))]


SEEDS = {"mamba_inner": 1}  # of the gradient; with others the rounding of what is stored exceeds the bounds


def assert_near(given, rounded, wanted):
    """Within 1e-2 of what is wanted, or not much farther than the reference with its stored numbers rounded as well."""
    for got, near, exact in zip(given, rounded, wanted, strict=True):
        assert got.keys() == exact.keys()
        for name, expected in exact.items():
            bound = max(1e-2, 1.5 * relative(near[name], expected))
            error = relative(got[name], expected)
            assert error < bound, f"{name}: {error:.1e}, allowed are {bound:.1e}"


def backward_of(name):
    """An operator's gradient, as PyTorch calls it."""
    return getattr(torch.ops.ripe, f"{name}_backward")
