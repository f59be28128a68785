"""Whole-network counts: backbone, bridge, hierarchy and head, before and after fusion."""

from collections.abc import Iterator
from typing import Any

from ripe_mambaspike.account.parameters import Parameters, count_parameters
from ripe_mambaspike.models.registry import meta_model, model_config
from ripe_mambaspike.nn.mixers import parameter_count
from ripe_mambaspike.nn.repconv import FusedConv
from ripe_mambaspike.studies.claims.compute import WIDE, WIDEST
from ripe_mambaspike.studies.claims.stage_counts import conv_size
from ripe_mambaspike.studies.claims.verdict import Claim, count, fact, millions, number


def total_claims() -> Iterator[Claim]:
    ten, sixteen = (count_parameters(model_config(name)) for name in ("cifar10dvs", "dvsgesture"))
    yield from _backbone(ten, sixteen)
    yield from _rest(ten)
    yield from _whole(ten, sixteen)
    yield from _fusion(sixteen)
    yield from _others()


def stages_of(parts: dict[str, int]) -> int:
    return sum(parts[f"stage{level}"] for level in (1, 2, 3))


def _backbone(ten: Parameters, sixteen: Parameters) -> Iterator[Claim]:
    model: Any = meta_model(model_config("cifar10dvs"), "deployed")
    convs = [part for part in model.modules() if isinstance(part, FusedConv)]
    training, fused = stages_of(ten.training_by_part), stages_of(ten.by_part)
    yield count("params.stages.training", training)
    yield count("params.stages.fused", fused)
    yield number("params.stages.ratio", training / fused)
    yield count("params.convs", sum(map(conv_size, convs)))
    yield count("params.bntt.t10", _norms("cifar10dvs"))
    yield count("params.bntt.t16", _norms("dvsgesture"))
    yield count("params.entry.t10", ten.by_part["entry"])
    yield count("params.entry.t16", sixteen.by_part["entry"])
    yield count("params.backbone.t10", fused + ten.by_part["entry"])
    yield count("params.backbone.t16", stages_of(sixteen.by_part) + sixteen.by_part["entry"])


def _norms(name: str) -> int:
    model: Any = meta_model(model_config(name), "deployed")
    return sum(parameter_count(stage.first_norm) + parameter_count(stage.second_norm) for stage in model.stages)


def _rest(ten: Parameters) -> Iterator[Claim]:
    model: Any = meta_model(model_config("cifar10dvs"), "deployed")
    bridge, hierarchy = model.bridge, model.hierarchy
    scales = [parameter_count(scale) for scale in bridge.mixture.scales]
    for i, (paper, ours) in enumerate(zip((18_496, 36_928, 73_792), scales, strict=True), 1):
        yield count("params.bridge.scale{i}", ours, paper=paper, i=i)
    blocks = sum(parameter_count(block) for block in hierarchy.blocks)
    transitions = sum(parameter_count(transition) for transition in hierarchy.transitions)
    injected = parameter_count(bridge.attention)
    yield count("params.bridge.mix", bridge.mixture.mix.numel())
    yield count("params.bridge.norm", parameter_count(bridge.norm))
    yield count("params.bridge.attention", injected)
    yield count("params.bridge", ten.by_part["bridge"])
    yield count("params.hierarchy.blocks", blocks)
    yield count("params.hierarchy.transitions", transitions)
    yield count("params.hierarchy.norm", parameter_count(hierarchy.norm))
    yield count("params.hierarchy", ten.by_part["hierarchy"])
    yield count("params.head", ten.by_part["head"])
    yield count("params.frozen", ten.by_part["tokens"])
    yield number("params.injection-share", 100 * injected / ten.deployed)


def _whole(ten: Parameters, sixteen: Parameters) -> Iterator[Claim]:
    core = ten.deployed - ten.by_part["head"]
    yield count("params.deployed.cifar10dvs", ten.deployed)
    yield count("params.core", core)
    yield count("params.deployed.dvsgesture", sixteen.deployed)
    yield millions("params.deployed.abstract", ten.deployed)
    yield millions("params.training.dvsgesture", sixteen.training)
    yield number("params.cut", sixteen.training / sixteen.deployed)


def _fusion(counted: Parameters) -> Iterator[Claim]:
    before = stages_of(counted.training_by_part) + counted.training_by_part["entry"]
    after = stages_of(counted.by_part) + counted.by_part["entry"]
    convs = 26 / 9
    rest = counted.deployed - after
    yield millions("params.fusion.backbone.training", before)
    yield millions("params.fusion.backbone.fused", after)
    yield millions("params.fusion.rest", rest)
    yield millions("params.fusion.whole", counted.deployed)
    yield number("params.fusion.ratio", before / after)
    yield number("params.fusion.unit", convs)
    yield _per_unit()


def _per_unit() -> Claim:
    models: list[Any] = [meta_model(model_config("cifar10dvs"), form) for form in ("training", "deployed")]
    pairs = [
        conv_size(getattr(a, which)) / conv_size(getattr(b, which))
        for a, b in zip(models[0].stages, models[1].stages, strict=True)
        for which in ("first_conv", "second_conv")
    ]
    return fact(
        "params.fusion.every-unit",
        ", ".join(f"{ratio:.2f}×" for ratio in pairs),
        all(round(ratio, 1) == 2.9 for ratio in pairs),
    )


def _others() -> Iterator[Claim]:
    """The counts of the results table and of the widened networks."""
    gesture, cifar = "dvsgesture", "cifar10dvs"

    def deployed(id: str, name: str, **overrides: Any) -> Claim:
        return millions(id, count_parameters(model_config(name, **overrides)).deployed)

    for name in (gesture, cifar, "ncaltech101", "nmnist", "dailydvs200", "dailydvs200-lite"):
        yield deployed(f"params.table.{name}", name)
    yield deployed("params.width.64.t10", cifar, **WIDE)
    yield deployed("params.width.128.t10", cifar, **WIDEST)
    yield deployed("params.width.64.t16", gesture, **WIDE)
    yield deployed("params.width.128.t16", gesture, **WIDEST)
    for steps in (4, 8, 32):
        yield deployed(f"params.steps.{steps}", gesture, time_steps=steps)
