"""Recordings of another sensor, crop or duration than the network was trained on: refused, or warned about."""

import asyncio
import io
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from tests.cli.bars import asked, differ, make_clip
from tests.raising import raises

from ripe_mambaspike import create_model, write
from ripe_mambaspike.api import load
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.inference.classifier import read_recording
from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.inference.stream.packets import write_packet
from ripe_mambaspike.inference.stream.run import StreamRunner
from ripe_mambaspike.inference.stream.sources import PipeSource
from ripe_mambaspike.inference.stream.summary import StreamLimits
from ripe_mambaspike.inference.streamer import Streamer, check_stream
from ripe_mambaspike.live.library import RecordingLibrary
from ripe_mambaspike.live.limits import ServerLimits
from ripe_mambaspike.live.network import make_served_network
from ripe_mambaspike.live.watched import PredictionWorker
from ripe_mambaspike.models.labels import Labels, read_labels, save_labels

FIELDS = {"stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8), "time_steps": 4, "in_size": 16, "num_classes": 2}


@pytest.fixture
def network(tmp_path):
    """Trained on a 128×128 sensor, as it says."""
    model = create_model("nmnist", seed=0, **FIELDS)
    randomize(model, 0)
    folder = model.save_pretrained(tmp_path / "net")
    labels = Labels(
        ("left", "right"), "mine", None, 4, (16, 16), "time", False, sensor_size=(128, 128), duration_us=80_000
    )
    save_labels(labels, folder)
    return folder


def forget_sensor(folder):
    save_labels(replace(read_labels(folder), sensor_size=None, duration_us=None), folder)


def test_a_quiet_clip_is_read_with_the_networks_sensor(ripe, network, tmp_path):
    quiet = make_clip(1)  # on 34×34 of the 128×128 pixels
    path = write(quiet, tmp_path / "quiet.bin")
    document, err = asked(ripe, "predict", network, path)
    (row,) = document["recordings"]
    assert (row["sensor_size"], row["sensor_size_from"], err) == ([128, 128], "the network", "")
    wanted = predict(load(network), replace(quiet, sensor_size=(128, 128)))
    assert row["probabilities"] == pytest.approx(wanted.probabilities, abs=1e-6)
    guessed = predict(load(network, sensor_size=(34, 34)), quiet)
    assert differ(guessed.probabilities.values(), wanted.probabilities.values()) > 3e-5


def test_a_guessed_sensor_gives_a_warning(ripe, network, tmp_path):
    forget_sensor(network)
    path = write(make_clip(1), tmp_path / "quiet.bin")
    document, err = asked(ripe, "predict", network, path)
    assert document["sensor_size"] is None
    assert (document["recordings"][0]["sensor_size"], document["recordings"][0]["sensor_size_from"]) == (
        [34, 34], "the events",
    )  # fmt: skip
    assert err.count("\n") == 1
    assert all(word in err for word in ("quiet.bin", "34×34", "--sensor-size"))
    _, err = asked(ripe, "predict", network, path, "--sensor-size", 128, 128)
    assert err == ""
    result = ripe("stream", network, "--source", path, "--pace", "fast", "--json")
    assert result.code == 0
    assert json.loads(result.out.splitlines()[-1])["summary"]["sensor_size_from"] == "the events"
    assert all(word in result.err for word in ("34×34", "--sensor-size", "1500 ms"))
    fitted = make_served_network(load(network)).fit(read(path))
    assert any("34×34" in sentence for sentence in fitted.warnings)


def test_another_sensor_is_refused_unless_it_is_given(refused, ripe, network, tmp_path):
    named = write(make_clip(1), tmp_path / "named.npz")  # says 34×34
    beyond = write(make_clip(2, side=200), tmp_path / "beyond.bin")  # says nothing and reaches further
    for path, size in ((named, "34×34"), (beyond, "--sensor-size")):
        for words in (("predict", network, path), ("stream", network, "--source", path, "--window", "50")):
            refused(words, path.name, "sensor_size: ", "128×128", size)
        with pytest.raises(InputError) as error:
            read_recording(load(network), path)
        assert (error.value.field, error.value.path) == ("sensor_size", path)
    document, _ = asked(ripe, "predict", network, named, "--sensor-size", 34, 34)
    assert document["recordings"][0]["sensor_size_from"] == "the caller"
    document, _ = asked(ripe, "predict", network, named, "--crop", 1, 2, 30, 31)
    clip = make_clip(1)
    kept = clip.events[(clip["x"] >= 1) & (clip["x"] < 31) & (clip["y"] >= 2) & (clip["y"] < 33)]
    kept["x"] -= 1
    kept["y"] -= 2
    part = Recording(kept, (30, 31))
    wanted = predict(load(network, sensor_size=(30, 31)), part).probabilities
    assert document["recordings"][0]["probabilities"] == pytest.approx(wanted, abs=1e-6)
    refused(["predict", network, named, "--crop", "1", "2", "34", "31"], "crop: ", "34×34")
    refused(["predict", network, named, "--sensor-size", "0", "3"], "--sensor-size", "1 to 65536", "(0, 3)")


def test_the_page_refuses_another_sensor(network, tmp_path):
    library = RecordingLibrary([], tmp_path, make_served_network(load(network)), PredictionWorker(), ServerLimits())
    with raises(InputError, field="sensor_size"):
        asyncio.run(library.add_upload(write(make_clip(1), tmp_path / "named.npz"), "named.npz"))
    asked_for = make_served_network(load(network, sensor_size=(34, 34)))
    library = RecordingLibrary([], tmp_path, asked_for, PredictionWorker(), ServerLimits())
    _, track = asyncio.run(library.add_upload(tmp_path / "named.npz", "named.npz"))
    assert track.recording.sensor_size == (34, 34)


def test_another_sensor_needs_its_own_crop(network):
    save_labels(replace(read_labels(network), crop=(10, 10, 64, 64)), network)
    assert load(network).region.binned_size == (64, 64)
    with pytest.raises(InputError) as error:
        load(network, sensor_size=(240, 180))
    assert error.value.field == "crop"
    assert load(network, sensor_size=(240, 180), crop=(0, 0, 180, 180)).region.binned_size == (180, 180)


def test_frames_of_another_sensor_are_refused(network):
    classifier = load(network)
    ours, theirs = make_clip(1, side=128).events, make_clip(2).events
    reading, writing = os.pipe()
    with io.FileIO(reading) as pipe:
        with io.FileIO(writing, "w") as sender:
            for _ in range(20):
                sender.write(write_packet(theirs[:20], (34, 34)))
            sender.write(write_packet(ours, (128, 128)))
        result = []
        run = StreamRunner(
            PipeSource(io.BufferedReader(pipe), "fast"),
            lambda size: Streamer(classifier, size, window_us=40_000),
            StreamLimits(),
            on_prediction=lambda answer: None,
            on_message=result.append,
            check_sensor=lambda size: check_stream(classifier, size, 40_000, 10_000),
            report_invalid=True,
        )
        summary = run.run()
    assert (summary.invalid_packets, summary.sensor_size, summary.sensor_size_from) == (20, (128, 128), "the source")
    assert "sensor_size" in summary.last_invalid
    assert summary.predictions > 0
    assert len([line for line in result if "invalid" in line]) == 1


@pytest.mark.parametrize(("factor", "told"), [(0.45, 1), (0.6, 0), (1.0, 0), (1.9, 0), (2.2, 1)])
def test_an_unusual_duration_gives_a_warning(ripe, network, tmp_path, factor, told):
    clip = make_clip(0, side=128)
    clip.events["t"] = (np.linspace(0, 1, len(clip)) * (80_000 * factor - 1)).astype(np.int64)
    _, err = asked(ripe, "predict", network, write(clip, tmp_path / "clip.bin"))
    assert err.count("\n") == told
    assert err.count("duration: ") == told
    if told:
        assert all(word in err for word in ("clip.bin", "0.08 s", "ripe stream --window"))
