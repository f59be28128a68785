"""`--resume auto` in whatever state a folder is: where the run goes on, what is refused, and what is printed."""

import shutil

import pytest

from raising import raises
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.train.callback import TrainingStopped
from ripe_mambaspike.train.recipes import load_recipe, save_recipe


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def unfinished(copied):
    """After its last epoch, before the test."""
    (copied / "result.json").unlink()
    return copied


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("removed", [("recipe.yaml",), ("recipe.yaml", "checkpoints"), ("recipe.yaml", "result.json")])
def test_a_run_without_its_recipe_is_refused(copied, tiny, go, removed):
    """By another recipe it would be another run; and what is there is not overwritten."""
    for name in removed:
        path = copied / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = contents(copied)
    for resume in (True, False):
        with raises(DataError, field="folder", path=copied):
            go(tiny("optimizer.learning_rate=0.5"), copied, resume=resume)
    assert contents(copied) == before


def test_a_run_without_checkpoints_starts_again_and_says_so(unfinished, tiny, go, outcome, watching, finished):
    shutil.rmtree(unfinished / "checkpoints")
    callback = watching()
    go(tiny(), unfinished, callback, resume=True)
    assert callback.lines == [f"{unfinished}: the run has no checkpoint; starting at epoch 1"]
    assert [row["epoch"] for row in callback.rows] == [1, 2]
    assert outcome(unfinished) == outcome(finished)


def test_an_empty_folder_starts_a_run_without_a_word(tiny, go, watching, tmp_path):
    callback = watching()
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", callback, resume=True, stop_requested=lambda: True)
    assert callback.lines == []


def test_a_run_whose_epochs_are_done_is_only_tested(unfinished, tiny, go, outcome, watching, finished):
    callback = watching()
    go(tiny(), unfinished, callback, resume=True)
    assert callback.lines == ["resuming after epoch 2, the last one: testing"]
    assert callback.rows == []
    assert outcome(unfinished) == outcome(finished)


def test_at_the_end_of_an_epoch_no_batch_is_named(tiny, go, watching, tmp_path):
    answers = iter([False, False, True])
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", stop_requested=lambda: next(answers))
    callback = watching()
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", callback, resume=True, stop_requested=lambda: True)
    assert callback.lines == ["resuming at the end of epoch 1"]


@pytest.mark.parametrize("more", [(), ("run.seed=7", "data.time_steps=5", "schedule.warmup_epochs=0")])
def test_another_recipe_is_refused_with_both_values(copied, tiny, go, more):
    with raises(ConfigError, path=copied / "recipe.yaml") as caught:
        go(tiny("model.fields={neurons: lif, embed_dims: [4, 8, 8]}", *more), copied, resume=True)
    text = str(caught.value)
    if more:
        assert "data.time_steps: expected 4, got 5" in text
        assert "and 2 more" in text
    else:
        assert "model.fields.neurons: expected none, got lif" in text
        assert "model.fields.stage_channels: expected [4, 8, 8], got none" in text
        assert " more" not in text
    assert f"ripe train {copied / 'recipe.yaml'} --resume" in text


def damage(folder):
    for path in folder.iterdir():
        path.write_bytes(b"")


def test_damaged_checkpoints_alone_are_refused_with_the_way_out(unfinished, tiny, go, caplog):
    damage(unfinished / "checkpoints")
    with raises(DataError, field="checkpoint", path=unfinished / "checkpoints", mentions=("remove", "--out")):
        go(tiny(), unfinished, resume=True)
    assert [("before it" in line) for line in caplog.messages] == [True, False]  # the last one has none before it


def test_a_lost_network_of_a_run_that_is_done(unfinished, tiny, go):
    shutil.rmtree(unfinished / "best")
    way_out = ("remove", unfinished / "checkpoints", "--out")
    with raises(DataError, field="network", path=unfinished / "best", mentions=way_out):
        go(tiny(), unfinished, resume=True)


def test_a_lost_network_of_a_run_that_goes_on_is_warned_of(tiny, go, caplog, tmp_path):
    """It may yet select a better one."""
    answers = iter([False] * 3 + [True])
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", stop_requested=lambda: next(answers))
    shutil.rmtree(tmp_path / "run" / "best")
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", resume=True, stop_requested=lambda: True)
    (line,) = caplog.messages
    assert str(tmp_path / "run" / "best") in line


# The folder of a run whose own recipe is given.


def test_the_saved_recipe_resumes_its_own_run(unfinished, outcome, finished, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(unfinished / "recipe.yaml"), "--no-report", "--resume"]) == 0
    assert outcome(unfinished) == outcome(finished)
    assert not (tmp_path / "runs").exists()
    assert str(unfinished / "best") in capsys.readouterr().out


def test_the_saved_recipe_alone_starts_a_new_run(unfinished, tiny_words, monkeypatch, tmp_path):
    """As does a recipe of your own that is no run's, with and without --resume."""
    monkeypatch.chdir(tmp_path)
    before = contents(unfinished)
    words = ["--no-report", "--set", "schedule.epochs=1"]
    assert main(["train", str(unfinished / "recipe.yaml"), *words]) == 0
    assert contents(unfinished) == before
    assert (tmp_path / "runs" / "tiny-1" / "result.json").exists()
    (tmp_path / "mine").mkdir()
    recipe = load_recipe(unfinished / "recipe.yaml")
    data = type(recipe.data)(**{**vars(recipe.data), "store": None})
    save_recipe(type(recipe)(**{**vars(recipe), "name": "own", "data": data}), tmp_path / "mine" / "recipe.yaml")
    assert main(["train", str(tmp_path / "mine" / "recipe.yaml"), "--resume", *words]) == 0
    assert (tmp_path / "runs" / "own-1" / "result.json").exists()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["recipe.yaml"]
