"""The service on a real port: the page, who may connect, playing, sharing, limits, and viewers that leave."""

import json
import socket
from contextlib import suppress
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.live.network import make_served_network

pytest.importorskip("websockets", reason="websockets is not installed (the extra serve)")
from websockets.exceptions import ConnectionClosed, InvalidStatus

MARKUP = (b"innerHTML", b"outerHTML", b"insertAdjacent", b"document.write", b"eval(", b"Function(", b"srcdoc")
LONG, SHORT, DAMAGED, HOSTILE = range(4)


def test_the_page_is_strict_and_whole(running):
    status, headers, body = running.request("GET", "/")
    assert status == 200
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers
    text = body.decode()
    assert "<style" not in text
    assert " style=" not in text
    assert text.count("<script") == text.count('<script type="module" src="/page.js">') == 1
    folder = resources.files("ripe_mambaspike.live") / "page"
    for name in ("style.css", "page.js", "panel.js", "screen.js", "charts.js", "icon.svg"):
        status, headers, body = running.request("GET", f"/{name}")
        assert (status, body) == (200, (folder / name).read_bytes())
        assert b"https://" not in body
        assert headers["content-security-policy"]
        assert not [way for way in MARKUP if way in body]  # no text can become markup or a script
    assert running.request("GET", "/favicon.ico")[1]["content-type"] == "image/svg+xml"


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/%2e%2e/server.py", "/page/index.html", "/style.css/../../server.py", "//etc/passwd", "/x"],
)
def test_no_path_opens_a_file(running, path):
    status, headers, body = running.request("GET", path)
    assert (status, body) == (404, b"Not Found")
    assert headers["content-security-policy"]


def test_another_name_or_site_is_refused(running, watch):
    status, _, body = running.request("GET", "/", Host="evil.example")
    assert (status, body.count(b"\n")) == (403, 1)
    assert running.request("POST", "/upload", b"x", Origin="http://evil.example")[0] == 403
    own = f"http://127.0.0.1:{running.port}"
    for options in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
    ):
        with pytest.raises(InvalidStatus) as error:
            watch(running, **options)
        assert error.value.response.status_code == 403
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
    key = "AAAAAAAAAAAAAAAAAAAAAA=="
    assert running.request("GET", "/watch", Host="evil.example", Sec_WebSocket_Key=key, **upgrade)[0] == 403
    with watch(running, origin=own) as viewer:
        assert viewer.hello["kind"] == "hello"


def test_the_greeting_says_what_there_is(running, watch):
    with watch(running) as viewer:
        hello = viewer.hello
    assert [one["name"] for one in hello["recordings"]][:3] == ["a_long.npz", "b_short.npz", "c_damaged.npz"]
    assert hello["network"] == {
        "name": "nmnist", "classes": [f"digit {n}" for n in range(10)], "time_steps": 4, "grid": [16, 16],
        "window": 0.4, "hop": 0.1, "causal": False, "sensor": None, "crop": None,
    }  # fmt: skip
    assert len(hello["palette"]) == 121 * 3
    assert hello["live"] is None
    assert "/" not in json.dumps(hello["recordings"])


def test_a_short_recording_gets_the_prediction_of_predict(running, watch, classifier, clip):
    with watch(running) as viewer:
        viewer.ask("loop", False)  # nothing plays yet
        assert viewer.until("error")["message"].startswith("recording: ")
        viewer.ask("attention", True)
        viewer.ask("play", SHORT)
        opened = viewer.until("opened")
        assert (opened["name"], opened["events"], opened["width"], opened["height"]) == ("b_short.npz", 3000, 24, 20)
        viewer.until(lambda said: any(one["step"] == 4 for one in viewer.answers))
    steps = [one["step"] for one in viewer.answers]
    assert steps == [1, 2, 3, 4]  # early answers come before the final one
    final = viewer.answers[-1]
    wanted = predict(classifier, clip)
    assert final["p"] == pytest.approx(list(wanted.probabilities.values()), abs=1e-5)
    assert (final["from"], final["to"]) == (0, 0.3)
    assert len(final["rates"]) == 3
    assert final["attention"]["width"] == final["attention"]["height"] == 2
    header, shades = viewer.frames[-1]
    assert header[:2] == (24, 20)
    assert len(shades) == 24 * 20


