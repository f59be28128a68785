"""The PNG: decoded, and known events looked for where they should be."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.events.view import frames as f
from ripe_mambaspike.events.view.picture import make_layout, picture


def decode(data: bytes) -> np.ndarray:
    image = Image.open(BytesIO(data))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def test_an_event_is_in_its_frame_at_its_place_in_its_colour():
    # One event in each quarter of the time: ON left top, OFF right bottom, both in the middle, ON left bottom.
    events = make_events([0, 39, 20, 20, 0], [0, 29, 10, 10, 29], [0, 300, 500, 501, 799], [1, 0, 1, 0, 1])
    recording = Recording(events, (40, 30))
    pixels = decode(picture(recording, 4, None, "four"))
    layout = make_layout(4, (40, 30))
    assert pixels.shape == (*layout.size[::-1], 3)
    wanted = {(0, 0, 0): f.ON, (1, 39, 29): f.OFF, (2, 20, 10): tuple(f.PALETTE[-1]), (3, 0, 29): f.ON}
    for index in range(4):
        left, top = layout.corner(index)
        frame = pixels[top : top + layout.cell[1], left : left + layout.cell[0]]
        for (which, x, y), color in wanted.items():
            square = frame[y * layout.scale : (y + 1) * layout.scale, x * layout.scale : (x + 1) * layout.scale]
            assert (square == (color if which == index else f.GROUND)).all()
        assert (frame != f.GROUND).any(axis=2).sum() == layout.scale**2


@pytest.mark.parametrize("size", [(34, 34), (1280, 720), (720, 1280), (3, 400)])
def test_sensors_of_every_shape(make, size):
    recording = make(*size)
    pixels = decode(picture(recording, None, None, None))
    layout = make_layout(12, size)
    parts = f.equal_spans(recording.first_us, recording.last_us, 12)
    lit = [(frame.sum(axis=0) > 0).sum() for frame in f.event_frames(recording, parts, layout.shrink)]
    for index in range(12):
        left, top = layout.corner(index)
        frame = pixels[top : top + layout.cell[1], left : left + layout.cell[0]]
        assert (frame != f.GROUND).any(axis=2).sum() == lit[index] * layout.scale**2
    assert 800 < pixels.shape[1] < 2300
    assert 600 < pixels.shape[0] < 2300


@pytest.mark.parametrize("count", [1, 2, 5, 12, 29])
def test_frames_never_overlap_and_stay_inside(count):
    for size in ((34, 34), (346, 260), (720, 1280)):
        layout = make_layout(count, size)
        taken = np.zeros(layout.size[::-1], int)
        for index in range(count):
            left, top = layout.corner(index)
            assert top - layout.label >= 0
            taken[top - layout.label : top + layout.cell[1], left : left + layout.cell[0]] += 1
        assert taken.max() == 1
        assert taken.sum() == count * layout.cell[0] * (layout.cell[1] + layout.label)
        assert not taken[layout.size[1] - layout.plot[1] - layout.plot[3] :].any()


@pytest.mark.parametrize("count", [1, 4])
def test_a_recording_without_duration_is_one_frame(count):
    recording = Recording(make_events([2] * count, [1] * count, [9] * count, [1] * count), (8, 6))
    pixels = decode(picture(recording, None, None, None))
    layout = make_layout(1, (8, 6))
    left, top = layout.corner(0)
    assert tuple(pixels[top + layout.scale, left + 2 * layout.scale]) == f.ON


def test_the_rate_is_drawn_in_both_colours(make):
    recording = make(count=3000)
    pixels = decode(picture(recording, None, None, None)).astype(int)
    left, bottom, width, height = make_layout(12, recording.sensor_size).plot
    top = len(pixels) - bottom - height
    plot = pixels[top : top + height, left : left + width]
    warm, cool = plot[..., 0] - plot[..., 2] > 100, plot[..., 2] - plot[..., 0] > 100
    assert warm[: height // 2].sum() > width
    assert cool[height // 2 + 1 :].sum() > width
    assert not warm[height // 2 + 3 :].any()
    assert not cool[: height // 2 - 3].any()


def test_a_title_is_not_parsed_as_mathtext(make):
    recording = make(count=5)
    assert decode(picture(recording, 1, None, r"$\frac{ \udcff <b>" + "long" * 200)).any()


def test_too_many_frames_are_refused(make):
    with raises(InputError, field="frames", mentions=["at most 200", "got 201"]):
        picture(make(), 201, None, None)
    with raises(InputError, field="window_us", mentions=["at most 200", "10, which makes 10,001"]):
        picture(make(duration=100_000), None, 10, None)
