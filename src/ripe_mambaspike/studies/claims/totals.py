"""Whole-network counts: backbone, bridge, hierarchy and head, before and after fusion."""

from typing import Any

from ripe_mambaspike.account.parameters import Parameters, count_parameters, meta_model
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.nn.mixers import parameter_count
from ripe_mambaspike.nn.repconv import FusedConv
from ripe_mambaspike.studies.claims.stage_counts import conv_size
from ripe_mambaspike.studies.claims.verdict import Claim, ClaimSource

ACCOUNTING = ClaimSource("parameters", "Appendix B, stage-by-stage parameter accounting")
SECTION = ClaimSource("parameters", "§5, Parameters")
FUSION = ClaimSource("parameters", "Table 5 (train-time vs. inference-time parameters)")
RESULTS = ClaimSource("parameters", "Table 1 (state of the art)")


def total_claims() -> list[Claim]:
    ten, sixteen = (count_parameters(model_config(name)) for name in ("cifar10dvs", "dvsgesture"))
    return [*_backbone(ten, sixteen), *_rest(ten), *_whole(ten, sixteen), *_fusion(sixteen), *_others()]


def stages_of(parts: dict[str, int]) -> int:
    return sum(parts[f"stage{level}"] for level in (1, 2, 3))


def _backbone(ten: Parameters, sixteen: Parameters) -> list[Claim]:
    model: Any = meta_model(model_config("cifar10dvs"), "deployed")
    convs = [part for part in model.modules() if isinstance(part, FusedConv)]
    training, fused = stages_of(ten.training_by_part), stages_of(ten.by_part)
    return [
        ACCOUNTING.count("params.stages.training", "Three stages, training, T = 10", 1_008_674, training),
        ACCOUNTING.count("params.stages.fused", "Three stages, fused, T = 10", 362_210, fused),
        ACCOUNTING.number("params.stages.ratio", "Compression of the three stages", "2.78×", training / fused),
        ACCOUNTING.count("params.convs", "Six fused convolutions", 286_720, sum(map(conv_size, convs))),
        ACCOUNTING.count("params.bntt.t10", "Temporal norms of the stages, T = 10", 8_960, _norms("cifar10dvs")),
        ACCOUNTING.count("params.bntt.t16", "Temporal norms of the stages, T = 16", 14_336, _norms("dvsgesture")),
        ACCOUNTING.count("params.entry.t10", "Entry norm, T = 10", 40, ten.by_part["entry"]),
        ACCOUNTING.count("params.entry.t16", "Entry norm, T = 16", 64, sixteen.by_part["entry"]),
        ACCOUNTING.count("params.backbone.t10", "Fused backbone, T = 10", 362_250, fused + ten.by_part["entry"]),
        ACCOUNTING.count(
            "params.backbone.t16",
            "Fused backbone, T = 16",
            367_650,
            stages_of(sixteen.by_part) + sixteen.by_part["entry"],
        ),
    ]


def _norms(name: str) -> int:
    model: Any = meta_model(model_config(name), "deployed")
    return sum(parameter_count(stage.first_norm) + parameter_count(stage.second_norm) for stage in model.stages)


def _rest(ten: Parameters) -> list[Claim]:
    model: Any = meta_model(model_config("cifar10dvs"), "deployed")
    bridge, hierarchy = model.bridge, model.hierarchy
    scales = [parameter_count(scale) for scale in bridge.mixture.scales]
    claims = [
        ACCOUNTING.count(f"params.bridge.scale{i}", f"Bridge projection of stage {i}", paper, ours)
        for i, (paper, ours) in enumerate(zip((18_496, 36_928, 73_792), scales, strict=True), 1)
    ]
    blocks = sum(parameter_count(block) for block in hierarchy.blocks)
    transitions = sum(parameter_count(transition) for transition in hierarchy.transitions)
    injected = parameter_count(bridge.attention)
    section = ClaimSource("parameters", "Appendix B, MR-S3A bridge detail")
    return [
        *claims,
        ACCOUNTING.count("params.bridge.mix", "Softmax fusion weights", 3, bridge.mixture.mix.numel()),
        ACCOUNTING.count("params.bridge.norm", "Bridge norm", 64, parameter_count(bridge.norm)),
        ACCOUNTING.count("params.bridge.attention", "Attention-injection projection", 4_128, injected),
        ACCOUNTING.count("params.bridge", "MR-S3A bridge", 133_411, ten.by_part["bridge"]),
        ACCOUNTING.count("params.hierarchy.blocks", "Three Mamba blocks", 361_760, blocks),
        ACCOUNTING.count("params.hierarchy.transitions", "Two transitions", 10_816, transitions),
        ACCOUNTING.count("params.hierarchy.norm", "Input norm of the hierarchy", 64, parameter_count(hierarchy.norm)),
        ACCOUNTING.count("params.hierarchy", "Hierarchical Mamba stack", 372_640, ten.by_part["hierarchy"]),
        ACCOUNTING.count("params.head", "Head, ten classes", 1_290, ten.by_part["head"]),
        ACCOUNTING.count("params.frozen", "Frozen scalars of the token ranking", 2, ten.by_part["tokens"]),
        section.number(
            "params.injection-share",
            "Attention projection's share of the deployed parameters",
            "0.5 %",
            100 * injected / ten.deployed,
        ),
    ]


