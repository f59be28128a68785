"""Runs of one process share the clips that were binned, and only those that are equal."""

from dataclasses import replace

import pytest
import torch

from ripe_mambaspike.data import clip_cache, kept_clips
from ripe_mambaspike.data.clips import EvalBatches
from ripe_mambaspike.data.kept_clips import share_binned_clips, shared_clips
from ripe_mambaspike.data.settings import DataSettings
from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.data.training_data import open_data

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> DataSettings:
    root = tmp_path_factory.mktemp("gestures")
    simulate_dataset("synthgesture", root, train=11, val=11, test=11, size=16, workers=1)
    return DataSettings(dataset="synthgesture", root=str(root), time_steps=3, grid=(16, 16))


@pytest.fixture
def binned(monkeypatch) -> list[int]:
    """How many clips were binned in each call."""
    calls: list[int] = []
    bin_all = clip_cache.bin_all

    def counted(clips, *rest):
        calls.append(len(clips))
        return bin_all(clips, *rest)

    monkeypatch.setattr(clip_cache, "bin_all", counted)
    return calls


@pytest.fixture
def shared():
    share_binned_clips()
    yield
    share_binned_clips(False)


def clips_of(settings: DataSettings, split: str = "train") -> torch.Tensor:
    return torch.cat([x for x, _ in EvalBatches(getattr(open_data(settings), split), 4, CPU)])


def test_nothing_is_shared_unless_asked_for(settings, binned):
    assert torch.equal(clips_of(settings), clips_of(settings))
    assert binned == [11, 11]


def test_the_next_run_has_the_same_clips_without_binning(settings, binned, shared):
    first = clips_of(settings)
    assert torch.equal(clips_of(settings), first)
    assert torch.equal(clips_of(replace(settings, num_workers=0, validation=True)), first)
    assert binned == [11]


@pytest.mark.parametrize(
    "change", [{"time_steps": 4}, {"grid": (8, 8)}, {"binary": True}, {"by": "count"}, {"validation": False}]
)
def test_what_changes_the_clips_is_binned_anew(settings, change, binned, shared):
    other = replace(settings, **change)
    alone = []
    for one in (settings, other):
        share_binned_clips(False)
        alone.append(clips_of(one))
    share_binned_clips()
    assert torch.equal(clips_of(settings), alone[0])
    assert torch.equal(clips_of(other), alone[1])
    assert len(binned) == 4


def test_splits_are_kept_apart(settings, binned, shared):
    parts = [clips_of(settings, split) for split in ("train", "val", "test")]
    assert not torch.equal(parts[0], parts[1])
    assert not torch.equal(parts[1], parts[2])
    assert len(binned) == 3


def test_the_longest_unused_go_first(monkeypatch, shared):
    monkeypatch.setattr(kept_clips, "MOST_SHARED", 2)
    made: list[str] = []

    def get(key: str) -> None:
        shared_clips(key, lambda: made.append(key) or torch.zeros(1))

    for key in ("a", "b", "a", "c", "a", "b"):
        get(key)
    assert made == ["a", "b", "c", "b"]


def test_what_did_not_fit_is_tried_again(shared):
    assert shared_clips("a", lambda: None) is None
    assert shared_clips("a", lambda: torch.ones(1)) is not None