def test_a_long_recording_has_windows_and_each_is_predicts(running, watch, classifier, folder):
    from ripe_mambaspike.events.reading import read

    recording = read(folder / "a_long.npz")
    with watch(running) as viewer:
        viewer.ask("play", LONG)
        viewer.ask("loop", False)  # so that no answer is told twice
        viewer.ask("speed", 4)
        viewer.until(lambda said: sum(one["step"] == 4 for one in viewer.answers) >= 9)
    finals = [one for one in viewer.answers if one["step"] == 4]
    assert [one["from"] for one in finals] == pytest.approx([0.1 * n for n in range(9)])
    start = recording.first_us + 300_000
    events = recording.crop(start, start + 400_000)
    if events.first_us == start and events.last_us == start + 399_999:
        assert finals[3]["p"] == pytest.approx(list(predict(classifier, events).probabilities.values()), abs=1e-5)
    assert viewer.answers == sorted(viewer.answers, key=lambda one: (one["at"], one["step"] < 4 and 0))


def test_frames_show_every_event_once_when_none_is_skipped(running, watch, clip):
    with watch(running) as viewer:
        viewer.ask("play", SHORT)
        viewer.until("opened")
        viewer.ask("loop", False)
        viewer.until(lambda said: said["kind"] == "status" and said["paused"])
    first_round = [header for header, _ in viewer.frames]
    skipped = first_round[-1][6]
    assert sum(header[5] for header in first_round) <= len(clip)
    if skipped == 0:
        assert sum(header[5] for header in first_round) == len(clip)
    places = [header[3] for header in first_round]
    assert places == sorted(places)


def test_pause_seek_and_resume(running, watch):
    with watch(running) as viewer:
        viewer.ask("play", LONG)
        viewer.until("opened")
        viewer.ask("pause")
        viewer.until(lambda said: said["kind"] == "status" and said["paused"])
        viewer.ask("seek", 0.5)
        viewer.until(
            lambda said: said["kind"] == "predictions" and said["round"] == 2 and said["predictions"][-1]["at"] > 0.5
        )
        told = [one for said in viewer.said if said.get("round") == 2 for one in said.get("predictions", ())]
        assert max(one["at"] for one in told) <= 0.6  # nothing from after the place
        viewer.until(lambda said: said["kind"] == "status" and said["position"] == 0.6)
        assert viewer.frames[-1][0][2:4] == (2, 0.6)
        viewer.ask("resume")
        viewer.until(lambda said: said["kind"] == "status" and not said["paused"] and said["position"] > 0.6)


def test_viewers_of_one_recording_share_its_predictions(serve, watch, monkeypatch):
    from ripe_mambaspike.live import watched

    made = []
    real = watched.prediction_message
    monkeypatch.setattr(watched, "prediction_message", lambda *words: made.append(1) or real(*words))
    running = serve()
    with watch(running) as first, watch(running) as second:
        for viewer in (first, second):
            viewer.ask("play", SHORT)
        for viewer in (first, second):
            viewer.until(lambda said, viewer=viewer: len(viewer.answers) == 4)
        assert first.answers == second.answers
        assert len(made) == 4
        status = second.until(lambda said: said["kind"] == "status" and said["viewers"] == 2)
        assert status["lag"] == 0
        second.ask("seek", 0)  # told again, not computed again
        second.until(lambda said: len(second.answers) == 8)
        assert len(made) == 4


def test_a_viewer_that_leaves_is_forgotten(serve, watch, wait_until):
    running = serve()
    with watch(running) as viewer:
        viewer.ask("play", LONG)
        viewer.until("opened")
        assert running.service.viewers == 1
        held = next(iter(running.service.library._open.values()))
        assert held.viewers == 1
        viewer.socket.socket.shutdown(socket.SHUT_RDWR)  # without a word
    wait_until(lambda: running.service.viewers == 0, "letting the viewer go")
    assert held.viewers == 0
    assert not held.ready()  # the network does nothing without viewers
    with watch(running) as viewer:
        viewer.ask("play", SHORT)
        viewer.until("predictions")


def test_a_recording_that_cannot_be_read_gets_one_sentence(running, watch, folder):
    with watch(running) as viewer:
        viewer.ask("play", DAMAGED)
        sentence = viewer.until("error")["message"]
        assert "c_damaged.npz" in sentence
        assert str(folder) not in sentence
        viewer.ask("play", 99)
        assert viewer.until("error")["message"] == "recording: expected the number of one of the 4 listed, got 99"
        viewer.ask("upload", "never-given")
        assert viewer.until("error")["message"].startswith("upload: expected one that is still kept")
        viewer.ask("live")
        assert viewer.until("error")["message"].startswith("live: expected a server with a live source")
        viewer.ask("play", HOSTILE)  # its name is shown and is no path
        assert "<img src=x" in viewer.until("opened")["name"]


