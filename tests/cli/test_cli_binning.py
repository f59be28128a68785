"""The binning that a network was trained on goes where the network goes: predict, exports, streams and the page agree
with eval, clip by clip, and a recording of another sensor is refused or told of."""

import asyncio
import io
import json
import os
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model, write
from ripe_mambaspike.api import load
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.deploy.export.run import load_export, read_manifest
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.checkpoint_data import data_settings_of, open_data_for
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
from ripe_mambaspike.models.base import clip_logits
from ripe_mambaspike.models.labels import Labels, read_labels, save_labels
from ripe_mambaspike.models.pretrained import from_pretrained

FIELDS = {"stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8), "time_steps": 4, "in_size": 16, "num_classes": 2}
SETTINGS = (
    "augmentation.horizontal_flip=0", "augmentation.time_reversal=0",
    "data.dataset=folder", "data.time_steps=4", "data.grid=16", "schedule.batch_size=8", "schedule.epochs=1",
    "schedule.warmup_epochs=0", "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8]}",
    "run.device=cpu", "run.recalibrate_batches=2",
)  # fmt: skip
CROP = (3, 5, 24, 26)


def make_clip(number, side=34):
    """A bar that runs to one side, on the 34×34 pixels from the corner: what a guess takes for the whole sensor."""
    rng = np.random.default_rng(number)
    times = np.sort(rng.integers(0, 80_000 + 5000 * (number % 7), 600)) + 1000
    along = (times - times[0]) * side // (times[-1] - times[0] + 1)
    x = along if number % 2 else side - 1 - along
    events = make_events(x, rng.integers(0, side, len(times)), times, rng.integers(0, 2, len(times)))
    return Recording(events, (side, side))


def make_run(folder, *words):
    """A tree of recordings that do not name their sensor, prepared with the words, and a short run on it."""
    root, run = folder / "tree", folder / "run"
    for number in range(16):
        path = root / ("train" if number < 10 else "test") / ("right" if number % 2 else "left") / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(make_clip(number), path)
    with redirect_stdout(io.StringIO()):  # which is not the output of the test that needs the run first
        prepared = ["data", "prepare", "folder", "--root", root, "--workers", "1", *words]
        assert main([str(word) for word in prepared]) == 0
        settings = [f"data.root={root}", *SETTINGS]
        assert main(["train", "nmnist", "--no-report", "--out", str(run), "--set", *settings]) == 0
    return root, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("binning"), "--sensor-size", "35", "35")


@pytest.fixture(scope="module")
def cropped(tmp_path_factory):
    words = ("--sensor-size", "35", "35", "--crop", *map(str, CROP))
    return make_run(tmp_path_factory.mktemp("cropped"), *words)


@pytest.fixture(params=["trained", "cropped"])
def either(request):
    return request.getfixturevalue(request.param)


def by_eval(folder):
    """What `ripe eval` computes: every test file's name and its probabilities."""
    labels = read_labels(folder)
    clips = open_data_for(folder, labels, data_settings_of(folder, labels)).test
    model = from_pretrained(folder)
    found = {}
    for number, name in enumerate(clips.names):
        with torch.no_grad():
            logits = model(clips.clip(number)[0][None])
        found[name] = torch.softmax(clip_logits(logits)[0], -1).tolist()
    return found


def asked(ripe, *words):
    said = ripe(*words, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out), said.err


def differ(first, second):
    return max(abs(one - other) for one, other in zip(first, second, strict=True))


def test_a_run_keeps_all_that_binning_needs(trained, cropped):
    for (root, run), crop in ((trained, None), (cropped, CROP)):
        labels = read_labels(run / "best")
        assert (labels.sensor_size, labels.crop) == ((35, 35), crop)
        assert labels.store == (root / ".ripe" / "folder" / "current").read_text().strip()
        index = json.loads((root / ".ripe" / "folder" / labels.store / "index.json").read_text())
        parts = index["cuts"]["folders"]["parts"]
        names = [name for name, part in zip(index["clips"]["name"], parts, strict=True) if part == "r"]
        lasts = []
        for name in names:
            clip = read(root / name)
            x, y, t = clip["x"], clip["y"], clip["t"]
            if crop is not None:
                left, top, width, height = crop
                t = t[(x >= left) & (x < left + width) & (y >= top) & (y < top + height)]
            lasts.append(int(t.max()) - int(t.min()) + 1)
        assert labels.duration_us == int(np.median(lasts))