def _whole(ten: Parameters, sixteen: Parameters) -> list[Claim]:
    core = ten.deployed - ten.by_part["head"]
    return [
        ACCOUNTING.count("params.deployed.cifar10dvs", "Deployed, T = 10, ten classes", 869_593, ten.deployed),
        ACCOUNTING.count("params.core", "Deployed without the head, T = 10", 868_303, core),
        ACCOUNTING.count("params.deployed.dvsgesture", "Deployed, T = 16, eleven classes", 875_122, sixteen.deployed),
        SECTION.millions("params.deployed.abstract", "The deployed footprint", "0.870 M", ten.deployed),
        SECTION.millions("params.training.dvsgesture", "DVS-Gesture at training time", "1.522 M", sixteen.training),
        ClaimSource("parameters", "Table 17 (latency)").number(
            "params.cut", "Parameters cut by fusion", "1.74×", sixteen.training / sixteen.deployed
        ),
    ]


def _fusion(counted: Parameters) -> list[Claim]:
    before = stages_of(counted.training_by_part) + counted.training_by_part["entry"]
    after = stages_of(counted.by_part) + counted.by_part["entry"]
    convs = 26 / 9
    rest = counted.deployed - after
    return [
        FUSION.millions("params.fusion.backbone.training", "Backbone, training, T = 16", "1.014 M", before),
        FUSION.millions("params.fusion.backbone.fused", "Backbone, fused, T = 16", "0.368 M", after),
        FUSION.millions(
            "params.fusion.rest",
            "Hierarchy, bridge and classifier",
            "0.508 M",
            rest,
            reason="It is 0.507 M; with 0.508 M the table's own column would add up to 0.876 M and not 0.875 M.",
        ),
        FUSION.millions("params.fusion.whole", "Full model, deployed", "0.875 M", counted.deployed),
        SECTION.number("params.fusion.ratio", "Reduction across the full backbone", "2.76×", before / after),
        SECTION.number("params.fusion.unit", "26/9, the limit of one convolution's reduction", "2.89×", convs),
        _per_unit(),
    ]


def _per_unit() -> Claim:
    models: list[Any] = [meta_model(model_config("cifar10dvs"), form) for form in ("training", "deployed")]
    pairs = [
        conv_size(getattr(a, which)) / conv_size(getattr(b, which))
        for a, b in zip(models[0].stages, models[1].stages, strict=True)
        for which in ("first_conv", "second_conv")
    ]
    return SECTION.fact(
        "params.fusion.every-unit",
        "Each RepConv unit shrinks by 26/9 ≈ 2.89×",
        "2.9×",
        ", ".join(f"{ratio:.2f}×" for ratio in pairs),
        all(round(ratio, 1) == 2.9 for ratio in pairs),
        reason="It is so for the three of equal width. The strided ones shrink more, because the 3×3 of their "
        "1×1→3×3 branch works at the output width.",
    )


def _others() -> list[Claim]:
    """The counts of the results table and of the widened networks."""
    wide = {"stage_channels": (64, 128, 256), "embed_dims": (64, 128, 256)}
    widest = {"stage_channels": (128, 256, 512), "embed_dims": (128, 256, 512)}
    flops = ClaimSource("parameters", "Table 20 (compute cost)")
    scaled = ClaimSource("parameters", "§6, Results")
    gesture, cifar = "dvsgesture", "cifar10dvs"

    def deployed(name: str, **overrides: Any) -> int:
        return count_parameters(model_config(name, **overrides)).deployed

    rows = [
        (RESULTS, "params.table.dvsgesture", "DVS-Gesture", "0.88 M", deployed(gesture)),
        (RESULTS, "params.table.cifar10dvs", "CIFAR10-DVS", "0.87 M", deployed(cifar)),
        (RESULTS, "params.table.ncaltech101", "N-Caltech101", "0.88 M", deployed("ncaltech101")),
        (RESULTS, "params.table.nmnist", "N-MNIST", "0.87 M", deployed("nmnist")),
        (RESULTS, "params.table.dailydvs200", "DailyDVS-200", "8.04 M", deployed("dailydvs200")),
        (RESULTS, "params.table.dailydvs200-lite", "DailyDVS-200 lite", "3.82 M", deployed("dailydvs200-lite")),
        (scaled, "params.width.64.t10", "CIFAR10-DVS at [64, 128, 256]", "3.35 M", deployed(cifar, **wide)),
        (scaled, "params.width.128.t10", "CIFAR10-DVS at [128, 256, 512]", "13.14 M", deployed(cifar, **widest)),
        (flops, "params.width.64.t16", "DVS-Gesture at [64, 128, 256]", "3.361 M", deployed(gesture, **wide)),
        (flops, "params.width.128.t16", "DVS-Gesture at [128, 256, 512]", "13.165 M", deployed(gesture, **widest)),
        (flops, "params.steps.4", "DVS-Gesture at T = 4", "0.864 M", deployed(gesture, time_steps=4)),
        (flops, "params.steps.8", "DVS-Gesture at T = 8", "0.868 M", deployed(gesture, time_steps=8)),
        (flops, "params.steps.32", "DVS-Gesture at T = 32", "0.890 M", deployed(gesture, time_steps=32)),
    ]
    return [place.millions(id, f"Deployed parameters, {what}", paper, ours) for place, id, what, paper, ours in rows]
