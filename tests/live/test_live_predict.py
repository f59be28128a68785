"""`POST /predict`: the answer of `ripe predict`, and everything that someone may send instead of a recording."""

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.events.writing import write
from ripe_mambaspike.inference.classifier import make_clip
from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.live.forms import find_file_part, form_boundary
from ripe_mambaspike.live.network import make_served_network
from ripe_mambaspike.models.labels import UnknownRule

pytest.importorskip("websockets", reason="websockets is not installed (the extra serve)")

RAW = "application/octet-stream"
HOSTILE_NAMES = ["../../../../tmp/taken.npz", "/etc/passwd", "a\0b.npz", "<script>.npz", "…" * 400, ""]


def ask(running, data, name="clip.npz", kind=RAW, **headers):
    """Status of a raw request, and the document."""
    status, got, body = running.request("POST", f"/predict?name={quote(name)}", data, content_type=kind, **headers)
    assert got["content-type"] == "application/json"
    return status, json.loads(body)


def form_of(*parts, boundary="b"):
    """A form of parts (disposition, content)."""
    lines = [b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (boundary.encode(), *part) for part in parts]
    return b"".join(lines) + b"--" + boundary.encode() + b"--\r\n"


def send_form(running, *parts, boundary="b"):
    return ask(running, form_of(*parts, boundary=boundary), "", f"multipart/form-data; boundary={boundary}")


def left(running):
    return sorted(path.name for path in running.service.folder.iterdir())


@pytest.mark.parametrize("ending", [".npz", ".csv", ".raw"])
def test_the_answer_is_that_of_predict(running, classifier, clip, tmp_path, ending):
    path = tmp_path / f"clip{ending}"
    write(clip, path)
    status, said = ask(running, path.read_bytes(), f"my clip{ending}")
    assert status == 200, said
    own = predict(classifier, path)
    assert said["probabilities"] == own.probabilities
    assert (said["label"], said["probability"]) == (own.label, own.probability)
    assert (said["unknown"], said["score"]) == (False, None)
    assert said["name"] == f"my clip{ending}"
    assert left(running) == []


def test_a_network_with_a_threshold_says_unknown(serve, classifier, packed, clip):
    share = predict(classifier, clip).probability
    for threshold, unknown in ((share - 1e-6, False), (share + 1e-6, True)):
        judging = replace(classifier, unknown=UnknownRule(score="probability", threshold=threshold, keep=0.9))
        said = ask(serve(network=make_served_network(judging, window_ms=400)), packed(clip.events))[1]
        assert (said["score"], said["unknown"]) == (pytest.approx(share), unknown)


def test_a_form_and_its_raw_body_have_the_same_answer(running, packed, clip):
    data = packed(clip.events)
    _, raw = ask(running, data)
    parts = [(b'name="note"', b"left out"), (b'name="file"; filename="clip.npz"', data)]
    status, said = send_form(running, *parts)
    assert status == 200, said
    assert said == raw
    assert said["name"] == "clip.npz"


def test_the_answer_says_what_the_binning_did(running, classifier, packed, clip):
    binning = ask(running, packed(clip.events))[1]["binning"]
    counts = make_clip(classifier, clip).sum((1, 2, 3)).tolist()
    assert binning["events"] == counts
    assert sum(counts) == len(clip)
    assert (binning["time_steps"], binning["grid"], binning["bin_by"]) == (4, [16, 16], "time")
    assert (binning["sensor_size"], binning["crop"], binning["left_out"]) == ([24, 20], None, 0)
    edges = binning["edges_us"]
    assert (edges[0], edges[-1], len(edges)) == (clip.first_us, clip.last_us + 1, 5)
    assert np.histogram(clip["t"], edges)[0].tolist() == counts


def test_a_crop_leaves_events_out_and_says_how_many(serve, classifier, packed, clip):
    cropped = replace(classifier, crop=(4, 2, 16, 16), crop_given=True)
    running = serve(network=make_served_network(cropped, window_ms=400, hop_ms=100))
    status, said = ask(running, packed(clip.events))
    x, y = clip["x"], clip["y"]
    inside = int(((x >= 4) & (x < 20) & (y >= 2) & (y < 18)).sum())
    assert status == 200, said
    assert sum(said["binning"]["events"]) == inside
    assert said["binning"]["left_out"] == len(clip) - inside
    assert said["binning"]["crop"] == [4, 2, 16, 16]


def test_a_recording_longer_than_training_is_answered_with_a_warning(serve, classifier, packed, clip):
    running = serve(network=make_served_network(replace(classifier, duration_us=50_000)))
    status, said = ask(running, packed(clip.events))
    assert status == 200
    assert [sentence.split(":")[0] for sentence in said["warnings"]] == ["duration"]


@pytest.mark.parametrize("way", ["raw", "form"])
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_name_of_a_prediction_is_shown_and_nothing_else(running, packed, clip, name, way):
    before = set(Path("/tmp").iterdir())
    if way == "raw":
        status, said = ask(running, packed(clip.events), name)
    else:
        status, said = send_form(running, (b'name="f"; filename="%b"' % name.encode(), packed(clip.events)))
    assert status == 200, said
    assert said["name"].isprintable()
    assert len(said["name"]) <= 120
    assert left(running) == []
    assert "taken.npz" not in {path.name for path in set(Path("/tmp").iterdir()) - before}


@pytest.mark.parametrize(
    ("data", "name"),
    [(b"", "a.npz"), (b"nothing like events", "a.xyz"), (b"PK\x03\x04damaged", "a.npz"), (os.urandom(64), "a.bin")],
    ids=["empty", "unknown", "damaged", "noise"],
)
def test_what_is_no_recording_is_a_bad_request(running, data, name):
    status, said = ask(running, data, name)
    assert status == 400
    assert list(said) == ["error"]
    assert said["error"].isprintable()
    assert str(running.service.folder) not in said["error"]
    assert left(running) == []