@pytest.mark.parametrize(
    ("by", "binary"),
    [
        ("time", False),
        ("count", True),
        pytest.param("time", True, marks=pytest.mark.slow),
        pytest.param("count", False, marks=pytest.mark.slow),
    ],
)
def test_predict_agrees_with_eval(ripe, either, tmp_path, by, binary):
    root, run = either
    network = Path(shutil.copytree(run, tmp_path / "run")) / "best"
    save_labels(replace(read_labels(network), by=by, binary=binary), network)
    wanted = by_eval(network)
    assert len(wanted) == 6
    document, err = asked(ripe, "predict", tmp_path / "run", *(root / name for name in wanted))
    assert err == ""
    for row, share in zip(document["recordings"], wanted.values(), strict=True):
        assert list(row["probabilities"].values()) == pytest.approx(share, abs=1e-6)
        assert (row["sensor_size"], row["sensor_size_from"]) == ([35, 35], "the network")
    # Taken for the sensor that their events show, they would be other clips.
    crop = ("--crop", "0", "0", "34", "34") if document["crop"] else ()
    guessed, _ = asked(
        ripe, "predict", tmp_path / "run", *(root / name for name in wanted), "--sensor-size", 34, 34, *crop
    )
    rows = zip(guessed["recordings"], wanted.values(), strict=True)
    assert max(differ(row["probabilities"].values(), share) for row, share in rows) > 3e-5


def test_held_out_clips_agree_with_eval(ripe, either):
    _, run = either
    wanted = by_eval(run / "best")
    document, _ = asked(ripe, "predict", run, "--held-out", 6)
    assert len(document["recordings"]) == 6
    for row in document["recordings"]:
        assert list(row["probabilities"].values()) == pytest.approx(wanted[row["file"]], abs=1e-6)


def test_the_fused_network_and_its_export_agree_with_eval(ripe, either, tmp_path):
    root, run = either
    labels = read_labels(run / "best")
    wanted = by_eval(run / "best")
    paths = [root / name for name in wanted]
    assert ripe("fuse", run, "--out", tmp_path / "fused").code == 0
    assert ripe("export", run, "--to", "safetensors", "--out", tmp_path / "small").code == 0
    for folder in (tmp_path / "fused", tmp_path / "small"):
        assert read_labels(folder) == labels
        document, _ = asked(ripe, "predict", folder, *paths)
        for row, share in zip(document["recordings"], wanted.values(), strict=True):
            assert list(row["probabilities"].values()) == pytest.approx(share, abs=5e-6)
    card = (tmp_path / "small" / "README.md").read_text()
    assert "35×35" in card
    assert ("24×26 from column 3 and row 5" in card) == (labels.crop is not None)


