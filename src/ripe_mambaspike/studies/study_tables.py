"""The results of a study as tables: accuracy beside the paper's, what was measured, conditions; Markdown and CSV."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ripe_mambaspike.models.accuracy import BEST_TEST_EPOCH
from ripe_mambaspike.studies.comparison import Summary
from ripe_mambaspike.studies.results import ArmResult, SetResult, StudyResults

DASH = "–"
PAPER_NAMES = {
    "dvsgesture": "DVS-Gesture",
    "cifar10dvs": "CIFAR10-DVS",
    "ncaltech101": "N-Caltech101",
    "nmnist": "N-MNIST",
    "dailydvs200": "DailyDVS-200",
}


class StudyTable(NamedTuple):
    """A table of one set: its title, the head, and one row an arm."""

    title: str
    head: list[str]
    rows: list[list[str]]


def set_tables(results: StudyResults, one: SetResult) -> list[StudyTable]:
    """The tables of one set; those without content are left out."""
    made = [accuracy_table(results, one), measured_table(one), conditions_table(one)]
    return [table for table in made if len(table.head) > 1]


COMMIT_CHARS = 9
BRIEF = ("arm", "top-1 %", "n", "Δ", "p", "paper's Δ", "verdict")  # what fits on a terminal


def brief_table(table: StudyTable) -> StudyTable:
    """The most important columns of the table of accuracies."""
    kept = [table.head.index(name) for name in BRIEF]
    return StudyTable(table.title, list(BRIEF), [[row[index] for index in kept] for row in table.rows])


def accuracy_table(results: StudyResults, one: SetResult) -> StudyTable:
    """Every arm's accuracy with its interval, its difference from the reference, and the paper's."""
    head = ["arm", "top-1 %", "n", "95 %", "Δ", "Δ, 95 %", "p", "p (Holm)", "|Δ| in σ", "paper", "paper's Δ",
            "same sign", "within 2 sd", "verdict"]  # fmt: skip
    rows = []
    for arm in one.arms:
        effect, paper = arm.effect, arm.paper
        where = "" if paper is None or paper.counterpart else f" ({PAPER_NAMES.get(paper.dataset, paper.dataset)})"
        rows.append(
            [
                arm.title + (" (reference)" if arm.arm == results.reference else ""),
                mean_and_sd(arm.top1, 2),
                str(arm.top1.n) if arm.top1 else "0",
                interval_text(arm.top1, 2),
                DASH if effect is None else f"{effect.delta:+.2f}{'' if not effect.stars else ' ' + effect.stars}",
                DASH if effect is None or effect.low is None else f"{effect.low:+.2f} to {effect.high:+.2f}",
                DASH if effect is None or effect.p is None else f"{effect.p:.2g}",
                DASH if effect is None or effect.p_holm is None else f"{effect.p_holm:.2g}",
                DASH if effect is None or effect.sigmas is None else f"{effect.sigmas:.1f}",
                DASH if paper is None or paper.top1 is None else f"{paper.top1:.2f}{where}",
                DASH if paper is None or paper.delta is None else f"{paper.delta:+.2f}{where}",
                _yes_no(paper.same_sign if paper else None),
                _yes_no(paper.within_two_sd if paper else None),
                DASH if paper is None or paper.verdict is None else paper.verdict + where * (paper.delta is None),
            ]
        )
    return StudyTable(_caption(one), head, rows)


Cell = Callable[[ArmResult], str]


def measured_table(one: SetResult) -> StudyTable:
    """Size, operations, energy, rates and speed; columns that no arm has a value for are left out."""

    def cost(name: str) -> Cell:
        return lambda arm: DASH if arm.cost is None else four_digits(getattr(arm.cost, name))

    def size(form: str) -> Cell:
        return lambda arm: DASH if form not in arm.parameters else f"{arm.parameters[form] / 1e6:.3f}"

    def latency(device: str) -> Cell:
        return lambda arm: DASH if device not in arm.latency_ms else f"{arm.latency_ms[device]:.3g}"

    epochs = next((arm.rate_epochs for arm in one.arms if arm.rate_epochs), None)
    columns: list[tuple[str, Cell]] = [
        ("training M", size("training")),
        ("deployed M", size("deployed")),
        ("GFLOP", cost("gflop")),
        ("SOP, M", cost("synaptic_operations_m")),
        ("µJ", cost("microjoules")),
        ("µJ, dense", cost("dense_microjoules")),
        ("firing rate", lambda arm: mean_and_sd(arm.rate, 4)),
        (f"SR-var, last {epochs} epochs", lambda arm: mean_and_sd(arm.rate_sd, 5)),
        ("paper's SR-var", lambda arm: DASH if not arm.paper or not arm.paper.rate_sd else f"{arm.paper.rate_sd:g}"),
        ("training clips/s", lambda arm: mean_and_sd(arm.clips_per_second, 0)),
        *(
            (f"{device} ms", latency(device))
            for device in sorted({name for arm in one.arms for name in arm.latency_ms})
        ),
    ]
    columns = [(name, cell) for name, cell in columns if any(cell(arm) != DASH for arm in one.arms)]
    rows = [[arm.title, *(cell(arm) for _, cell in columns)] for arm in one.arms]
    return StudyTable(f"{one.set}: measured", ["arm", *(name for name, _ in columns)], rows)


def conditions_table(one: SetResult) -> StudyTable:
    """Accuracy under every condition, one a row, below the accuracy on clips as they are."""
    names = list(dict.fromkeys(name for arm in one.arms for name in arm.conditions))
    if not names:
        return StudyTable(f"{one.set}: conditions at test", ["condition"], [])
    rows = [["as they are", *(mean_and_sd(arm.top1, 1) for arm in one.arms)]]
    rows += [[name, *(mean_and_sd(arm.conditions.get(name), 1) for arm in one.arms)] for name in names]
    title = f"{one.set}: top-1 % under conditions at test"
    return StudyTable(title, ["condition", *(arm.title for arm in one.arms)], rows)


def _caption(one: SetResult) -> str:
    clips = ", ".join(f"{count:,} {split}" for split, count in one.clips.items())
    stands = f"; stands for {PAPER_NAMES.get(one.counterpart, one.counterpart)}" if one.counterpart else ""
    best = f"; {BEST_TEST_EPOCH}" if one.protocol == "paper" else ""
    return f"{one.set}: {one.epochs} epoch{'s' * (one.epochs != 1)}{f', clips: {clips}' if clips else ''}{stands}{best}"


def _yes_no(value: bool | None) -> str:
    return DASH if value is None else "yes" if value else "no"


def mean_and_sd(value: Summary | None, digits: int) -> str:
    """Mean ± sd."""
    if value is None:
        return DASH
    return f"{value.mean:.{digits}f}" + ("" if value.sd is None else f" ± {value.sd:.{digits}f}")


def four_digits(value: float) -> str:
    """Four significant digits, without an exponent."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:#.4g}".rstrip(".")


