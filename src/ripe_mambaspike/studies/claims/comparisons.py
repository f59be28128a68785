"""Claims of the text about its results table: leads, ranks, ratios and Pareto fronts."""

import statistics

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
from ripe_mambaspike.studies.claims.verdict import Claim, ClaimSource

RESULTS = ClaimSource("comparisons", "§6, Results")
TABLE = ClaimSource("comparisons", "Table 1 (state of the art)")
FIGURE = ClaimSource("comparisons", "Figure 3 (accuracy and parameters)")
RELATED = ClaimSource("comparisons", "§2, Related Work")
ABSTRACT = ClaimSource("comparisons", "Abstract")

SPIKING = ("SDT", "SpikFormer")
SPECIALIZED = "SpikMamba"  # the caption lists it separately, as designed for actions


def comparison_claims() -> list[Claim]:
    return [*_leads(), *_daily(), *_ratios(), *_pareto(), *_concessions(), *_related()]


def _leads() -> list[Claim]:
    rows = (("dvsgesture", GESTURE, "2.65 pp"), ("cifar10dvs", CIFAR, "16.10 pp"), ("nmnist", MNIST, "0.08 pp"))
    leads = [
        RESULTS.number(
            f"comparisons.lead.{name}",
            f"Lead over the Mamba-Spike reproduction, {name}",
            paper,
            printed_row(table).accuracy - printed_row(table, "Mamba-Spike").accuracy,
        )
        for name, table, paper in rows
    ]
    protocol = printed_row(CIFAR, "Mamba-Spike").accuracy - printed_row(CIFAR, "Mamba-Spike released").accuracy
    swap = ClaimSource("comparisons", "Table 7 (interface swap)")
    return [
        *leads,
        ClaimSource("comparisons", "§6, Baselines").number(
            "comparisons.protocol", "Our protocol improves it on CIFAR10-DVS by", "16.40 pp", protocol
        ),
        swap.number("comparisons.pooled", "Pooling the bridge gains", "4.40 pp", 53.30 - 48.90),
    ]


def _daily() -> list[Claim]:
    accuracies = sorted((entry.accuracy for entry in DAILY), reverse=True)
    ours = printed_row(DAILY).accuracy
    median = statistics.median(accuracies)
    spiking = max(printed_row(DAILY, name).accuracy for name in SPIKING)
    twice = f"The twelve entries count our own network twice; the median of the other ten is {_others_median():.2f}."
    return [
        RESULTS.number("comparisons.daily.median", "Median of the twelve entries", "41.95 %", median, remark=twice),
        RESULTS.number("comparisons.daily.above", "We are above that median by", "3.79 pp", ours - median),
        RESULTS.count("comparisons.daily.rank", "Our place of twelve", 4, accuracies.index(ours) + 1),
        RESULTS.count("comparisons.daily.half", "Entries above 50 %", 1, sum(value > 50 for value in accuracies)),
        RESULTS.number("comparisons.daily.spiking", "Best spiking method by", "8.80 pp", ours - spiking),
        TABLE.number("comparisons.daily.best", "Behind the best result by", "6.25 pp", accuracies[0] - ours),
        ClaimSource("comparisons", "Appendix C, binding constraint").number(
            "comparisons.daily.evmamba", "Behind EvMamba by", "3.91 pp", printed_row(DAILY, "EvMamba").accuracy - ours
        ),
        RESULTS.fact(
            "comparisons.daily.timesformer",
            "It beats TimeSformer outright",
            "higher accuracy",
            f"{ours} against {printed_row(DAILY, 'TimeSformer').accuracy}",
            ours > printed_row(DAILY, "TimeSformer").accuracy,
        ),
        FIGURE.number(
            "comparisons.daily.ceiling",
            "Best accuracy among entries with a parameter count",
            "49.65 %",
            max(entry.accuracy for entry in DAILY if entry.millions is not None),
        ),
    ]


def _others_median() -> float:
    return statistics.median(entry.accuracy for entry in DAILY if entry.method not in (OURS, LITE))


def _times(method: str, deployed: float) -> float:
    millions = printed_row(DAILY, method).millions
    assert millions is not None
    return millions / deployed


