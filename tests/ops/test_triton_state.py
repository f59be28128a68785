"""The Triton kernels in pieces and with samples at different steps: the clip again, to the bit where no sum is cut."""

import pytest
import torch

from ripe_mambaspike.ops.mamba_inner import triton_scan_plan
from ripe_mambaspike.ops.membrane_attention import triton_fire, triton_plan
from stateful import RUNS, Setting, check_pieces, check_samples

pytestmark = pytest.mark.usefixtures("triton_kernels")
EXACT = ("norm_fire", "leaky_fire", "enter_fire", "pooled_rates", "leaky_rates")
NORMED = ("norm_fire", "attend", "attend_fire", "enter_fire")
MADE_OF_OTHERS = ("leaky_rates", "attend_fire")  # of pooled_rates; of attend and norm_fire
PIECES = [(1, 2, 4)]


def setting(**fields):
    return Setting(relaxed=True, positions=20, **fields)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in MADE_OF_OTHERS else []) for name in RUNS]
)
@torch.no_grad()
def test_pieces_equal_the_whole(name, short_scan_tiles):
    check_pieces(RUNS[name](setting()), PIECES, name in EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMED)
@torch.no_grad()
def test_one_norm_for_all_steps(name):
    check_pieces(RUNS[name](setting(rows=1, rotating=False)), PIECES, name in EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@torch.no_grad()
def test_samples_at_different_steps(name):
    check_samples(RUNS[name](setting()), name in EXACT)


@pytest.mark.parametrize("rotating", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["resonating", "leaky"])
@torch.no_grad()
def test_attention_and_neuron_in_one_kernel(monkeypatch, rotating):
    monkeypatch.setattr(triton_fire, "MIN_PROGRAMS", 1)
    check_samples(RUNS["attend_fire"](setting(rotating=rotating)), exact=False)


@torch.no_grad()
def test_attention_over_many_channels(monkeypatch):
    monkeypatch.setitem(triton_plan.FUSED_CHANNELS, torch.float32, 4)
    check_samples(RUNS["attend"](setting()), exact=False)


@pytest.mark.slow
@torch.no_grad()
def test_scan_in_chunks(monkeypatch):
    """The state enters where the first chunk starts and leaves where the last one ends."""
    monkeypatch.setattr(triton_scan_plan, "TILE", 2)
    monkeypatch.setattr(triton_scan_plan, "MIN_CHUNK", 2)
    check_pieces(RUNS["mamba_inner"](setting()), PIECES, exact=False)
