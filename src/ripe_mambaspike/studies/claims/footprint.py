"""Bytes and joules: arithmetic on counts that the paper prints."""

from ripe_mambaspike.account.parameters import count_parameters, meta_model
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.nn.bridge import RateProjection
from ripe_mambaspike.nn.norm import TimeBatchNorm
from ripe_mambaspike.studies.claims.printed import DAILY
from ripe_mambaspike.studies.claims.verdict import Claim, ClaimSource

TABLE = ClaimSource("footprint", "Table 8 (weight storage)")
LATENCY = ClaimSource("footprint", "Table 17 (deployment cost)")
INTRO = ClaimSource("footprint", "§1, Introduction")
ENERGY = ClaimSource("energy", "§5, accumulate-only inference")

MAC, AC = 4.6, 0.9  # pJ at 45 nm
RATES = (0.05, 0.2)  # of §5, measured
OPERATING_RATES = (0.015, 0.19)  # of §4.5
OTHERS = {"TSM": "48.6", "Swin-T": "55.6", "EvMamba": "153.0", "TimeSformer": "242.4", "C3D": "294.4"}


def footprint_claims() -> list[Claim]:
    return [*_storage(), *_weights(), *_table()]


def _megabytes(name: str) -> float:
    return count_parameters(model_config(name)).weight_bytes["fp16"] / 1e6


def _storage() -> list[Claim]:
    rows = (
        ("cifar10dvs", "RIPE-MambaSpike", "1.7 MB"),
        ("dailydvs200-lite", "RIPE-MambaSpike lite, DailyDVS-200", "7.6 MB"),
        ("dailydvs200", "RIPE-MambaSpike, DailyDVS-200", "16.1 MB"),
        ("mamba-spike", "Mamba-Spike", "72.5 MB"),
    )
    claims = [
        TABLE.number(f"footprint.{name}", f"FP16 weights, {label}", paper, _megabytes(name))
        for name, label, paper in rows
    ]
    counts = {row.method: row for row in DAILY}
    for method, paper in OTHERS.items():
        millions = counts[method].millions
        assert millions is not None
        claims.append(
            TABLE.number(f"footprint.{method.lower()}", f"FP16 weights, {method}", f"{paper} MB", 2 * millions)
        )
    ranked = sorted(DAILY, key=lambda row: -row.accuracy)
    places = {name: 1 + next(i for i, row in enumerate(ranked) if row.method == name) for name in ("EvMamba", "C3D")}
    return [
        *claims,
        INTRO.fact(
            "footprint.leading",
            "153–294 MB is what the models leading the benchmark need",
            "153–294 MB",
            f"EvMamba (153 MB) is place {places['EvMamba']} and C3D (294 MB) place {places['C3D']} of {len(ranked)}",
            max(places.values()) <= 4,
            reason="The upper end is C3D, the least accurate of the table; the leaders with a printed count need 56 to "
            "153 MB.",
        ),
    ]


def _mebibytes(config: ModelConfig, form: str | None) -> float:
    model = meta_model(config, form)
    return 4 * (model.parameter_count() + sum(buffer.numel() for buffer in model.buffers())) / 2**20


def _weights() -> list[Claim]:
    gesture = model_config("dvsgesture")
    baseline = _mebibytes(model_config("mamba-spike", num_classes=11, conv_bias=True), None)
    training, deployed = _mebibytes(gesture, "training"), _mebibytes(gesture, "deployed")
    kept = [
        buffer.numel()
        for part in meta_model(gesture, "training").modules()
        if isinstance(part, TimeBatchNorm | RateProjection)
        for buffer in part.buffers()
    ]
    with_statistics = deployed + 4 * sum(kept) / 2**20
    return [
        LATENCY.number("footprint.mib.baseline", "Weights and buffers of Mamba-Spike", "138.3 MiB", baseline),
        LATENCY.number("footprint.mib.training", "Weights and buffers of our training graph", "5.9 MiB", training),
        LATENCY.number(
            "footprint.mib.deployed",
            "Weights and buffers of our deployed graph",
            "3.4 MiB",
            deployed,
            reason="This deployed form keeps no running statistics; with those of the temporal norms and the bridge, "
            f"which the paper's form keeps, it would be {with_statistics:.3f} MiB.",
        ),
        LATENCY.number("footprint.mib.ratio", "Times smaller in weights", "41×", 138.3 / 3.4),
    ]


def _table() -> list[Claim]:
    """The latency table compared with its caption and text; measured figures are taken as printed."""
    rows = (("baseline", 138.3, 456, 272), ("training", 5.9, 1073, 1043), ("deployed", 3.4, 1070, 1043))
    claims = [
        LATENCY.number(
            f"footprint.activations.{name}",
            f"Activations of the {name} row are its peak minus its weights",
            f"{activations} MiB",
            peak - weights,
            reason="The caption's definition does not give the column: more than the weights was subtracted.",
        )
        for name, weights, peak, activations in rows
    ]
    resolution = ClaimSource("footprint", "§5 and Table 19 (cost of resolution)")
    isolated = ClaimSource("footprint", "Table 16 (DS-MPA cost, isolated)")
    ratios = (3.30, 3.33, 3.31, 3.28)
    mean = sum(ratios) / len(ratios)
    return [
        *claims,
        LATENCY.number("footprint.speed-up", "Fusing cuts B = 8 latency by", "1.53×", 159.3 / 103.8),
        LATENCY.number("footprint.activation-ratio", "Our activations are larger by", "3.8×", 1043 / 272),
        resolution.number("footprint.memory-growth", "Peak memory grows from 34² to 224² by", "30×", 8.00 / 0.27),
        isolated.number("footprint.dsmpa.step", "DS-MPA's share of a step", "7.9 %", 100 * 32.26 / 405.8),
        isolated.number("footprint.dsmpa.gate", "The gate recovers of a step", "5.5 %", 100 * (32.26 - 9.75) / 405.8),
        isolated.number("footprint.dsmpa.ratio", "The gate is cheaper by", "3.3×", 32.26 / 9.75),
        isolated.number(
            "footprint.dsmpa.stable",
            "The ratio is stable over batch sizes to",
            "0.8 %",
            100 * max(abs(ratio / mean - 1) for ratio in ratios),
        ),
    ]


def energy_claims() -> list[Claim]:
    two = 2 * AC
    low, high = (two * rate for rate in RATES)
    return [
        ENERGY.number("energy.pair", "Two accumulate-only convolutions cost, per synapse and rate", "1.8 pJ", two),
        ENERGY.fact(
            "energy.below-mac", "At most that, so below one dense MAC", f"< {MAC} pJ", f"{two:.1f} pJ", two < MAC
        ),
        ENERGY.number("energy.low", "At a rate of 0.05", "0.09 pJ", low),
        ENERGY.number("energy.high", "At a rate of 0.20", "0.36 pJ", high),
        ENERGY.fact(
            "energy.rates",
            "The measured rates are those of the operating point in §4.5",
            "{} to {}".format(*RATES),
            "{} to {} in §4.5".format(*OPERATING_RATES),
            RATES == OPERATING_RATES,
            reason="The paper prints two ranges; at the lower rate of §4.5 the pair would cost "
            f"{two * OPERATING_RATES[0]:.3f} pJ.",
        ),
    ]
