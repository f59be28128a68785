"""Evaluation of a network on a split: every clip counts once."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from raising import raises
from ripe_mambaspike.data.clips import EvalBatches
from ripe_mambaspike.data.training_data import open_data
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.models.accuracy import Evaluation, evaluate_batches
from ripe_mambaspike.models.base import Output
from ripe_mambaspike.models.pretrained import from_pretrained

CPU = torch.device("cpu")


class FixedLogits(nn.Module):
    """Gives the logits that are written into its clips, and as rates the share of clips and a constant."""

    def __init__(self, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.inner = nn.Dropout()
        self.classes, self.seen = classes, []

    def run(self, x):
        assert not self.training
        assert not torch.is_grad_enabled()
        self.seen.append(len(x))
        return Output(x[:, :, 0, 0, : self.classes], torch.tensor([float(len(x)), 0.5]))


def written(logits):
    """Clips of two steps whose mean over the steps is the given logits [B, classes]."""
    x = torch.zeros(len(logits), 2, 2, 8, 8)
    x[:, 0, 0, 0, : logits.shape[1]] = logits + 1.0
    x[:, 1, 0, 0, : logits.shape[1]] = logits - 1.0
    return x


def parts(logits, labels, sizes):
    x, y = written(logits), torch.tensor(labels)
    return zip(x.split(sizes), y.split(sizes), strict=True)


@pytest.mark.parametrize("sizes", [[7], [3, 4], [1, 0, 5, 1], [0, 7, 0]], ids=str)
def test_counted_by_hand(sizes):
    logits = torch.randn(7, 8)
    labels = [0, 1, 2, 3, 3, 7, 7]
    logits[torch.arange(7), torch.tensor([0, 2, 2, 3, 0, 7, 1])] += 20.0  # what it calls
    logits[1, 1] += 10.0  # the second likeliest is right
    logits[6, 7] = -30.0  # the last of all is right
    logits[4, 3] += 10.0
    model = FixedLogits(8).train()
    model.inner.eval()
    found = evaluate_batches(model, parts(logits, labels, sizes), 8)
    wanted = np.zeros((8, 8), np.int64)
    for true, called in zip(labels, [0, 2, 2, 3, 0, 7, 1], strict=True):
        wanted[true, called] += 1
    assert (found.confusion == wanted).all()
    assert found.confusion.dtype == np.int64
    assert sum(model.seen) == found.n == 7
    assert found.correct == 4
    assert found.top1 == 4 / 7
    assert found.top5 == 6 / 7
    shares = logits.double().softmax(-1)[torch.arange(7), torch.tensor(labels)]
    assert found.loss == pytest.approx(float(-shares.log().mean()), rel=1e-5)
    assert found.rates == pytest.approx([sum(size**2 for size in sizes) / 7, 0.5])  # every clip counts the same
    assert model.training
    assert not model.inner.training


@pytest.mark.parametrize(("classes", "top5"), [(3, None), (5, None), (6, 1.0)])
def test_top5_is_none_for_five_classes_or_fewer(classes, top5):
    logits = (torch.eye(classes) - 0.01 * torch.arange(classes))[[0, 1, 2]]
    found = evaluate_batches(FixedLogits(classes), parts(logits, [0, 1, 1], [3]), classes)
    assert (found.top1, found.top5) == (2 / 3, top5)


def test_the_document():
    found = Evaluation(np.array([[2, 1], [0, 0]], np.int64), 3, 0.25, [0.1])
    assert found.to_dict(("wave", "clap")) == {
        "top1": 2 / 3,
        "top5": None,
        "n": 3,
        "loss": 0.25,
        "per_class": [{"name": "wave", "n": 3, "correct": 2}, {"name": "clap", "n": 0, "correct": 0}],
        "confusion": [[2, 1], [0, 0]],
        "rates": [0.1],
    }


@pytest.mark.parametrize("sizes", [[], [0]], ids=["no batch", "an empty batch"])
def test_no_clips_are_refused(sizes):
    batches = [(torch.zeros(size, 2, 2, 8, 8), torch.zeros(size, dtype=torch.int64)) for size in sizes]
    with raises(DataError, field="split"):
        evaluate_batches(FixedLogits(3), batches, 3)


def test_the_part_of_a_set_is_counted_once(finished, tiny):
    data = open_data(tiny().data)
    model = from_pretrained(finished / "best")
    for size in (4, 32):
        found = evaluate_batches(model, EvalBatches(data.val, size, CPU), 11)
        assert found.n == 11
        assert found.confusion.sum(1).tolist() == np.bincount(data.val.labels, minlength=11).tolist()
        assert math.isfinite(found.loss)


def test_the_number_of_the_log(finished, tiny, read_log):
    """The reloaded network gives the validation score of its epoch again, whatever mode it is in."""
    data = open_data(tiny().data)
    best = max(read_log(finished), key=lambda row: (float(row["val_top1"]), -float(row["val_loss"])))
    model = from_pretrained(finished / "best").train()
    found = evaluate_batches(model, EvalBatches(data.val, 32, CPU), 11)
    assert f"{found.top1:.6g}" == best["val_top1"]
    assert f"{found.loss:.6g}" == best["val_loss"]
    assert model.training


def test_no_bfloat16_inside(finished, tiny):
    data = open_data(tiny().data)
    model = from_pretrained(finished / "best")
    plain = evaluate_batches(model, EvalBatches(data.val, 32, CPU), 11)
    with torch.autocast("cpu", torch.bfloat16):
        again = evaluate_batches(model, EvalBatches(data.val, 32, CPU), 11)
    assert again.loss == plain.loss
    assert (again.confusion == plain.confusion).all()
