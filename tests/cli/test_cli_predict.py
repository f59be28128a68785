"""`ripe predict`: what is printed, the JSON document, and recordings and networks it cannot use."""

import csv
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tyro

from raising import raises
from ripe_mambaspike import create_model, view_prediction, write
from ripe_mambaspike.api import load
from ripe_mambaspike.cli import predict as cli_predict
from ripe_mambaspike.cli.predict import PredictCommand
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.predict import predict as predict_one
from ripe_mambaspike.models.labels import Labels, save_labels

NAMES = ("clap", "wave [both]", "roll", "drums")
CONFIG = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)


@pytest.fixture
def predict(capsys):
    """The command's words → its exit code and what it printed where, as the door `ripe` does it."""

    def run(*words):
        command = tyro.cli(PredictCommand, prog="ripe predict", args=[str(word) for word in words], config=CONFIG)
        try:
            code, refusal = command.run(), ""
        except RipeError as error:
            code, refusal = 2, f"ripe: {error}\n"
        out, err = capsys.readouterr()
        return code, out, err + refusal

    return run


@pytest.fixture
def network(tmp_path):
    fields = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 30, "in_size": 16}
    model = create_model("nmnist", seed=0, num_classes=4, **fields)
    randomize(model, 0)
    folder = model.save_pretrained(tmp_path / "run" / "best")
    save_labels(Labels(NAMES, "x", None, 24, (16, 16), "time", False, 3, "validation"), folder)
    return tmp_path / "run"


def make_recording(seed=0, size=(20, 20), length=300_000):
    random = np.random.default_rng(seed)
    t = np.sort(random.integers(0, length, 2000)) + 5000
    x, y = random.integers(0, size[0], 2000), random.integers(0, size[1], 2000)
    t[0], t[-1] = 5000, 5000 + length - 1
    return Recording(make_events(x, y, t, t % 2), size)


@pytest.fixture
def clip(tmp_path):
    return write(make_recording(), tmp_path / "a [clip].npz")


def test_json(predict, network, clip):
    code, out, err = predict(network, clip, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    wanted = predict_one(load(network), make_recording())
    assert (document["time_steps"], document["grid"], document["bin_by"]) == (24, [16, 16], "time")
    assert document["form"] == "training"
    assert document["failed"] == []
    (row,) = document["recordings"]
    assert row["file"] == str(clip)
    assert row["label"] == wanted.label
    assert row["probability"] == pytest.approx(wanted.probability)
    assert row["probabilities"] == pytest.approx(wanted.probabilities)
    assert list(row["probabilities"]) == list(NAMES)
    assert row["runner_up"] == {"label": wanted.runner_up[0], "probability": pytest.approx(wanted.runner_up[1])}
    assert [(one["start_us"], one["stop_us"]) for one in row["timeline"]] == [
        (5000 + 12_500 * step, 5000 + 12_500 * (step + 1)) for step in range(24)
    ]
    assert [one["label"] for one in row["timeline"]] == [one.label for one in wanted.timeline]


def test_text_output(predict, network, clip):
    code, out, err = predict(network, clip)
    assert (code, err) == (0, "")
    wanted = predict_one(load(network), make_recording())
    head, bars, letters, marks, legend = out.splitlines()
    assert head == (
        f"{clip}: {wanted.label} {100 * wanted.probability:.1f} %, "
        f"then {wanted.runner_up[0]} {100 * wanted.runner_up[1]:.1f} %"
    )
    assert bars.strip() == "".join("▁▂▃▄▅▆▇█"[min(7, int(one.probability * 8))] for one in wanted.timeline)
    keys = dict(pair.strip().split(" ", 1) for pair in legend.split("·"))
    assert [keys[letter] for letter in letters.strip()] == [one.label for one in wanted.timeline]
    assert marks == "  ╵0 ms     ╵125 ms       ╵300 ms"


def test_a_long_timeline_is_broken_and_a_short_one_is_marked(predict, network, clip, monkeypatch):
    monkeypatch.setattr("ripe_mambaspike.cli.output.WIDTH", 26)
    lines = predict(network, clip)[1].splitlines()
    assert [len(line.strip()) for line in lines[1:3]] == [12, 12]
    assert [line.count("╵") for line in (lines[3], lines[6])] == [2, 2]
    assert lines[6].endswith("╵300 ms")
    assert predict(network, clip, "--time-steps", "2")[1].splitlines()[3] == "  ╵0 ms ╵300 ms"


def test_the_unit_of_time_suits_the_length(predict, network, tmp_path):
    short = write(make_recording(length=4000), tmp_path / "short.npz")
    long = write(make_recording(length=20_000_000), tmp_path / "long.npz")
    assert "╵4000 µs" in predict(network, short)[1]
    assert "╵20.0 s" in predict(network, long)[1]


def test_steps_and_grid(predict, network, clip):
    document = json.loads(predict(network, clip, "--time-steps", "5", "--grid", "9", "--json")[1])
    assert (document["time_steps"], document["grid"]) == (5, [9, 9])
    assert len(document["recordings"][0]["timeline"]) == 5


def test_unreadable_recordings_are_named_and_the_others_predicted(predict, network, clip, tmp_path):
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"nothing of the kind")
    small = write(make_recording(size=(10, 10)), tmp_path / "small.npz")
    code, out, err = predict(network, bad, clip, small, tmp_path / "nowhere", "--json")
    assert code == 2
    document = json.loads(out)
    assert [row["file"] for row in document["recordings"]] == [str(clip)]
    assert [row["file"] for row in document["failed"]] == [str(bad), str(small), str(tmp_path / "nowhere")]
    lines = err.splitlines()
    assert len(lines) == 4
    assert all(str(path) in line for path, line in zip((bad, small, tmp_path / "nowhere"), lines, strict=False))
    assert lines[-1].startswith("ripe: 3 of 4 recordings failed")
    assert str(clip) not in lines[-1]
    code, out, _ = predict(network, bad, clip)
    assert code == 2
    assert out.startswith(str(clip))


