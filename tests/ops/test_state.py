"""Steps one by one, in pieces, and in a batch of samples at different steps have the bits of the whole clip."""

import pytest
import torch

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from stateful import ALL, PIECES, RUNS, STEPS, Setting, check_pieces, check_samples

NATIVE = pytest.mark.skipif(unavailable_reason() is not None, reason=f"no C++ operators: {unavailable_reason()}")
BACKENDS = [pytest.param("native", marks=NATIVE), "plain"]


def is_exact(name, backend):
    """Mamba's projection is PyTorch's product, whose rounding depends on the number of tokens."""
    return backend == "native" and name != "mamba_inner"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [STEPS, STEPS + 3, 1], ids=["table", "longer", "shared"])
@pytest.mark.parametrize("name", RUNS)
@torch.no_grad()
def test_pieces_equal_the_whole(name, rows, backend):
    if rows != STEPS and name in ("pooled_rates", "leaky_rates", "mamba_inner"):
        pytest.skip("has no norm")
    with kernels(backend):
        check_pieces(RUNS[name](Setting(rows)), PIECES, is_exact(name, backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rotating", [True, False])
@pytest.mark.parametrize("name", RUNS)
@torch.no_grad()
def test_samples_at_different_steps(name, rotating, backend):
    with kernels(backend):
        check_samples(RUNS[name](Setting(rotating=rotating)), is_exact(name, backend))


@NATIVE
@pytest.mark.parametrize("name", [name for name in RUNS if name != "mamba_inner"])
@torch.no_grad()
def test_pieces_equal_the_whole_in_bfloat16(name):
    run = RUNS[name](Setting(dtype=torch.bfloat16))
    with kernels("native"):
        whole, _ = run(ALL, ALL, None, 0)
        first, state = run(ALL, slice(0, 3), None, 0)
        second, _ = run(ALL, slice(3, STEPS), state, 3)
        for *parts, expected in zip(first, second, whole, strict=True):
            assert torch.equal(torch.cat(parts, 1), expected)
