"""Variants of the network, and weights for tests of stored ones."""

import torch

from ripe_mambaspike.models.stored import Stored

VARIANTS = [
    *({"attention": kind} for kind in ("low-rank", "grouped", "sigmoid", "gate", "none")),
    {"repconv": False},
    {"tdm": False},
    {"bridge": "stage3"},
    {"attention": "none", "repconv": False, "tdm": False, "bridge": "stage3"},
    *({"mixer": kind} for kind in ("transformer", "gru", "conv1d", "none", "flat")),
    {"neurons": "lif"},
    {"neurons": "csilif"},
    {"head_hidden_size": 30},
    {"mixer": "flat-matched"},
    {"neurons": "csilif", "csilif_reset": 0.2, "detach_reset": True},
    *({"attention_feature_map": kind, "attention_epsilon": 0.1} for kind in ("relu", "softplus", "exp")),
    {"bridge_dim": 13, "d_state": 6, "d_conv": 3, "expand": 3},
    {"time_steps": 1},
]


def as_int8(weight):
    """The weight as int8, each row with its own scale."""
    weight = weight.detach()
    scale = weight.abs().amax(tuple(range(1, weight.ndim)), keepdim=True).clamp(min=1e-6) / 127
    return Stored((weight / scale).round().to(torch.int8), scale)
