"""Formatting of numbers and text for the page."""

import math
from typing import Any

from jinja2 import Environment

from ripe_mambaspike.events.view.words import clean
from ripe_mambaspike.templating import template_environment

NONE = "–"


def report_templates() -> Environment:
    """The report's templates, with the functions below as filters."""
    environment = template_environment("ripe_mambaspike.report")
    environment.filters |= {
        "clean": lambda value, longest=120: clean(str(value), longest),
        "clean_lines": clean_lines,
        "number": number_text,
        "percent": percent_text,
        "count": count_text,
    }
    return environment


def clean_lines(text: str) -> str:
    """Printable text with its line breaks."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(letter if letter.isprintable() or letter in "\n\t" else " " for letter in text)


def finite_or_none(value: Any) -> float | None:
    """The value as a float; None unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def int_or_none(value: Any) -> int | None:
    number = finite_or_none(value)
    return int(number) if number is not None and number == int(number) else None


def number_text(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant digits; a dash for None."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else f"{'−' if value < 0 else ''}infinite"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        mantissa, power = f"{value:.{min(digits, 3) - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(power)}".replace("-", "−")
    text = f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def percent_text(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f} %"


def count_text(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def duration_text(seconds: float | None) -> str:
    if seconds is None or seconds < 0:
        return NONE
    if seconds < 99.5:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % confidence interval of a share measured in n trials."""
    z = 1.96
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def plural(count: int, word: str) -> str:
    return f"{count:,} {word if count == 1 else word + 's'}"
