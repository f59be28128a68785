"""A checked claim, and how its verdict follows from the paper's value and ours.

What the paper says is in paper.yaml, and what it says of a trained network in trained.yaml. No verdict is written by
hand: every function here compares. Reason and cause are texts, shown only when the comparison fails.
"""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from ripe_mambaspike.yaml_text import parse_yaml

Verdict = Literal["holds", "differs"]
Kind = Literal["printed", "measured"]
STATEMENTS = ("paper.yaml", "trained.yaml")

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
    kind: Kind = "measured"  # printed: decided by what the paper prints alone; measured: by this software
    cause: str = ""  # if it differs: the slug that all claims which differ for the same cause share

    @property
    def is_erratum(self) -> bool:
        """Whether the paper contradicts itself, or arithmetic, here."""
        return self.verdict == "differs" and self.kind == "printed"

    def to_dict(self) -> dict[str, str]:
        return dataclasses.asdict(self)


def distinct_causes(claims: Iterable[Claim]) -> list[str]:
    """The distinct causes of those that differ, in their order."""
    return list(dict.fromkeys(claim.cause for claim in claims if claim.verdict == "differs"))


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
    name = id.format(**values)
    note = text("remark") if holds else text("reason") or UNEXPLAINED
    cause = "" if holds else text("cause") or name  # one that nobody expected counts by itself
    kind = texts.get("kind", "measured")
    return Claim(name, "", where, text("statement"), text("paper"), ours, verdict, note, kind, cause)


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
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in STATEMENTS:
        found |= statements_of(name)
    return found


def statements_of(file: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """The same of one of the files."""
    text = (resources.files(__package__) / file).read_text("utf-8")
    places: dict[str, dict[str, dict[str, Any]]] = parse_yaml(text, file)
    return {id: (where, texts) for where, claims in places.items() for id, texts in claims.items()}


def _filled(text: Any, part: str, values: dict[str, Any]) -> str:
    """A text of paper.yaml with its names filled in, or the one that was computed; empty if there is none."""
    return text.format(**values) if isinstance(text, str) else str(values.get(part, ""))


def _printed(id: str, values: dict[str, Any]) -> str:
    return _filled(_statements()[id][1].get("paper"), "paper", values)
