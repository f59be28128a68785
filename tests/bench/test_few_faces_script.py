"""`benchmarks/few_faces.py`: every recording of a person is trained on or tested, and draws differ."""

import json

import pytest
from benchmarks import few_faces as script
from tests.data.shown import save_tree


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    numbers = range(1, 7)
    tree = save_tree(tmp_path / "pictures", [f"Faces_easy/image_{number:04d}.png" for number in numbers], (24, 24))
    save_tree(tree, ["ant/image_0001.png"])
    monkeypatch.setattr(script, "PEOPLE", {"tried": ((1, 3), (4, 6)), "reported": ((2, 3), (5, 6))})

    def call(*words):
        where = ["--pictures", str(tree), "--out", str(tmp_path / "out"), "--counts", "1"]
        tiny = ["--set", "schedule.epochs=1", "data.grid=16", "run.device=cpu", "run.threads=1"]
        monkeypatch.setattr("sys.argv", ["script", *where, *tiny, *words])
        script.main()
        return capsys.readouterr().out

    return call


@pytest.mark.slow
def test_every_draw_is_measured_once(run, tmp_path):
    shown = run("--draws", "2")
    assert "tried-1-0: " in shown
    assert "1 of each person: " in shown
    (values,) = json.loads((tmp_path / "out" / "tried.json").read_text()).values()
    assert len(values) == 2
    splits = []
    for draw in range(2):
        data = tmp_path / "out" / "data" / f"tried-1-{draw}"
        trained, tested = (
            {path.relative_to(data / part) for path in (data / part).rglob("*.bin")} for part in ("train", "test")
        )
        assert (len(trained), len(tested), trained & tested) == (2, 4, set())
        splits.append(trained)
    assert splits[0] != splits[1]
    begun = (tmp_path / "out" / "runs" / "tried-1-0" / "result.json").stat().st_mtime_ns
    run("--draws", "1")
    assert (tmp_path / "out" / "runs" / "tried-1-0" / "result.json").stat().st_mtime_ns == begun


def test_other_pictures_are_refused(run, tmp_path, capsys):
    other = save_tree(tmp_path / "other", ["ant/image_0001.png"])
    with pytest.raises(SystemExit) as ended:
        run("--pictures", str(other))
    assert ended.value.code == 2
    assert "pictures: expected Caltech101 with the class Faces_easy" in capsys.readouterr().err