def test_each_invalid_input_gives_one_line(predict, network, clip, tmp_path):
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"nothing of the kind")
    empty = tmp_path / "empty.csv"
    empty.write_text("x,y,t,p\n")
    small = write(make_recording(size=(10, 10)), tmp_path / "small.npz")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "config.json").write_text('{"model_type": "bert"}')
    for words, named in (
        ((network, bad), (bad,)),
        ((network, empty), (empty,)),
        ((network, small), (small, "10×10", "16×16")),
        ((network, tmp_path / "torch"), (tmp_path / "torch",)),
        ((network, clip, "--csv", tmp_path), ("csv", tmp_path)),
        ((network, clip, "--csv", tmp_path / "absent" / "out.csv"), ("csv", tmp_path / "absent")),
        ((network, clip, "--time-steps", "31"), ("steps", "31", "30")),
        ((network, clip, "--grid", "2"), ("grid", "2", "8")),
        ((tmp_path / "torch", clip), (tmp_path / "torch" / "config.json", "format")),
        ((tmp_path, clip), (tmp_path, "config.json")),
        ((clip, clip), (clip,)),
    ):
        for more in ((), ("--json",)):
            code, out, err = predict(*words, *more)
            assert (code, out) == (2, "")
            assert len(err.splitlines()) == 1
            assert all(str(name) in err for name in named), err


