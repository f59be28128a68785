"""A source added by the recipe is opened by its address, recorded, and its losses are counted."""

import json

from ripe_mambaspike import read
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.inference.stream.source_registry import SOURCES


def test_a_source(follow, restored, tmp_path, capsys):
    restored(SOURCES)
    follow("Add a camera or another source", "noise")
    out = tmp_path / "clip.raw"
    assert main(["record", "--source", "noise://5", "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    recording = read(out)
    assert recording.sensor_size == (64, 48)
    assert document["events"] == len(recording)
    assert document["events"] + document["losses"]["events of the dead column"] == 500
