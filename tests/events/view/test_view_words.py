"""Captions, times and names."""

import pytest

from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.events.view import words


def test_caption():
    events = make_events([1, 2, 3], [4, 5, 6], [10, 20, 1_450_010], [1, 0, 1])
    assert words.caption(Recording(events, (128, 96), "atis")) == "atis · 128×96 · 3 events · 1.45 s · 67 % ON"
    assert words.caption(Recording(events[:1], (34, 34))) == "memory · 34×34 · 1 event · 0 µs · 100 % ON"


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 µs"),
        (999, "999 µs"),
        (1_000, "1 ms"),
        (309_562, "310 ms"),
        (999_499, "999 ms"),
        (999_500, "1 s"),
        (1_449_968, "1.45 s"),
        (119_400_000, "119 s"),
        (134_000_000, "2 min 14 s"),
    ],
)
def test_times(us, text):
    assert words.time_text(us) == text


def test_spans_have_the_decimals_they_need():
    assert words.span_text(0, 121_000, 1_450_000) == "0–121 ms"
    assert words.span_text(4_200, 8_300, 50_000) == "4.2–8.3 ms"
    assert words.span_text(0, 1, 0) == "0.000–0.001 ms"
    assert words.span_text(43_900_000, 48_900_000, 400_000_000) == "43.9–48.9 s"


@pytest.mark.parametrize(
    ("duration", "factor", "text"),
    [
        (0, 1, "real speed"),
        (1_450_000, 1, "real speed"),
        (309_000, 10, "10× slower"),
        (8_801, 500, "500× slower"),
        (60_000_000, 0.1, "10× faster"),
    ],
)
def test_play_factor(duration, factor, text):
    assert words.play_factor(duration) == pytest.approx(factor)
    assert words.speed_text(words.play_factor(duration)) == text


def test_names_become_one_line_that_can_be_written():
    assert words.clean("a\nb\tc\u202e\x00d") == "a b c d"
    words.clean("broken \udcff name").encode("utf-8")
    assert len(words.clean("x" * 10_000)) == words.MAX_TITLE_CHARS
    assert words.heading(Recording(make_events([0], [0], [0], [0]), (1, 1), "evt2"), "\n") == "evt2 recording"
