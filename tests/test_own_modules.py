"""RIPE_IMPORT: files and modules of the user's own, imported by the command and by the processes that it starts."""

import asyncio
import json
import sys

import numpy as np
import pytest
from tests.contributing.conftest import code_blocks
from tests.raising import raises

from ripe_mambaspike import Recording, write
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.data.workers import Workers
from ripe_mambaspike.errors import ConfigError, ReadError
from ripe_mambaspike.events import isolated, make_events, read
from ripe_mambaspike.events.registry import ENCODERS, FORMATS
from ripe_mambaspike.live.limits import ServerLimits
from ripe_mambaspike.live.reading import read_in_subprocess
from ripe_mambaspike.models.registry import create_model, model_config
from ripe_mambaspike.nn.neurons import NEURONS
from ripe_mambaspike.own_modules import import_own_modules

SMALL = ("stage_channels=[4, 8, 8]", "embed_dims=[4, 8, 8]")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Modules, search paths and registered names are as before after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    kept = [(registry, dict(registry)) for registry in (NEURONS, FORMATS, ENCODERS)]
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("my_"):
            del sys.modules[name]
    for registry, before in kept:
        registry.clear()
        registry.update(before)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Text → a file of the user's, named in RIPE_IMPORT."""

    def make(text, name="my_neurons"):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        monkeypatch.setenv("RIPE_IMPORT", str(path))
        return path

    return make


@pytest.fixture
def neuron(own):
    return own(code_blocks("Add a neuron")[0])


def account(capsys, *more):
    code = main(["account", "nmnist", "--json", *more, "--set", "neurons=integrator", *SMALL])
    return code, capsys.readouterr()


def test_a_command_imports_a_file(neuron, capsys):
    code, printed = account(capsys)
    assert code == 0
    expected = create_model("nmnist", neurons="integrator", stage_channels=(4, 8, 8), embed_dims=(4, 8, 8))
    assert json.loads(printed.out)["parameters"]["training"] == expected.parameter_count()


def test_a_module_of_the_working_folder(neuron, monkeypatch, capsys, tmp_path):
    (tmp_path / "my_other.py").write_text("LOADED = True")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RIPE_IMPORT", "my_neurons, my_other,")
    assert account(capsys)[0] == 0
    assert sys.modules["my_other"].LOADED


def test_without_it_the_error_says_how(monkeypatch, capsys):
    monkeypatch.delenv("RIPE_IMPORT", raising=False)
    code, printed = account(capsys)
    assert code == 2
    assert "'integrator'" in printed.err
    assert "RIPE_IMPORT" in printed.err


@pytest.mark.parametrize(
    ("text", "mentions"),
    [("import my_nowhere", ("my_nowhere", "line 1")), ("x = 1\ny = x +", ("line 2",)), ("\n\n1 / 0", ("line 3",))],
)
def test_a_file_that_cannot_be_imported_is_one_sentence(own, capsys, text, mentions):
    own(text)
    assert main(["models", "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert all(word in printed.err for word in ("RIPE_IMPORT", "my_neurons.py", *mentions)), printed.err


@pytest.mark.parametrize("name", ["my_nowhere", "my_nowhere.py", "no such/my_file.py"])
def test_what_is_not_there(monkeypatch, name):
    monkeypatch.setenv("RIPE_IMPORT", name)
    with raises(ConfigError, field="RIPE_IMPORT", mentions=name):
        import_own_modules()


def test_a_file_with_the_name_of_another_module(own):
    """Not that other module is imported in its place."""
    own("", "json")
    with raises(ConfigError, field="RIPE_IMPORT", mentions="json.py"):
        import_own_modules()


@pytest.mark.parametrize("neurons", ["alif", ("silif", "alif", "silif")])
def test_the_error_shows_the_name_that_was_typed(neurons):
    with raises(ConfigError, field="neurons", mentions="'alif'") as caught:
        model_config("nmnist", neurons=neurons)
    assert str(caught.value).count("alif") == 1


# Processes that read recordings.


@pytest.fixture
def toy(own, tmp_path):
    """A recording of a format of the user's own, which this process has imported."""
    own(code_blocks("Add a file format")[0], "my_formats")
    import_own_modules()
    events = make_events(np.arange(30) % 16, np.arange(30) % 12, np.arange(30) * 100, np.arange(30) % 2)
    return write(Recording(events, (16, 12)), tmp_path / "clip.toy"), events


def test_an_isolated_format_of_your_own(toy):
    path, events = toy
    isolated.close_idle()
    format_ = FORMATS["toy"]
    FORMATS["toy"] = type(format_)(**{**vars(format_), "isolated": True})
    np.testing.assert_array_equal(read(path, sensor_size=(16, 12)).events, events)


@pytest.mark.slow
def test_the_server_reads_a_format_of_your_own(toy, monkeypatch, tmp_path):
    path, events = toy

    def reading():
        return asyncio.run(read_in_subprocess(path, "clip", tmp_path, ServerLimits(), (16, 12)))

    np.testing.assert_array_equal(reading().events, events)
    monkeypatch.delenv("RIPE_IMPORT")
    with pytest.raises(ReadError):
        reading()


@pytest.mark.slow
def test_workers_read_a_format_of_your_own(toy):
    """Those of `ripe data prepare`."""
    path, events = toy
    with Workers(2) as workers:
        for recording in workers.map(read, [path, path]):
            np.testing.assert_array_equal(recording.events, events)


# Runs in processes of their own.


@pytest.mark.slow
def test_seeds_train_a_neuron_of_your_own(neuron, capsys, tmp_path):
    simulate_dataset("synthgesture", tmp_path / "set", train=11, val=11, test=11, size=16)
    settings = [f"data.root={tmp_path / 'set'}", "data.time_steps=4", "data.grid=16", "schedule.epochs=1"]
    settings += [f"model.fields.{one}" for one in SMALL] + ["model.fields.neurons=integrator", "run.device=cpu"]
    words = ["seeds", "synthgesture", "--seeds", "0-1", "--jobs", "2", "--out", str(tmp_path / "runs"), "--json"]
    assert main([*words, "--set", *settings]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["failed"] == []
    assert [row["seed"] for row in summary["seeds"]] == [0, 1]
