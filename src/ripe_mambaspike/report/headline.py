"""The top of the page: what came out, how it was picked, and of what."""

from datetime import UTC, datetime
from typing import Any

from ripe_mambaspike.report.formatting import (
    count_text,
    duration_text,
    escaped,
    finite_or_none,
    int_or_none,
    interval,
    number_text,
    percent_text,
    plural,
)
from ripe_mambaspike.report.run_data import RunData
from ripe_mambaspike.train.statistics import too_few_for_top5

ON_TEST = "picked on the test set (paper protocol)"


def run_name(run: RunData) -> str:
    return str(run.result.get("name") or run.folder.resolve().name or "run")


def picked(result: dict[str, Any]) -> tuple[str, bool]:
    """How the network was picked, in words, and whether that is a reason to doubt the number."""
    protocol, on = result.get("protocol"), result.get("picked_on")
    if on == "test" or (protocol == "paper" and on is None):
        return ON_TEST, True
    if protocol == "paper" and on != "last epoch":
        return f"{ON_TEST}, though it says picked on {on}", True
    if on == "val":
        return "picked on validation data, then tested", False
    if on == "last epoch":
        return "last epoch, nothing was picked", False
    return "how it was picked is not recorded", True


def badge(run: RunData) -> str:
    """The label that stands beside every score."""
    words, doubt = picked(run.result)
    return f'<span class="badge{" warn" if doubt else ""}">{escaped(words)}</span>'


def score_text(run: RunData) -> str:
    share = finite_or_none(run.result.get("top1"))
    return "no score" if share is None or not 0 <= share <= 1 else percent_text(share)


def bar_at_top(run: RunData) -> str:
    """The line that stays in sight: name, score and how it was picked."""
    return (
        f'<div class="top"><div><b>{escaped(run_name(run), 60)}</b> <span>{score_text(run)} top-1</span> '
        f"{badge(run)}</div></div>"
    )


def headline(run: RunData, parameters: dict[str, Any]) -> str:
    """Name, score, facts. `parameters` are the account's, for a result that lacks them."""
    result = run.result
    notes = "".join(f'<p class="missing">{escaped(run.notes[n])}</p>' for n in ("result.json",) if n in run.notes)
    notes += "".join(f'<p class="missing warn">Warning: {escaped(said, 1000)}</p>' for said in _warnings(result))
    where = " · ".join(escaped(result[key], 60) for key in ("set", "cut") if result.get(key))
    return (
        f'<header><p class="kind">Training report{f" · {where}" if where else ""}</p><h1>{escaped(run_name(run))}</h1>'
        f'<div class="hero">{_score(run)}{badge(run)}</div>{notes}<dl class="facts">{_facts(run, parameters)}</dl>'
        "</header>"
    )


def _warnings(result: dict[str, Any]) -> list[str]:
    given = result.get("warnings")
    return [said for said in given if isinstance(said, str)][:10] if isinstance(given, list) else []


def _score(run: RunData) -> str:
    share, n = finite_or_none(run.result.get("top1")), int_or_none(run.result.get("n"))
    if share is None or not 0 <= share <= 1:
        return '<div class="score"><strong>–</strong><span>There is no score: the run has no result yet.</span></div>'
    split = escaped(run.result.get("split") or "test", 30)
    lines = [f"<span>top-1 on {plural(n, f'{split} clip') if n else f'an unknown number of {split} clips'}</span>"]
    if n and n > 0:
        low, high = interval(share, n)
        lines.append(f'<span class="dim">95 % interval {100 * low:.1f} … {100 * high:.1f} %</span>')
    number, _, sign = percent_text(share).partition(" ")
    return f'<div class="score"><strong>{number}<small> {sign}</small></strong><div>{"".join(lines)}</div></div>'


def _facts(run: RunData, counted: dict[str, Any]) -> str:
    result = run.result
    given = result.get("parameters")
    parameters = given if isinstance(given, dict) else counted
    epoch, seed = int_or_none(result.get("epoch")), int_or_none(result.get("seed"))
    of = f" of {run.epochs}" if epoch is not None and run.epochs else ""
    commit = result.get("commit")
    top5 = finite_or_none(result.get("top5"))
    facts = [("top-5", percent_text(top5))] if top5 is not None and not too_few_for_top5(len(run.classes)) else []
    facts += [
        ("loss", number_text(finite_or_none(result.get("loss")))),
        ("epoch", "–" if epoch is None else f"{epoch}{of}"),
        ("parameters, training", count_text(finite_or_none(parameters.get("training")))),
        ("parameters, deployed", count_text(finite_or_none(parameters.get("deployed")))),
        ("seed", "–" if seed is None else str(seed)),
        ("commit", f"<code>{escaped(str(commit)[:12])}</code>" if commit else "not recorded"),
        ("time", duration_text(finite_or_none(result.get("seconds")))),
        ("written", _written(run)),
    ]
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)


def _written(run: RunData) -> str:
    """The date of the result, so that the same run gives the same page."""
    for piece in ("result.json", "log.csv", "recipe.yaml"):
        try:
            made = (run.folder / piece).stat().st_mtime
        except OSError:
            continue
        return datetime.fromtimestamp(made, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return "–"
