"""Runs by the paper protocol: nothing is held out, the best test epoch is taken, and every output says so."""

import json
import shutil

import pytest

from raising import raises
from ripe_mambaspike.api import evaluate
from ripe_mambaspike.data.training_data import open_data
from ripe_mambaspike.errors import ConfigError, WeightsError
from ripe_mambaspike.models.accuracy import BEST_TEST_EPOCH, read_result
from ripe_mambaspike.report import write_report
from ripe_mambaspike.train.callback import TrainingStopped
from ripe_mambaspike.train.jobs import RunOutcome
from ripe_mambaspike.train.recipes import load_recipe, save_recipe
from ripe_mambaspike.train.run_folder import changed_fields
from ripe_mambaspike.train.seed_summary import summarize_seeds, summary_sheet
from ripe_mambaspike.train.seeds import finished_result, plan_runs

SHORT = ("schedule.batch_size=11", "loss.passes=1")
PAPER = ("run.protocol=paper", *SHORT)


@pytest.fixture(scope="module")
def paper_run(tiny, go, tmp_path_factory):
    """The folder of a run that has ended."""
    folder = tmp_path_factory.mktemp("paper") / "run"
    go(tiny(*PAPER), folder)
    return folder


@pytest.mark.parametrize(("protocol", "train", "val"), [("validation", 11, 11), ("paper", 22, 0)])
def test_clips_that_validation_would_take_are_trained_on(tiny, go, watching, tmp_path, protocol, train, val):
    callback = watching()
    result = go(tiny(*SHORT, f"run.protocol={protocol}"), tmp_path / "run", callback)
    assert result["clips"] == {"train": train, "val": val, "test": 11}
    parts = open_data(tiny().data)
    wanted = {*parts.train.names, *(parts.val.names if protocol == "paper" else ())}
    assert set(callback.trainer.clips.names) == wanted


def test_the_run_says_what_it_did(paper_run):
    result = json.loads((paper_run / "result.json").read_text())
    assert (result["protocol"], result["picked_on"], result["split"]) == ("paper", "test", "test")
    assert result["partition"] == "people"
    assert load_recipe(paper_run / "recipe.yaml").data.validation is False
    assert load_recipe(paper_run / "recipe.yaml").run.protocol == "paper"


def test_evaluating_it(paper_run, gestures, tmp_path):
    """Also of its network alone, which has no recipe beside it."""
    result = read_result(paper_run)
    shutil.copytree(paper_run / "best", tmp_path / "net")
    for checkpoint, root in ((paper_run, None), (tmp_path / "net", gestures)):
        found = evaluate(checkpoint, root=root, device="cpu")
        assert (found.scores.top1, found.scores.n, found.selected_on_test) == (result.top1, result.n, True)
        trained = evaluate(checkpoint, root=root, split="train", device="cpu")
        assert (trained.scores.n, trained.selected_on_test) == (22, False)
        with raises(WeightsError, field="split", mentions="'val'"):
            evaluate(checkpoint, root=root, split="val", device="cpu")


def test_evaluating_a_run_by_validation(finished):
    assert not evaluate(finished, device="cpu").selected_on_test
    assert [evaluate(finished, split=split, device="cpu").scores.n for split in ("train", "val")] == [11, 11]


def test_its_report(paper_run):
    page = write_report(paper_run).read_text()
    assert BEST_TEST_EPOCH in page
    assert "test (selects)" in page
    assert '"validation"' not in page  # no curve is called so
    assert "training clips" in page


def test_a_stopped_run_goes_on_with_the_same_clips(tiny, go, watching, outcome, paper_run, tmp_path):
    steps = []
    with pytest.raises(TrainingStopped):
        go(tiny(*PAPER), tmp_path / "run", watching(lambda _: steps.append(1)), stop_requested=lambda: len(steps) == 3)
    go(tiny(*PAPER), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(paper_run)
    again = go(load_recipe(tmp_path / "run" / "recipe.yaml"), tmp_path / "run", resume=True)
    assert again == json.loads((paper_run / "result.json").read_text()) | {"seconds": again["seconds"]}


def test_a_run_that_an_earlier_version_began_goes_on_as_it_began(tiny, go, watching, tmp_path):
    """It held validation clips out. Its recipe says so, and it is resumed, finished and evaluated with it."""
    folder, steps = tmp_path / "run", []
    validating = tiny(*SHORT)
    with pytest.raises(TrainingStopped):
        go(validating, folder, watching(lambda _: steps.append(1)), stop_requested=lambda: len(steps) == 1)
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("protocol: validation", "protocol: paper"))
    assert load_recipe(folder / "recipe.yaml").data.validation is True
    result = go(tiny(*PAPER), folder, resume=True)
    assert (result["protocol"], result["clips"]) == ("paper", {"train": 11, "val": 11, "test": 11})
    assert evaluate(folder, split="val", device="cpu").scores.n == 11
    assert go(tiny(*PAPER), folder, resume=True) == result


def test_what_counts_as_the_same_recipe(tiny):
    paper, held_none = tiny("run.protocol=paper"), tiny("run.protocol=paper", "data.validation=false")
    assert changed_fields(paper, held_none) == []
    assert changed_fields(paper, paper) == []
    assert changed_fields(held_none, paper) == ["data.validation"]
    assert changed_fields(tiny(), held_none) == ["data.validation", "run.protocol"]
    assert changed_fields(tiny(), tiny("data.validation=false")) == ["data.validation"]


def test_another_protocol_in_the_same_folder(tiny, go, paper_run):
    with raises(ConfigError, field="data.validation"):
        go(tiny(*SHORT), paper_run, resume=True)


def test_seeds_reuse_the_run_and_name_the_protocol(tiny, paper_run, tmp_path):
    (run,) = plan_runs([0], None, tmp_path)
    shutil.copytree(paper_run, run.folder)
    result = finished_result(run, tiny(*PAPER))
    assert result == read_result(paper_run)
    for recipe, says in ((tiny(*PAPER), True), (tiny(*SHORT), False)):
        sheet = summary_sheet(summarize_seeds(recipe, [], None, [RunOutcome(run, result, reused=True)]))
        assert (BEST_TEST_EPOCH in sheet) == says


def test_a_result_of_before_has_no_numbers_of_clips(paper_run, tmp_path):
    document = json.loads((paper_run / "result.json").read_text())
    del document["clips"]
    (tmp_path / "result.json").write_text(json.dumps(document))
    assert read_result(tmp_path).clips == {}


def test_a_recipe_file_keeps_the_protocol(tiny, tmp_path):
    recipe = tiny(*PAPER)
    save_recipe(recipe, tmp_path / "mine.yaml")
    assert load_recipe(tmp_path / "mine.yaml") == recipe
