"""Every integer of the specification, counted on real networks (without memory, on the meta device)."""

import pytest
import torch

from ripe_mambaspike import create_model


def skeleton(name, **overrides):
    with torch.device("meta"):
        return create_model(name, **overrides)


def count(name, **overrides):
    return skeleton(name, **overrides).parameter_count()


def deployed(name, **overrides):
    return count(name, form="deployed", **overrides)


def by_part(name, **overrides):
    parts = skeleton(name, **overrides).parts()
    return {part: sum(p.numel() for p in module.parameters()) for part, module in parts.items()}


@pytest.mark.parametrize(
    ("name", "training", "fused"),
    [
        ("dvsgesture", 1_521_586, 875_122),
        ("cifar10dvs", 1_516_057, 869_593),
        ("nmnist", 1_516_057, 869_593),
        ("ncaltech101", 1_527_796, 881_332),
        ("dailydvs200", 13_823_895, 8_038_359),
        ("dailydvs200-lite", 6_392_503, 3_817_527),
    ],
)
def test_totals(name, training, fused):
    assert count(name) == training
    assert deployed(name) == fused


def test_stages_in_training_and_deployed():
    training, fused = by_part("cifar10dvs"), by_part("cifar10dvs", form="deployed")
    assert [training[f"stage{i}"] for i in (1, 2, 3)] == [42_434, 195_104, 771_136]
    assert [fused[f"stage{i}"] for i in (1, 2, 3)] == [14_594, 70_816, 276_800]
    assert sum(training.values()) == 1_516_057


def test_parts_of_the_deployed_network():
    parts = by_part("cifar10dvs", form="deployed")
    assert parts["entry"] == 40
    assert parts["bridge"] == 133_411
    assert parts["hierarchy"] == 372_640
    assert parts["head"] == 1_290
    assert parts["tokens"] == 2
    assert sum(parts.values()) == 869_593
    assert sum(parts.values()) - parts["head"] == 868_303


def test_six_fused_convolutions():
    model = skeleton("cifar10dvs", form="deployed")
    convs = [conv for stage in model.stages for conv in (stage.first_conv, stage.second_conv)]
    assert sum(conv.weight.numel() + conv.bias.numel() for conv in convs) == 286_720
    assert len(convs) == 6


def test_parts_of_the_hierarchy():
    hierarchy = skeleton("cifar10dvs").hierarchy
    sizes = [
        [sum(p.numel() for p in m.parameters()) for m in part] for part in (hierarchy.blocks, hierarchy.transitions)
    ]
    assert sizes == [[21_984, 73_664, 266_112], [0, 2_240, 8_576]]
    assert sum(p.numel() for p in hierarchy.norm.parameters()) == 64


@pytest.mark.parametrize(
    ("steps", "total"), [(4, 864_322), (8, 867_922), (12, 871_522), (16, 875_122), (20, 878_722), (32, 889_522)]
)
def test_steps(steps, total):
    assert deployed("dvsgesture", time_steps=steps) == total


@pytest.mark.parametrize(
    ("widths", "steps", "classes", "total"),
    [
        ((64, 128, 256), 16, 11, 3_360_914),
        ((128, 256, 512), 16, 11, 13_164_754),
        ((64, 128, 256), 10, 10, 3_349_881),
        ((128, 256, 512), 10, 10, 13_142_713),
    ],
)
def test_widths(widths, steps, classes, total):
    fields = {"stage_channels": widths, "embed_dims": widths, "time_steps": steps, "num_classes": classes}
    assert deployed("dvsgesture", **fields) == total


@pytest.mark.parametrize(
    ("attention", "size", "total"),
    [
        ("ds-mpa", 64_736, 875_122),
        ("low-rank", 32_480, 842_866),
        ("grouped", 16_352, 826_738),
        ("gate", 21_728, 875_122 - 64_736 + 21_728),
        ("sigmoid", 64_736, 875_122),
        ("none", 0, 875_122 - 64_736),
    ],
)
def test_attention_variants(attention, size, total):
    model = skeleton("dvsgesture", form="deployed", attention=attention)
    assert sum(p.numel() for stage in model.stages for p in stage.attention.parameters()) == size
    assert model.parameter_count() == total


def test_the_dual_kernel_form_stores_more():
    dual = count("cifar10dvs", form="dual-kernel")
    assert dual == 1_155_289
    assert dual - deployed("cifar10dvs") == 285_696


@pytest.mark.parametrize("resolution", [34, 48, 128, 224])
def test_no_parameter_depends_on_the_resolution(resolution):
    assert deployed("dvsgesture", in_size=resolution) == 875_122


@pytest.mark.parametrize(
    ("resolution", "total"), [(34, 4_792_522), (48, 7_413_962), (128, 36_249_802), (224, 105_455_818)]
)
def test_mamba_spike(resolution, total):
    assert count("mamba-spike", in_size=resolution, conv_bias=False) == total
    assert count("mamba-spike", in_size=resolution, conv_bias=True) == total + 3_072


