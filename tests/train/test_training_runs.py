"""Whole runs: which network is selected, when the test split is read, which clips count, and what is refused."""

import hashlib
import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from raising import raises
from ripe_mambaspike.data.clips import Clips
from ripe_mambaspike.data.training_data import TrainingData, open_data
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.models.accuracy import Evaluation
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.train import trainer as loop
from ripe_mambaspike.train import training_run as run
from ripe_mambaspike.train.callback import TrainingStopped
from ripe_mambaspike.train.checkpoint import last_checkpoint
from ripe_mambaspike.train.recipes import load_recipe, with_settings

ONE_STEP = ("schedule.batch_size=11", "loss.passes=1")  # an epoch
PLAIN = (
    "augmentation.nda_operations=0",
    "augmentation.horizontal_flip=0",
    "augmentation.time_reversal=0",
    "augmentation.label_smoothing=0",
)


def digests(folder):
    """Every file of a folder, with the time it was written."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in files
    }


def scored(right, loss):
    """An evaluation of 10 clips."""
    return Evaluation(np.array([[right, 10 - right], [0, 0]], np.int64), 10, loss, [0.1] * 6)


@pytest.fixture
def scores(monkeypatch):
    """(clips right, loss) of each evaluation to come; the last one is that of the test part."""

    def script(*pairs):
        left = [scored(*pair) for pair in pairs]
        monkeypatch.setattr(run.TrainingRun, "_evaluate", lambda self, model, part: left.pop(0))
        monkeypatch.setattr(
            Evaluation, "to_dict", lambda self, names: {"per_class": [], "top1": self.top1, "n": self.n}
        )
        return left

    return script


def test_validation_selects(tiny, go, scores, watching, tmp_path):
    """A loss that is no number, a lower loss, more right, the same again, and fewer right."""
    left = scores((3, math.nan), (3, 1.0), (3, 0.9), (5, 1.0), (5, 1.0), (4, 0.1), (7, 0.5))
    weights = []
    callback = watching(on_epoch=lambda trainer: weights.append(trainer.model.head.weight.detach().clone()))
    result = go(tiny("schedule.epochs=6", *ONE_STEP), tmp_path / "run", callback)
    assert left == []
    assert [best.epoch for best in callback.bests] == [1, 2, 3, 4, 4, 4]
    assert (result["epoch"], result["picked_on"], result["top1"]) == (4, "val", 0.7)
    assert json.loads((tmp_path / "run" / "best" / "labels.json").read_text())["epoch"] == 4
    saved = from_pretrained(tmp_path / "run" / "best").head.weight
    assert [torch.equal(saved, one) for one in weights] == [epoch == 4 for epoch in range(1, 7)]


def test_validated_every_other_epoch_and_after_the_last(tiny, go, scores, read_log, tmp_path):
    left = scores((3, 1.0), (2, 1.0), (9, 0.5))
    result = go(tiny("schedule.epochs=3", "run.validate_every=2", *ONE_STEP), tmp_path / "run")
    assert left == []
    assert result["epoch"] == 2
    assert [row["val_top1"] for row in read_log(tmp_path / "run")] == ["", "0.3", "0.2"]
    assert [row["val_loss"] for row in read_log(tmp_path / "run")] == ["", "1", "1"]


@pytest.fixture
def opened(monkeypatch):
    """(part, epochs over) whenever a part's clips are opened or evaluated."""
    seen, epochs = [], []
    real_events, real_evaluate = TrainingData.events, run.TrainingRun._evaluate

    def events(self, part):
        seen.append((part, len(epochs)))
        return real_events(self, part)

    def evaluated(self, model, part):
        seen.append((part, len(epochs)))
        return real_evaluate(self, model, part)

    monkeypatch.setattr(TrainingData, "events", events)
    monkeypatch.setattr(run.TrainingRun, "_evaluate", evaluated)
    return seen, epochs


def parts_seen(seen, names):
    return [(what if isinstance(what, str) else names[tuple(what.names)], epochs) for what, epochs in seen]


@pytest.mark.parametrize("protocol", ["validation", "paper"])
def test_when_the_test_part_is_read(tiny, go, opened, watching, tmp_path, protocol):
    recipe = tiny(f"run.protocol={protocol}", *ONE_STEP)
    seen, epochs = opened
    data = open_data(recipe.data)
    names = {tuple(data.val.names): "picking on val", tuple(data.test.names): "reading test"}
    seen.clear()
    result = go(recipe, tmp_path / "run", watching(on_epoch=lambda _: epochs.append(1)))
    order = parts_seen(seen, names)
    if protocol == "validation":
        assert order == [
            ("train", 0),
            ("val", 0),
            ("picking on val", 0),
            ("picking on val", 1),
            ("test", 2),
            ("reading test", 2),
        ]
        assert result["picked_on"] == "val"
    else:
        assert order == [("train", 0), ("test", 0), ("reading test", 0), ("reading test", 1), ("reading test", 2)]
        assert result["picked_on"] == "test"
    assert result["protocol"] == protocol
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert json.loads((tmp_path / "run" / "best" / "labels.json").read_text())["protocol"] == protocol


