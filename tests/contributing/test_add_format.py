"""A file format added by the recipe is written, recognized, read whole and in pieces, and converted."""

import numpy as np

from ripe_mambaspike import Recording, read, read_chunks, write
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.events import make_events
from ripe_mambaspike.events.registry import ENCODERS, FORMATS


def test_a_format(follow, restored, tmp_path, capsys):
    restored(FORMATS, ENCODERS)
    follow("Add a file format", "toy")
    events = make_events(np.arange(30) % 16, np.arange(30) % 12, np.arange(30) * 100, np.arange(30) % 2)
    path = write(Recording(events, (16, 12)), tmp_path / "clip.toy")
    recording = read(path, sensor_size=(16, 12))
    assert recording.format == "toy"
    np.testing.assert_array_equal(recording.events, events)
    pieces = list(read_chunks(path, events=7))
    np.testing.assert_array_equal(np.concatenate([piece.events for piece in pieces]), events)
    assert main(["data", "convert", str(path), str(tmp_path / "clip.csv"), "--sensor-size", "16", "12"]) == 0
    np.testing.assert_array_equal(read(tmp_path / "clip.csv").events, events)
    assert "30 events" in capsys.readouterr().out
