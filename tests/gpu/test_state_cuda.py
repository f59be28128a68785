"""The kernels on a GPU in pieces and with samples at different steps, at the network's sizes and at odd ones."""

import pytest
import torch

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.membrane_attention import triton_fire
from stateful import PIECES, RUNS, STEPS, Setting, check_pieces, check_samples

EXACT = ("norm_fire", "leaky_fire", "enter_fire", "pooled_rates")  # no sum that is cut differently for a piece


@pytest.fixture(autouse=True)
def _triton(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    with kernels("triton"), torch.no_grad():
        yield


def setting(**fields):
    return Setting(device="cuda", relaxed=True, **fields)


@pytest.mark.parametrize(("rows", "rotating"), [(STEPS, True), (1, False)], ids=["table, resonating", "shared, leaky"])
@pytest.mark.parametrize("name", RUNS)
def test_pieces_equal_the_whole(name, rows, rotating):
    check_pieces(RUNS[name](setting(rows=rows, rotating=rotating)), PIECES, name in EXACT)


@pytest.mark.parametrize("name", RUNS)
def test_samples_at_different_steps(name):
    check_samples(RUNS[name](setting()), name in EXACT, "cuda")


@pytest.mark.parametrize("name", EXACT)
def test_pieces_equal_the_whole_in_bfloat16(name):
    check_pieces(RUNS[name](setting(dtype=torch.bfloat16)), PIECES, exact=True)


def test_attention_and_neuron_in_one_kernel(monkeypatch):
    monkeypatch.setattr(triton_fire, "MIN_PROGRAMS", 1)
    run = RUNS["attend_fire"](setting(positions=1000))
    check_pieces(run, PIECES, exact=False)
    check_samples(run, False, "cuda")
