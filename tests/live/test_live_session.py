"""Recording and training through the page's messages: off unless it is allowed, seen by all, safe, and ended."""

import asyncio
import json
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike import create_model, read
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.inference.stream.addresses import parse_address
from ripe_mambaspike.inference.stream.links import open_link
from ripe_mambaspike.inference.stream.packets import write_packet
from ripe_mambaspike.live import training_job
from ripe_mambaspike.live.broadcast import LiveStream
from ripe_mambaspike.live.recorder import ClipRecorder
from ripe_mambaspike.live.serve import load_trained, make_service
from ripe_mambaspike.live.training_job import TrainingJob, read_progress, train_words
from ripe_mambaspike.models.labels import Labels
from ripe_mambaspike.train.history import write_log

SENSOR = (24, 20)
TRAINED = """
import shutil, sys, time
from pathlib import Path
run = Path(sys.argv[1])
shutil.copytree(sys.argv[2], run, dirs_exist_ok=True)
time.sleep(float(sys.argv[3]))
"""
FAILED = """
import sys
print("working")
print("ripe: data.root: expected two classes, got one", file=sys.stderr)
sys.exit(2)
"""
ENDLESS = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on'); time.sleep(600)"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A network of two classes, as a run has it."""
    folder = tmp_path_factory.mktemp("trained")
    fields = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 16}
    model = create_model("nmnist", seed=1, num_classes=2, **fields)
    randomize(model, 1)
    model.labels = Labels(
        ("clap", "wave"), "folder", None, 4, (16, 16), "time", False, sensor_size=SENSOR, duration_us=200_000
    )
    model.save_pretrained(folder / "best")
    return folder


@pytest.fixture
def recording(classifier, serving, tmp_path):
    """A server that records a TCP source; `allow_training` with another program in place of the real training."""
    with ExitStack() as stack:

        def start(words=None, **options):
            given = replace(classifier, duration_us=400_000)
            service = make_service(
                given, source="tcp://127.0.0.1:0", record_to=tmp_path / "mine", runs=tmp_path / "runs", **options
            )
            if words is not None:
                service.session.training._words = words
            return serving(stack, service=service)

        yield start


@contextmanager
def sender(running):
    """What sends events to the source of a server."""
    host, port = running.service.live._source.address
    with open_link(parse_address(f"tcp://{host}:{port}", "to")) as link:

        def send(events):
            for part in np.array_split(events, 5):
                link.send(write_packet(part, SENSOR), len(part), lambda: False)

        yield send


def make_clip(viewer, send, events):
    """Record events and stop."""
    viewer.ask("record")
    viewer.until(lambda said: said["kind"] == "recorder" and said["phase"] == "recording")
    send(events)
    viewer.until(lambda said: said["kind"] == "recorder" and said["events"] == len(events))
    viewer.ask("stop")
    return viewer.until(lambda said: said["kind"] == "recorder" and said["phase"] == "clip")


