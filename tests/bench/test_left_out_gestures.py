"""`benchmarks/left_out_gestures.py`: each clip is classified once, and its network's camera was fitted without it."""

import json
import subprocess
from dataclasses import replace

import pytest
from benchmarks import left_out_gestures as script

from ripe_mambaspike.data import gesture_calibration
from ripe_mambaspike.data.sets.preparations import PREPARATIONS
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.simulate.gestures.camera import load_gesture_camera
from ripe_mambaspike.events.simulate.gestures.fit import TwinScenes
from ripe_mambaspike.events.writing import write

SIZE = (32, 32)
TINY = [
    "data.time_steps=3", "data.grid=12", "schedule.batch_size=4", "schedule.warmup_epochs=0", "schedule.epochs=1",
    "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8]}", "run.recalibrate_batches=2", "run.device=cpu",
]  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Call the script on two small clips; what it prints."""
    camera = load_gesture_camera()
    for number, name in ((1, "clap"), (2, "wave")):
        (events,) = TwinScenes(number - 1, 300_000, SIZE, 1, "test").events(camera.pixel, camera.readout)
        write(Recording(events, SIZE), tmp_path / f"{number:02d}_{name}.npz")
    for module in (gesture_calibration, script):
        monkeypatch.setattr(module, "SENSOR", SIZE)
    monkeypatch.setattr(gesture_calibration, "NUM_TWINS", 1)
    monkeypatch.setattr(script, "WINDOWS_MS", (100, 200))
    tiny = replace(PREPARATIONS[script.SET], side=32, duration_us=300_000)
    monkeypatch.setitem(PREPARATIONS, script.SET, tiny)

    def call(*words):
        options = ["--real", str(tmp_path), "--out", str(tmp_path / "out"), "--rounds", "2", "--workers", "1"]
        counts = ["--train", "22", "--val", "11", "--test", "11"]
        monkeypatch.setattr("sys.argv", ["script", *options, *counts, "--set", *TINY, *words])
        script.main()
        return capsys.readouterr().out

    return call


@pytest.mark.slow
def test_each_clip_is_answered_once_by_a_network_of_the_others_camera(run, tmp_path, monkeypatch):
    used = []
    simulate = script.simulate_dataset

    def watch(name, root, *, calibration, **options):
        used.append((root.name, calibration.name))
        return simulate(name, root, calibration=calibration, **options)

    monkeypatch.setattr(script, "simulate_dataset", watch)
    first = run("--clips", "02_wave")
    assert "of 1 clips right" in first
    both = run()
    assert "of 2 clips right" in both
    assert used == [("02_wave", "camera-02_wave.json"), ("01_clap", "camera-01_clap.json")]
    clap, wave = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (clap["class"], wave["class"]) == ("hand_clapping", "right_hand_wave")
    assert [one["n"] + one["silent"] for one in clap["windows"]] == [4, 1]  # by its last event
    assert clap["simulated_clips"] == 11
    monkeypatch.setattr(script, "train", None)
    assert both.endswith(run())
    with pytest.raises(SystemExit):
        run("--seed", "1")
    write(Recording(read(tmp_path / "01_clap.npz").events[:-1], SIZE), tmp_path / "01_clap.npz")
    with pytest.raises(SystemExit):
        run()


def test_several_jobs_answer_each_clip_once(run, tmp_path, monkeypatch):
    commands = []
    scores = {"probabilities": {"hand_clapping": 1.0}, "simulated_top1": 1, "simulated_shuffled_top1": 0}
    answer = {"class": "hand_clapping", "answer": "hand_clapping", "windows": [{"correct": 1, "n": 2}] * 2, **scores}

    def start(command, env):
        given = command[command.index("--clips") + 1]
        commands.append(
            (given, "--part" in command, [word for word in command if word == "--jobs"], env["OMP_NUM_THREADS"])
        )
        (tmp_path / "out" / "answers" / f"{given}.json").write_text(json.dumps({"clip": given, **answer}))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(script, "available_cores", lambda: 4)
    monkeypatch.setattr(script, "calibrate_gestures", lambda *_, **__: None)
    monkeypatch.setattr(script.subprocess, "run", start)
    assert "2 of 2 clips right" in run("--jobs", "2")
    assert sorted(commands) == [(name, True, ["--jobs"] * 2, "2") for name in ("01_clap", "02_wave")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--clips", "03_jump"), "--clips: expected some of 01_clap, 02_wave, got 03_jump"),
        (("--jobs", "0"), "--jobs: expected an int of at least 1, got 0"),
        (("--real", "nowhere"), "nowhere: real: expected at least two recordings NN_NAME.bin, got 0"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(run, capsys, words, sentence):
    with pytest.raises(SystemExit) as ended:
        run(*words)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
