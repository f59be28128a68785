"""Steps one by one, in pieces, and in a batch of samples at different steps have the bits of the whole clip."""

import pytest
import torch

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from stateful import (
    ALL,
    BATCH,
    PIECES,
    RUNS,
    STEPS,
    Setting,
    check_pieces,
    check_rows,
    check_samples,
    mapped,
    with_rows,
)

NATIVE = pytest.mark.skipif(unavailable_reason() is not None, reason=f"no C++ operators: {unavailable_reason()}")
IN_PLACE = ("norm_fire", "attend_fire", "enter_fire", "pooled_rates")
BACKENDS = [pytest.param("native", marks=NATIVE), "plain"]


def is_exact(name, backend):
    """Mamba's projection is PyTorch's product, whose rounding depends on the number of tokens."""
    return backend == "native" and name != "mamba_inner"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [STEPS, STEPS + 3, 1], ids=["table", "longer", "shared"])
@pytest.mark.parametrize("name", RUNS)
@torch.no_grad()
def test_pieces_equal_the_whole(name, rows, backend):
    if rows != STEPS and name in ("leaky_fire", "pooled_rates", "leaky_rates", "mamba_inner"):
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


@NATIVE
@pytest.mark.parametrize("rotating", [True, False])
@pytest.mark.parametrize("relaxed", [True, False])
@pytest.mark.parametrize("name", IN_PLACE)
@torch.no_grad()
def test_rows_of_a_larger_state_are_updated_in_place(name, relaxed, rotating):
    with kernels("native"):
        check_rows(RUNS[name](Setting(rotating=rotating, relaxed=relaxed)))


@pytest.mark.parametrize("name", [*IN_PLACE, "leaky_rates"])
@torch.no_grad()
def test_rows_are_refused_by_other_operators(name):
    run = RUNS[name](Setting())
    with kernels("plain"):
        _, state = run(ALL, slice(0, 1), None, 0)
        with raises(InputError, field="state_rows"):
            run(ALL, slice(1, 2), with_rows(state, torch.arange(BATCH)), 1)


@NATIVE
@pytest.mark.parametrize("name", IN_PLACE)
@torch.no_grad()
def test_rows_of_a_state_that_would_have_to_be_copied_are_refused(name):
    run = RUNS[name](Setting())
    with kernels("native"):
        _, state = run(ALL, slice(0, 1), None, 0)
        scattered = mapped(lambda one: torch.stack((one, one), -1)[..., 0], state)
        with raises(InputError, field="state_rows"):
            run(ALL, slice(1, 2), with_rows(scattered, torch.arange(BATCH)), 1)


@NATIVE
@pytest.mark.parametrize("normed", [True, False], ids=["norm", "no norm"])
@pytest.mark.parametrize("rotating", [True, False], ids=["csilif", "lif"])
@pytest.mark.parametrize("size", [(7, 5), (200, 3), (33, 64), (256, 32)], ids=str)
@torch.no_grad()
def test_neurons_step_by_step_and_in_place(size, rotating, normed):
    run = RUNS["norm_fire"](Setting(rotating=rotating, size=size, normed=normed))
    with kernels("native"):
        assert 0.02 < run(ALL, ALL, None, 0)[0][0].float().mean() < 0.98
        check_pieces(run, PIECES[:1], exact=True)
        check_rows(run)


@NATIVE
@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (7, 9)], ids=str)
@torch.no_grad()
def test_rates_step_by_step_and_in_place(grid):
    run = RUNS["pooled_rates"](Setting(grid=grid))
    with kernels("native"):
        check_pieces(run, PIECES[:1], exact=True)
        check_rows(run)


@NATIVE
@torch.no_grad()
def test_dtypes_and_states_that_do_not_fit_are_refused():
    small, other = (RUNS["norm_fire"](Setting(size=size)) for size in ((5, 4), (6, 4)))
    doubles = RUNS["norm_fire"](Setting(dtype=torch.float64))
    with kernels("native"):
        with raises(InputError, field="dtype", mentions="float64"):
            doubles(ALL, slice(0, 1), None, 0)
        _, state = small(ALL, slice(0, 1), None, 0)
        with raises(InputError, field="initial_state", mentions=([3, 6, 4], [3, 5, 4])):
            other(ALL, slice(1, 2), state, 1)
        with raises(InputError, field="state_rows", mentions="int32"):
            small(ALL, slice(1, 2), with_rows(state, torch.arange(BATCH, dtype=torch.int32)), 1)
