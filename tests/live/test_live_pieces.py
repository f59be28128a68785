"""The parts that hold no connection: limits, addresses, messages, the clock, frames, answers, names."""

import base64
import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.toy_network import TOY, make_small

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import make_events
from ripe_mambaspike.events.view.frames import LEVELS
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.streamer import StreamPrediction
from ripe_mambaspike.live.access import check_host, host_allowed, known_names, origin_allowed
from ripe_mambaspike.live.clock import END_PAUSE_SECONDS, PlaybackClock
from ripe_mambaspike.live.frames import full_color_count, pack_frame, render_frame
from ripe_mambaspike.live.library import MAX_NAME_LENGTH, display_name, list_recordings, safe_suffix
from ripe_mambaspike.live.limits import ServerLimits, TokenBucket
from ripe_mambaspike.live.messages import (
    Pause,
    PredictionFilter,
    attention_document,
    prediction_message,
    predictions_message,
    read_command,
)
from ripe_mambaspike.live.network import make_served_network

LOOPBACK = known_names("127.0.0.1", "box")


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("localhost", True), ("localhost:8000", True), ("127.0.0.1:9", True), ("[::1]:8000", True),
        ("192.168.0.7", True), ("evil.example", False),
        ("evil.example:8000", False), ("localhost.evil.example", False), ("", False),
        ("box:8000", False), ("127.0.0.1.evil.example", False), ("localhost@evil.example", False), ("[::1", False),
    ],
)  # fmt: skip
def test_a_server_answers_to_its_own_names(header, allowed):
    assert host_allowed(header, LOOPBACK) is allowed


def test_a_server_for_others_answers_to_its_name():
    assert host_allowed("box:8000", known_names("0.0.0.0", "Box"))
    assert not host_allowed("evil.example", known_names("0.0.0.0", "Box"))


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True), ("http://localhost:8000", True), ("http://LOCALHOST:8000", True),
        ("https://localhost:8000", True), ("http://localhost", False),
        ("http://localhost:3000", False), ("http://evil.example", False), ("null", False),
        ("", False), ("file://", False), ("http://localhost:8000.evil.example", False), ("http://localhost:x", False),
    ],
)  # fmt: skip
def test_a_page_of_another_site_is_refused(origin, allowed):
    assert origin_allowed(origin, "localhost:8000") is allowed


def test_the_standard_port_may_be_left_out():
    assert origin_allowed("http://localhost", "localhost:80")
    assert origin_allowed("http://localhost:80", "localhost")


@pytest.mark.parametrize("host", ["", "a/b", "localhost:80", "user@host", "a b"])
def test_a_host_to_bind_to_is_checked(host):
    with raises(InputError, field="host", mentions=f"'{host}'"):
        check_host(host)
    assert check_host("[::1]") == "::1"


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("", "truncated"), ("[" * 5000, "array"), ("[]", "array"), ('{"do": "play", "path": "/etc"}', "path"),
        ('{"do": "open"}', "'open'"), ('{"do": null}', "$.do"), ('{"do": "play"}', "`value`"),
        ('{"do": "play", "value": "../x"}', "`int`"), ('{"do": "play", "value": -1}', ">= 0"),
        ('{"do": "play", "value": true}', "`int`"), ('{"do": "play", "value": 1.0}', "`int`"),
        ('{"do": "play", "value": 1.5}', "`int`"), ('{"do": "seek", "value": NaN}', "malformed"),
        ('{"do": "seek", "value": 1.01}', "<= 1.0"), ('{"do": "seek", "value": -0.01}', ">= 0"),
        ('{"do": "speed", "value": 1e9}', "<= 8.0"), ('{"do": "speed", "value": 0.01}', ">= 0.05"),
        ('{"do": "speed", "value": 1' + "0" * 400 + "}", "out of range"), ('{"do": "loop", "value": 1}', "`bool`"),
        ('{"do": "pause", "value": 1}', "`null`"), ('{"do": "upload", "value": ""}', ">= 1"),
        ('{"do": "upload", "value": "' + "k" * 65 + '"}', "<= 64"), ('{"do": "upload", "value": "schlüssel"}', "regex"),
    ],
    ids=range(23),
)  # fmt: skip
def test_what_a_viewer_may_not_send(text, mentions):
    with raises(InputError, field="message", mentions=mentions) as caught:
        read_command(text)
    assert len(str(caught.value)) < 200


