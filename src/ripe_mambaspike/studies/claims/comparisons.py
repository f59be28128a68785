"""Claims of the text about its results table: leads, ranks, ratios and Pareto fronts."""

import statistics
from collections.abc import Iterator
from itertools import chain

from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.studies.claims.printed import (
    CALTECH,
    CIFAR,
    DAILY,
    GESTURE,
    LITE,
    MNIST,
    OURS,
    PrintedRow,
    printed_row,
)
from ripe_mambaspike.studies.claims.verdict import Claim, count, fact, number

SPIKING = ("SDT", "SpikFormer")
SPECIALIZED = "SpikMamba"  # the caption lists it separately, as designed for actions


def comparison_claims() -> Iterator[Claim]:
    return chain(_leads(), _daily(), _ratios(), _pareto(), _concessions(), _related())


def _leads() -> Iterator[Claim]:
    rows = (("dvsgesture", GESTURE, "2.65 pp"), ("cifar10dvs", CIFAR, "16.10 pp"), ("nmnist", MNIST, "0.08 pp"))
    for name, table, paper in rows:
        lead = printed_row(table).accuracy - printed_row(table, "Mamba-Spike").accuracy
        yield number("comparisons.lead.{name}", lead, paper=paper, name=name)
    protocol = printed_row(CIFAR, "Mamba-Spike").accuracy - printed_row(CIFAR, "Mamba-Spike released").accuracy
    yield number("comparisons.protocol", protocol)
    yield number("comparisons.pooled", 53.30 - 48.90)


def _daily() -> Iterator[Claim]:
    accuracies = sorted((entry.accuracy for entry in DAILY), reverse=True)
    ours = printed_row(DAILY).accuracy
    median = statistics.median(accuracies)
    spiking = max(printed_row(DAILY, name).accuracy for name in SPIKING)
    others = statistics.median(entry.accuracy for entry in DAILY if entry.method not in (OURS, LITE))
    yield number("comparisons.daily.median", median, others=others)
    yield number("comparisons.daily.above", ours - median)
    yield count("comparisons.daily.rank", accuracies.index(ours) + 1)
    yield count("comparisons.daily.half", sum(value > 50 for value in accuracies))
    yield number("comparisons.daily.spiking", ours - spiking)
    yield number("comparisons.daily.best", accuracies[0] - ours)
    yield number("comparisons.daily.evmamba", printed_row(DAILY, "EvMamba").accuracy - ours)
    yield fact(
        "comparisons.daily.timesformer",
        f"{ours} against {printed_row(DAILY, 'TimeSformer').accuracy}",
        ours > printed_row(DAILY, "TimeSformer").accuracy,
    )
    yield number("comparisons.daily.ceiling", max(entry.accuracy for entry in DAILY if entry.millions is not None))


def _times(method: str, deployed: float) -> float:
    millions = printed_row(DAILY, method).millions
    assert millions is not None
    return millions / deployed


def _ratios() -> Iterator[Claim]:
    deployed = count_parameters(model_config("dailydvs200")).deployed / 1e6
    dense = {
        entry.method: entry.millions / deployed
        for entry in DAILY
        if entry.millions and entry.method not in (OURS, LITE)
    }
    most = max(dense, key=dense.__getitem__)
    best = max(DAILY, key=lambda entry: entry.accuracy)
    ratio = _times("EvMamba", deployed)
    yield number("comparisons.ratio.swin-t", _times("Swin-T", deployed))
    yield number("comparisons.ratio.evmamba", ratio)
    yield number("comparisons.ratio.timesformer", _times("TimeSformer", deployed))
    yield number("comparisons.fewer.least", min(dense.values()))
    yield number("comparisons.fewer.most", dense[most], most=most)
    yield fact(
        "comparisons.order",
        f"{best.method}: no count printed; EvMamba, the next: {ratio:.1f}×",
        best.millions is not None and best.millions / deployed >= 10,
    )


def dominated(entry: PrintedRow, table: tuple[PrintedRow, ...]) -> list[str]:
    """Methods that are no larger and no less accurate, and better in one of the two."""
    assert entry.millions is not None
    return [
        other.method
        for other in table
        if other.millions is not None
        and other.millions <= entry.millions
        and other.accuracy >= entry.accuracy
        and (other.millions, other.accuracy) != (entry.millions, entry.accuracy)
    ]


def _pareto() -> Iterator[Claim]:
    wanted = (
        ("dvsgesture", GESTURE, OURS, False),
        ("cifar10dvs", CIFAR, OURS, True),
        ("ncaltech101", CALTECH, OURS, True),
        ("dailydvs200", DAILY, OURS, True),
        ("dailydvs200-lite", DAILY, LITE, True),
        ("nmnist", MNIST, OURS, False),
    )
    for name, table, method, optimal in wanted:
        by = dominated(printed_row(table, method), table)
        yield fact(
            "comparisons.pareto.{name}",
            f"no: {', '.join(by)}" if by else "yes",
            (not by) == optimal,
            paper="yes" if optimal else "no",
            name=name,
        )
    for width, millions, accuracy in ((64, 3.35, 82.80), (128, 13.14, 83.40)):
        by = dominated(PrintedRow("widened", millions, accuracy), CIFAR)
        yield fact(
            "comparisons.pareto.width.{width}",
            f"off: {', '.join(by)}" if by else "on it",
            bool(by),
            width=width,
            millions=millions,
        )


def _concessions() -> Iterator[Claim]:
    tables = {"DVS-Gesture": GESTURE, "CIFAR10-DVS": CIFAR, "N-Caltech101": CALTECH, "DailyDVS-200": DAILY}
    ahead, sizes, smallest = [], [], []
    for name, table in tables.items():
        ours = printed_row(table)
        assert ours.millions is not None
        counted = [
            entry for entry in table if entry.millions is not None and entry.method not in (OURS, LITE, SPECIALIZED)
        ]
        smaller = [entry.method for entry in counted if entry.millions and entry.millions < ours.millions]
        smallest += [] if smaller else [name]
        if name != "DailyDVS-200":
            better = [entry for entry in counted if entry.accuracy > ours.accuracy]
            ahead += [entry.accuracy - ours.accuracy for entry in better]
            sizes += [entry.millions / ours.millions for entry in better if entry.millions]
    yield number("comparisons.concedes", max(ahead))
    yield number("comparisons.concedes.least", min(sizes))
    yield number("comparisons.concedes.most", max(sizes))
    yield count("comparisons.smallest", len(smallest), smallest=" and ".join(smallest))


def _related() -> Iterator[Claim]:
    caltech, cifar = (count_parameters(model_config(name)).deployed / 1e6 for name in ("ncaltech101", "cifar10dvs"))
    gap = printed_row(CIFAR, "SpikePool").accuracy - printed_row(CIFAR).accuracy
    beaten = [
        entry.method
        for entry in CALTECH
        if "SpikePool" in entry.method and entry.accuracy < printed_row(CALTECH).accuracy
    ]
    yield count("comparisons.spikepool.beats", len(beaten))
    yield number("comparisons.spikepool.fewer", 2.19 / caltech)
    yield number("comparisons.spikepool.gap", gap)
    yield number("comparisons.spikepool.smaller", 2.19 / cifar)
    yield number("comparisons.sparta", 13.8 / cifar)
