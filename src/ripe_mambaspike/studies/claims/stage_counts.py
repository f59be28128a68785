"""Appendix, "Execution order and stage-by-stage parameter accounting", line by line."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from ripe_mambaspike.models.registry import meta_model, model_config
from ripe_mambaspike.nn.mixers import parameter_count
from ripe_mambaspike.studies.claims.verdict import Claim, count

# RepConv 1 and 2 (training, fused), norms, neurons, DS-MPA, TDM, stage total (training, fused).
STAGES = (
    (((10_624, 608), (27_072, 9_248)), 1_280, 320, 3_104, 34, (42_434, 14_594)),
    (((72_320, 18_496), (107_392, 36_928)), 2_560, 384, 12_352, 96, (195_104, 70_816)),
    (((288_000, 73_856), (427_776, 147_584)), 5_120, 768, 49_280, 192, (771_136, 276_800)),
)


def stage_count_claims() -> Iterator[Claim]:
    training, deployed = (_stages("cifar10dvs", form) for form in ("training", "deployed"))
    for level in range(3):
        yield from _stage(level + 1, training[level], deployed[level])


def _stages(name: str, form: str) -> list[Any]:
    model: Any = meta_model(model_config(name), form)
    return list(model.stages)


def conv_size(conv: Any) -> int:
    """Parameters without the temporal filter, which the paper counts separately."""
    return parameter_count(conv) - conv.coefficient.numel()


def _stage(level: int, training: Any, deployed: Any) -> Iterator[Claim]:
    convs, norms, neurons, attention, filters, totals = STAGES[level - 1]
    prefix, name = f"params.stage{level}", f"stage {level}"
    for which, (conv, fused, (before, after)) in enumerate(
        zip(_convs(training), _convs(deployed), convs, strict=True), 1
    ):
        label = f"RepConv {which} of {name}"
        yield count(
            "{prefix}.conv{which}.training", conv_size(conv), paper=before, prefix=prefix, which=which, label=label
        )
        yield count(
            "{prefix}.conv{which}.fused", conv_size(fused), paper=after, prefix=prefix, which=which, label=label
        )
        yield from _algebra(f"{prefix}.conv{which}", label, conv, fused)
    parts = (
        ("bntt", "temporal norms", norms, (deployed.first_norm, deployed.second_norm)),
        ("neurons", "neurons", neurons, (deployed.first_neuron, deployed.second_neuron)),
        ("attention", "DS-MPA", attention, (deployed.attention,)),
    )
    for slug, label, paper, modules in parts:
        yield count("{prefix}.{slug}", _sizes(modules), paper=paper, prefix=prefix, slug=slug, name=name, label=label)
    scalars = sum(conv.coefficient.numel() for conv in _convs(deployed))
    yield count("{prefix}.tdm", scalars, paper=filters, prefix=prefix, name=name)
    yield count("{prefix}.training", parameter_count(training), paper=totals[0], prefix=prefix, name=name)
    yield count("{prefix}.fused", parameter_count(deployed), paper=totals[1], prefix=prefix, name=name)


def _algebra(prefix: str, label: str, conv: Any, fused: Any) -> Iterator[Claim]:
    """The two formulas, at this convolution's widths."""
    before, after = conv.in_channels, conv.channels
    yield count(
        "{prefix}.formula.training",
        conv_size(conv),
        paper=26 * before * after + 14 * after,
        prefix=prefix,
        label=label,
        before=before,
        after=after,
    )
    yield count(
        "{prefix}.formula.fused",
        conv_size(fused),
        paper=9 * before * after + after,
        prefix=prefix,
        label=label,
        before=before,
        after=after,
    )


def _convs(stage: Any) -> tuple[Any, Any]:
    return stage.first_conv, stage.second_conv


def _sizes(modules: tuple[nn.Module, ...]) -> int:
    return sum(parameter_count(module) for module in modules)
