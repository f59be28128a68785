"""A checked claim, and how its verdict follows from the paper's value and ours.

No verdict is written by hand: every constructor compares. A reason is text, shown only when the comparison fails.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "differs"]

UNEXPLAINED = "Our value is another one, and no reason is known: either this code or the paper is wrong here."
_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.(\d+))?")


@dataclass(frozen=True)
class Claim:
    """One statement of the paper, compared with this code."""

    id: str  # stable slug
    group: str
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


@dataclass(frozen=True)
class ClaimSource:
    """A place in the paper, and the group its claims are shown in."""

    group: str
    where: str

    def fact(
        self, id: str, statement: str, paper: str, ours: str, holds: bool, *, reason: str = "", remark: str = ""
    ) -> Claim:
        """A claim with the result of its check; all comparisons below use it."""
        verdict: Verdict = "holds" if holds else "differs"
        said = remark if holds else reason or UNEXPLAINED
        return Claim(id, self.group, self.where, statement, paper, ours, verdict, said)

    def count(self, id: str, statement: str, paper: int, ours: int, *, reason: str = "", remark: str = "") -> Claim:
        """A printed integer: equal or not."""
        return self.fact(id, statement, f"{paper:,}", f"{ours:,}", ours == paper, reason=reason, remark=remark)

    def millions(self, id: str, statement: str, paper: str, ours: int, *, reason: str = "", remark: str = "") -> Claim:
        """A count printed in millions, such as "0.875 M"; ours is shown whole."""
        holds = rounds_to(ours / 1e6, paper)
        return self.fact(id, statement, paper, f"{ours:,}", holds, reason=reason, remark=remark)

    def number(self, id: str, statement: str, paper: str, ours: float, *, reason: str = "", remark: str = "") -> Claim:
        """A printed decimal, such as "92.6 %": holds when ours rounds to it."""
        text = with_more_digits(ours, paper)
        return self.fact(id, statement, paper, text, rounds_to(ours, paper), reason=reason, remark=remark)

    def exact(
        self,
        id: str,
        statement: str,
        error: float,
        limit: float = 1e-12,
        *,
        paper: str = "exact",
        reason: str = "",
        remark: str = "",
    ) -> Claim:
        """An identity, checked in floating point: holds when the largest relative error is within the limit."""
        ours = f"{error:.1e} (at most {limit:.0e})"
        return self.fact(id, statement, paper, ours, error <= limit, reason=reason, remark=remark)
