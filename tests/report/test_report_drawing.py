"""Charts, matrix and pictures: the numbers in them are the numbers given."""

import base64
import io
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ripe_mambaspike.events.view.frames import GROUND, OFF, ON
from ripe_mambaspike.models.observe import attention_contrast
from ripe_mambaspike.report.charts import Axis, Series, histogram, line_chart, log_ticks, matrix, ticks, value_axis
from ripe_mambaspike.report.curves import response
from ripe_mambaspike.report.formatting import duration_text, number_text, wilson_interval
from ripe_mambaspike.report.images import attention_images, data_uri, event_images, png
from ripe_mambaspike.report.observe import cost, observe, temporal_filters
from ripe_mambaspike.report.run_data import read_run


class Parsed(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def lines(svg):
    return [
        re.findall(r"[-\d.]+", a["d"]) for t, a in Parsed(svg).found if t == "path" and "line" in a["class"].split()
    ]


def test_ticks_are_round_and_inside():
    assert ticks(0, 1, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0.13, 2.2, 5) == pytest.approx([0.5, 1, 1.5, 2])
    assert log_ticks(3e-4, 0.5) == pytest.approx([1e-3, 1e-2, 1e-1])
    assert log_ticks(1.1, 9) == pytest.approx([2, 5])


def test_a_line_goes_through_its_points_and_stops_at_nan():
    svg = line_chart("t", [1, 2, 3, 4, 5], [Series("a", [0, 10, None, math.nan, 5], 1)], x_name="epoch", low=0, high=10)
    (path,) = [line for line in lines(svg) if len(line) == 4 and line[0] != "0"]
    assert [float(v) for v in path] == pytest.approx([46, 186, 126.5, 16])
    dots = [a for t, a in Parsed(svg).found if t == "circle"]
    assert [(float(a["cx"]), float(a["cy"])) for a in dots] == [(368, 101)]
    data = next(json.loads(a["data-chart"]) for t, a in Parsed(svg).found if "data-chart" in a)
    assert data["lines"][0]["values"] == ["0", "10", "–", "not a number", "5"]


def test_two_powers_of_ten_make_a_logarithm():
    assert value_axis([1e-3, 1], True, 0, None).log
    assert not value_axis([0.5, 1], True, 0, None).log
    assert not value_axis([0, 1000], True, None, None).log
    axis = Axis(0.01, 100, 0, 4, True)
    assert axis.at(1) == pytest.approx(2)


@pytest.mark.parametrize("value", [0.0, 1e-30, -3.0, 1e99])
def test_a_constant_line_can_be_drawn(value):
    svg = line_chart("t", [1, 2], [Series("a", [value, value], 1)], x_name="epoch")
    assert "nan" not in svg
    assert len(lines(svg)) == 2  # the legend's and the curve's


@given(st.lists(st.none() | st.floats(), min_size=1, max_size=6), st.booleans(), st.booleans())
def test_any_values_can_be_drawn(values, log, percent):
    places = [float(index) for index in range(len(values))]
    svg = line_chart("t", places, [Series("a", values, 1)], x_name="epoch", log=log, percent=percent, low=0)
    for tag, attributes in Parsed(svg).found:
        drawn = re.findall(r"nan|inf|[-\d.]+", attributes.get("d") or "") if tag == "path" else []
        assert all(-1 <= float(number) <= 381 for number in drawn if attributes["class"] != "bad")


def test_the_response_is_that_of_the_filter():
    cycles = np.array([0, 0.25, 0.5])
    assert response(0.3, cycles) == pytest.approx([1, math.hypot(1.3, 0.3), 1.6])
    signal = np.cos(2 * np.pi * 0.25 * np.arange(400))
    filtered = 1.3 * signal[1:] - 0.3 * signal[:-1]
    assert np.sqrt(2 * np.mean(filtered[:396] ** 2)) == pytest.approx(response(0.3, cycles)[1], rel=1e-6)


def test_a_histogram_counts_every_channel():
    values = np.array([-0.2, -0.19, 0.0, 0.2, np.nan], np.float32)
    drawn = Parsed(histogram("stage 1, first", values, 0.2, 1))
    counts = [int(word.rsplit(": ")[1]) for word in drawn.words if " … " in word]
    assert counts == [2, 1, 1]
    assert "5 channels · mean −0.0475 · 1 not finite" in "".join(drawn.words)


@pytest.mark.parametrize(("classes", "numbered", "named"), [(3, 1, 1), (11, 1, 1), (12, 0, 1), (40, 0, 1), (101, 0, 0)])
def test_a_matrix_has_numbers_up_to_eleven_classes(classes, numbered, named):
    counts = np.diag(np.arange(1, classes + 1))
    counts[0, 1] = 7
    names = [f"name{i}" for i in range(classes)]
    drawn = Parsed(matrix(counts.tolist(), names))
    cells = [a for tag, a in drawn.found if tag == "rect" and a["class"] in ("hit", "miss")]
    assert len(cells) == classes + 1
    assert [float(a["fill-opacity"]) for a in cells[:2]] == pytest.approx(
        [0.08 + 0.92 / 8, 0.08 + 0.92 * 7 / 8], abs=1e-3
    )
    assert "name0 → name1: 7 of 8 (87.5 %)" in drawn.words
    assert ("7" in drawn.words) == numbered
    assert ("name0" in drawn.words) == named


def read_png(data):
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


@pytest.mark.parametrize("shape", [(1, 1, 3), (5, 7, 3), (8, 3, 4)])
def test_a_png_reads_back(shape):
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    assert (read_png(png(image)) == image).all()
    assert (read_png(base64.b64decode(data_uri(image).split(",")[1])) == image).all()


def test_off_and_on_have_their_colours():
    frames = np.zeros((1, 2, 2, 2), np.float32)
    frames[0, 0, 0, 0] = 3  # OFF comes first, as in events.binning
    frames[0, 1, 1, 1] = 3
    (image,) = event_images(frames)
    assert tuple(image[0, 0]) == OFF
    assert tuple(image[1, 1]) == ON
    assert tuple(image[0, 1]) == GROUND


@pytest.mark.parametrize("value", [0, 0.01, 1e20, math.nan, math.inf, -4])
def test_any_counts_can_be_drawn(value):
    frames = np.zeros((2, 2, 300, 20), np.float32)
    frames[0, 0, 3, 4] = value
    images = event_images(frames)
    assert {image.shape for image in images} == {(100, 7, 3)}
    lit = any((image != GROUND).any() for image in images)
    assert lit == (math.isfinite(value) and value > 0)


def test_attention_is_drawn_on_one_scale_with_zero_at_zero():
    maps = np.zeros((3, 3, 4), np.float32)
    maps[0, 1, 2], maps[0, 0, 0] = 5, math.nan
    maps[1, 2, 3] = 0.5  # a tenth of the clip's most: not stretched to full colour by its own step
    first, second, third = (image[..., 3] for image in attention_images(maps))
    assert np.flatnonzero(first).tolist() == [6]
    assert np.flatnonzero(second).tolist() == [11]
    assert first.max() == 140  # 0.55 of 255
    assert second.max() == 14
    assert not third.any()
    assert attention_images(np.zeros((2, 3, 4), np.float32)) is None


def test_what_is_observed_is_what_the_network_does(network, clips):
    events = clips(3)
    observed = observe(network, events)
    x = torch.stack([clip for clip, _, _ in events])
    with torch.no_grad():
        out = network.run(x, observe=("spikes",))
    assert [sample.predicted for sample in observed.samples] == network.predict(x).tolist()
    assert observed.samples[1].attention.std() > 1e-4
    np.testing.assert_allclose(
        observed.samples[1].attention, attention_contrast(out.attention[1]), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(observed.samples[2].shares, out.logits[2].softmax(-1), rtol=1e-4)
    assert [name for name, _ in observed.rates][:2] == ["stage 1, first", "stage 1, second"]
    for (_, rates), spikes in zip(observed.rates, out.observed.values(), strict=True):
        np.testing.assert_allclose(rates, spikes.mean((0, 2, 3, 4)), rtol=1e-5)
    assert not network.training


def test_filters_are_those_of_the_network(network):
    found = temporal_filters(network)
    assert [(name, len(values)) for name, values in found] == [
        ("stage 1, first", 2), ("stage 1, second", 8), ("stage 2, first", 8),
        ("stage 2, second", 12), ("stage 3, first", 12), ("stage 3, second", 16),
    ]  # fmt: skip
    np.testing.assert_array_equal(found[3][1], network.stages[1].second_conv.coefficient.detach())


def test_the_account_is_measured_on_the_clip(network, clips):
    document = cost(network, clips(1))
    x = clips(1)[0][0][None]
    assert document["energy"]["layers"][0]["rate"] == pytest.approx(float(x.mean()), rel=1e-6)
    assert "held-out" in document["energy"]["assumptions"]["measured_on"]
    assert "synthetic" in cost(network, [])["energy"]["assumptions"]["measured_on"]


def test_a_run_is_read(make_run):
    run = read_run(make_run(epochs=3))
    assert run.epochs == 3
    assert run.column("loss") == pytest.approx([2.1, 1.92, 1.758])
    assert [number for number, _ in run.numbered("rate")] == [1, 2, 3, 4, 5, 6]
    assert run.classes == ["wave", "clap", "drum"]
    assert [score.n for score in run.scores] == [9, 9, 9]
    assert run.model is not None
    assert run.notes == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.41, "0.41"), (1234567.0, "1.23e6"), (-0.00025, "−0.00025"), (1e-6, "1e−6"), (99.999, "100"),
     (None, "–"), (math.inf, "infinite"), (math.nan, "not a number"), (1234.5678, "1,235")],
)  # fmt: skip
def test_numbers(value, text):
    assert number_text(value) == text


def test_times_and_intervals():
    assert [duration_text(s) for s in (0.5, 99, 100, 5025, 7320)] == ["0.5 s", "99 s", "2 min", "84 min", "2 h 02 min"]
    assert wilson_interval(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson_interval(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