def test_without_a_validation_part_the_last_epoch_is_taken(tiny, go, read_log, tmp_path, monkeypatch):
    saved, save = [], run.TrainingRun._save_network
    monkeypatch.setattr(
        run.TrainingRun, "_save_network", lambda self, *given: saved.append(given) or save(self, *given)
    )
    result = go(tiny(*ONE_STEP, "data.validation=false"), tmp_path / "run")
    assert saved == [("last", 1), ("best", 2), ("last", 2)]  # nothing is picked before
    assert (result["picked_on"], result["epoch"]) == ("last epoch", 2)
    assert [row["val_top1"] for row in read_log(tmp_path / "run")] == ["", ""]


def test_the_result(finished, tiny):
    result = json.loads((finished / "result.json").read_text())
    assert {
        "format": "ripe-result",
        "version": 1,
        "name": "tiny",
        "protocol": "validation",
        "picked_on": "val",
    }.items() <= (result.items())
    assert {"set": "synthgesture", "partition": "people", "split": "test", "n": 11, "seed": 0}.items() <= result.items()
    assert {"top1", "top5", "loss", "per_class", "confusion", "rates", "seconds", "epoch"} <= result.keys()
    confusion = np.array(result["confusion"])
    assert confusion.sum() == 11
    assert confusion.sum(1).tolist() == [row["n"] for row in result["per_class"]] == [1] * 11
    assert np.trace(confusion) == sum(row["correct"] for row in result["per_class"])
    assert result["top1"] == np.trace(confusion) / 11
    assert [row["name"] for row in result["per_class"]] == list(open_data(tiny().data).classes)
    model = from_pretrained(finished / "best")
    assert result["parameters"]["training"] == sum(p.numel() for p in model.parameters())
    assert result["parameters"]["deployed"] < result["parameters"]["training"]
    assert len(result["rates"]) == 6


def test_the_folder(finished):
    assert sorted(path.name for path in finished.iterdir() if not path.name.startswith("events.out")) == [
        "best",
        "checkpoints",
        "last",
        "log.csv",
        "recipe.yaml",
        "result.json",
    ]
    assert sorted(path.name for path in (finished / "best").iterdir()) == [
        "config.json",
        "labels.json",
        "model.safetensors",
    ]
    assert sorted(path.name for path in (finished / "checkpoints").iterdir()) == [
        "step-000000003-000000001.safetensors",
        "step-000000006-000000002.safetensors",
    ]


@pytest.mark.parametrize(
    ("section", "field", "value"), [("schedule", "epochs", 0), ("data", "grid", (7, 7)), ("run", "device", "tpu")]
)
def test_a_recipe_made_in_python_is_checked_before_anything_is_written(tiny, go, tmp_path, section, field, value):
    recipe = tiny()
    wrong = replace(recipe, **{section: replace(getattr(recipe, section), **{field: value})})
    with raises(ConfigError, field=f"{section}.{field}", mentions=(value,)):
        go(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# What a folder that holds a run is used for again.


@pytest.mark.slow
def test_the_saved_recipe_gives_the_same_run_again(finished, go, outcome, tmp_path):
    go(load_recipe(finished / "recipe.yaml"), tmp_path / "again")
    assert outcome(tmp_path / "again") == outcome(finished)


def test_a_second_run_in_the_folder_is_refused(finished, tiny, go):
    before = digests(finished)
    with raises(DataError, path=finished, mentions=(str(finished), "--resume auto")):
        go(tiny(), finished)
    assert digests(finished) == before


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        (["optimizer.learning_rate=2e-3"], ["optimizer.learning_rate"]),
        (["schedule.epochs=3"], ["schedule.epochs"]),
        (["run.seed=1", "run.ema_decay=0.9"], ["run.seed", "run.ema_decay"]),
        (["model.fields={stage_channels: [4, 8, 16], embed_dims: [4, 8, 8]}"], ["model.fields.stage_channels"]),
    ],
)
def test_another_recipe_is_refused(finished, tiny, go, settings, fields):
    before = digests(finished)
    with raises(ConfigError, field=fields[0], path=finished / "recipe.yaml") as caught:
        go(tiny(*settings), finished, resume=True)
    assert [field for field in fields if f"{field}: expected " not in str(caught.value)] == []
    assert digests(finished) == before


def test_a_finished_run_returns_its_result_unchanged(finished, tiny, go, watching):
    """Also with another time between checkpoints and another place of the clips, which change nothing."""
    before, callback = digests(finished), watching()
    result = go(tiny("run.checkpoint_minutes=3", "data.cache=off"), finished, callback, resume=True)
    assert result == json.loads((finished / "result.json").read_text())
    assert callback.lines == [f"{finished}: the run has already finished; this is its result"]
    assert callback.trainer is None
    assert digests(finished) == before


