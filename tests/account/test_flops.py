"""Operations: the specification's numbers, and PyTorch's own counter on the real deployed network."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ripe_mambaspike import create_model
from ripe_mambaspike.models.flops import count_flops, token_counts
from ripe_mambaspike.models.registry import list_models, meta_model, model_config
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.mamba import Mamba
from ripe_mambaspike.nn.mixers import matched_sizes
from ripe_mambaspike.ops.backend import kernels

SMALL = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 5, "form": "deployed"}


def giga(**overrides):
    """GFLOPs without the scan, to four digits after the point."""
    return round(count_flops(model_config("dvsgesture", **overrides)).without_scan / 1e9, 4)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, 8.9884),
        ({"num_tokens": 64}, 8.2303),
        ({"num_tokens": 128}, 8.4830),
        ({"time_steps": 4}, 2.2471),
        ({"time_steps": 8}, 4.4942),
        ({"time_steps": 32}, 17.9769),
        ({"in_size": 48}, 1.2640),
        ({"in_size": 224}, 27.5270),
        ({"stage_channels": (64, 128, 256), "embed_dims": (64, 128, 256)}, 35.6013),
        ({"stage_channels": (128, 256, 512), "embed_dims": (128, 256, 512)}, 141.7005),
    ],
    ids=str,
)
def test_the_specifications_table(overrides, expected):
    assert giga(**overrides) == expected


def test_at_34_the_odd_token_is_kept():
    assert 0.7756 < giga(in_size=34) < 0.7756 * 1.02
    assert token_counts(model_config("dvsgesture", in_size=34)) == [25, 13, 7]


def test_parts():
    flops = count_flops(model_config("dvsgesture"))
    rounded = {part: round(count / 1e9, 3) for part, count in flops.by_part.items()}
    assert rounded["backbone"] == 4.907
    assert rounded["attention"] == 2.013
    assert rounded["bridge"] == 1.057
    assert rounded["hierarchy"] == 0.977
    assert rounded["attention_projection"] == 0.034
    assert round(flops.by_part["scan"] / 1e9, 4) == 0.2265


@pytest.mark.parametrize("name", list_models())
def test_parts_add_up(name):
    flops = count_flops(model_config(name))
    assert flops.total == sum(flops.by_part.values())
    assert flops.without_scan == flops.total - flops.by_part["scan"]
    scans = any(isinstance(module, Mamba) for module in meta_model(model_config(name)).modules())
    least = {part: 0 if part == "scan" and not scans else 1 for part in flops.by_part}
    assert all(isinstance(count, int) and count >= least[part] for part, count in flops.by_part.items())


@pytest.mark.parametrize("overrides", [{}, {"num_tokens": 7}, {"mixer": "flat"}], ids=str)
def test_the_scan_is_nine_operations_a_token_channel_and_state(overrides):
    config = model_config("nmnist", **{**SMALL, **overrides})
    widths = (24, 24, 24) if config.mixer == "flat" else (8, 16, 24)
    counts = {"num_tokens": (7, 4, 2), "mixer": (25, 25, 25)}.get(next(iter(overrides), ""), (25, 13, 7))
    expected = sum(2 * 9 * 5 * count * 2 * width * 16 for count, width in zip(counts, widths, strict=True))
    assert count_flops(config).by_part["scan"] == expected


def test_the_scan_of_other_sizes():
    config = model_config("nmnist", **SMALL, d_state=6, expand=3)
    tokens = sum(count * 3 * width for count, width in zip((25, 13, 7), (8, 16, 24), strict=True))
    assert count_flops(config).by_part["scan"] == 2 * 9 * 5 * 6 * tokens
    flat = model_config("nmnist", **SMALL, mixer="flat-matched")
    inner = [level.sizes.d_inner for level in flat.levels() if level.mixes]
    assert count_flops(flat).by_part["scan"] == 2 * 9 * 5 * 25 * 16 * sum(inner)
    assert token_counts(flat) == [25] * 4


def counted_by_pytorch(model, height, width):
    x = synthetic_clip(model.config.time_steps, height, width)
    # PyTorch counts its own operators and cannot look into ours: the reference path it is.
    with kernels("off"), FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model.eval()(x)
    return counter.get_total_flops()


def counted_here(model, height, width):
    return count_flops(model.config.replace(in_size=(height, width))).without_scan


@pytest.mark.parametrize(("name", "size"), [("dvsgesture", (34, 34)), ("dvsgesture", (48, 48)), ("nmnist", (34, 34))])
def test_shipped_networks_equal_pytorchs_counter(name, size):
    model = create_model(name, form="deployed")
    assert counted_by_pytorch(model, *size) == counted_here(model, *size)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention": "low-rank"},
        {"attention": "grouped"},
        {"attention": "sigmoid"},
        {"attention": "gate"},
        {"attention": "none"},
        {"bridge": "stage3"},
        {"tdm": False},
        {"num_tokens": 7},
        {"num_tokens": 20},
        {"mixer": "transformer"},
        {"mixer": "gru"},
        {"mixer": "none"},
        {"mixer": "flat"},
        {"mixer": "flat-matched"},
        {"mixer": "flat-matched", "bridge_dim": 11, "expand": 1},
        {"bridge_dim": 11},
        {"bridge_dim": 11, "pool_ratios": (2, 1, 3), "num_tokens": 7},
        {"d_state": 6, "expand": 3, "d_conv": 2},
        {"mixer": "gru", "d_state": 6},
        {"causal": True, "d_state": 6, "bridge_dim": 11},
        {"attention_feature_map": "exp"},
        {"attention_feature_map": "relu", "attention": "grouped", "attention_epsilon": 0.1},
        {"csilif_reset": 0.2, "detach_reset": True},
        {"head_hidden_size": 30},
        {"pool_ratios": (2, 1, 3)},
        {"causal": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(34, 34), (40, 29)])
def test_variants_equal_pytorchs_counter(fields, size):
    model = create_model("nmnist", **SMALL, **fields)
    assert counted_by_pytorch(model, *size) == counted_here(model, *size)


def test_the_depthwise_convolution_of_the_conv_arm_is_left_out():
    model = create_model("nmnist", **SMALL, mixer="conv1d")
    hidden = matched_sizes("conv1d", (8, 16, 24))
    depthwise = sum(2 * 7 * 5 * count * h for count, h in zip((25, 13, 7), hidden, strict=True))
    assert counted_by_pytorch(model, 34, 34) == counted_here(model, 34, 34) + depthwise


@pytest.mark.parametrize("fields", [{}, {"pool_size": 3}, {"conv_bias": True}], ids=str)
def test_the_baseline_equals_pytorchs_counter(fields):
    small = {"channels": (4, 5, 6), "embed_dim": 16, "depth": 2, "time_steps": 7, "in_size": (38, 35)}
    model = create_model("mamba-spike", **small, **fields)
    assert counted_by_pytorch(model, 38, 35) == counted_here(model, 38, 35)


def test_what_training_adds_is_not_counted():
    names = ("training", "deployed", "dual-kernel")
    assert len({giga(form=form) for form in names}) == 1
    assert giga(repconv=False) == giga()
