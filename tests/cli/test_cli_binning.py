"""The binning that a network was trained on goes where the network goes: predict, exports, streams and the page agree
with eval, clip by clip."""

import asyncio
import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.bars import asked, differ, make_clip

from ripe_mambaspike import write
from ripe_mambaspike.api import load
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.deploy.export.run import load_export, read_manifest
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.checkpoint_data import data_settings_of, open_data_for
from ripe_mambaspike.inference.classifier import read_recording
from ripe_mambaspike.inference.streamer import Streamer
from ripe_mambaspike.live.library import RecordingLibrary
from ripe_mambaspike.live.limits import ServerLimits
from ripe_mambaspike.live.network import make_served_network
from ripe_mambaspike.live.watched import PredictionWorker
from ripe_mambaspike.models.base import clip_logits
from ripe_mambaspike.models.labels import read_labels, save_labels
from ripe_mambaspike.models.pretrained import from_pretrained

SETTINGS = (
    "augmentation.horizontal_flip=0", "augmentation.time_reversal=0",
    "data.dataset=folder", "data.time_steps=4", "data.grid=16", "schedule.batch_size=8", "schedule.epochs=1",
    "schedule.warmup_epochs=0", "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8]}",
    "run.device=cpu", "run.recalibrate_batches=2",
)  # fmt: skip
CROP = (3, 5, 24, 26)


def make_run(folder, *words):
    """A tree of recordings that do not name their sensor, prepared with the words, and a short run on it."""
    root, run = folder / "tree", folder / "run"
    for number in range(16):
        path = root / ("train" if number < 10 else "test") / ("right" if number % 2 else "left") / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(make_clip(number), path)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # the test that comes first reads its own
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
    result = ripe("predict", out, root / next(iter(wanted)))
    assert result.code == 2
    assert "data.sensor_size" in result.err


@pytest.mark.parametrize(
    "to",
    ["nir", pytest.param("torch-export", marks=pytest.mark.slow), pytest.param("executorch", marks=pytest.mark.slow),
     pytest.param("aoti", marks=pytest.mark.slow)],
)  # fmt: skip
def test_every_format_keeps_the_binning(ripe, cropped, tmp_path, to):
    _, run = cropped
    words = () if to == "nir" else ("--static", "--graphs", "clip")
    result = ripe("export", run, "--to", to, *words, "--out", tmp_path / "out")
    if result.code == 2 and "install" in result.err:
        pytest.skip(result.err)
    assert result.code == 0, result.err
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


def test_events_outside_the_crop_advance_time(cropped):
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
    result = ripe("stream", run, "--source", path, "--pace", "fast", "--early", "--json")
    assert result.code == 0, result.err
    *answers, last = [json.loads(line) for line in result.out.splitlines()]
    assert answers[0]["stop_us"] - answers[0]["start_us"] == duration
    assert "--window" not in result.err
    assert (last["summary"]["sensor_size"], last["summary"]["sensor_size_from"]) == ([35, 35], "the network")
    network = make_served_network(load(run))
    assert (network.window_us, network.max_single_us) == (duration, 2 * duration)


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
    result = ripe("data", "verify", "folder", "--root", root, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["crop"] == list(CROP)


@pytest.mark.parametrize(
    "words",
    [("--crop", "20", "0", "16", "9", "--sensor-size", "35", "35"), ("--crop", "0", "0", "35", "9"),
     ("--crop", "0", "0", "0", "9"), ("--crop", "33", "33", "1", "1")],
    ids=["sensor given", "sensor guessed", "nothing", "no events"],
)  # fmt: skip
def test_an_invalid_crop_is_refused(refused, tmp_path, words):
    events = make_events([5, 33], [5, 20], [0, 9], [0, 1])
    (tmp_path / "a").mkdir()
    write(Recording(events, (34, 34)), tmp_path / "a" / "1.bin")
    refused(["data", "prepare", "folder", "--root", tmp_path, "--workers", "1", *words], "crop: ")
    assert not list(tmp_path.glob(".ripe/folder/*/index.json"))


def test_an_extra_dataset_of_another_sensor_gives_a_warning(trained, tmp_path, capsys):
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