def _ratios() -> list[Claim]:
    deployed = count_parameters(model_config("dailydvs200")).deployed / 1e6
    dense = {
        entry.method: entry.millions / deployed
        for entry in DAILY
        if entry.millions and entry.method not in (OURS, LITE)
    }
    most = max(dense, key=dense.__getitem__)
    best = max(DAILY, key=lambda entry: entry.accuracy)
    ratio = _times("EvMamba", deployed)
    return [
        RESULTS.number("comparisons.ratio.swin-t", "Smaller than Swin-T by", "3.5×", _times("Swin-T", deployed)),
        RESULTS.number(
            "comparisons.ratio.evmamba",
            "Smaller than EvMamba by",
            "9.6×",
            ratio,
            reason="76.5 M over 8.04 M is 9.5.",
        ),
        RESULTS.number(
            "comparisons.ratio.timesformer", "Smaller than TimeSformer by", "15.1×", _times("TimeSformer", deployed)
        ),
        ABSTRACT.number(
            "comparisons.fewer.least", "Fewest times smaller than a dense network", "3.0×", min(dense.values())
        ),
        ABSTRACT.number(
            "comparisons.fewer.most",
            "Most times smaller than a dense network",
            "15.1×",
            dense[most],
            reason=f"15.1 is TimeSformer's ratio; the largest dense network of the table is {most}.",
        ),
        ClaimSource("comparisons", "§1, contribution C5").fact(
            "comparisons.order",
            "Within 6.25 pp of the best result at an order of magnitude fewer parameters",
            "≥ 10×",
            f"{best.method}: no count printed; EvMamba, the next: {ratio:.1f}×",
            best.millions is not None and best.millions / deployed >= 10,
            reason="The best result's size is not printed, so no ratio to it can be given.",
        ),
    ]


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


def _pareto() -> list[Claim]:
    wanted = (
        ("dvsgesture", GESTURE, OURS, False),
        ("cifar10dvs", CIFAR, OURS, True),
        ("ncaltech101", CALTECH, OURS, True),
        ("dailydvs200", DAILY, OURS, True),
        ("dailydvs200-lite", DAILY, LITE, True),
        ("nmnist", MNIST, OURS, False),
    )
    claims = []
    for name, table, method, optimal in wanted:
        by = dominated(printed_row(table, method), table)
        claims.append(
            FIGURE.fact(
                f"comparisons.pareto.{name}",
                f"Pareto-optimal among entries with a count: {name}",
                "yes" if optimal else "no",
                f"no: {', '.join(by)}" if by else "yes",
                (not by) == optimal,
            )
        )
    for width, millions, accuracy in ((64, 3.35, 82.80), (128, 13.14, 83.40)):
        by = dominated(PrintedRow("widened", millions, accuracy), CIFAR)
        claims.append(
            FIGURE.fact(
                f"comparisons.pareto.width.{width}",
                f"The widened CIFAR10-DVS network ({millions} M) is off the front",
                "off",
                f"off: {', '.join(by)}" if by else "on it",
                bool(by),
            )
        )
    return claims


def _concessions() -> list[Claim]:
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
    return [
        TABLE.number("comparisons.concedes", "Concedes at most, on the three smaller benchmarks", "2.9 pp", max(ahead)),
        TABLE.number(
            "comparisons.concedes.least", "The smallest model it concedes to is larger by", "1.7×", min(sizes)
        ),
        TABLE.number(
            "comparisons.concedes.most",
            "The largest model it concedes to is larger by",
            "41×",
            max(sizes),
            reason="41× is Mamba-Spike, which is less accurate; the largest that is more accurate is SPARTA.",
        ),
        TABLE.count(
            "comparisons.smallest",
            "Benchmarks of four where it is the smallest general-purpose network",
            3,
            len(smallest),
            reason="SpikePool at 0.55 M is smaller on CIFAR10-DVS and on N-Caltech101, so only "
            f"{' and '.join(smallest)} are left.",
        ),
    ]


def _related() -> list[Claim]:
    caltech, cifar = (count_parameters(model_config(name)).deployed / 1e6 for name in ("ncaltech101", "cifar10dvs"))
    gap = printed_row(CIFAR, "SpikePool").accuracy - printed_row(CIFAR).accuracy
    beaten = [
        entry.method
        for entry in CALTECH
        if "SpikePool" in entry.method and entry.accuracy < printed_row(CALTECH).accuracy
    ]
    return [
        RELATED.count("comparisons.spikepool.beats", "SpikePool models beaten on N-Caltech101", 2, len(beaten)),
        RELATED.number(
            "comparisons.spikepool.fewer", "At up to this many times fewer parameters", "2.5×", 2.19 / caltech
        ),
        RELATED.number("comparisons.spikepool.gap", "Behind it on CIFAR10-DVS by", "1.3 pp", gap),
        RELATED.number("comparisons.spikepool.smaller", "For a footprint smaller by", "2.5×", 2.19 / cifar),
        RELATED.number(
            "comparisons.sparta",
            "SPARTA is larger by",
            "15×",
            13.8 / cifar,
            reason="13.8 M over 0.870 M is 15.9, and over 0.875 M 15.8; the digits were cut off.",
        ),
    ]
