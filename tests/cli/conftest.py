"""The command in this process: what it returned and what it printed where."""

from typing import NamedTuple

import pytest

from ripe_mambaspike import create_model
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.data.simulated import simulate_dataset

SETTINGS = (
    "name=tiny",
    "data.time_steps=4",
    "data.grid=[16, 18]",
    "data.by=count",
    "model.fields={stage_channels: [4, 8, 8], embed_dims: [4, 8, 8]}",
    "schedule.batch_size=11",
    "schedule.epochs=3",
    "run.ema_decay=0.5",
    "run.device=cpu",
)
SMALL = ("stage_channels=[8, 12, 16]", "embed_dims=[8, 16, 24]")


STORE_DOCUMENT_KEYS = (
    "set", "store", "key", "sha256", "current", "others", "clips", "events", "classes", "sensor_size", "crop",
    "partitions", "notes", "warnings", "unreadable",
)  # fmt: skip


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def store_document_keys():
    """What `ripe data prepare` and `ripe sim make` say of a store with --json, in order."""
    return list(STORE_DOCUMENT_KEYS)


@pytest.fixture
def ripe(capsys):
    def run(*words):
        code = main([str(word) for word in words])
        return CommandResult(code, *capsys.readouterr())

    return run


@pytest.fixture
def small_words():
    """Words that make a network small and quick to measure."""
    return ("--time-steps", "4", "--in-size", "18", "--set", *SMALL)


@pytest.fixture
def saved(tmp_path):
    fields = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 18}
    return create_model("nmnist", seed=0, **fields).save_pretrained(tmp_path / "net")


@pytest.fixture
def refused(ripe):
    """Exit code 2, nothing on standard output, and one error that contains every given name.

    Our own errors are one line; the parser's are a box.
    """

    def check(words, *named):
        result = ripe(*words)
        assert result.code == 2, result
        assert result.out == ""
        boxed = not result.err.startswith("ripe: ")
        assert boxed or len(result.err.splitlines()) == 1, result.err
        assert "Traceback" not in result.err
        text = " ".join(result.err.translate(dict.fromkeys(map(ord, "╭╮╰╯│─"))).split()) if boxed else result.err
        for name in named:
            assert str(name) in text, result.err

    return check


@pytest.fixture(scope="session")
def gestures(tmp_path_factory):
    """The root of a small simulated set."""
    folder = tmp_path_factory.mktemp("gestures")
    simulate_dataset("synthgesture", folder, train=22, val=13, test=37, size=16)
    return folder


@pytest.fixture(scope="session")
def finished(gestures, tmp_path_factory):
    """The folder of a run that ended."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    words = ["train", "synthgesture", "--no-report", "--out", str(folder), "--set", f"data.root={gestures}", *SETTINGS]
    assert main(words) == 0
    return folder
