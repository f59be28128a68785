"""The GIF: its frames, its speed and its pixels."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.events.view import frames as f
from ripe_mambaspike.events.view.animation import animation, frame_delays, shown_spans


def decode(data: bytes) -> tuple[list[np.ndarray], list[int]]:
    """Frames [H, W, 3] and how long each is shown, in ms."""
    image = Image.open(BytesIO(data))
    assert image.format == "GIF"
    assert image.info["loop"] == 0  # for ever
    shown, lasting = [], []
    for index in range(image.n_frames):
        image.seek(index)
        shown.append(np.asarray(image.convert("RGB")))
        lasting.append(image.info["duration"])
    return shown, lasting


def test_real_speed_with_a_window(make):
    shown, lasting = decode(animation(make(duration=999_999), None, 33_000, "real"))
    assert len(shown) == 31
    assert set(lasting) <= {30, 40}
    assert sum(lasting) == 1020  # 31 windows are 1.023 s


def test_a_short_recording_is_slowed_by_a_round_number(make):
    recording = make(duration=99_999)
    shown, lasting = decode(animation(recording, None, None, None))
    assert len(shown) == 60
    assert sum(lasting) == 2000  # 20 times slower


def test_a_long_recording_plays_in_a_few_seconds(make):
    shown, lasting = decode(animation(make(duration=59_999_999), None, None, None))
    assert len(shown) == 120
    assert sum(lasting) == 6000


def test_the_given_number_of_frames(make):
    shown, lasting = decode(animation(make(duration=1_999_999), 8, None, None))
    assert len(shown) == 8
    assert lasting == [250] * 8


def test_windows_too_short_for_real_speed_play_as_fast_as_they_can(make):
    shown, lasting = decode(animation(make(duration=99_999), None, 5_000, None))
    assert len(shown) == 20
    assert lasting == [20] * 20


@pytest.mark.parametrize(("size", "zoom"), [((40, 30), 10), ((30, 40), 10), ((401, 10), 1)])
def test_events_are_enlarged_to_squares_at_their_place(size, zoom):
    width, height = size
    events = make_events([0, width - 1, 5], [0, height - 1, 6], [0, 150, 299], [1, 0, 1])
    shown, _ = decode(animation(Recording(events, size), 3, None, None))
    for index, (x, y, color) in enumerate([(0, 0, f.ON), (width - 1, height - 1, f.OFF), (5, 6, f.ON)]):
        left = (shown[index].shape[1] - width * zoom) // 2
        picture = shown[index][: height * zoom, left : left + width * zoom]
        assert (picture[y * zoom : (y + 1) * zoom, x * zoom : (x + 1) * zoom] == color).all()
        assert (picture != f.GROUND).any(axis=2).sum() == zoom**2


def test_a_large_sensor_loses_no_event(make):
    events = make_events([0, 1279], [0, 719], [0, 1_500_000], [1, 0])
    shown, _ = decode(animation(Recording(events, (1280, 720)), 2, None, None))
    assert shown[0].shape[:2] == (360 + 72, 640)
    assert tuple(shown[0][0, 0]) == f.ON
    assert tuple(shown[1][359, 639]) == f.OFF


def test_the_progress_line_reaches_the_end(make):
    shown, _ = decode(animation(make(40, 30), 10, None, None))
    line = [frame[300 + 1].astype(int).sum(axis=1) > 600 for frame in shown]
    assert [int(row.sum()) for row in line] == [40 * step for step in range(1, 11)]


def test_a_window_longer_than_a_gif_can_wait(make):
    shown, lasting = decode(animation(make(), None, 10**12, None))
    assert len(shown) == 1
    assert lasting == [655_350]


def test_one_event(make):
    recording = Recording(make_events([3], [4], [5], [0]), (34, 34))
    shown, _ = decode(animation(recording, None, None, "name \udcff\n日本"))
    assert len(shown) == 1
    assert tuple(shown[0][4 * 12, 3 * 12]) == f.OFF


@pytest.mark.parametrize("duration", [0, 10, 8_801, 309_562, 1_449_968, 60_000_000])
def test_by_default_every_event_is_shown(make, duration):
    recording = make(duration=duration)
    spans = shown_spans(recording, None, None)
    assert len(spans) <= 120
    assert spans[0, 0] == recording.first_us
    assert spans[-1, 1] >= recording.last_us + 1
    assert (spans[1:, 0] <= spans[:-1, 1]).all()  # no gap


def test_delays_add_up():
    assert frame_delays(3, 1e6) == [33, 34, 33]
    assert sum(frame_delays(44, 1_450_000)) == 145
    assert frame_delays(5, 0) == [2] * 5
    assert frame_delays(2, 1e15) == [65535] * 2


def test_too_many_frames_are_refused(make):
    with raises(InputError, field="window_us", mentions=["1,000", "7, which makes 14,286"]):
        animation(make(duration=100_000), None, 7, None)