def test_the_other_baselines():
    assert count("mamba-spike-nmnist") == 1_026_506
    assert count("mamba-spike-nmnist", conv_bias=True) == 1_027_530
    assert count("mamba-spike-pooled") == 4_795_594
    assert count("mamba-spike-pooled", in_size=224) == 4_795_594


@pytest.mark.parametrize("mixer", ["transformer", "gru", "conv1d"])
@pytest.mark.parametrize("name", ["ncaltech101", "dvsgesture", "dailydvs200", "dailydvs200-lite"])
def test_mixers_match_the_training_count(name, mixer):
    whole = count(name)
    assert abs(count(name, mixer=mixer) - whole) <= 0.001 * whole


def test_no_mixer_is_smaller_by_its_blocks():
    whole, without = count("ncaltech101"), count("ncaltech101", mixer="none")
    assert whole - without == 361_760
    assert round(100 * (whole - without) / whole, 1) == 23.7


MATCHED = [
    *((name, {}) for name in ("ncaltech101", "dvsgesture", "nmnist", "dailydvs200", "dailydvs200-lite")),
    ("dvsgesture", {"d_state": 8}),
    ("dvsgesture", {"expand": 1, "d_conv": 2}),
    ("ncaltech101", {"bridge_dim": 48}),
    ("dvsgesture", {"stage_channels": (128, 256, 512), "embed_dims": (128, 256, 512), "num_classes": 1000}),
    ("nmnist", {"stage_channels": (16, 32, 48), "embed_dims": (16, 32, 48)}),
    ("nmnist", {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 5, "num_classes": 0}),
]


@pytest.mark.parametrize(("name", "fields"), MATCHED, ids=str)
def test_a_matched_flat_stack_matches_the_training_count(name, fields):
    whole, flat = count(name, **fields), count(name, mixer="flat-matched", **fields)
    assert abs(flat - whole) <= 0.001 * whole
    assert deployed(name, mixer="flat-matched", **fields) - deployed(name, **fields) == flat - whole


def test_the_width_of_a_matched_flat_stack_does_not_depend_on_the_head():
    """Or a new head would make another network of the config."""
    model = create_model("nmnist", mixer="flat-matched")
    model.reset_classifier(200)
    fresh = skeleton("nmnist", mixer="flat-matched", num_classes=200)
    assert [p.shape for p in fresh.parameters()] == [p.shape for p in model.parameters()]


@pytest.mark.parametrize("mixer", ["mamba", "flat", "transformer", "gru", "conv1d"])
@pytest.mark.parametrize("fields", [{"d_state": 8}, {"expand": 3, "d_conv": 2}], ids=str)
def test_other_sizes_of_mamba_are_the_budget_of_the_arms(mixer, fields):
    whole, arm = count("dvsgesture", **fields), count("dvsgesture", mixer=mixer, **fields)
    assert (abs(arm - whole) <= 0.001 * whole) == (mixer != "flat")


@pytest.mark.parametrize(
    ("fields", "less"),
    [
        ({"d_state": 8}, sum(2 * 2 * d * 3 * 8 for d in (32, 64, 128))),  # x_proj has two rows a state, A one
        ({"d_conv": 3}, sum(2 * 2 * d for d in (32, 64, 128))),
        ({"expand": 1}, sum(2 * d * (3 * d + 2 * -(-d // 16) + 3 * 16 + 7) for d in (32, 64, 128))),
    ],
    ids=str,
)
def test_the_sizes_of_mamba(fields, less):
    assert count("dvsgesture", **fields) == 1_521_586 - less


def test_another_bridge_width_adds_a_transition():
    """To the three projections with their norms, the bridge's and the hierarchy's LayerNorm and A's projection."""
    training, fused = by_part("cifar10dvs", bridge_dim=48), by_part("cifar10dvs", bridge_dim=48, form="deployed")
    assert fused["bridge"] == 9 * 2 * 224 * 48 + 3 * 2 * 48 + 3 + 2 * 48 + (128 * 48 + 48)
    assert fused["hierarchy"] == 372_640 + 2 * 16 + (48 * 32 + 32 + 2 * 32)
    assert training["hierarchy"] == fused["hierarchy"]
    assert fused["head"] == 1_290
    assert by_part("cifar10dvs", bridge_dim=32, form="deployed") == by_part("cifar10dvs", form="deployed")


@pytest.mark.parametrize(
    "fields",
    [{"csilif_reset": 0.2}, {"detach_reset": True}, {"attention_feature_map": "exp"}, {"attention_epsilon": 0.1}],
    ids=str,
)
def test_these_choices_have_no_parameters(fields):
    assert count("dvsgesture", **fields) == 1_521_586


def test_the_flat_stack():
    model = skeleton("ncaltech101", mixer="flat")
    blocks = sum(p.numel() for p in model.hierarchy.blocks.parameters())
    assert blocks == 798_336
    assert blocks / 361_760 == pytest.approx(2.2068, abs=5e-5)
