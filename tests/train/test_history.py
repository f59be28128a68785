"""log.csv: its columns, what an epoch's means are means of, and the schedule in it."""

import csv

import pytest
import torch

from ripe_mambaspike.train import history
from ripe_mambaspike.train import trainer as loop
from ripe_mambaspike.train.history import COLUMNS, tdm_columns, write_log
from ripe_mambaspike.train.objective import relaxed_weight
from ripe_mambaspike.train.schedule import learning_rate, sharpness

WANTED = [
    "epoch", "lr", "sharpness", "relaxed_share", "loss", "hard", "relaxed", "consistency", "rate", "grad_norm",
    "rate_1", "rate_2", "rate_3", "rate_4", "rate_5", "rate_6", "tdm_1", "tdm_2", "tdm_3", "tdm_4", "tdm_5", "tdm_6",
    "train_top1", "val_loss", "val_top1", "seconds", "samples_per_second", "memory_mib",
]  # fmt: skip


def shown(value):
    return f"{value:.6g}"


def test_the_columns(finished):
    assert list(COLUMNS) == WANTED
    lines = (finished / "log.csv").read_bytes().decode().split("\n")
    assert lines[0] == ",".join(WANTED)
    assert len(lines) == 4
    assert lines[-1] == ""


def test_cells(tmp_path):
    rows = [{"epoch": 1, "lr": 1 / 3, "val_top1": None, "loss": 2.0, "seconds": 1e-7}, {"epoch": 2, "rate": 0}]
    write_log(tmp_path / "log.csv", rows)
    with (tmp_path / "log.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    full = {name: cell for name, cell in first.items() if cell}
    assert full == {"epoch": "1", "lr": "0.333333", "loss": "2", "seconds": "1e-07"}
    assert {name: cell for name, cell in second.items() if cell} == {"epoch": "2", "rate": "0"}


def test_a_number_that_is_not_finite_is_written(tmp_path):
    write_log(tmp_path / "log.csv", [{"epoch": 1, "grad_norm": float("inf"), "val_loss": float("nan")}])
    with (tmp_path / "log.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["grad_norm"], row["val_loss"]) == ("inf", "nan")


@pytest.mark.parametrize(
    "settings",
    [
        ("schedule.warmup_epochs=1", "schedule.sharpness_start=1", "schedule.sharpness_end=9"),
        ("schedule.warmup_steps=3", "schedule.batch_size=6"),
    ],
    ids=["warm-up in epochs", "warm-up in steps"],
)
def test_the_schedule_is_in_the_log(tiny, go, read_log, watching, tmp_path, settings):
    recipe = tiny("schedule.batch_size=11", "schedule.epochs=3", "run.validate_every=3", *settings)
    a_pass = 2 if "schedule.batch_size=6" in settings else 1
    rates = []
    callback = watching(on_step=lambda trainer: rates.extend({g["lr"] for g in trainer.optimizer.param_groups}))
    go(recipe, tmp_path / "run", callback)
    rows, epochs = read_log(tmp_path / "run"), recipe.schedule.epochs
    assert [row["epoch"] for row in rows] == [str(number + 1) for number in range(epochs)]
    assert [row["lr"] for row in rows] == [shown(learning_rate(recipe, epoch, a_pass)) for epoch in range(epochs)]
    assert [row["sharpness"] for row in rows] == [shown(sharpness(recipe, epoch)) for epoch in range(epochs)]
    assert [row["relaxed_share"] for row in rows] == [shown(relaxed_weight(epoch, epochs)) for epoch in range(epochs)]
    assert rates == [learning_rate(recipe, step // a_pass, a_pass, step + 1) for step in range(a_pass * epochs)]


def test_filters_follow_the_schedule_at_their_own_rate(tiny, go, watching, tmp_path):
    recipe = tiny("schedule.batch_size=11", "schedule.epochs=2", "optimizer.tdm_lr_scale=4")
    rates = []
    callback = watching(on_step=lambda trainer: rates.append([g["lr"] for g in trainer.optimizer.param_groups]))
    go(recipe, tmp_path / "run", callback)
    wanted = [learning_rate(recipe, step, 1, step + 1) for step in range(2)]
    assert rates == [[rate, 4 * rate, rate] for rate in wanted]


def test_the_means_are_by_clips(tiny, go, read_log, monkeypatch, tmp_path):
    """Every number of an epoch is the mean over its clips, of which the last step has fewer."""
    found, settings_seen, real = [], [], loop.accumulated_step

    def spy(model, optimizer, batches, settings):
        parts = real(model, optimizer, batches, settings)
        found.append((sum(len(x) for x, _ in batches), parts))
        settings_seen.append(settings)
        return parts

    monkeypatch.setattr(loop, "accumulated_step", spy)
    go(tiny("schedule.grad_accum_steps=2"), tmp_path / "run")
    rows = read_log(tmp_path / "run")
    assert [clips for clips, _ in found] == [8, 3, 8, 3]
    for epoch, row in enumerate(rows):
        steps = found[2 * epoch : 2 * epoch + 2]
        for column in ("loss", "hard", "relaxed", "consistency", "rate"):
            mean = sum(clips * float(getattr(parts, column)) for clips, parts in steps) / 11
            assert float(row[column]) == pytest.approx(mean, rel=1e-5), column
        for column, name in (("train_top1", "right"), ("grad_norm", "norm")):
            mean = sum(clips * float(getattr(parts, name)) for clips, parts in steps) / 11
            assert float(row[column]) == pytest.approx(mean, rel=1e-5), column
        for layer in range(6):
            mean = sum(clips * float(parts.rates[layer]) for clips, parts in steps) / 11
            assert float(row[f"rate_{layer + 1}"]) == pytest.approx(mean, rel=1e-5)
        assert settings_seen[2 * epoch].weights.label_smoothing == 0  # it is in the targets
    assert 0 < float(rows[0]["seconds"]) < float(rows[1]["seconds"])
    assert all(float(row["samples_per_second"]) > 0 and float(row["memory_mib"]) > 1 for row in rows)


def test_one_pass_leaves_the_relaxed_columns_empty(tiny, go, read_log, tmp_path):
    go(tiny("loss.passes=1", "schedule.epochs=1", "schedule.batch_size=11"), tmp_path / "run")
    (row,) = read_log(tmp_path / "run")
    assert (row["relaxed"], row["consistency"], row["relaxed_share"]) == ("", "", "0")
    assert float(row["loss"]) == pytest.approx(float(row["hard"]) + 1e-4 * float(row["rate"]), rel=1e-4)


def test_the_filters_in_order(make_network):
    model = make_network()
    with torch.no_grad():
        for number, stage in enumerate(model.stages):
            stage.first_conv.coefficient.fill_(-(2.0 * number + 1))
            stage.second_conv.coefficient.fill_(2.0 * number + 2)
    assert tdm_columns(model) == {f"tdm_{layer}": float(layer) for layer in range(1, 7)}
    assert tdm_columns(make_network(tdm=False)) == {f"tdm_{layer}": None for layer in range(1, 7)}


def test_a_board_that_cannot_be_written_ends_nothing(tmp_path, monkeypatch, caplog):
    """TensorBoard is beside the run: a full disk is logged once, and its thread prints no traceback."""
    import threading
    import types

    class Writer:
        def __init__(self, *_, **__):
            self.calls = 0

        def add_scalar(self, *_):
            self.calls += 1
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(history.importlib, "import_module", lambda name: types.SimpleNamespace(SummaryWriter=Writer))
    before = threading.excepthook
    board = history.TensorBoardLog(tmp_path, 1)
    for _ in range(2):
        board.write({"epoch": 1, "loss": 0.5})
    board.close()
    assert threading.excepthook is before
    assert len(caplog.records) == 1