@pytest.fixture
def clips(tmp_path):
    """A folder with four recordings in class folders, and files that are none."""
    folder = tmp_path / "clips"
    for number, name in enumerate(("a/1.npz", "a/2, left.csv", "b/1.raw", "b/deep/3.npz")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(make_recording(number), folder / name)
    for name in ("README.md", "a/notes.json", ".hidden.npz"):
        (folder / name).write_text("no recording")
    return folder


def read_table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_folder_as_a_table(predict, network, clips):
    table = clips / "out.csv"
    wide = ("--sensor-size", 20, 20)
    for _ in range(2):  # the table of the first call is no recording of the second
        code, out, err = predict(network, clips, *wide, "--csv", table)
        assert (code, err) == (0, "")
        assert out.splitlines()[-1] == f"Written: {table}"
    names = ("a/1.npz", "a/2, left.csv", "b/1.raw", "b/deep/3.npz")
    wanted = [predict_one(load(network, sensor_size=(20, 20)), clips / name) for name in names]
    rows = read_table(table)
    assert list(rows[0]) == ["file", "class", "probability"]
    assert [row["file"] for row in rows] == [str(clips / name) for name in names]
    assert [row["class"] for row in rows] == [one.label for one in wanted]
    assert [float(row["probability"]) for row in rows] == [one.probability for one in wanted]
    table.unlink()
    document = json.loads(predict(network, clips, *wide, "--json")[1])
    assert [row["probability"] for row in document["recordings"]] == [one.probability for one in wanted]


def test_a_recording_that_fails_has_no_class_in_the_table(predict, network, clips, tmp_path):
    (clips / "a" / "1.npz").write_bytes(b"nothing of the kind")
    code, _, err = predict(network, clips, "--sensor-size", 20, 20, "--csv", tmp_path / "out.csv")
    assert code == 2
    assert str(clips / "a" / "1.npz") in err
    rows = read_table(tmp_path / "out.csv")
    assert (rows[0]["class"], rows[0]["probability"]) == ("", "")
    assert all(row["class"] in NAMES for row in rows[1:])
    assert len(rows) == 4


def test_an_interrupted_call_leaves_the_earlier_table(predict, network, clips, tmp_path, monkeypatch):
    table = tmp_path / "out.csv"
    table.write_text("earlier")
    kept = set(tmp_path.iterdir())

    def stop(recording, *rest):
        if "deep" in str(recording):
            raise KeyboardInterrupt
        return make_row(recording, *rest)

    make_row = cli_predict._row
    monkeypatch.setattr(cli_predict, "_row", stop)
    with pytest.raises(KeyboardInterrupt):
        predict(network, clips, "--sensor-size", 20, 20, "--csv", table)
    assert table.read_text() == "earlier"
    assert set(tmp_path.iterdir()) == kept


def test_no_recording(predict, network):
    code, out, err = predict(network)
    assert (code, out) == (2, "")
    assert "recording" in err


def test_warnings_of_the_reader_go_to_standard_error(predict, network, tmp_path):
    events = make_recording().events.copy()
    events["t"][100], events["t"][101] = events["t"][1000], events["t"][50]
    path = write(Recording(events, (20, 20)), tmp_path / "back.npz")
    code, out, err = predict(network, path, "--json")
    assert code == 0
    assert json.loads(out)["recordings"]
    assert "backwards" in err


def test_pictures(predict, network, tmp_path):
    """One for each recording, under names of their own; nothing that is there is replaced."""
    folder, out = tmp_path / "clips", tmp_path / "pictures"
    for name in ("a/x.npz", "b/x.npz", "a_x.npz", "A_X.npz", "long" * 60 + ".npz"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(make_recording(), folder / name)
    other = write(make_recording(), tmp_path / "a_x.npz")
    (folder / "bad.npz").write_bytes(b"nothing of the kind")
    code, printed, _ = predict(network, folder, other, "--save", out, "--csv", tmp_path / "t.csv", "--json")
    assert code == 2  # of the bad one
    rows = json.loads(printed)["recordings"]
    names = [Path(row["picture"]).name for row in rows]
    assert sorted(names) == sorted(path.name for path in out.iterdir())
    assert len({name.casefold() for name in names}) == len(rows) == 6
    assert "b_x.npz.png" in names
    for row in rows:
        width, height = struct.unpack(">II", Path(row["picture"]).read_bytes()[16:24])
        assert width > 500
        assert height > 500
    before = {path: path.read_bytes() for path in out.iterdir()}
    code, printed, err = predict(network, other, "--save", out)
    assert (code, printed) == (2, "")
    assert str(out) in err
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert predict(network, other, "--save", other)[0] == 2
    assert "picture" not in json.loads(predict(network, other, "--json")[1])["recordings"][0]


def test_a_picture_of_any_prediction(network, tmp_path):
    """Class names that matplotlib would read as markup or leave out, one step, one class, a single event."""
    recording, found = make_recording(), predict_one(load(network), make_recording())
    odd = ["$\\frac{", "_hidden", "x" * 200, "\u202e\n<b>"]
    named = replace(found, label=odd[0], probabilities=dict(zip(odd, found.probabilities.values(), strict=True)))
    one = replace(
        found, label="only", probability=1.0, probabilities={"only": 1.0}, timeline=found.timeline[:1],
        step_probabilities=((1.0,),),
    )  # fmt: skip
    still = replace(recording, events=recording.events[:1])
    cases, made = [(recording, found), (recording, named), (recording, one), (still, one)], set()
    for number, (shown, prediction) in enumerate(cases):
        path = view_prediction(shown, prediction, tmp_path / f"{number}.png", title="a $ title " * 40)
        made.add(path.read_bytes())
    assert len(made) == 4
    assert all(picture.startswith(b"\x89PNG") for picture in made)
    with raises(InputError, "path", tmp_path / "x.gif"):
        view_prediction(recording, found, tmp_path / "x.gif")
    with raises(InputError, "events"):
        view_prediction(replace(recording, events=recording.events[:0]), found, tmp_path / "x.png")


def test_probabilities_of_all_classes_at_every_step(network):
    found = predict_one(load(network), make_recording())
    assert len(found.step_probabilities) == len(found.timeline) == 24
    assert found.step_probabilities[-1] == pytest.approx(tuple(found.probabilities.values()))
    for row, step in zip(found.step_probabilities, found.timeline, strict=True):
        assert sum(row) == pytest.approx(1)
        assert NAMES[row.index(max(row))] == step.label
        assert max(row) == pytest.approx(step.probability)


def test_a_recording_without_a_header(predict, network, tmp_path):
    recording = make_recording()
    words = np.zeros(len(recording), [("t", "<u4"), ("address", "<u4")])
    words["t"] = recording["t"]
    x, y, p = (recording[name].astype(np.uint32) for name in "xyp")
    words["address"] = x | y << 14 | p << 28
    (tmp_path / "bare.dat").write_bytes(words.tobytes())
    wanted = predict_one(load(network), recording)
    assert predict(network, tmp_path / "bare.dat")[0] == 2
    named = ("--format", "dat", "--json")
    assert predict(network, tmp_path / "bare.dat", *named)[0] == 2  # this network does not know its sensor
    for known in (None, recording.sensor_size):
        labels = Labels(NAMES, "x", None, 24, (16, 16), "time", False, 3, "validation", sensor_size=known)
        save_labels(labels, network / "best")
        size = () if known else ("--sensor-size", *recording.sensor_size)
        (row,) = json.loads(predict(network, tmp_path / "bare.dat", *named, *size)[1])["recordings"]
        assert row["probabilities"] == pytest.approx(wanted.probabilities)
    assert predict(network, tmp_path / "bare.dat", "--format", "data")[0] == 2
