"""`benchmarks/real_gestures.py`: every clip and window is answered by every network."""

import pytest
from benchmarks import real_gestures as script
from benchmarks.left_out_gestures import SENSOR

from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.simulate.gestures.camera import load_gesture_camera
from ripe_mambaspike.events.simulate.gestures.fit import TwinScenes
from ripe_mambaspike.events.writing import write


def test_a_table_for_each_network(tmp_path, monkeypatch, capsys):
    camera = load_gesture_camera()
    for number, name in ((1, "clap"), (2, "wave")):
        (events,) = TwinScenes(number - 1, 700_000, SENSOR, 1, "test").events(camera.pixel, camera.readout)
        write(Recording(events, SENSOR), tmp_path / f"{number:02d}_{name}.bin")
    monkeypatch.setattr("sys.argv", ["script", "gestures-simulated", "--real", str(tmp_path)])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines if line] == [
        "| clip", "| ---", "| 01_clap", "| 02_wave", "| **gestures-simulated**",
    ]  # fmt: skip
    right = sum("✗" not in line for line in lines[2:4])
    assert f"**{right} of 2 right**" in lines[4]
    assert " of 2**" in lines[4]  # a window of half a second in each clip


@pytest.mark.parametrize("words", [["nowhere", "--real", "."], ["gestures-simulated", "--real", "nowhere"]])
def test_what_is_not_there_is_refused_in_a_sentence(monkeypatch, capsys, words):
    monkeypatch.setattr("sys.argv", ["script", *words])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 2
    assert "nowhere" in capsys.readouterr().err
