"""Parameter counts of the paper's alternatives: attention variants, neuron mixes, other mixers."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from ripe_mambaspike.account.parameters import Parameters, count_parameters
from ripe_mambaspike.models.registry import meta_model, model_config
from ripe_mambaspike.nn.mixers import parameter_count
from ripe_mambaspike.studies.claims.printed import MIXES
from ripe_mambaspike.studies.claims.verdict import Claim, count, fact, millions, number


def variant_claims() -> Iterator[Claim]:
    return chain(_attention(), _widths(), _neuron_mixes(), _mixers(), _flat())


def counted(name: str = "dvsgesture", **overrides: Any) -> Parameters:
    return count_parameters(model_config(name, **overrides))


def attention_size(**overrides: Any) -> int:
    model: Any = meta_model(model_config("dvsgesture", **overrides), "deployed")
    return sum(parameter_count(stage.attention) for stage in model.stages)


def _attention() -> Iterator[Claim]:
    full, whole = attention_size(), counted()
    low_rank, grouped = attention_size(attention="low-rank"), attention_size(attention="grouped")
    low_total, grouped_total = counted(attention="low-rank").deployed, counted(attention="grouped").deployed
    yield count("variants.attention.full", full)
    yield count("variants.attention.gate", attention_size(attention="gate"))
    yield count("variants.attention.none", attention_size(attention="none"))
    yield count("variants.attention.low-rank", low_rank)
    yield count("variants.attention.grouped", grouped)
    yield count("variants.total.low-rank", low_total)
    yield count("variants.total.grouped", grouped_total)
    yield number("variants.ratio.low-rank", low_rank / full)
    yield number("variants.ratio.grouped", grouped / full)
    yield number("variants.saving.low-rank", 100 * (low_total / whole.deployed - 1))
    yield number("variants.saving.grouped", 100 * (grouped_total / whole.deployed - 1))
    yield number("variants.share.deployed", 100 * full / whole.deployed)
    yield number("variants.share.training", 100 * full / whole.training)
    yield millions("variants.low-rank-cut", low_total)
    yield count("variants.sigmoid-matched", attention_size(attention="sigmoid"), paper=full)


def _widths() -> Iterator[Claim]:
    rows = (((64, 128, 256), 258_496), ((128, 256, 512), 1_033_088))
    for widths, paper in rows:
        size = attention_size(stage_channels=widths)
        yield count("variants.attention.width.{first}", size, first=widths[0], widths=list(widths), paper=paper)


def _neuron_mixes() -> Iterator[Claim]:
    for mix, _ in MIXES:
        total = counted(neurons=mix).deployed
        yield millions("variants.neurons.{slug}", total, slug="-".join(mix), mix=", ".join(mix))
    families = {name for mix, _ in MIXES for name in mix}
    with_lif = sum("lif" in mix for mix, _ in MIXES)
    accuracies = [accuracy for _, accuracy in MIXES]
    worst_two = [mix for mix, _ in sorted(MIXES, key=lambda row: row[1])[:2]]
    yield fact("variants.neurons.kinds", f"{with_lif} of {len(MIXES)} rows use LIF", families == {"csilif", "silif"})
    yield fact(
        "variants.neurons.best",
        f"{max(accuracies):.2f} for {', '.join(MIXES[accuracies.index(max(accuracies))][0])}",
        accuracies.index(max(accuracies)) == 0 and accuracies.count(max(accuracies)) == 1,
    )
    yield fact(
        "variants.neurons.worst",
        " and ".join(", ".join(mix) for mix in worst_two),
        all(mix[:2] == ("csilif", "csilif") for mix in worst_two),
    )


def _mixers() -> Iterator[Claim]:
    for name in ("dvsgesture", "ncaltech101"):
        ours = counted(name).training
        for mixer in ("transformer", "gru", "conv1d"):
            total = counted(name, mixer=mixer).training
            gap = 100 * abs(total / ours - 1)
            yield fact(
                "variants.mixer.{mixer}.{name}",
                f"{gap:.3f} % ({total:,} against {ours:,})",
                gap <= 0.1,
                mixer=mixer,
                name=name,
            )
        smaller = 100 * (1 - counted(name, mixer="none").training / ours)
        yield number("variants.mixer.none.{name}", smaller, name=name)


def _flat() -> Iterator[Claim]:
    models: list[Any] = [meta_model(model_config("dvsgesture", mixer=mixer), "deployed") for mixer in ("mamba", "flat")]
    hierarchy, flat = (sum(parameter_count(block) for block in model.hierarchy.blocks) for model in models)
    yield count("variants.flat.hierarchy", hierarchy)
    yield number("variants.flat.ratio", flat / hierarchy)
    yield millions("variants.flat.total", models[1].parameter_count())
