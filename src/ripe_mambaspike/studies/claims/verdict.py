"""A checked claim, and how its verdict follows from the paper's value and ours.

What the paper says is in paper.yaml. No verdict is written by hand: every function here compares. A reason is text,
shown only when the comparison fails.
"""

import dataclasses
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from ripe_mambaspike.yaml_text import parse_yaml

Verdict = Literal["holds", "differs"]

UNEXPLAINED = "Our value is another one, and no reason is known: either this code or the paper is wrong here."
_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.(\d+))?")


@dataclass(frozen=True)
class Claim:
    """One statement of the paper, compared with this code."""

    id: str  # stable slug
    group: str  # set by `run_claims`
    where: str  # place in the paper
    statement: str
    paper: str  # as the paper prints it
    ours: str  # computed
    verdict: Verdict
    reason: str = ""  # why it differs, or a remark if it holds

    def to_dict(self) -> dict[str, str]:
        return dataclasses.asdict(self)


def printed_value(text: str) -> tuple[float, int, str]:
    """The first number of a printed text, its decimals and what follows it: "92.6 %" → (92.6, 1, " %")."""
    found = _NUMBER.search(text)
    if found is None:
        raise ValueError(f"paper: expected text with a number, got {text!r}")
    value = float(found.group().replace(",", "").replace("−", "-"))
    return value, len(found.group(1) or ""), text[found.end() :]


def rounds_to(ours: float, paper: str) -> bool:
    """Whether our value rounds to the printed one at the printed digits."""
    value, decimals, _ = printed_value(paper)
    return abs(ours - value) <= 0.5 * 10**-decimals * (1 + 1e-9)


def with_more_digits(ours: float, paper: str, more: int = 2) -> str:
    """Our value in the paper's unit, with enough digits to see how it rounds."""
    _, decimals, unit = printed_value(paper)
    return f"{ours:,.{decimals + more}f}{unit}".replace("-", "−")


def fact(id: str, ours: str, holds: bool, **values: Any) -> Claim:
    """A claim with the result of its check; all comparisons below use it.

    Its texts are those of paper.yaml; `values` fills in the names in braces there, and gives texts that are computed.
    """
    where, texts = _statements()[id]

    def text(part: str) -> str:
        return _filled(texts.get(part), part, values)

    verdict: Verdict = "holds" if holds else "differs"
    note = text("remark") if holds else text("reason") or UNEXPLAINED
    return Claim(id.format(**values), "", where, text("statement"), text("paper"), ours, verdict, note)


def count(id: str, ours: int, **values: Any) -> Claim:
    """A printed integer: equal or not."""
    paper = values.pop("paper", _statements()[id][1].get("paper"))
    return fact(id, f"{ours:,}", ours == paper, **values, paper=f"{paper:,}")


def millions(id: str, ours: int, **values: Any) -> Claim:
    """A count printed in millions, such as "0.875 M"; ours is shown whole."""
    return fact(id, f"{ours:,}", rounds_to(ours / 1e6, _printed(id, values)), **values)


def number(id: str, ours: float, **values: Any) -> Claim:
    """A printed decimal, such as "92.6 %": holds when ours rounds to it."""
    paper = _printed(id, values)
    return fact(id, with_more_digits(ours, paper), rounds_to(ours, paper), **values)


def exact(id: str, error: float, limit: float = 1e-12, **values: Any) -> Claim:
    """An identity, checked in floating point: holds when the largest relative error is within the limit."""
    return fact(id, f"{error:.1e} (at most {limit:.0e})", error <= limit, **{"paper": "exact", **values})


@cache
def _statements() -> dict[str, tuple[str, dict[str, Any]]]:
    """The place and the texts of every claim, by its id."""
    text = (resources.files(__package__) / "paper.yaml").read_text("utf-8")
    places: dict[str, dict[str, dict[str, Any]]] = parse_yaml(text, "paper.yaml")
    return {id: (where, texts) for where, claims in places.items() for id, texts in claims.items()}


def _filled(text: Any, part: str, values: dict[str, Any]) -> str:
    """A text of paper.yaml with its names filled in, or the one that was computed; empty if there is none."""
    return text.format(**values) if isinstance(text, str) else str(values.get(part, ""))


def _printed(id: str, values: dict[str, Any]) -> str:
    return _filled(_statements()[id][1].get("paper"), "paper", values)
