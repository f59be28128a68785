"""A dataset added by the recipe is listed, prepared, verified and loaded."""

import numpy as np

from ripe_mambaspike import Recording, list_datasets, load_dataset, prepare_dataset, verify_dataset, write
from ripe_mambaspike.data.sets import registry
from ripe_mambaspike.events import make_events


def test_a_dataset(follow, restored, tmp_path):
    registry.datasets()
    restored(registry._DATASETS)
    follow("Add a dataset", "postures")
    root = tmp_path / "root"
    for subject in (1, 2, 3):
        for label, name in enumerate(("sit", "stand")):
            (root / f"subject{subject}").mkdir(parents=True, exist_ok=True)
            times = np.arange(20) * 1000
            events = make_events(times // 1000 % 16, np.full(20, subject), times, np.full(20, label))
            write(Recording(events, (16, 16)), root / f"subject{subject}" / f"{name}.npz")
    assert "postures" in [one["name"] for one in list_datasets()]
    prepare_dataset("postures", root, workers=1)
    assert verify_dataset("postures", root)[1] == "unchanged"
    test = load_dataset("postures", root, "test")
    assert test.classes == ("sit", "stand")
    assert test.labels.tolist() == [0, 1]
    recording, label = test[1]
    assert (label, recording["y"].tolist()) == (1, [3] * 20)
