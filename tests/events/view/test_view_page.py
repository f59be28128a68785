"""The page: what it holds is read back, and nothing in it comes from outside."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.events.view import page as module
from ripe_mambaspike.events.view.page import page

HOSTILE = "</title><script>alert(1)</script><img src=x onerror=\"alert('2')\">&{data}{script}"


class Reader(HTMLParser):
    """The tags, and the text of each script, style, heading and paragraph."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(data.decode("utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.text.setdefault(tag, []).append("")
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open:
            self.text[self.open[-1]][-1] += data

    @property
    def data(self) -> dict:
        return json.loads(self.text["script"][0])


def columns(data: dict) -> dict[str, np.ndarray]:
    read = {name: np.frombuffer(base64.b64decode(text), f"<{kind}") for name, (kind, text) in data["events"].items()}
    count = len(read["gap"])
    bits = np.unpackbits(read["p"], bitorder="little")
    return {"t": np.cumsum(read["gap"], dtype=float), "x": read["x"], "y": read["y"], "p": bits[:count]}


@pytest.mark.parametrize("size", [(20, 13), (1280, 720)])
@pytest.mark.parametrize("duration", [0, 100_000, 5_000_000_000])
def test_the_events_are_in_it_exactly(make, size, duration):
    recording = make(*size, count=501, duration=duration)
    data = Reader(page(recording, None, None, None)).data
    read = columns(data)
    assert (read["t"] == recording["t"] - recording.first_us).all()
    for name in "xyp":
        assert (read[name] == recording[name]).all()
    assert [data["width"], data["height"], data["span"]] == [*size, duration]
    assert sum(data["rate"]["on"]) == recording["p"].sum()
    assert sum(data["rate"]["off"]) == 501 - recording["p"].sum()
    assert data["rate"]["edges"][0] == 0
    assert data["rate"]["edges"][-1] == duration + 1


def test_a_gap_of_hours_is_exact():
    recording = Recording(make_events([0, 0], [0, 0], [3, 3 + (1 << 40) + 1], [0, 1]), (4, 4))
    data = Reader(page(recording, None, None, None)).data
    assert data["events"]["gap"][0] == "f8"
    assert columns(data)["t"].tolist() == [0, (1 << 40) + 1]


def test_small_columns_take_one_byte(make):
    kinds = {name: column[0] for name, column in Reader(page(make(), None, None, None)).data["events"].items()}
    assert kinds == {"gap": "u2", "x": "u1", "y": "u1", "p": "u1"}


def test_thinned_events_are_noted(make, monkeypatch):
    recording = make(count=1000)
    text = Reader(page(recording, None, None, None)).text
    assert len(text["p"]) == 3  # caption, keys, noscript: no note
    monkeypatch.setattr(module, "MAX_EVENTS", 400)
    reader = Reader(page(recording, None, None, None))
    assert any(note.startswith("showing 1 in 3 events: 334 of 1,000") for note in reader.text["p"])
    assert "1,000\u00a0events" in reader.text["p"][0]
    assert (columns(reader.data)["x"] == recording["x"][::3]).all()
    assert (columns(reader.data)["t"] == recording["t"][::3] - recording.first_us).all()
    assert sum(reader.data["rate"]["on"]) == recording["p"].sum()


def test_names_and_metadata_are_escaped(make):
    plain = Reader(page(make(metadata={"a": "b"}, warnings=("w",)), None, None, "plain"))
    hostile = Reader(page(make(format=HOSTILE, metadata={HOSTILE: HOSTILE}, warnings=(HOSTILE,)), None, None, HOSTILE))
    assert hostile.tags == [
        (tag, attrs if attrs.get("http-equiv") is None else hostile.tags[index][1])
        for index, (tag, attrs) in enumerate(plain.tags)
    ]
    assert hostile.text["title"] == hostile.text["h1"] == [HOSTILE]
    assert hostile.text["script"] == plain.text["script"]
    assert hostile.text["dd"] == [HOSTILE]
    assert HOSTILE in hostile.text["p"]


def test_an_unprintable_title(make):
    assert Reader(page(make(), None, None, "bad \udcff\x00\u2028name")).text["h1"] == ["bad ? name"]


def test_json_cannot_close_the_script(make, monkeypatch):
    hostile = {"a": "</script><!--&"}
    monkeypatch.setattr(module, "_data", lambda *_: hostile)
    reader = Reader(page(make(), None, None, None))
    assert reader.data == hostile
    assert not set(reader.text["script"][0]) & set("<>&")


def test_it_needs_nothing_from_outside(make):
    data = page(make(), None, None, "name")
    reader = Reader(data)
    assert not re.search(rb"https?:|=.?//|url\(|@import|\bfetch\(|XMLHttp|\bimport\b", data)
    assert not [tag for tag, attrs in reader.tags if {"src", "href", "style", "onclick"} & set(attrs)]
    policy = next(attrs["content"] for tag, attrs in reader.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none';")
    for text in (reader.text["script"][1], reader.text["style"][0]):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy


def test_the_window_it_begins_with(make):
    recording = make(duration=99_999)

    def window(frames, window_us):
        data = Reader(page(recording, frames, window_us, None)).data
        assert data["windows"][0] <= data["window"] <= data["windows"][1]
        assert all(before <= after for before, after in zip(data["scales"][:-1], data["scales"][1:], strict=True))
        return data["window"]

    assert window(None, 1234) == 1234
    assert window(10, None) == 10_000
    assert window(10, 500_000) == 500_000
    assert 1 <= window(None, None) <= 12_500


def test_the_usual_speed_is_chosen_and_real_speed_offered(make):
    for duration, usual in ((99_999, "20× slower"), (1_500_000, "real speed"), (59_000_000, "10× faster"), (0, "real")):
        reader = Reader(page(make(duration=duration), None, None, None))
        options = [attrs for tag, attrs in reader.tags if tag == "option"]
        texts = reader.text["option"]
        selected = [text for text, attrs in zip(texts, options, strict=True) if "selected" in attrs]
        assert len(selected) == 1
        assert selected[0].startswith(usual)
        assert "real speed" in texts
        values = [float(attrs["value"]) for attrs in options]
        assert values == sorted(values, reverse=True)


def test_one_event_on_the_page():
    data = Reader(page(Recording(make_events([3], [4], [5], [1]), (34, 34)), None, None, None)).data
    assert {name: column.tolist() for name, column in columns(data).items()} == {"t": [0], "x": [3], "y": [4], "p": [1]}
    assert data["window"] == 1
