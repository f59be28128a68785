"""Runs that take about a second: a few simulated gestures and a very small network."""

import csv
import json
from pathlib import Path

import pytest

from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.models.registry import create_model
from ripe_mambaspike.train.recipes import load_recipe, with_settings
from ripe_mambaspike.train.run import train

CLIPS = {"train": 11, "val": 11, "test": 11}
SETTINGS = (
    "name=tiny",
    "data.time_steps=4",
    "data.grid=16",
    "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8]}",
    "optimizer.min_learning_rate=1e-4",
    "schedule.batch_size=4",  # batches of 4, 4 and 3
    "schedule.epochs=2",
    "schedule.warmup_epochs=1",
    "run.recalibrate_batches=2",
    "run.device=cpu",
)
TIMED = ("seconds", "samples_per_second", "memory_mib")  # columns of log.csv that no two runs share


def _settings(root, changed):
    """A field that is set again counts once, with its last value."""
    values = dict(word.split("=", 1) for word in (f"data.root={root}", *SETTINGS, *changed))
    return [f"{name}={value}" for name, value in values.items()]


class Watching:
    """A callback that records a run, and calls the given functions."""

    def __init__(self, on_step=None, on_epoch=None):
        self.lines, self.rows, self.bests = [], [], []
        self.on_step, self.on_epoch = on_step, on_epoch
        self.trainer = None

    def on_train_begin(self, recipe, data, trainer):
        self.trainer = trainer

    def on_step_end(self, trainer):
        if self.on_step is not None:
            self.on_step(trainer)

    def on_epoch_end(self, row, best):
        self.rows.append(row)
        self.bests.append(best)
        if self.on_epoch is not None:
            self.on_epoch(self.trainer)

    def on_message(self, line):
        self.lines.append(line)


@pytest.fixture(scope="session")
def watching():
    return Watching


@pytest.fixture(scope="session")
def gestures(tmp_path_factory) -> Path:
    """11 + 11 + 11 simulated gestures, one of every class in each part."""
    folder = tmp_path_factory.mktemp("few-gestures")
    simulate_dataset("synthgesture", folder, **CLIPS, size=16)
    return folder


@pytest.fixture(scope="session")
def tiny(gestures):
    """Settings → the recipe of a run over those gestures."""

    def make(*settings):
        return with_settings(load_recipe("synthgesture"), _settings(gestures, settings))

    return make


@pytest.fixture(scope="session")
def make_network():
    """Fields of its config → an untrained network of the size of these runs."""
    size = {"num_classes": 11, "stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8), "time_steps": 4, "in_size": 16}
    return lambda **fields: create_model("dvsgesture", seed=0, **size, **fields)


@pytest.fixture(scope="session")
def tiny_words(gestures):
    """Settings → the words of the same run for the command, without its folder."""

    def make(*settings):
        return ["train", "synthgesture", "--no-report", "--set", *_settings(gestures, settings)]

    return make


@pytest.fixture(scope="session")
def go():
    """Train in a folder; the result as a dict."""

    def run(recipe, folder, callback=None, **how):
        return train(recipe, folder, callback=callback or Watching(), **how).to_dict()

    return run


@pytest.fixture(scope="session")
def finished(tiny, go, tmp_path_factory) -> Path:
    """The folder of a run that was never stopped; to be read, not written."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    go(tiny(), folder)
    return folder


def _log(folder):
    """Rows of log.csv as texts."""
    with (folder / "log.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="session")
def read_log():
    return _log


@pytest.fixture(scope="session")
def outcome():
    """What two runs by one recipe must share: every byte of both networks, the log and the result."""

    def read(folder):
        result = json.loads((folder / "result.json").read_text())
        log = [{name: cell for name, cell in row.items() if name not in TIMED} for row in _log(folder)]
        best, last = (
            {path.name: path.read_bytes() for path in sorted((folder / name).iterdir())} for name in ("best", "last")
        )
        return {"best": best, "last": last, "log": log, "result": {**result, "seconds": None}}

    return read