def test_nothing_is_recorded_unless_it_is_allowed(running, watch):
    with watch(running) as viewer:
        assert viewer.hello["record"] is None
        for command, value in (
            ("record", None), ("stop", None), ("discard", None), ("train", None), ("cancel", None),
            ("save", {"label": "a", "start": 0, "stop": 1}), ("delete", {"label": "a", "name": "001.raw"}),
        ):  # fmt: skip
            viewer.ask(command, value)
            assert viewer.until("error")["message"].startswith("record: ")
    assert not [said for said in viewer.said if said["kind"] in ("recorder", "classes", "training")]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"record_to": Path("mine")}, "record_to"),
        ({"allow_training": True}, "allow_training"),
        ({"record_to": Path("mine"), "source": "udp://127.0.0.1:0", "host": "0.0.0.0"}, "record_to"),
    ],
)
def test_recording_needs_a_source_and_this_machine_alone(classifier, options, field, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with raises(InputError, field=field):
        make_service(classifier, **options)
    assert list(tmp_path.iterdir()) == []


def test_record_trim_label_save_delete(recording, watch, random_events, tmp_path):
    running = recording()
    events = random_events(2000, 0.4, start_us=7_000_000)
    with watch(running) as viewer, watch(running) as other, sender(running) as send:
        assert viewer.hello["record"]["training"] is False
        clip = make_clip(viewer, send, events)["clip"]
        assert (clip["events"], clip["dropped"], clip["seconds"]) == (2000, 0, 0.4)
        viewer.ask("save", {"label": "../Left wave!", "start": 0.1, "stop": 0.3})
        saved = viewer.until(lambda said: said["kind"] == "classes" and said["classes"])
        assert saved["saved"] == "Left_wave/001.raw"
        assert saved["classes"][0]["label"] == "Left_wave"
        assert other.until(lambda said: said["kind"] == "classes" and said["classes"]) == saved  # shown to all
        found = read(tmp_path / "mine" / "Left_wave" / "001.raw")
        kept = events[(events["t"] >= 7_100_000) & (events["t"] < 7_300_000)]
        assert found["t"].tolist() == (kept["t"] - kept["t"][0]).tolist()
        assert (found["x"] == kept["x"]).all()
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

        # The clip is gone; a second save has none, nor does one without an event or a usable label.
        viewer.ask("save", {"label": "wave", "start": 0, "stop": 1})
        assert viewer.until("error")["message"].startswith("clip: ")
        make_clip(viewer, send, random_events(100, 0.1, start_us=8_000_000))
        for label, start, stop, field in (("..", 0, 1, "label"), ("a", 0.5, 0.5, "clip"), ("a", 0.2, 0.9, "clip")):
            viewer.ask("save", {"label": label, "start": start, "stop": stop})
            assert viewer.until("error")["message"].startswith(f"{field}: ")
        viewer.ask("discard")
        viewer.until(lambda said: said["kind"] == "recorder" and said["phase"] == "idle")

        viewer.ask("delete", {"label": "..", "name": "001.raw"})
        assert viewer.until("error")["message"].startswith("recording: ")
        viewer.ask("delete", {"label": "Left_wave", "name": "001.raw"})
        viewer.until(lambda said: said["kind"] == "classes" and not said["classes"])
        assert list((tmp_path / "mine").iterdir()) == []
        viewer.ask("train")
        assert viewer.until("error")["message"].startswith("train: ")


def test_the_page_of_another_site_cannot_record(recording):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    running = recording()
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{running.port}/watch", origin="http://evil.example")
    assert refused.value.response.status_code == 403


def save_two(viewer, send, random_events):
    for number, label in enumerate(("clap", "wave")):
        make_clip(viewer, send, random_events(500, 0.2, seed=number, start_us=(number + 1) * 1_000_000))
        viewer.ask("save", {"label": label, "start": 0, "stop": 1})
        viewer.until(lambda said, label=label: said["kind"] == "classes" and said["saved"] == f"{label}/001.raw")


def python(code, *words):
    return lambda root, run: [sys.executable, "-c", code, str(run), *map(str, words)]


def test_the_new_network_is_served_at_once(recording, watch, random_events, trained, tmp_path, packed):
    """Live predictions, /predict and recordings are all of the new network; the other viewers are told."""
    running = recording(python(TRAINED, trained, 0.3), allow_training=True)
    with watch(running) as viewer, watch(running) as other, sender(running) as send:
        save_two(viewer, send, random_events)
        viewer.ask("live")
        viewer.until("opened")
        status, uploaded = running.upload(packed(random_events(500, 0.2)))
        assert status == 200
        other.ask("upload", uploaded["upload"])
        other.until("opened")
        viewer.ask("train")
        viewer.until(lambda said: said["kind"] == "training" and said["phase"] == "preparing")
        viewer.ask("train")
        assert viewer.until("error")["message"].startswith("train: ")  # one at a time
        viewer.ask("delete", {"label": "wave", "name": "001.raw"})
        assert viewer.until("error")["message"].startswith("delete: ")
        for one in (viewer, other):
            assert one.until("network")["network"]["classes"] == ["clap", "wave"]
        assert viewer.until("opened")["live"] is True
        ended = viewer.until(lambda said: said["kind"] == "training" and said["phase"] in ("done", "failed"))
        assert (ended["phase"], ended["error"]) == ("done", "")
        assert ended["run"] == str(tmp_path / "runs" / "mine-001")
        viewer.answers.clear()
        send(random_events(3000, 0.6, start_us=5_000_000))
        viewer.until(lambda said: said["kind"] == "predictions")
        assert {len(one["p"]) for one in viewer.answers} == {2}
        other.ask("upload", uploaded["upload"])
        assert other.until("error")["message"].startswith("upload: ")  # it was read for the network before
        body = packed(random_events(500, 0.2))
        _, _, answer = running.request("POST", "/predict", body, content_type="application/octet-stream")
        assert set(json.loads(answer)["probabilities"]) == {"clap", "wave"}
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mine-001"]


def test_a_failed_training_is_one_sentence_and_leaves_nothing(recording, watch, random_events, tmp_path):
    running = recording(python(FAILED), allow_training=True)
    with watch(running) as viewer, sender(running) as send:
        save_two(viewer, send, random_events)
        viewer.ask("train")
        ended = viewer.until(lambda said: said["kind"] == "training" and said["phase"] == "failed")
        assert ended["error"] == "data.root: expected two classes, got one"
        assert list((tmp_path / "runs").iterdir()) == []
        assert not [said for said in viewer.said if said["kind"] == "network"]


def test_a_training_is_canceled_with_all_it_wrote(recording, watch, random_events, tmp_path, monkeypatch, wait_until):
    monkeypatch.setattr(training_job, "STOP_SECONDS", 0.3)
    running = recording(python(ENDLESS), allow_training=True)
    with watch(running) as viewer, sender(running) as send:
        save_two(viewer, send, random_events)
        viewer.ask("train")
        log = tmp_path / "runs" / "mine-001.txt"
        wait_until(lambda: log.exists() and log.read_text() == "on\n", "the start of the process")
        viewer.ask("cancel")
        viewer.until(lambda said: said["kind"] == "training" and said["phase"] == "canceled")
        assert list((tmp_path / "runs").iterdir()) == []
        viewer.ask("train")  # and again
        viewer.until(lambda said: said["kind"] == "training" and said["phase"] == "preparing")
    running.server.should_exit = True  # the server ends the run
    running.thread.join(30)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_training_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(training_job, "STOP_SECONDS", 0.1)

    async def run():
        job = TrainingJob(tmp_path / "mine", tmp_path / "runs", 1, python(ENDLESS))
        began = time.monotonic()
        job.start(None)
        while job.active:
            await asyncio.sleep(0.05)
        return job.progress, time.monotonic() - began

    progress, seconds = asyncio.run(run())
    assert progress.phase == "failed"
    assert progress.error.startswith("train: ")
    assert seconds < 30
    assert list((tmp_path / "runs").iterdir()) == []


def test_progress_is_read_from_the_log(tmp_path):
    assert read_progress(tmp_path / "missing").phase == "preparing"
    (tmp_path / "recipe.yaml").write_text(
        "name: mine\ndata: {dataset: folder, time_steps: 4}\nmodel: {name: dvsgesture}\nschedule: {epochs: 10}\n"
    )
    rows = [{"epoch": n, "loss": 2.0 / n, "train_top1": 0.25 * n, "seconds": 3.0 * n} for n in (1, 2)]
    write_log(tmp_path / "log.csv", rows)
    found = read_progress(tmp_path)
    assert (found.phase, found.epoch, found.epochs, found.loss, found.accuracy) == ("training", 2, 10, 1.0, 0.5)
    assert found.losses == (2.0, 1.0)
    assert found.left == 24.0
    (tmp_path / "log.csv").write_bytes(b"\xff\x00,broken")
    assert read_progress(tmp_path).phase == "preparing"


def test_the_command_is_that_of_the_recipe(tmp_path):
    from ripe_mambaspike.train.recipes import load_recipe, with_settings

    root = tmp_path / "with: a space, and #signs"
    words = train_words(root, tmp_path / "run")
    assert words[1:6] == ["-m", "ripe_mambaspike", "train", "few", "--out"]
    assert with_settings(load_recipe("few"), words[-1:]).data.root == str(root)


def test_a_crop_is_recorded_as_it_is_drawn_and_served_again(network, classifier, trained, random_events):
    """The events of the crop, with its size; the network trained on them is told of the whole sensor."""
    crop, whole = (10, 5, *SENSOR), (48, 40)
    cropped = replace(classifier, crop=crop, sensor_size=whole, sensor_given=True, crop_given=True)
    live = LiveStream("test", Nothing(whole), lambda size: network.for_stream(size)[0], 20, crop)
    live.recorder = ClipRecorder(10_000, 60, live.missed)
    live.recorder.start()
    events = random_events(2000, 0.2, sensor=whole, start_us=0)
    live._on_events(events)
    live.recorder.stop()
    found = live.recorder.clip.recording
    inside = events[(events["x"] >= 10) & (events["x"] < 34) & (events["y"] >= 5) & (events["y"] < 25)]
    assert found.sensor_size == SENSOR
    assert found["x"].tolist() == (inside["x"] - 10).tolist()
    served = load_trained(trained, cropped, whole, crop)
    streamer, _ = served.for_stream(whole)
    straight, _ = load_trained(trained, classifier, SENSOR, None).for_stream(SENSOR)
    answers = [one.push(part) + one.advance(10**6) for one, part in ((streamer, events), (straight, found.events))]
    assert len(answers[0]) > 1
    assert [one.probabilities for one in answers[0]] == [one.probabilities for one in answers[1]]


def test_a_network_that_cannot_take_the_source_is_kept_and_told(classifier, trained, tmp_path):
    async def run():
        job = TrainingJob(tmp_path / "mine", tmp_path / "runs", 60, python(TRAINED, trained, 0))

        async def serve_it(folder):
            load_trained(folder, classifier, (99, 99), None)

        job.start(serve_it)
        while job.active:
            await asyncio.sleep(0.02)
        return job.progress

    progress = asyncio.run(run())
    assert progress.phase == "failed"
    assert str(tmp_path / "runs" / "mine-001") in progress.error
    assert (tmp_path / "runs" / "mine-001" / "best" / "model.safetensors").exists()


class Nothing:
    """A source without events."""

    live, invalid, last_invalid = True, 0, None

    def __init__(self, size):
        self.size = size

    def packets(self, stopped):
        return iter(())