def test_resumed_by_the_saved_recipe_with_other_checkpoint_minutes(finished, tiny, go, outcome, tmp_path):
    with pytest.raises(TrainingStopped):
        go(tiny(), tmp_path / "run", stop_requested=lambda: True)
    recipe = with_settings(
        load_recipe(tmp_path / "run" / "recipe.yaml"), ["run.checkpoint_minutes=0", "data.cache=off"]
    )
    go(recipe, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_lost_result_is_written_again(finished, tiny, go, outcome, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    go(tiny(), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(finished)


# What steps are taken on.


@pytest.fixture
def steps(monkeypatch):
    """The batches of every step that a run takes."""
    taken, real = [], loop.accumulated_step

    def spy(model, optimizer, batches, settings):
        taken.append([(x.clone(), y.clone()) for x, y in batches])
        return real(model, optimizer, batches, settings)

    monkeypatch.setattr(loop, "accumulated_step", spy)
    return taken


@pytest.mark.parametrize(
    ("accumulate", "sizes"),
    [(1, [[4], [4], [3]]), (2, [[4, 4], [3]]), pytest.param(5, [[4, 4, 3]], marks=pytest.mark.slow)],
)
def test_every_clip_counts_once_an_epoch(tiny, go, steps, tmp_path, accumulate, sizes):
    recipe = tiny(f"schedule.grad_accum_steps={accumulate}", "loss.passes=1", *PLAIN)
    go(recipe, tmp_path / "run")
    assert [[len(x) for x, _ in step] for step in steps] == sizes * 2
    train = open_data(recipe.data).train
    wanted = sorted(hashlib.sha256(train.clip(n)[0].numpy().tobytes()).hexdigest() for n in range(11))
    assert len(set(wanted)) == 11
    orders = []
    for epoch in range(2):
        batches = [batch for step in steps[epoch * len(sizes) : (epoch + 1) * len(sizes)] for batch in step]
        order = [hashlib.sha256(x.numpy().tobytes()).hexdigest() for batch, _ in batches for x in batch]
        orders.append(order)
        assert sorted(order) == wanted
        assert sorted(y.argmax(-1).item() for _, targets in batches for y in targets) == list(range(11))
    assert orders[0] != orders[1]
    last = last_checkpoint(tmp_path / "run" / "checkpoints")
    taken = {int(value) for name, value in last.tensors.items() if name.endswith(".step")}
    assert taken == {2 * len(sizes)} == {last.document.state.global_step}


def test_mirrored_clips_get_the_mirrored_label(tiny, go, steps, tmp_path):
    recipe = tiny(*PLAIN, "loss.passes=1", "schedule.epochs=1", "augmentation.horizontal_flip=1")
    go(recipe, tmp_path / "run")
    train = open_data(recipe.data).train
    mirrored = {train.clip(n)[0].flip(-1).numpy().tobytes(): int(train.labels[n]) for n in range(11)}
    seen = [
        (mirrored[x.numpy().tobytes()], y.argmax(-1).item())
        for step in steps
        for xs, ys in step
        for x, y in zip(xs, ys, strict=True)
    ]
    assert sorted(seen) == list(enumerate([0, 2, 1, 6, 5, 4, 3, 7, 8, 9, 10]))


def test_a_class_without_an_opposite_is_named_before_anything_is_learned(tiny, go, tmp_path, monkeypatch):
    monkeypatch.setattr(
        Clips, "classes", property(lambda self: ("left", "up"), lambda self, value: None), raising=False
    )
    with raises(ConfigError, field="augmentation.mirror_pairs"):
        go(tiny("augmentation.mirror_pairs=[up]"), tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


@pytest.fixture
def last_tensors(tiny, go, tmp_path):
    """Settings → what the last checkpoint of a run holds."""

    def run(*settings):
        folder = tmp_path / settings[0]
        go(tiny("schedule.batch_size=6", "loss.passes=1", *settings), folder)
        return last_checkpoint(folder / "checkpoints").tensors

    return run


def test_validation_leaves_training_as_it_is(last_tensors):
    """The same weights, moments and statistics with a validation after every epoch, and with one at the end."""
    one, other = (last_tensors(f"run.validate_every={every}") for every in (1, 2))
    assert one.keys() == other.keys()
    assert sum(name.startswith("optimizer.") for name in one) > 100
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.slow
def test_recalibration_changes_statistics_alone(last_tensors):
    one, other = (last_tensors(f"run.recalibrate_batches={count}", "schedule.epochs=3") for count in (1, 2))
    differing = [name for name in one if not torch.equal(one[name], other[name])]
    assert differing
    assert all("running" in name for name in differing)


def test_best_has_the_weights_of_its_epochs_checkpoint(finished):
    """The last epoch's weights are in its checkpoint too; the picked network is one of the two."""
    epoch = json.loads((finished / "result.json").read_text())["epoch"]
    state = load_file(sorted((finished / "checkpoints").iterdir())[epoch - 1])
    best = load_file(finished / "best" / "model.safetensors")
    assert best.keys() == {name.removeprefix("model.") for name in state if name.startswith("model.")}
    assert [name for name, value in best.items() if not torch.equal(value, state[f"model.{name}"])] == []