@given(st.text(max_size=60) | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(repr))
def test_any_other_text_is_an_input_error(text):
    with pytest.raises(InputError):
        read_command(text)


def test_commands_are_read():
    assert read_command('{"do": "play", "value": 3}').value == 3
    assert read_command('{"do": "seek", "value": 0.5}').value == 0.5
    assert read_command('{"do": "pause"}') == Pause()


def test_limits_are_ints_of_at_least_1():
    with raises(InputError, field="viewers", mentions=(0, 1)):
        ServerLimits(viewers=0)
    with raises(InputError, field="frames", mentions=(True,)):
        ServerLimits(frames=True)


def test_a_token_bucket_fills_with_time():
    one = TokenBucket(rate=2, burst=3)
    assert [one.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert [one.take(10.5), one.take(10.5)] == [True, False]
    assert [one.take(99.0) for _ in range(4)] == [True, True, True, False]
    assert one.take(50.0) is False  # a clock that runs back gives nothing


def test_a_clock_pauses_at_the_end_and_starts_again():
    clock = PlaybackClock(2_000_000, since=10.0, speed=2.0)
    assert clock.at(10.5).position_us == 1_000_000
    resting = clock.at(11.0 + END_PAUSE_SECONDS / 2)
    assert (resting.shown_us, resting.round) == (2_000_000, 0)
    again = clock.at(11.0 + END_PAUSE_SECONDS)
    assert (again.shown_us, again.round) == (0, 1)


def test_a_clock_that_does_not_loop_is_held_at_the_end():
    ended = PlaybackClock(1_000_000, since=0.0, loop=False).at(5.0)
    assert (ended.shown_us, ended.paused, ended.round) == (1_000_000, True, 0)
    assert ended.at(50.0) == PlaybackClock(1_000_000, 50.0, 1e6, paused=True, loop=False)
    begun = ended.resume(60.0)
    assert (begun.at(60.25).shown_us, begun.paused, begun.round) == (250_000, False, 1)


def test_a_clock_is_held_and_goes_on_where_it_was():
    held = PlaybackClock(1_000_000, since=0.0).pause(0.25)
    assert held.at(9.0).shown_us == 250_000
    assert held.resume(9.0).at(9.5).shown_us == 750_000
    slow = held.resume(9.0).change(9.5, speed=0.5)
    assert slow.at(9.75).shown_us == 875_000
    assert slow.seek(10.0, 0.1).at(10.0).shown_us == 100_000


def test_a_frame_says_what_it_shows():
    events = make_events([0, 0, 2], [0, 0, 1], [1, 2, 3], [1, 1, 0])
    message = pack_frame(render_frame(events, (3, 2), scale=2), 7, 1.5, 0.05, 9)
    assert struct.unpack("<HHIddII", message[:32]) == (3, 2, 7, 1.5, 0.05, 3, 9)
    shades = np.frombuffer(message[32:], np.uint8).reshape(2, 3)
    full, half = (LEVELS - 1) * LEVELS, (LEVELS - 1) // 2  # two ON are full; one OFF of two is half
    assert shades.tolist() == [[full, 0, 0], [0, 0, half]]


def test_a_large_sensor_is_added_up():
    events = make_events([0, 1279], [0, 719], [0, 0], [0, 1])
    drawn = render_frame(events, (1280, 720), scale=1)
    assert (drawn.width, drawn.height, len(drawn.shades)) == (320, 180, 320 * 180)
    assert full_color_count([], (10, 10)) == 1


def answer(start=0, step=4, attention=None, steps=4):
    return StreamPrediction(
        start, start + 400, step, steps, (0.25, 0.75), "b", 0.75, (0.1, 0.2, 0.3), attention, 0.0125
    )


def test_a_prediction_message_counts_seconds_since_the_origin():
    told = prediction_message(answer(1_000_100, step=3), 1_000_000)
    assert (told.at_us, told.final) == (400, False)
    said = json.loads(predictions_message([told, told], 5, attention=True))
    assert said["round"] == 5
    assert said["predictions"][1] == {
        "from": 0.0001, "to": 0.0005, "at": 0.0004, "step": 3, "time_steps": 4, "p": [0.25, 0.75],
        "rates": [0.1, 0.2, 0.3], "ms": 12.5,
    }  # fmt: skip


def test_a_prediction_of_a_network_with_a_threshold_says_whether_it_is_unknown():
    for unknown in (True, False):
        told = json.loads(prediction_message(replace(answer(), score=0.75, unknown=unknown), 0).json)
        assert (told["unknown"], told["score"]) == (unknown, 0.75)
    assert "unknown" not in json.loads(prediction_message(answer(), 0).json)


def test_attention_is_sent_on_request():
    told = prediction_message(answer(attention=torch.tensor([[0.0, 1.5, 3.0]])), 0)
    assert "attention" not in json.loads(told.json)
    found = json.loads(told.json_with_attention)["attention"]
    assert found == {"width": 3, "height": 1, "max": 3.0, "data": "AID/"}  # 0, 128, 255


def test_zero_is_drawn_as_zero_and_a_map_that_is_not_finite_is_none():
    """A map that is weak everywhere is not stretched to full colour: its own most goes with it."""
    blank, weak = (attention_document(torch.tensor([[0.0, value]])) for value in (0.0, 1e-3))
    assert (blank["max"], base64.b64decode(blank["data"])) == (0, b"\x00\x00")
    assert (weak["max"], base64.b64decode(weak["data"])) == (pytest.approx(1e-3), b"\x00\xff")
    for value in (float("nan"), float("inf"), -float("inf")):
        assert attention_document(torch.tensor([[0.0, value]])) is None


def test_one_window_at_a_time_is_followed():
    following = PredictionFilter()
    given = [(0, 1), (0, 2), (100, 1), (0, 4), (100, 3), (100, 4), (400, 1), (300, 2), (300, 4), (400, 4)]
    kept = [(start, step) for start, step in given if following.accepts(answer(start, step))]
    assert kept == [(0, 1), (0, 2), (0, 4), (100, 4), (400, 1), (300, 4), (400, 4)]


@pytest.mark.parametrize(
    ("name", "ending"),
    [("a.npz", ".npz"), ("A.NPZ", ".npz"), ("../../etc/passwd", ".recording"), ("a.npz/../b", ".recording"),
     ("a.sh", ".recording"), ("", ".recording"), ("a.npz\0.sh", ".recording"), ("x.aedat4", ".aedat4")],
)  # fmt: skip
def test_an_ending_is_a_known_one_or_none(name, ending):
    assert safe_suffix(name) == ending


@given(st.text(st.characters(), max_size=300))
def test_any_name_can_be_shown(name):
    shown = display_name(name)
    assert 0 < len(shown) <= MAX_NAME_LENGTH
    assert shown.isprintable()
    shown.encode()


def test_recordings_are_listed_by_name(folder):
    rows, count = list_recordings(folder, 2)
    assert [row.name for row in rows] == ["a_long.npz", "b_short.npz"]
    assert count == 4
    with raises(InputError, field="recordings", path=folder / "none"):
        list_recordings(folder / "none", 2)
    with raises(InputError, field="recordings", path=folder / "notes.md"):
        list_recordings(folder / "notes.md", 2)


@pytest.mark.usefixtures("toy")
def test_a_network_without_steps_is_served_by_whole_windows():
    model = make_small(TOY, time_steps=4, in_size=16)
    network = make_served_network(Classifier(model, tuple("abcd"), 4, (16, 16), "time", False), window_ms=400)
    network.warm_up()
    streamer, bin_us = network.for_recording((16, 16), 1_000_000)
    times = np.arange(0, 1_000_000, 1000)
    predictions = streamer.push(make_events(times % 16, times // 1000 % 16, times, times // 1000 % 2))
    assert (bin_us, network.hop_us) == (100_000, 200_000)
    assert [one.stop_us for one in predictions] == [400_000, 600_000, 800_000]
    assert all(one.final for one in predictions)
    sent = [json.loads(prediction_message(one, 0).json_with_attention) for one in predictions]
    assert all(len(one["rates"]) == 2 and "attention" not in one for one in sent)
