"""Appendix, "Execution order and stage-by-stage parameter accounting", line by line."""

from typing import Any

from torch import nn

from ripe_mambaspike.account.parameters import meta_model
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.nn.mixers import parameter_count
from ripe_mambaspike.studies.claims.verdict import Claim, ClaimSource

ACCOUNTING = ClaimSource("parameters", "Appendix B, stage-by-stage parameter accounting")
ALGEBRA = ClaimSource("parameters", "Appendix B, definitions and parameter algebra")

# RepConv 1 and 2 (training, fused), norms, neurons, DS-MPA, TDM, stage total (training, fused).
STAGES = (
    (((10_624, 608), (27_072, 9_248)), 1_280, 320, 3_104, 34, (42_434, 14_594)),
    (((72_320, 18_496), (107_392, 36_928)), 2_560, 384, 12_352, 96, (195_104, 70_816)),
    (((288_000, 73_856), (427_776, 147_584)), 5_120, 768, 49_280, 192, (771_136, 276_800)),
)
CHAIN = (
    "The formula takes the 3×3 of the 1×1→3×3 branch as 9 c_in c_out; it has 9 c_out² weights, and a strided "
    "convolution has five norms, not seven. The paper's own stage-by-stage list has the right figure."
)


def stage_count_claims() -> list[Claim]:
    training, deployed = (_stages("cifar10dvs", form) for form in ("training", "deployed"))
    claims = []
    for level in range(3):
        claims += _stage(level + 1, training[level], deployed[level])
    return claims


def _stages(name: str, form: str) -> list[Any]:
    model: Any = meta_model(model_config(name), form)
    return list(model.stages)


def conv_size(conv: Any) -> int:
    """Parameters without the temporal filter, which the paper counts separately."""
    return parameter_count(conv) - conv.coefficient.numel()


def _stage(level: int, training: Any, deployed: Any) -> list[Claim]:
    convs, norms, neurons, attention, filters, totals = STAGES[level - 1]
    prefix, name = f"params.stage{level}", f"stage {level}"
    claims = []
    for which, (conv, fused, (before, after)) in enumerate(
        zip(_convs(training), _convs(deployed), convs, strict=True), 1
    ):
        label = f"RepConv {which} of {name}"
        claims += [
            ACCOUNTING.count(f"{prefix}.conv{which}.training", f"{label}, training", before, conv_size(conv)),
            ACCOUNTING.count(f"{prefix}.conv{which}.fused", f"{label}, fused", after, conv_size(fused)),
            *_algebra(f"{prefix}.conv{which}", label, conv, fused),
        ]
    parts = (
        ("bntt", "temporal norms", norms, (deployed.first_norm, deployed.second_norm)),
        ("neurons", "neurons", neurons, (deployed.first_neuron, deployed.second_neuron)),
        ("attention", "DS-MPA", attention, (deployed.attention,)),
    )
    claims += [
        ACCOUNTING.count(f"{prefix}.{slug}", f"Parameters of {name}: {label}, T = 10", paper, _sizes(modules))
        for slug, label, paper, modules in parts
    ]
    scalars = sum(conv.coefficient.numel() for conv in _convs(deployed))
    return [
        *claims,
        ACCOUNTING.count(f"{prefix}.tdm", f"TDM scalars of {name}", filters, scalars),
        ACCOUNTING.count(
            f"{prefix}.training", f"Total of {name}, training, T = 10", totals[0], parameter_count(training)
        ),
        ACCOUNTING.count(f"{prefix}.fused", f"Total of {name}, fused, T = 10", totals[1], parameter_count(deployed)),
    ]


def _algebra(prefix: str, label: str, conv: Any, fused: Any) -> list[Claim]:
    """The two formulas, at this convolution's widths."""
    before, after = conv.in_channels, conv.channels
    return [
        ALGEBRA.count(
            f"{prefix}.formula.training",
            f"26 c_in c_out + 14 c_out for {label} ({before}→{after})",
            26 * before * after + 14 * after,
            conv_size(conv),
            reason=CHAIN,
        ),
        ALGEBRA.count(
            f"{prefix}.formula.fused",
            f"9 c_in c_out + c_out for {label} ({before}→{after})",
            9 * before * after + after,
            conv_size(fused),
        ),
    ]


def _convs(stage: Any) -> tuple[Any, Any]:
    return stage.first_conv, stage.second_conv


def _sizes(modules: tuple[nn.Module, ...]) -> int:
    return sum(parameter_count(module) for module in modules)