@pytest.mark.slow
def test_an_onnx_export_agrees_with_eval_also_without_its_labels(ripe, either, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (the extra export)")
    root, run = either
    wanted = by_eval(run / "best")
    out = tmp_path / "onnx"
    assert ripe("export", run, "--to", "onnx", "--static", "--graphs", "clip", "--out", out).code == 0
    for _ in range(2):
        document, _ = asked(ripe, "predict", out, *(root / name for name in wanted))
        for row, share in zip(document["recordings"], wanted.values(), strict=True):
            assert list(row["probabilities"].values()) == pytest.approx(share, abs=5e-6)
        (out / "labels.json").unlink(missing_ok=True)
    manifest = json.loads((out / "export.json").read_text())
    manifest["labels"]["data"]["sensor_size"] = [0, 35]
    (out / "export.json").write_text(json.dumps(manifest))
    said = ripe("predict", out, root / next(iter(wanted)))
    assert said.code == 2
    assert "data.sensor_size" in said.err


@pytest.mark.parametrize(
    "to",
    ["nir", pytest.param("torch-export", marks=pytest.mark.slow), pytest.param("executorch", marks=pytest.mark.slow),
     pytest.param("aoti", marks=pytest.mark.slow)],
)  # fmt: skip
def test_every_format_keeps_the_binning(ripe, cropped, tmp_path, to):
    _, run = cropped
    words = () if to == "nir" else ("--static", "--graphs", "clip")
    said = ripe("export", run, "--to", to, *words, "--out", tmp_path / "out")
    if said.code == 2 and "install" in said.err:
        pytest.skip(said.err)
    assert said.code == 0, said.err
    labels = read_labels(run / "best")
    assert read_labels(tmp_path / "out") == labels
    assert read_manifest(tmp_path / "out").labels == labels.to_dict()
    if to != "nir":
        assert load_export(tmp_path / "out", trust=True).region == load(run).region


def test_streams_agree_with_eval(either):
    root, run = either
    classifier = load(run)
    for name, wanted in list(by_eval(run / "best").items())[:3]:
        fitted, whole = read_recording(classifier, root / name), read(root / name).ordered()
        lasts = fitted.duration_us + 1
        streamer = Streamer(classifier, (35, 35), window_us=lasts, hop_us=lasts)
        first = int(np.searchsorted(whole["t"], fitted.first_us))  # events outside the crop begin no window
        packets = np.array_split(whole.events[first:], 7)
        made = [answer for packet in packets for answer in streamer.push(packet)]
        made += streamer.advance(fitted.last_us + 1)
        assert list(next(one for one in made if one.final).probabilities) == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(InputError) as refused:
        Streamer(classifier, (34, 34), window_us=lasts)
    assert refused.value.field == "sensor_size"


def test_time_goes_on_with_events_outside_the_crop(cropped):
    _, run = cropped
    streamer = Streamer(load(run), (35, 35), window_us=400, hop_us=400)
    assert streamer.push(make_events([5, 6], [9, 9], [1000, 1300], [0, 1])) == []
    (answer,) = streamer.push(make_events([0], [0], [1400], [1]))
    assert (answer.start_us, answer.stop_us, answer.final) == (1000, 1400, True)


def test_the_page_agrees_with_eval(either, tmp_path):
    root, run = either
    network = make_served_network(load(run))
    library = RecordingLibrary([], tmp_path, network, PredictionWorker(), ServerLimits())
    for name, wanted in list(by_eval(run / "best").items())[:2]:
        path = Path(shutil.copy(root / name, tmp_path))
        _, track = asyncio.run(library.add_upload(path, name))
        track.viewers = 1
        track.request(track.duration_us)
        while track.ready():
            track.step()
        assert track.problem is None
        told = [json.loads(one.json) for one in track.predictions(0, track.duration_us, 99) if one.final]
        assert [one["p"] for one in told] == [pytest.approx(wanted, abs=1e-5)]
        assert track.recording.sensor_size == ((35, 35) if network.classifier.crop is None else CROP[2:])


def test_the_window_is_as_long_as_the_training_clips(ripe, trained):
    root, run = trained
    duration = read_labels(run / "best").duration_us
    path = next(iter(sorted((root / "test").rglob("*.bin"))))
    said = ripe("stream", run, "--source", path, "--pace", "fast", "--early", "--json")
    assert said.code == 0, said.err
    *answers, last = [json.loads(line) for line in said.out.splitlines()]
    assert answers[0]["stop_us"] - answers[0]["start_us"] == duration
    assert "--window" not in said.err
    assert (last["summary"]["sensor_size"], last["summary"]["sensor_size_from"]) == ([35, 35], "the network")
    network = make_served_network(load(run))
    assert (network.window_us, network.max_single_us) == (duration, 2 * duration)


# A network made by hand, and recordings that may not fit it


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


def test_a_guess_is_told(ripe, network, tmp_path):
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
    said = ripe("stream", network, "--source", path, "--pace", "fast", "--json")
    assert said.code == 0
    assert json.loads(said.out.splitlines()[-1])["summary"]["sensor_size_from"] == "the events"
    assert all(word in said.err for word in ("34×34", "--sensor-size", "1500 ms"))
    fitted = make_served_network(load(network)).fit(read(path))
    assert any("34×34" in sentence for sentence in fitted.warnings)


def test_another_sensor_is_refused_unless_it_is_asked_for(refused, ripe, network, tmp_path):
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
        said = []
        run = StreamRunner(
            PipeSource(io.BufferedReader(pipe), "fast"),
            lambda size: Streamer(classifier, size, window_us=40_000),
            StreamLimits(),
            on_prediction=lambda answer: None,
            on_message=said.append,
            check_sensor=lambda size: check_stream(classifier, size, 40_000, 10_000),
            report_invalid=True,
        )
        summary = run.run()
    assert (summary.invalid_packets, summary.sensor_size, summary.sensor_size_from) == (20, (128, 128), "the source")
    assert "sensor_size" in summary.last_invalid
    assert summary.predictions > 0
    assert len([line for line in said if "invalid" in line]) == 1


@pytest.mark.parametrize(("factor", "told"), [(0.45, 1), (0.6, 0), (1.0, 0), (1.9, 0), (2.2, 1)])
def test_an_unusual_duration_is_told(ripe, network, tmp_path, factor, told):
    clip = make_clip(0, side=128)
    clip.events["t"] = (np.linspace(0, 1, len(clip)) * (80_000 * factor - 1)).astype(np.int64)
    _, err = asked(ripe, "predict", network, write(clip, tmp_path / "clip.bin"))
    assert err.count("\n") == told
    assert err.count("duration: ") == told
    if told:
        assert all(word in err for word in ("clip.bin", "0.08 s", "ripe stream --window"))


# The crop of a set


def test_what_is_outside_the_crop_is_counted(cropped, ripe):
    root, _ = cropped
    index = json.loads(next((root / ".ripe" / "folder").glob("*/index.json")).read_text())
    assert (index["sensor_size"], index["whole_size"], index["crop"]) == ([24, 26], [35, 35], list(CROP))
    left, top, width, height = CROP
    every = [read(root / name) for name in index["sources"]]
    inside = sum(
        int(((one["x"] >= left) & (one["x"] < left + width) & (one["y"] >= top) & (one["y"] < top + height)).sum())
        for one in every
    )
    assert sum(index["clips"]["events"]) == inside
    assert any(
        f"{sum(map(len, every)) - inside:,} events outside the crop 3 5 24 26" in note for note in index["notes"]
    )
    said = ripe("data", "verify", "folder", "--root", root, "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["crop"] == list(CROP)


@pytest.mark.parametrize(
    "words",
    [("--crop", "20", "0", "16", "9", "--sensor-size", "35", "35"), ("--crop", "0", "0", "35", "9"),
     ("--crop", "0", "0", "0", "9"), ("--crop", "33", "33", "1", "1")],
    ids=["sensor given", "sensor guessed", "nothing", "no events"],
)  # fmt: skip
def test_a_crop_that_cannot_be(refused, tmp_path, words):
    events = make_events([5, 33], [5, 20], [0, 9], [0, 1])
    (tmp_path / "a").mkdir()
    write(Recording(events, (34, 34)), tmp_path / "a" / "1.bin")
    refused(["data", "prepare", "folder", "--root", tmp_path, "--workers", "1", *words], "crop: ")
    assert not list(tmp_path.glob(".ripe/folder/*/index.json"))


def test_an_extra_set_of_another_sensor_is_told(trained, tmp_path, capsys):
    root, _ = trained
    other = Path(shutil.copytree(root, tmp_path / "other", ignore=shutil.ignore_patterns(".ripe")))
    prepared = ["data", "prepare", "folder", "--root", str(other), "--workers", "1", "--sensor-size", "40", "36"]
    assert main(prepared) == 0
    settings = [f"data.root={root}", *SETTINGS, f"data.extra=[folder={other}]"]
    assert main(["train", "nmnist", "--no-report", "--out", str(tmp_path / "run"), "--set", *settings]) == 0
    err = capsys.readouterr().err
    assert "data.extra: " in err
    assert "35×35" in err
    assert "40×36" in err
    assert read_labels(tmp_path / "run" / "best").sensor_size == (35, 35)