def test_a_sensor_that_is_too_small_gets_one_sentence(serve, watch, tmp_path, random_events):
    from ripe_mambaspike.live.library import list_recordings

    with (tmp_path / "small.npz").open("wb") as file:
        np.savez(file, events=random_events(500, 0.3, sensor=(8, 8)), sensor_size=np.array([8, 8]))
    with watch(serve(listed=list_recordings(tmp_path, 9)[0])) as viewer:
        viewer.ask("play", 0)
        assert viewer.until("error")["message"].startswith("small.npz: grid: expected at most the 8×8 pixels")


def test_a_failure_of_the_network_is_reported_to_its_viewer_alone(serve, watch, monkeypatch):
    from ripe_mambaspike.inference.streamer import Streamer

    running = serve()
    with monkeypatch.context() as patch:
        patch.setattr(Streamer, "push", lambda *_: 1 / 0)
        with watch(running) as viewer:
            viewer.ask("play", LONG)
            sentence = viewer.until("error")["message"]
            assert sentence == "a_long.npz: the network failed (ZeroDivisionError: division by zero)"
            viewer.until("frame")  # the events go on
    with watch(running) as viewer:
        viewer.ask("play", SHORT)
        assert viewer.until("predictions")["predictions"]


@pytest.mark.parametrize(
    "message", [b"\x00\x01", "no JSON", '{"do": "play", "value": "/etc/passwd"}', '{"path": 1}'], ids=range(4)
)
def test_a_bad_message_is_answered_and_the_next_one_is_read(running, watch, message):
    with watch(running) as viewer:
        viewer.socket.send(message)
        assert viewer.until("error")["message"].startswith("message: ")
        viewer.ask("play", SHORT)
        viewer.until("opened")


def test_a_message_that_is_too_long_ends_the_connection(running, watch):
    with watch(running) as viewer:
        viewer.socket.send("x" * 5000)
        with pytest.raises(ConnectionClosed) as error:
            viewer.until("never")
        assert error.value.rcvd.code == 1009
    with watch(running) as viewer:
        assert viewer.hello["kind"] == "hello"


def test_too_many_messages_end_the_connection(serve, watch):
    with watch(serve(messages_a_second=1)) as viewer:
        with suppress(ConnectionClosed):
            for _ in range(100):
                viewer.ask("attention", True)
        with pytest.raises(ConnectionClosed) as error:
            viewer.until("never")
        assert error.value.rcvd.code == 1008
        assert viewer.said[-1]["message"].startswith("messages: expected at most 1 a second")


def test_no_more_viewers_than_allowed(serve, watch, wait_until):
    running = serve(viewers=1)
    with watch(running), watch(running) as second:
        assert second.hello["message"].startswith("viewers: expected at most 1,")
    wait_until(lambda: running.service.viewers == 0, "letting the viewers go")
    with watch(running) as viewer:
        assert viewer.hello["kind"] == "hello"


def test_recordings_without_viewers_are_closed_for_others(serve, watch):
    running = serve(held=1)
    with watch(running) as first, watch(running) as second:
        first.ask("play", SHORT)
        first.until("opened")
        second.ask("play", LONG)
        assert "beside the 1 being" in second.until("error")["message"]
        first.ask("play", LONG)  # in the place of its own
        assert first.until("opened")["name"] == "a_long.npz"
    assert list(running.service.library._open) == [LONG]


def test_a_viewer_that_reads_nothing_is_disconnected(serve, watch, wait_until, tmp_path, random_events):
    from ripe_mambaspike.live.library import list_recordings

    with (tmp_path / "large.npz").open("wb") as file:  # whose frames soon fill what lies between
        np.savez(file, events=random_events(2000, 1.0, sensor=(320, 320)), sensor_size=np.array([320, 320]))
    running = serve(listed=list_recordings(tmp_path, 9)[0], stalled_seconds=1, frames=200)
    with watch(running, max_queue=1, close_timeout=0.1) as viewer:
        viewer.ask("play", 0)
        viewer.until("opened")
        track = next(iter(running.service.library._open.values()))
        wait_until(lambda: running.service.viewers == 0, "letting a stalled viewer go")
    assert track.viewers == 0


def test_hostile_class_names_are_text_of_bounded_length(serve, classifier, watch):
    names = ("<script>1</script>", "a\u202eb\u2066c", "x\0\ny", "n" * 500, "", *(str(number) for number in range(5)))
    running = serve(network=make_served_network(replace(classifier, class_names=names), window_ms=400, hop_ms=100))
    with watch(running) as viewer:
        shown = viewer.hello["network"]["classes"]
    assert shown[0] == "<script>1</script>"  # shown as it is, and never as markup
    assert all(name.isprintable() and 0 < len(name) <= 120 for name in shown)
    assert not set("".join(shown)) & {"\u202e", "\u2066"}  # nothing that turns the rest of a line around
