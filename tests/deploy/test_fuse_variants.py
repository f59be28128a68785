"""Every attention, mixer, ablation and neuron fuses as exactly as the default."""

import pytest
import torch

from ripe_mambaspike import dual_kernel, fuse

VARIANTS = [
    {"attention": "low-rank"},
    {"attention": "grouped"},
    {"attention": "sigmoid"},
    {"attention": "gate"},
    {"attention": "none"},
    {"repconv": False},
    {"tdm": False},
    {"bridge": "stage3"},
    {"attention": "none", "repconv": False, "tdm": False, "bridge": "stage3"},
    {"mixer": "transformer"},
    {"mixer": "gru"},
    {"mixer": "conv1d"},
    {"mixer": "none"},
    {"mixer": "flat"},
    {"num_tokens": 16},
    {"neurons": "lif"},
    {"neurons": "csilif"},
    {"neurons": "silif"},
    {"head_hidden_size": 30},
    {"time_steps": 1},
    {"stage_channels": (8, 8, 8)},
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_every_variant_is_exact(loud, apart, fields):
    model = loud(**fields).double()
    fused = fuse(model, quiet=True)
    error, flips, rate = apart(model, fused, torch.float64)
    assert rate > 0.01
    assert error <= 1e-12
    assert flips == 0
    if model.config.tdm:
        error, flips, _ = apart(model, dual_kernel(fused, quiet=True), torch.float64)
        assert error <= 1e-12
        assert flips == 0


@pytest.mark.parametrize("seed", range(3))
def test_float32_on_other_seeds_and_sizes(loud, apart, seed):
    model = loud(seed=seed)
    for side in (18, 21):
        error, flips, _ = apart(model, fuse(model, quiet=True), torch.float32, side)
        assert error <= 1e-6
        assert flips == 0