def interval_text(value: Summary | None, digits: int) -> str:
    if value is None or value.low is None or value.high is None:
        return DASH
    return f"{value.low:.{digits}f} to {value.high:.{digits}f}"


def study_facts(results: StudyResults) -> list[str]:
    """What was run, on what, when; what failed and what is missing."""
    answers = ", ".join(word.replace("table-", "Table ").replace("figure-", "figure ") for word in results.answers)
    lines = [
        f"{results.ended} of {results.planned} runs have ended, {results.failed} failed; {results.hours:.2f} hours of "
        f"training on {', '.join(results.devices) or 'a device that is not recorded'}.",
        f"Written {results.written} UTC at commit {(results.commit or 'unknown')[:COMMIT_CHARS]}; trained at "
        f"{', '.join(one[:COMMIT_CHARS] for one in results.trained_at) or 'unknown'}.",
    ]
    if results.answers != ["none"]:
        lines.insert(0, f"In the paper: {answers}.")
    if results.settings:
        lines.append(f"Settings of all runs: {', '.join(results.settings)}.")
    for one in results.sets:
        lines += [f"{one.set}: {arm} is left out: {reason}" for arm, reason in one.left_out.items()]
        for arm in one.arms:
            lines += [f"{one.set}, {arm.title}, seed {seed} failed: {why}" for seed, why in arm.failed.items()]
    return lines + _unused_facts(results)


