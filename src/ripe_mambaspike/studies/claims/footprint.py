"""Bytes and joules: arithmetic on counts that the paper prints."""

from collections.abc import Iterator
from itertools import chain

from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.registry import meta_model, model_config
from ripe_mambaspike.nn.bridge import RateProjection
from ripe_mambaspike.nn.norm import TimeBatchNorm
from ripe_mambaspike.studies.claims.printed import DAILY, printed_row
from ripe_mambaspike.studies.claims.verdict import Claim, fact, number

MAC, AC = 4.6, 0.9  # pJ at 45 nm
RATES = (0.05, 0.2)  # of §5, measured
OPERATING_RATES = (0.015, 0.19)  # of §4.5


def footprint_claims() -> Iterator[Claim]:
    return chain(_storage(), _weights(), _table())


def _storage() -> Iterator[Claim]:
    for name in ("cifar10dvs", "dailydvs200-lite", "dailydvs200", "mamba-spike"):
        yield number(f"footprint.{name}", count_parameters(model_config(name)).weight_bytes["fp16"] / 1e6)
    for method in ("TSM", "Swin-T", "EvMamba", "TimeSformer", "C3D"):
        yield number(f"footprint.{method.lower()}", 2 * (printed_row(DAILY, method).millions or 0))
    ranked = sorted(DAILY, key=lambda row: -row.accuracy)
    places = {name: 1 + next(i for i, row in enumerate(ranked) if row.method == name) for name in ("EvMamba", "C3D")}
    yield fact(
        "footprint.leading",
        f"EvMamba (153 MB) is place {places['EvMamba']} and C3D (294 MB) place {places['C3D']} of {len(ranked)}",
        max(places.values()) <= 4,
    )


def _mebibytes(config: ModelConfig, form: str | None) -> float:
    model = meta_model(config, form)
    return 4 * (model.parameter_count() + sum(buffer.numel() for buffer in model.buffers())) / 2**20


def _weights() -> Iterator[Claim]:
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
    yield number("footprint.mib.baseline", baseline)
    yield number("footprint.mib.training", training)
    yield number("footprint.mib.deployed", deployed, with_statistics=with_statistics)
    yield number("footprint.mib.ratio", 138.3 / 3.4)


def _table() -> Iterator[Claim]:
    """The latency table compared with its caption and text; measured figures are taken as printed."""
    rows = (("baseline", 138.3, 456, 272), ("training", 5.9, 1073, 1043), ("deployed", 3.4, 1070, 1043))
    for name, weights, peak, activations in rows:
        yield number("footprint.activations.{name}", peak - weights, name=name, activations=activations)
    ratios = (3.30, 3.33, 3.31, 3.28)
    mean = sum(ratios) / len(ratios)
    yield number("footprint.speed-up", 159.3 / 103.8)
    yield number("footprint.activation-ratio", 1043 / 272)
    yield number("footprint.memory-growth", 8.00 / 0.27)
    yield number("footprint.dsmpa.step", 100 * 32.26 / 405.8)
    yield number("footprint.dsmpa.gate", 100 * (32.26 - 9.75) / 405.8)
    yield number("footprint.dsmpa.ratio", 32.26 / 9.75)
    yield number("footprint.dsmpa.stable", 100 * max(abs(ratio / mean - 1) for ratio in ratios))


def energy_claims() -> Iterator[Claim]:
    two = 2 * AC
    low, high = (two * rate for rate in RATES)
    yield number("energy.pair", two)
    yield fact("energy.below-mac", f"{two:.1f} pJ", two < MAC, MAC=MAC)
    yield number("energy.low", low)
    yield number("energy.high", high)
    yield fact(
        "energy.rates",
        "{} to {} in §4.5".format(*OPERATING_RATES),
        RATES == OPERATING_RATES,
        rates=RATES,
        cost=two * OPERATING_RATES[0],
    )
