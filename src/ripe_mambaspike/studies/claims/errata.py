"""The claims that differ, by cause: counts, and the page docs/errata.md."""

from collections.abc import Sequence

from ripe_mambaspike.studies.claims.verdict import Claim, distinct_causes

HEAD = """# Errata

What the paper says and what does not hold, by cause. Written by `ripe check --markdown`; a test compares it.

{counts}

An **erratum** is decided by what the paper prints: two of its numbers, a number and a formula, or a sentence and a
table do not agree. Anyone can repeat it with the paper alone. What was **measured** needs this software: a network that
is built, counted or run. Whether the text or the number is the wrong one of two is said where it is known.
"""


def summarize_claims(claims: Sequence[Claim]) -> dict[str, int]:
    """How many claims hold and differ, and how many distinct causes are behind those that differ."""
    differing = [claim for claim in claims if claim.verdict == "differs"]
    errata = [claim for claim in differing if claim.is_erratum]
    measured = [claim for claim in differing if not claim.is_erratum]
    return {
        "total": len(claims),
        "holds": len(claims) - len(differing),
        "differs": len(differing),
        "printed": sum(claim.kind == "printed" for claim in claims),
        "errata": len(errata),
        "measured": len(measured),
        "causes": len(distinct_causes(differing)),
        "errata_causes": len(distinct_causes(errata)),
        "measured_causes": len(distinct_causes(measured)),
    }


def errata_page(claims: Sequence[Claim]) -> str:
    """The Markdown page: first the errata, then what was measured, one section for each cause."""
    found = summarize_claims(claims)
    counts = (
        f"{found['total']} claims were tried, {found['printed']} of them on what the paper prints alone. "
        f"{found['differs']} differ, for {found['causes']} distinct causes: {found['errata_causes']} errata "
        f"({found['errata']} claims) and {found['measured_causes']} that were measured ({found['measured']} claims)."
    )
    parts = [HEAD.format(counts=counts)]
    for title, erratum in (("Errata", True), ("Measured", False)):
        chosen = [claim for claim in claims if claim.verdict == "differs" and claim.is_erratum == erratum]
        parts.append(f"\n## {title}\n")
        parts += [
            _section(cause, [claim for claim in chosen if claim.cause == cause]) for cause in distinct_causes(chosen)
        ]
    return "".join(parts)


def _section(cause: str, claims: Sequence[Claim]) -> str:
    rows = "".join(
        f"| {_cell(claim.where)} | {_cell(claim.statement)} | {_cell(claim.paper)} | {_cell(claim.ours)} |\n"
        for claim in claims
    )
    reasons = "\n\n".join(dict.fromkeys(_escape(claim.reason) for claim in claims))
    return f"\n### {cause}\n\n| where | claim | paper | here |\n|---|---|---|---|\n{rows}\n{reasons}\n"


def _escape(text: str) -> str:
    """Text as it is in Markdown: `*` and `_` are no marks."""
    for mark in "\\*_":
        text = text.replace(mark, f"\\{mark}")
    return text


def _cell(text: str) -> str:
    return _escape(text).replace("|", "\\|").replace("\n", " ")
