"""Windows of a recording: which there are, and how they are binned."""

import numpy as np
import pytest
import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference import evaluate_windows
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.evaluate_windows import windows_of


def recording(times):
    return Recording(make_events(np.zeros(len(times)), np.zeros(len(times)), times, np.ones(len(times))), (8, 8))


@pytest.mark.parametrize(
    ("last", "starts"), [(998, []), (999, [7]), (1498, [7]), (1499, [7, 507]), (2499, [7, 507, 1007, 1507])]
)
def test_windows_end_by_the_last_event(last, starts):
    times = [7, 400, 7 + last]
    found = list(windows_of(recording(times), 1000, 500))
    assert [start for start, _ in found] == starts
    for start, window in found:
        assert window["t"].tolist() == [time for time in times if start <= time < start + 1000]


def test_bins_divide_the_whole_window_whenever_its_events_are(monkeypatch):
    """All events in its last quarter: they are in the last of four bins, and the silent window is left out."""
    seen = []
    monkeypatch.setattr(
        evaluate_windows, "record_logits", lambda model, batches: seen.extend(batches) or torch.zeros(len(seen[0]), 2)
    )

    class Clips:
        def __len__(self):
            return 2

        def __getitem__(self, number):
            return (recording([0, 800, 850, 999, 6000]), 0) if number == 0 else (recording([0, 500]), 1)

    model = torch.nn.Linear(1, 1)
    found = evaluate_windows.evaluate_windows(Classifier(model, ("a", "b"), 4, (8, 8), "time", False), Clips(), 1000)
    starts = range(0, 5001, 500)
    events = [sum(start <= time < start + 1000 for time in (0, 800, 850, 999, 6000)) for start in starts]
    assert (found.n, found.silent, found.too_short) == (sum(map(bool, events)), events.count(0), 1)
    assert seen[0].sum((2, 3, 4)).tolist() == [[1, 0, 0, 3], [0, 3, 0, 0]]
    assert found.top1 == 1.0


def test_no_window_has_no_accuracy():
    model = create_model("event-mlp", num_classes=2, time_steps=4, in_size=8)
    found = evaluate_windows.evaluate_windows(Classifier(model, ("a", "b"), 4, (8, 8), "time", False), [], 1000)
    assert (found.n, found.top1) == (0, None)