def test_events_of_one_polarity_or_of_another_sensor_are_bad_requests(serve, classifier, packed, clip):
    running = serve(network=make_served_network(replace(classifier, sensor_size=(24, 20)), window_ms=400))
    one = make_events(clip["x"], clip["y"], clip["t"], np.ones(len(clip), int))
    for data, field in ((packed(one), "polarity"), (packed(clip.events, (30, 30)), "sensor_size")):
        status, said = ask(running, data, "mine.npz")
        assert (status, said["error"].split(": ")[:2]) == (400, ["mine.npz", field])


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [("application/x-www-form-urlencoded", None), ("text/html", None), ("a\tb", None), (RAW, "gzip")],
)
def test_another_media_type_is_refused_before_it_is_read(running, packed, clip, kind, encoding):
    headers = {} if encoding is None else {"content_encoding": encoding}
    status, said = ask(running, packed(clip.events), kind=kind, **headers)
    assert status == 415
    assert said["error"].split(":")[0] == ("content-type" if encoding is None else "content-encoding")


FILE = b'name="f"; filename="a.npz"'
BAD_FORMS = {
    "no file": form_of((b'name="f"', b"text")),
    "two files": form_of((FILE, b"1"), (FILE, b"2")),
    "an empty file": form_of((FILE, b"")),
    "another boundary": form_of((FILE, b"1"), boundary="other"),
    "no end": form_of((FILE, b"1"))[:-8],
    "a head without an end": b"--b\r\nContent-Disposition: form-data; " + FILE + b"a" * 100_000,
    "many parts": form_of(*[(b'name="f"', b"")] * 100_000),
    "bytes after a boundary": b"--bx\r\n" + form_of((FILE, b"1")),
    "noise": os.urandom(1000),
}


@pytest.mark.parametrize("kind", BAD_FORMS)
def test_a_bad_form_is_a_bad_request(running, kind):
    status, said = ask(running, BAD_FORMS[kind], "", "multipart/form-data; boundary=b")
    assert (status, said["error"].split(":")[0]) == (400, "form")
    assert left(running) == []


@pytest.mark.parametrize("given", ["", "; boundary=", '; boundary="', f"; boundary={'b' * 71}", "; boundary=a b"])
def test_a_form_without_a_boundary_is_a_bad_request(running, given):
    status, said = ask(running, form_of((FILE, b"1")), "", f"multipart/form-data{given}")
    assert (status, said["error"].split(":")[0]) == (400, "content-type")


def test_size_events_and_duration_are_limited(serve, packed, random_events):
    running = serve(events=1000, seconds=1, upload_bytes=100_000)
    assert ask(running, packed(random_events(1000, 0.9)))[0] == 200
    for data in (packed(random_events(1001, 0.5)), packed(random_events(100, 3.0)), bytes(100_001)):
        status, said = ask(running, data)
        assert status == 413, said
        assert "expected at most" in said["error"]
    assert send_form(running, (FILE, packed(random_events(1001, 0.5))))[0] == 413
    assert left(running) == []


def test_predictions_at_once_are_limited(serve, packed, clip, wait_until):
    running = serve(predictions=1)
    end = threading.Event()

    def slow():
        data = packed(clip.events)
        yield data[:10]
        end.wait(60)
        yield data[10:]

    answers = []
    first = threading.Thread(target=lambda: answers.append(ask(running, slow())[0]))
    first.start()
    wait_until(lambda: running.service.predictions.active == 1, "the first request")
    assert ask(running, packed(clip.events))[0] == 503
    end.set()
    first.join(60)
    assert answers == [200]
    assert ask(running, packed(clip.events))[0] == 200


@pytest.mark.slow
def test_a_prediction_must_arrive_in_time(serve):
    running = serve(upload_seconds=1)

    def never():
        yield b"begun"
        time.sleep(2)
        yield b"."

    assert ask(running, never())[0] == 408
    assert left(running) == []


def test_other_pages_get_no_prediction(running, packed, clip):
    status, _, _ = running.request("POST", "/predict", packed(clip.events), origin="http://evil.example")
    assert status == 403
    assert running.request("GET", "/predict")[0] == 405


def test_the_file_of_a_form_is_exact():
    content = b"\r\n--\r\n--a\0\r\n\r\n-"
    form = form_of((b'name="x"', b"1"), (b'name="f"; filename="a \\"b\\".raw"', content), (b'name="y"', b""))
    part = find_file_part(form, b"b", 16)
    assert form[part.start : part.stop] == content
    assert part.name == 'a "b".raw'
    assert form_boundary('multipart/form-data; charset=utf-8; boundary="a b"') == b"a b"
    with raises(InputError, field="form"):
        find_file_part(form, b"b", 3)


def test_changed_forms_are_read_or_refused():
    rng = np.random.default_rng(0)
    good = form_of((b'name="x"', b"1"), (FILE, bytes(50)))
    read, fields = 0, set()
    for _ in range(3000):
        data = bytearray(good)
        for place in rng.integers(0, len(data), 2):
            data[place] = rng.integers(256)
        try:
            part = find_file_part(bytes(data), b"b", 16)
        except InputError as error:
            fields.add(error.field)
        else:
            assert 0 <= part.start <= part.stop <= len(data)
            read += 1
    assert 0 < read < 3000
    assert fields == {"form"}


def test_recordings_are_ordered_first(running, classifier, packed, clip):
    shuffled = np.random.default_rng(0).permutation(clip.events)
    status, said = ask(running, packed(shuffled))
    assert status == 200
    assert said["probabilities"] == predict(classifier, Recording(clip.events, clip.sensor_size)).probabilities