def _unused_facts(results: StudyResults) -> list[str]:
    """What networks could not use of the recipe, each reason once, with all networks it holds for."""
    by_reason: dict[str, dict[str, None]] = {}
    for arm in (arm for one in results.sets for arm in one.arms):
        for text in arm.unused:
            reason = re.sub(r"'[^']+' has ", "these have ", text)
            by_reason.setdefault(reason, {})[arm.title] = None
    return [f"{reason}: {', '.join(titles)}" for reason, titles in by_reason.items()]


NOTE = (
    "top-1 is the mean ± standard deviation over n seeds, selected on validation clips and tested once; 95 % is the "
    "interval of the mean by Student's t. Δ and p are against the reference, by Welch's t-test: *** for p < 0.001, ** "
    "< 0.01, * < 0.05; p (Holm) is adjusted for all arms of the set. With fewer than two runs there is no p. The "
    "verdict compares the direction with the paper's: its datasets are others, so sizes need not agree."
)


def study_markdown(results: StudyResults) -> str:
    """The content of `table.md`."""
    lines = [f"# {results.title}", "", results.question, "", *(f"- {line}" for line in study_facts(results)), "", NOTE]
    for one in results.sets:
        for table in set_tables(results, one):
            lines += ["", f"## {table.title}", ""]
            lines += [_row(table.head), _row(["---", *["---:"] * (len(table.head) - 1)]), *map(_row, table.rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def study_csv(results: StudyResults) -> str:
    """The content of `table.csv`: one row for each set and arm, with all numbers as they are."""
    conditions = list(dict.fromkeys(name for one in results.sets for arm in one.arms for name in arm.conditions))
    devices = sorted({name for one in results.sets for arm in one.arms for name in arm.latency_ms})
    rows = [_values(results, one, arm, conditions, devices) for one in results.sets for arm in one.arms]
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _values(
    results: StudyResults, one: SetResult, arm: ArmResult, conditions: Sequence[str], devices: Sequence[str]
) -> dict[str, object]:
    top1, effect, paper, cost = arm.top1, arm.effect, arm.paper, arm.cost
    return {
        "study": results.study,
        "set": one.set,
        "arm": arm.arm,
        "reference": arm.arm == results.reference,
        "x": arm.x,
        **{name: getattr(top1, name, None) for name in ("n", "mean", "sd", "low", "high")},
        "values": " ".join(f"{value:.6g}" for value in top1.values) if top1 else "",
        "delta": getattr(effect, "delta", None),
        "delta_low": getattr(effect, "low", None),
        "delta_high": getattr(effect, "high", None),
        **{name: getattr(effect, name, None) for name in ("p", "p_holm", "sigmas")},
        "paper_set": getattr(paper, "dataset", None),
        "paper_top1": getattr(paper, "top1", None),
        "paper_delta": getattr(paper, "delta", None),
        "same_sign": getattr(paper, "same_sign", None),
        "within_two_sd": getattr(paper, "within_two_sd", None),
        "verdict": getattr(paper, "verdict", None),
        "training_parameters": arm.parameters.get("training"),
        "deployed_parameters": arm.parameters.get("deployed"),
        "seconds": arm.seconds,
        "clips_per_second": getattr(arm.clips_per_second, "mean", None),
        "rate": getattr(arm.rate, "mean", None),
        "rate_sd_over_epochs": getattr(arm.rate_sd, "mean", None),
        **{name: getattr(cost, name, None) for name in ("gflop", "synaptic_operations_m", "microjoules")},
        **{f"{device}_ms": arm.latency_ms.get(device) for device in devices},
        **{f"top1_{name}": getattr(arm.conditions.get(name), "mean", None) for name in conditions},
    }
