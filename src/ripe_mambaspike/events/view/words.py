"""The text beside the events: sanitized names, times, captions."""

import math

from ripe_mambaspike.events.recording import Recording

MAX_TITLE_CHARS = 120  # letters of a title
DURATION_SLACK = 0.95  # share of the target duration that is enough to avoid the next larger factor


def clean(text: str, longest: int = MAX_TITLE_CHARS) -> str:
    """One printable, encodable line from any file name or header text."""
    text = text[: 4 * longest].encode("utf-8", "replace").decode("utf-8")
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def heading(recording: Recording, title: str | None) -> str:
    return clean(title or "") or f"{clean(recording.format)} recording"


def caption(recording: Recording) -> str:
    """Format, sensor, events, duration, ON share."""
    width, height = recording.sensor_size
    count = len(recording)
    share = 100 * int(recording["p"].sum()) / count
    return " · ".join(
        [
            clean(recording.format),
            f"{width}×{height}",
            f"{count:,} event{'' if count == 1 else 's'}",
            time_text(recording.duration_us),
            f"{share:.0f} % ON" if share in (0, 100) or 1 <= share <= 99 else f"{share:.2g} % ON",
        ]
    )


def time_text(us: float) -> str:
    """A time with three digits in a suitable unit."""
    if us < 999.5:
        return f"{us:.3g} µs"
    if us < 999_500:
        return f"{us / 1e3:.3g} ms"
    if us < 119_500_000:
        return f"{us / 1e6:.3g} s" if us < 99_950_000 else f"{us / 1e6:.0f} s"
    minutes, seconds = divmod(round(us / 1e6), 60)
    return f"{minutes:,} min {seconds:02d} s"


def span_text(start_us: int, stop_us: int, last_us: int) -> str:
    """A span of time from the start of the recording: ms, or s where it is long; as many decimals as tell it apart."""
    unit, name = (1e6, "s") if last_us >= 100_000_000 else (1e3, "ms")
    length = max(stop_us - start_us, 1) / unit
    decimals = min(max(0, 1 - math.floor(math.log10(length) + 1e-9)), round(math.log10(unit)))
    return f"{start_us / unit:.{decimals}f}–{stop_us / unit:.{decimals}f} {name}"


def speed_text(slower: float) -> str:
    """The playback speed as text; `slower` is playing time / real time."""
    if 0.99 < slower < 1.01:
        return "real speed"
    return f"{_number(slower)}× slower" if slower > 1 else f"{_number(1 / slower)}× faster"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def play_factor(duration_us: int) -> float:
    """The slow-down factor that lets a recording play for a few seconds: 1 or a round number."""
    if 1e6 <= duration_us <= 6e6 or not duration_us:
        return 1.0
    if duration_us < 1e6:
        return round_up(DURATION_SLACK * 2e6 / duration_us)
    return 1 / round_up(DURATION_SLACK * duration_us / 6e6)


def round_up(value: float) -> float:
    """The next of … 0.5, 1, 2, 5, 10, 20, 50 …"""
    power = 10.0 ** math.floor(math.log10(value))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= value * (1 - 1e-9))
